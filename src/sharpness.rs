//! The heart: how sharp the softmax is.
//!
//! `softmax(scale * x / temperature) = softmax(x / tau)` with `tau = temperature / scale`: the attention scale and the
//! temperature are one knob. The kernel multiplies each row of q by `scale / temperature * log2(e)` once, and
//! that is all either of them costs.

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
