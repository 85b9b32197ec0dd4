//! Dropout on the weights: which of them stay is a function of a seed and of their places, so that it can be had anywhere.
//!
//! The shaders' twin of this file is `shaders/dropout.wgsl`.

use crate::error::{Error, Result};
use crate::random::threefry2x32;
use crate::shape::Shape;

/// Weights are kept by comparing 16 random bits with a threshold.
const STEPS: f32 = 65536.0;

/// Dropout on the attention weights, with what is kept scaled up (Srivastava et al. 2014; on attention weights as in arXiv
/// 1706.03762): of the weights that multiply v, each is 0 with a probability of `rate` and divided by `1 - rate` otherwise. The
/// softmax before it, lse, entropy and row maximum know nothing of it.
///
/// The rate is rounded to multiples of 1/65536, and so is what the rest is divided by.
///
/// # Which weights stay
///
/// The weight of key j in row i of head h of batch b (all of the whole problem, whatever slices, tiles and kernel compute it) stays where
/// ([`Dropout::keeps`] on the CPU):
///
/// ```text
/// block = (b * q_heads + h) * ceil(seq_q / 4) + floor(i / 4)
/// [x, y] = threefry2x32(key = [seed, offset], counter = [block, j])
/// draw = 16 bits: of x for i % 4 = 0 (lower half) and 1 (upper half), of y for 2 and 3
/// draw < 65536 - round(65536 rate)
/// ```
///
/// In packed sequences b is the number of the sequence, i and j count within it, and seq_q is that of the shape, the longest.
///
/// Seed and offset are two numbers of the table `dropout`, so that each call can have its own without compiling or preparing anything:
/// the seed that of a run, say, and the offset the number of step and layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// The probability that a weight is dropped: from 0, below 1.
    pub rate: f32,
}

impl Dropout {
    pub(crate) fn check(&self, shape: &Shape) -> Result<()> {
        let in_range = (0.0..1.0).contains(&self.rate); // false for NaN
        if !in_range || self.kept_steps() == 0 {
            return Err(Error::value("dropout rate", self.rate, "from 0, and below 1 - 1/131072"));
        }
        let blocks = u64::from(shape.batch) * u64::from(shape.q_heads);
        let blocks = blocks.saturating_mul(shape.seq_q.div_ceil(4).into());
        if blocks > 1 << 32 {
            return Err(Error::value(
                "batch * q_heads * ceil(seq_q / 4)",
                blocks,
                "at most 2^32 with dropout, whose random numbers count that far",
            ));
        }
        Ok(())
    }

    /// How many of 65536 draws keep a weight.
    pub(crate) fn kept_steps(&self) -> u32 {
        // A rate that `check` would refuse is one of 0 or 1, and NaN one of 0.
        65536u32.saturating_sub((self.rate * STEPS).round() as u32)
    }

    /// The probability that a weight stays: `1 - rate`, rounded to multiples of 1/65536. (Rates outside of 0 to 1, which no problem
    /// accepts, count as the nearer end.)
    pub fn keep(&self) -> f64 {
        f64::from(self.kept_steps()) / f64::from(STEPS)
    }

    /// Whether a weight stays, for a seed and offset and the place (batch, query head, row, key).
    ///
    /// ```
    /// use wgpu_attention::{Dropout, Shape};
    /// let (dropout, shape) = (Dropout { rate: 0.25 }, Shape::self_attention(1, 2, 100, 64));
    /// let kept = (0..10_000).filter(|&key| dropout.keeps(&shape, [7, 0], [0, 1, 42, key])).count();
    /// assert!((7_400..7_600).contains(&kept));
    /// ```
    pub fn keeps(&self, shape: &Shape, [seed, offset]: [u32; 2], [b, h, i, j]: [u32; 4]) -> bool {
        let head = b.wrapping_mul(shape.q_heads).wrapping_add(h);
        let block = head.wrapping_mul(shape.seq_q.div_ceil(4)).wrapping_add(i / 4);
        let words = threefry2x32([seed, offset], [block, j]);
        let draw = words[(i % 4 / 2) as usize] >> (16 * (i % 2)) & 0xffff;
        draw < self.kept_steps()
    }
}
