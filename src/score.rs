//! What happens to a score between q.k and the softmax, and what stands beside the keys in it.
//!
//! The order is fixed: `q.k * scale / temperature`, soft cap, user code, bias and ALiBi, masks, softmax with its sink. A cap after
//! the mask would turn -inf into -cap and let hidden keys leak. The shaders' twin of this file is `shaders/score.wgsl`.

use crate::error::{Error, Result};

/// Sizes of a dense (batch, q_heads, seq_q, seq_k) input, each either the full size or 1: a size of 1 is broadcast.
///
/// Spelled out because a three-dimensional mask is read as (batch, q, k) by some and (head, q, k) by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Broadcast(pub [u32; 4]);

impl Broadcast {
    pub(crate) fn check(&self, field: &'static str, full: [u32; 4]) -> Result<()> {
        let fits = self.0.iter().zip(full).all(|(&got, full)| got == full || got == 1);
        if !fits {
            return Err(Error::Value {
                field,
                value: format!("{:?}", self.0),
                rule: "(batch, q_heads, seq_q, seq_k), each the problem's own size or 1",
            });
        }
        Ok(())
    }

    /// Elements from one index to the next in each dimension; 0 where broadcast.
    pub(crate) fn strides(&self) -> [u64; 4] {
        let mut strides = [0; 4];
        let mut step = 1u64;
        for (stride, &size) in strides.iter_mut().zip(&self.0).rev() {
            if size > 1 {
                *stride = step;
            }
            step = step.saturating_mul(size.into());
        }
        strides
    }
}

/// A logit in the softmax's denominator that belongs to no key, so that a row may attend to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Sink {
    /// The plain softmax.
    #[default]
    None,
    /// A logit of 0: `exp(s) / (1 + sum exp(s))`, "softmax off by one" (E. Miller 2023).
    Zero,
    /// One logit for each query head, from the table `sinks` (q_heads), in natural units and finite: the learned sinks of gpt-oss.
    PerHead,
}

/// ALiBi's slopes for a number of heads (Press et al. 2021, arXiv 2108.12409): `2^(-8 h / heads)` for h from 1 where the number is a
/// power of two; otherwise those of the next lower power of two, followed by every second one of the next higher.
///
/// ```
/// assert_eq!(wgpu_attention::alibi_slopes(8)[0], 0.5);
/// assert_eq!(wgpu_attention::alibi_slopes(6), [1.0 / 4.0, 1.0 / 16.0, 1.0 / 64.0, 1.0 / 256.0, 1.0 / 2.0, 1.0 / 8.0]);
/// ```
pub fn alibi_slopes(heads: u32) -> Vec<f32> {
    let slope = |h: f64, of: f64| (-8.0 * h / of).exp2() as f32;
    let Some(log) = heads.checked_ilog2() else {
        return Vec::new();
    };
    let (powers, lower) = (1u32 << log, f64::from(1u32 << log));
    let mut slopes: Vec<f32> = (1..=powers).map(|h| slope(h.into(), lower)).collect();
    slopes.extend((0..heads - powers).map(|n| slope(2.0 * f64::from(n) + 1.0, 2.0 * lower)));
    slopes
}
