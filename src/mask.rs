//! Which keys a row sees.
//!
//! Everything here is combined by AND. The shaders' twin of this file is `shaders/mask.wgsl`.

use crate::shape::MAX_SEQ;

/// Where query `i` stands among the keys: at position `i + offset`.
///
/// Alignment masks, windows and ALiBi all count from that position. The two corners in use are the most confused
/// option of the field, so there is no bare `causal = true`. With 2 queries and 5 keys, a causal mask is
///
/// ```text
/// BottomRight (offset 3)   TopLeft (offset 0)
/// x x x x .                x . . . .
/// x x x x x                x x . . .
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Alignment {
    /// `offset = seq_k - seq_q`: the last query sees the last key. Of packed sequences each counts its own lengths. What decoding with a cache needs;
    /// FlashAttention since 2.1, MLX, FlashInfer. With more queries than keys the first rows are empty.
    #[default]
    BottomRight,
    /// `offset = 0`: the first query sees the first key. PyTorch's SDPA, JAX, ONNX without a cache.
    TopLeft,
    /// Any offset, negative too. Cut off at -2^30 and 2^30 - 1, beyond which no sequence reaches.
    Offset(i32),
    /// One offset for each batch, from the table `causal_offset` (batch).
    PerBatch,
    /// `offset = kv_len - q_len` of each batch, all keys or queries where there is no such table: the last valid query sees
    /// the last valid key. FlashAttention and cuDNN with padded sequences.
    BottomRightValid,
}

impl Alignment {
    /// The offset, where it is one number.
    pub fn offset(&self, seq_q: u32, seq_k: u32) -> Option<i32> {
        let offset = match *self {
            // Lengths are at most 2^30, so the difference fits.
            Alignment::BottomRight => i64::from(seq_k) - i64::from(seq_q),
            Alignment::TopLeft => 0,
            Alignment::Offset(offset) => i64::from(offset),
            Alignment::PerBatch | Alignment::BottomRightValid => return None,
        };
        Some(clamp_offset(offset))
    }
}

/// Beyond the largest length an offset changes nothing more, and within it `i + offset + 1`, the number of keys that a row
/// sees, cannot leave `i32`: row and offset are each at most 2^30 - 1.
pub(crate) fn clamp_offset(offset: i64) -> i32 {
    let most = i64::from(MAX_SEQ) - 1;
    offset.clamp(-most - 1, most) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_row_and_offset_stay_within_i32() {
        for alignment in [Alignment::Offset(i32::MAX), Alignment::Offset(i32::MIN), Alignment::BottomRight] {
            let offset = alignment.offset(1, MAX_SEQ).unwrap();
            let last_row = MAX_SEQ as i32 - 1;
            assert!(last_row.checked_add(offset).and_then(|x| x.checked_add(1)).is_some(), "{alignment:?}");
        }
        // Still "sees everything" and "sees nothing".
        assert!(Alignment::Offset(i32::MAX).offset(1, 1).unwrap() >= MAX_SEQ as i32 - 1);
        assert!(Alignment::Offset(i32::MIN).offset(1, 1).unwrap() <= -(MAX_SEQ as i32));
    }
}

/// A sliding window: the query at position `p` (see [`Alignment`]) sees key `j` when `p - left <= j <= p + right`, or when
/// `j < keep_first`. All numbers count keys.
///
/// Both ends are inclusive: FlashAttention's and ONNX's rule. "A window of W keys" in the sense of Mistral and Gemma is
/// `left = W - 1` with a causal mask. A causal mask still applies to the first keys that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Window {
    /// Keys before the position; `None` for all.
    pub left: Option<u32>,
    /// Keys after the position; `None` for all.
    pub right: Option<u32>,
    /// First keys that every row sees in addition: the attention sinks of StreamingLLM (Xiao et al. 2023, arXiv
    /// 2309.17453; 4 is usual).
    pub keep_first: u32,
}

impl Window {
    /// The last `keys` keys up to the position, and none after it.
    pub fn last(keys: u32) -> Self {
        Window { left: Some(keys.saturating_sub(1)), right: Some(0), keep_first: 0 }
    }
}

/// What is done about tiles of a mask that nobody sees, or that hide nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "measure",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum TileMask {
    /// A pass before the attention finds them, once for all heads and batches that have a mask in common; what nobody sees is not loaded
    /// then, and what hides nothing asks no mask. Dense masks, documents, the user's mask and -inf in the bias are classified so.
    Classified,
    /// Each tile asks the mask for each pair.
    Each,
}

/// How a mask of yes and no is stored. 1 (true) means that the row attends to the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MaskFormat {
    /// One byte for each pair, 0 or not 0.
    Bytes,
    /// One bit for each pair, counted from the lowest bit of the first byte; rows are not padded.
    Bits,
}
