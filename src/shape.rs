//! Sizes of a problem, and which statistics of its rows are wanted.

use crate::error::{Error, Result};

/// Lengths above this are refused, so that `i + causal_offset` never leaves `i32` in a shader.
pub const MAX_SEQ: u32 = 1 << 30;

/// The seven numbers of an attention problem.
///
/// `q` is (batch, q_heads, seq_q, head_dim_qk), `k` is (batch, kv_heads, seq_k, head_dim_qk), `v` is
/// (batch, kv_heads, seq_k, head_dim_v) and `out` is (batch, q_heads, seq_q, head_dim_v), in whatever
/// memory order their [`Layout`](crate::Layout)s say. Query head `h` reads key/value head `h / (q_heads / kv_heads)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Independent sequences, padded to one length or packed ([`Problem::packed`](crate::Problem::packed)). May be 0.
    pub batch: u32,
    /// Query heads. May be 0.
    pub q_heads: u32,
    /// Key/value heads: `q_heads` for multi-head, fewer for grouped-query, 1 for multi-query attention.
    pub kv_heads: u32,
    /// Query rows. May be 0.
    pub seq_q: u32,
    /// Keys. May be 0: then every row is empty.
    pub seq_k: u32,
    /// Numbers in a row of q and k; at least 1, no upper bound and no multiple-of-4 rule.
    pub head_dim_qk: u32,
    /// Numbers in a row of v and out; at least 1.
    pub head_dim_v: u32,
}

impl Shape {
    /// Plain multi-head self-attention: as many key/value heads as query heads, as many keys as
    /// queries, one head dim.
    pub fn self_attention(batch: u32, heads: u32, seq: u32, head_dim: u32) -> Self {
        Shape {
            batch,
            q_heads: heads,
            kv_heads: heads,
            seq_q: seq,
            seq_k: seq,
            head_dim_qk: head_dim,
            head_dim_v: head_dim,
        }
    }

    /// Query heads that share one key/value head (1 where there are no heads at all).
    pub fn group(&self) -> u32 {
        self.q_heads.checked_div(self.kv_heads).unwrap_or(1).max(1)
    }

    /// Rows of the answer: batch x q_heads x seq_q.
    pub fn rows(&self) -> u64 {
        // Saturating: only the product of three 32-bit numbers above 2^64 is cut, and check() refuses those.
        u64::from(self.batch).saturating_mul(self.q_heads.into()).saturating_mul(self.seq_q.into())
    }

    /// True where the answer has no element, so that nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.batch == 0 || self.q_heads == 0 || self.seq_q == 0
    }

    pub(crate) fn check(&self) -> Result<()> {
        let at_least_1: [(&'static str, u32); 2] =
            [("head_dim_qk", self.head_dim_qk), ("head_dim_v", self.head_dim_v)];
        for (field, value) in at_least_1 {
            if value == 0 || value > MAX_SEQ {
                return Err(Error::value(field, value, "from 1 to 2^30"));
            }
        }
        for (field, value) in [("seq_q", self.seq_q), ("seq_k", self.seq_k)] {
            if value > MAX_SEQ {
                return Err(Error::value(field, value, "at most 2^30"));
            }
        }
        let multiple = match self.kv_heads {
            0 => self.q_heads == 0,
            kv => self.q_heads.is_multiple_of(kv),
        };
        if !multiple || (self.q_heads == 0 && self.kv_heads != 0) {
            return Err(Error::HeadsNotMultiple { q_heads: self.q_heads, kv_heads: self.kv_heads });
        }
        let rows = u128::from(self.batch) * u128::from(self.q_heads) * u128::from(self.seq_q);
        if rows > 1 << 62 {
            return Err(Error::value("batch x q_heads x seq_q", rows, "at most 2^62"));
        }
        Ok(())
    }
}

/// Which statistics of each row are wanted beside `out`. All come from the same pass.
///
/// Each is f32, (batch, q_heads, seq_q), or (q_heads, total_q) of [packed](crate::Problem::packed) sequences. They share one buffer, in the order lse, entropy, row_max, those
/// not asked for left out (see [`Plan::stats_range`](crate::Plan::stats_range)): one binding instead of three keeps every
/// combination of options within WebGPU's default of eight storage buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stats {
    /// Natural logarithm of the sum of exp(score), the sink's included: `-inf` for a row that sees no key, and the
    /// sink's logit where there is one.
    pub lse: bool,
    /// `-sum p ln p` over the keys (not the sink), in nats: 0 for a row that sees no key.
    pub entropy: bool,
    /// The largest score of a key, as the softmax sees it (scaled, capped, biased; a sink is not a key): `-inf` for a row that
    /// sees no key.
    pub row_max: bool,
}

impl Stats {
    /// All three.
    pub const ALL: Stats = Stats { lse: true, entropy: true, row_max: true };

    /// How many are asked for.
    pub fn count(&self) -> u32 {
        u32::from(self.lse) + u32::from(self.entropy) + u32::from(self.row_max)
    }
}
