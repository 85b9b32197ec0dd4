//! What is to be drawn: rows, vocabulary, chain, and what goes in beside the logits.

use super::chain::Chain;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// How a token is taken from what the chain has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Finish {
    /// At random, with the probabilities of the softmax, as the largest of logit + Gumbel noise.
    #[default]
    Gumbel,
    /// The largest logit, the lowest token of equal ones.
    Greedy,
}

/// Where a row's random numbers come from. The same seed and offset give the same noise to the same tokens, whatever the row's
/// number, the batch or the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seed {
    /// The key of the generator.
    pub seed: u64,
    /// A number of the draw, such as the position of the token in its text: never use one twice with a seed.
    pub offset: u32,
}

/// A batch of draws as plain data.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// Sequences: one token is drawn for each.
    pub rows: u32,
    /// Logits of a row: 1 to 2^23 - 1.
    pub vocab: u32,
    /// Elements from one row's logits to the next; 0 where all rows draw from the same ones.
    pub stride: u64,
    /// How the logits are stored.
    pub dtype: DType,
    /// What is done to the logits. Its numbers go for all rows that are not given a chain of their own.
    pub chain: Chain,
    /// How the token is taken.
    pub finish: Finish,
    /// Also the log-probability of each token, in the distribution that it was drawn from.
    pub log_probs: bool,
    /// Tokens of each row's history, for the penalties.
    pub history: u32,
    /// Biases of each row.
    pub bias: u32,
}

/// So that sums of 40-bit weights stay within 64 bits.
const MAX_VOCAB: u32 = (1 << 23) - 1;

impl Problem {
    /// `rows` rows of `vocab` logits, one after the other.
    pub fn new(rows: u32, vocab: u32, chain: Chain) -> Self {
        Problem {
            rows,
            vocab,
            stride: vocab.into(),
            dtype: DType::F32,
            chain,
            finish: Finish::Gumbel,
            log_probs: false,
            history: 0,
            bias: 0,
        }
    }

    /// With so many elements from one row's logits to the next; 0 for many draws from the same logits.
    pub fn stride(mut self, stride: u64) -> Self {
        self.stride = stride;
        self
    }

    /// With logits stored otherwise than as f32, as models leave them.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Taking the largest in place of a random token.
    pub fn greedy(mut self) -> Self {
        self.finish = Finish::Greedy;
        self
    }

    /// With log-probabilities.
    pub fn with_log_probs(mut self) -> Self {
        self.log_probs = true;
        self
    }

    /// With a history of so many tokens for each row, for [`Chain::penalties`]. Places that are not in use hold `u32::MAX`.
    pub fn with_history(mut self, tokens: u32) -> Self {
        self.history = tokens;
        self
    }

    /// With so many biases for each row, for [`Chain::logit_bias`]. Places that are not in use hold the token `u32::MAX`.
    pub fn with_bias(mut self, entries: u32) -> Self {
        self.bias = entries;
        self
    }

    /// A logit as the device finds it.
    pub(super) fn stored(&self, logit: f32) -> f32 {
        let stored = self.dtype.round(logit);
        // The smallest normal f16.
        let subnormal = self.dtype == DType::F16 && stored.abs() < 6.103_515_6e-5;
        if subnormal { 0.0 } else { stored }
    }

    /// Words of a row's mask of allowed tokens, 32 tokens each, the lowest bit first.
    pub fn allowed_words(&self) -> u32 {
        self.vocab.div_ceil(32)
    }

    /// Elements from the first logit to behind the last.
    pub(super) fn extent(&self, rows: u32) -> u64 {
        match rows {
            0 => 0,
            // Checked to fit.
            rows => self.stride.saturating_mul(u64::from(rows) - 1).saturating_add(self.vocab.into()),
        }
    }

    /// Checks all that can be known without a device.
    ///
    /// # Errors
    /// [`Error::Value`] with the field and its rule; [`Error::Missing`] and [`Error::Unused`] for a history or biases that do not go
    /// with the chain.
    pub fn check(&self) -> Result<()> {
        if self.vocab == 0 || self.vocab > MAX_VOCAB {
            return Err(Error::value("vocab", self.vocab, "from 1 to 2^23 - 1"));
        }
        if self.stride > 0 && self.stride < self.vocab.into() {
            return Err(Error::value("stride", self.stride, "at least vocab, or 0"));
        }
        if self.extent(self.rows) >= 1 << 62 {
            return Err(Error::value("stride", self.stride, "such that all logits are within 2^62 elements"));
        }
        for (field, count, name, hint) in [
            ("history", self.history, "penalties", "add Chain::penalties, or leave it out"),
            ("bias", self.bias, "logit_bias", "add Chain::logit_bias, or leave it out"),
        ] {
            match (count > 0, self.chain.has(name)) {
                (false, true) => {
                    return Err(Error::Missing { field, why: "the chain has a step that reads it" });
                }
                (true, false) => return Err(Error::Unused { field, hint }),
                _ => {}
            }
            if count > 1 << 16 {
                return Err(Error::value(field, count, "at most 65536 for each row"));
            }
        }
        self.chain.check()
    }
}
