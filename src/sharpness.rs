//! The heart: how sharp the softmax is.
//!
//! `softmax(scale * x / temperature) = softmax(x / tau)` with `tau = temperature / scale`: the attention scale and the
//! temperature are one knob. A multiplier that depends on the length of the context is a third name for it. The kernel multiplies
//! each row of q by `scale * length_scale / temperature * log2(e)` once, and that is all that any of them costs.

use crate::error::{Error, Result};

/// The number that multiplies q.k.
///
/// For independent q and k with unit variance, q.k has variance `head_dim`: without a scale the softmax
/// saturates as the head grows, while 1/head_dim flattens it to the uniform distribution. 1/sqrt(head_dim) keeps it
/// the same at every size (Vaswani et al. 2017, arXiv 1706.03762).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Scale {
    /// `1 / sqrt(head_dim_qk)`.
    #[default]
    RsqrtHeadDim,
    /// `numerator / head_dim_qk`: for q and k that align as training goes on (muP, Yang et al. 2022, arXiv
    /// 2203.03466; `numerator` 8 agrees with the default at head dim 64).
    PerHeadDim {
        /// The c in c / head_dim_qk: finite.
        numerator: f32,
    },
    /// Any finite number. Zero makes the softmax uniform over the visible keys; a negative one prefers the
    /// least similar keys.
    Value(f32),
}

impl Scale {
    /// The multiplier for a head dim, in f64: it is rounded to f32 once, together with the temperature and log2(e).
    pub fn value(&self, head_dim_qk: u32) -> f64 {
        let d = f64::from(head_dim_qk);
        match *self {
            Scale::RsqrtHeadDim => 1.0 / d.sqrt(),
            Scale::PerHeadDim { numerator } => f64::from(numerator) / d,
            Scale::Value(scale) => f64::from(scale),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let (field, value) = match *self {
            Scale::RsqrtHeadDim => return Ok(()),
            Scale::PerHeadDim { numerator } => ("scale numerator", numerator),
            Scale::Value(scale) => ("scale", scale),
        };
        if !value.is_finite() {
            return Err(Error::value(field, value, "finite"));
        }
        Ok(())
    }
}

/// The number that divides the scaled score: `softmax(scale * q.k / tau)`.
///
/// Below 1 the softmax is sharper (towards the argmax), above 1 flatter (towards uniform).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Temperature {
    /// One number for all rows: finite and above 0. (For the limit of infinite temperature use a scale of 0.)
    Value(f32),
    /// One for each query head, from the table `temperature` (q_heads). As in cosine attention and learned
    /// per-head temperatures.
    PerHead,
    /// One for each row, from the table `temperature` (batch, q_heads, seq_q). As in length-dependent and
    /// selective temperatures.
    PerRow,
}

/// A multiplier of the score that depends on how many keys a row sees or where it stands, so that a softmax does not flatten as the
/// context grows.
///
/// `n` is the number of keys that lengths, causal mask and window let the row see (not seq_k, or training and cached
/// decoding would disagree; dense masks and biases are not counted). It multiplies `scale / temperature`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum LengthScale {
    /// The plain softmax.
    #[default]
    None,
    /// `s ln(n)` with a learned s for each query head, from the table `ssmax` (q_heads): Scalable-Softmax (Nakanishi 2025, arXiv
    /// 2501.19399).
    Ssmax,
    /// `max(1, ln(n) / ln(train_len))`: log-n scaling beyond the length trained on (Su; Chiang and Cholak 2022, arXiv
    /// 2202.12172; Qwen).
    LogTrainLen {
        /// Keys at which the multiplier begins to grow: at least 2.
        train_len: u32,
    },
    /// `1 + coef ln(floor((position + 1) / floor) + 1)`: Llama 4's temperature tuning (`coef` 0.1, `floor` 8192).
    Llama4 {
        /// How strongly the score grows: finite.
        coef: f32,
        /// Positions in each step: at least 1.
        floor: u32,
    },
    /// `(0.1 ln(factor) + 1)^2`, 1 up to a factor of 1: YaRN's attention factor, which is on q and on k and so enters
    /// the score squared (Peng et al. 2023, arXiv 2309.00071).
    Yarn {
        /// How many times longer the context is than the one trained on: finite and above 0.
        factor: f32,
    },
}

impl LengthScale {
    pub(crate) fn check(&self) -> Result<()> {
        match *self {
            LengthScale::LogTrainLen { train_len } if train_len < 2 => {
                Err(Error::value("train_len", train_len, "at least 2"))
            }
            LengthScale::Llama4 { coef, .. } if !coef.is_finite() => {
                Err(Error::value("llama4 coef", coef, "finite"))
            }
            LengthScale::Llama4 { floor: 0, .. } => Err(Error::value("llama4 floor", 0, "at least 1")),
            LengthScale::Yarn { factor } if !(factor.is_finite() && factor > 0.0) => {
                Err(Error::value("yarn factor", factor, "finite and above 0"))
            }
            _ => Ok(()),
        }
    }

    /// The part of the multiplier that is the same for all rows.
    pub(crate) fn constant(&self) -> f64 {
        match *self {
            LengthScale::Yarn { factor } if factor > 1.0 => (0.1 * f64::from(factor).ln() + 1.0).powi(2),
            _ => 1.0,
        }
    }
}

/// A sharper softmax for rows whose weights are spread out: all scores of a row are multiplied by `max(1, poly(H))` where its entropy H,
/// in nats, is above a threshold (Velickovic et al. 2024, "softmax is not enough", arXiv 2410.01104). For inference.
///
/// H is that of the softmax without it, over the keys that the row sees. The scores are those after bias and ALiBi. lse, entropy and row
/// maximum are those of the softmax that comes out. The keys are gone through twice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveTemperature {
    /// Of the polynomial in H, highest power first, each finite.
    pub coefficients: [f32; 5],
    /// Entropies from here down are left alone, in nats: finite, and at least 0.
    pub above: f32,
}

impl Default for AdaptiveTemperature {
    /// The paper's, fitted to one task: `-0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791` above 0.5 nats. It is above 1
    /// between 0.85 and 5.94 nats (381 keys alike), where it is at most 2.42, and does nothing beyond.
    fn default() -> Self {
        AdaptiveTemperature { coefficients: [-0.037, 0.481, -2.3, 4.917, -1.791], above: 0.5 }
    }
}

impl AdaptiveTemperature {
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(bad) = self.coefficients.iter().find(|x| !x.is_finite()) {
            return Err(Error::value("adaptive temperature's coefficient", bad, "finite"));
        }
        if !(self.above.is_finite() && self.above >= 0.0) {
            return Err(Error::value(
                "adaptive temperature's threshold",
                self.above,
                "finite and at least 0",
            ));
        }
        Ok(())
    }
}

impl Default for Temperature {
    fn default() -> Self {
        Temperature::Value(1.0)
    }
}

impl Temperature {
    pub(crate) fn check(&self) -> Result<()> {
        match *self {
            Temperature::Value(tau) => check_temperature(tau),
            Temperature::PerHead | Temperature::PerRow => Ok(()),
        }
    }
}

/// The rule for a temperature that the host can see. Values in a device buffer are not read back: one that breaks
/// the rule makes the rows it governs meaningless, and no others.
pub(crate) fn check_temperature(tau: f32) -> Result<()> {
    if !(tau.is_finite() && tau > 0.0) {
        return Err(Error::value("temperature", tau, "finite and above 0"));
    }
    Ok(())
}
