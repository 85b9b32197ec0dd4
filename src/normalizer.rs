//! What makes weights of a row's scores. The shaders' twins of this file are `shaders/weights_*.wgsl`.

use crate::error::{Error, Result};

/// What makes weights of a row's scores.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Normalizer {
    /// `exp(s_j) / sum exp(s_i)`: the weights of a row sum to 1, all of them above 0. With a [`Sink`](crate::Sink) the sum has one
    /// term more.
    #[default]
    Softmax,
    /// `1 / (1 + exp(-(s_j + bias)))`: each key by itself, so that the weights of a row sum to anything (Ramapuram et al. 2024,
    /// arXiv 2409.04431). There is nothing to normalise by: no lse, no entropy, no sink.
    Sigmoid {
        /// Added to each score.
        bias: SigmoidBias,
    },
    /// `max(s_j - t, 0)` with the t for which the weights sum to 1: the nearest distribution to the scores, 0 for all keys but the
    /// largest few (Martins and Astudillo 2016, arXiv 1602.02068). No lse and no sink. The keys are gone through several times.
    Sparsemax,
    /// `max(s_j / 2 - t, 0)^2` with the t for which the weights sum to 1: between softmax and [`Normalizer::Sparsemax`] (Peters et al.
    /// 2019, arXiv 1905.05702; on GPUs Goncalves et al. 2025, arXiv 2502.12082). No lse and no sink. The keys are gone through several
    /// times.
    Entmax15,
}

/// What sigmoid attention adds to each score. With the logarithm of the number of keys taken away, the weights of a row sum to about 1
/// where all scores are near 0, as those of a softmax do, however many keys there are.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum SigmoidBias {
    /// Any finite number.
    Value(f32),
    /// `-ln(seq_k)`: the paper's choice, the same for all rows. 0 where there are no keys.
    MinusLogSeqK,
    /// `-ln(n)` with the number n of keys that lengths, causal mask and window let the row see, at least 1: the same in training and
    /// in cached decoding. Dense masks and biases are not counted.
    MinusLogVisible,
}

impl Normalizer {
    pub(crate) fn check(&self) -> Result<()> {
        match *self {
            Normalizer::Sigmoid { bias: SigmoidBias::Value(b) } if !(b.is_finite() && b.abs() <= 1e38) => {
                Err(Error::value("sigmoid bias", b, "finite and at most 1e38 in magnitude"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the weights of a row sum to 1.
    pub(crate) fn is_softmax(&self) -> bool {
        *self == Normalizer::Softmax
    }

    /// The bias of a sigmoid that is the same for all rows, in natural units.
    pub(crate) fn constant_bias(&self, seq_k: u32) -> f64 {
        match *self {
            Normalizer::Sigmoid { bias: SigmoidBias::Value(b) } => b.into(),
            Normalizer::Sigmoid { bias: SigmoidBias::MinusLogSeqK } => -f64::from(seq_k.max(1)).ln(),
            _ => 0.0,
        }
    }
}
