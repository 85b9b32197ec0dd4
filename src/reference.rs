//! The truth: attention in float64 on the CPU, by the formula, sharing nothing with the shaders.
//!
//! Public, so that you can check your own device: compute a problem with [`truth`], run it on the GPU, and
//! [`compare`] the two. The tolerance is argued, not chosen: see [`bounds`](self#error-bounds) below.
//!
//! # Error bounds
//!
//! Beside each number the truth says how far an f32 computation may be off that follows the kernels' scheme. With
//! `eps = 2^-24`, and `g(n) = min(n, 6 sqrt(n))` for the growth of rounding over n additions (Higham and Mary 2019, "A new
//! approach to probabilistic rounding error analysis": the worst case is n, and 6 sqrt(n) is passed with a probability that never
//! comes up), the relative error of the weight of key j is at most
//!
//! ```text
//! d_j = eps g(D + 8) sum_d |f q_d k_d|      the dot product and the factor f on q
//!     + 2 eps (3 + 2 |x_j|) + eps |x_j|     exp2 of x_j = (s_j - m) log2 e, as Vulkan allows it: 3 + 2|x| ulp
//!     + 2 eps (3 T + 2 X)                   rescaling at up to T new maxima over a range of X
//! ```
//!
//! and out, a quotient of two sums of n terms, is off by at most
//! `sum_j p_j |v_j| (d_j + sum_i p_i d_i) + eps (2 g(n) + 12) sum_j p_j |v_j|`. The bounds of lse, entropy and row maximum follow
//! in the same way; WGSL's log2 adds 2^-21 near 1.

use crate::error::Result;
use crate::host::{Inputs, Outputs};
use crate::layout::View;
use crate::mask::Causal;
use crate::problem::{Problem, Tensor};
use crate::sharpness::Temperature;

mod twin;
pub use twin::twin;

/// A float64 number and how far f32 may be from it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounded {
    /// The true value.
    pub value: f64,
    /// The bound on an f32 kernel's absolute error.
    pub bound: f64,
}

/// The right answer. All statistics are there, whether asked for or not.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Truth {
    /// In `Problem::out_layout`; places that a strided layout leaves out are 0.
    pub out: Vec<Bounded>,
    /// (batch, q_heads, seq_q), natural logarithm.
    pub lse: Vec<Bounded>,
    /// (batch, q_heads, seq_q), nats.
    pub entropy: Vec<Bounded>,
    /// (batch, q_heads, seq_q).
    pub row_max: Vec<Bounded>,
}

/// Whether query `i` of batch `b` sees key `j`. A batch for which a table has no entry sees nothing.
pub fn visible(problem: &Problem, inputs: &Inputs<'_>, [b, i, j]: [u32; 3]) -> bool {
    if let Some(lens) = inputs.tables.kv_len
        && lens.get(b as usize).is_none_or(|&len| j >= len)
    {
        return false;
    }
    let offset = match problem.causal {
        None => return true,
        Some(Causal::PerBatch) => match inputs.tables.causal_offset.unwrap_or_default().get(b as usize) {
            Some(&offset) => i64::from(offset),
            None => return false,
        },
        Some(Causal::TopLeft) => 0,
        Some(Causal::Offset(offset)) => i64::from(offset),
        Some(Causal::BottomRight) => i64::from(problem.shape.seq_k) - i64::from(problem.shape.seq_q),
    };
    i64::from(j) <= i64::from(i) + offset
}

/// `scale / temperature` of one row, in f64.
fn row_factor(problem: &Problem, inputs: &Inputs<'_>, [b, h, i]: [u32; 3]) -> f64 {
    let s = &problem.shape;
    let table = inputs.tables.temperature.unwrap_or_default();
    let tau = match problem.temperature {
        Temperature::Value(_) => 1.0, // is in factor()
        Temperature::PerHead => f64::from(table[h as usize]),
        Temperature::PerRow => {
            let row = (b as usize * s.q_heads as usize + h as usize) * s.seq_q as usize + i as usize;
            f64::from(table[row])
        }
    };
    problem.factor() / tau
}

/// The scaled scores of one row: `None` for keys it does not see. What softmax is taken of.
///
/// # Errors
/// What [`Inputs::check`] finds, and [`Error::Value`](crate::Error::Value) for a row that does not exist.
pub fn scores(problem: &Problem, inputs: &Inputs<'_>, row: [u32; 3]) -> Result<Vec<Option<f64>>> {
    inputs.check(problem)?;
    let s = &problem.shape;
    for (field, at, size) in
        [("batch", row[0], s.batch), ("head", row[1], s.q_heads), ("row", row[2], s.seq_q)]
    {
        if at >= size {
            return Err(crate::Error::value(field, at, "within the problem's shape"));
        }
    }
    let (q, k) = (problem.view(Tensor::Q)?, problem.view(Tensor::K)?);
    Ok(score_row(problem, inputs, &q, &k, row).into_iter().map(|s| s.map(|s| s.score)).collect())
}

#[derive(Clone, Copy)]
struct Score {
    score: f64,
    /// Sum of the absolute products: what rounding errors of the score are proportional to.
    size: f64,
}

fn score_row(
    problem: &Problem,
    inputs: &Inputs<'_>,
    q: &View,
    k: &View,
    [b, h, i]: [u32; 3],
) -> Vec<Option<Score>> {
    let s = &problem.shape;
    let factor = row_factor(problem, inputs, [b, h, i]);
    (0..s.seq_k)
        .map(|j| {
            if !visible(problem, inputs, [b, i, j]) {
                return None;
            }
            let (mut score, mut size) = (0.0, 0.0);
            for d in 0..s.head_dim_qk {
                let x = f64::from(inputs.q[q.index([b, h, i, d]) as usize])
                    * f64::from(inputs.k[k.index([b, h / s.group(), j, d]) as usize]);
                score += x;
                size += x.abs();
            }
            Some(Score { score: score * factor, size: size * factor.abs() })
        })
        .collect()
}

const EPS: f64 = 1.0 / (1u64 << 24) as f64;
const LOG2_NEAR_1: f64 = 1.0 / (1u64 << 21) as f64;
/// Numbers below f32's normal range may be flushed to 0.
const TINY: f64 = 1e-36;

fn growth(n: f64) -> f64 {
    n.min(6.0 * n.sqrt())
}

/// Computes a problem in float64.
///
/// Where a visible key holds NaN or infinity, the truth holds what arithmetic makes of it.
///
/// # Errors
/// What [`Inputs::check`] finds.
pub fn truth(problem: &Problem, inputs: &Inputs<'_>) -> Result<Truth> {
    inputs.check(problem)?;
    let s = &problem.shape;
    let views = [
        problem.view(Tensor::Q)?,
        problem.view(Tensor::K)?,
        problem.view(Tensor::V)?,
        problem.view(Tensor::Out)?,
    ];
    let mut truth = Truth { out: vec![Bounded::default(); views[3].extent() as usize], ..Truth::default() };
    for b in 0..s.batch {
        for h in 0..s.q_heads {
            for i in 0..s.seq_q {
                row(problem, inputs, &views, [b, h, i], &mut truth);
            }
        }
    }
    Ok(truth)
}

fn row(
    problem: &Problem,
    inputs: &Inputs<'_>,
    [q, k, v, out]: &[View; 4],
    [b, h, i]: [u32; 3],
    truth: &mut Truth,
) {
    let s = &problem.shape;
    let scores = score_row(problem, inputs, q, k, [b, h, i]);
    let seen: Vec<(u32, Score)> = (0..).zip(&scores).filter_map(|(j, s)| Some((j, (*s)?))).collect();
    if seen.is_empty() {
        // Out stays 0.
        let minus_infinity = Bounded { value: f64::NEG_INFINITY, bound: 0.0 };
        truth.lse.push(minus_infinity);
        truth.entropy.push(Bounded::default());
        truth.row_max.push(minus_infinity);
        return;
    }
    let max = seen.iter().fold(f64::NEG_INFINITY, |m, (_, s)| m.max(s.score));
    let min = seen.iter().fold(f64::INFINITY, |m, (_, s)| m.min(s.score));
    let sum: f64 = seen.iter().map(|(_, s)| (s.score - max).exp()).sum();
    let lse = max + sum.ln();
    let p: Vec<f64> = seen.iter().map(|(_, s)| (s.score - lse).exp()).collect();
    let entropy: f64 = p.iter().map(|&p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum();

    // Relative error of each weight, as the module's head says.
    let n = seen.len() as f64;
    let log2_e = core::f64::consts::LOG2_E;
    let rescaling = 2.0 * EPS * (3.0 * (n / 16.0).ceil() + 2.0 * (max - min) * log2_e);
    let dot = EPS * growth(f64::from(s.head_dim_qk.next_multiple_of(4)) + 8.0);
    let error = |score: Score| {
        let x = (max - score.score) * log2_e;
        dot * score.size + 2.0 * EPS * (3.0 + 2.0 * x) + EPS * x + rescaling
    };
    let errors: Vec<f64> = seen.iter().map(|&(_, s)| error(s)).collect();
    let mean_error: f64 = p.iter().zip(&errors).map(|(p, e)| p * e).sum();
    // First-order terms hold while errors are small; beyond that they compound.
    let compound = errors.iter().zip(&p).fold(0.0f64, |m, (e, p)| m.max(e * p.min(1.0))).exp();
    let sums = EPS * (growth(n + 8.0) + 6.0);

    for d in 0..s.head_dim_v {
        let (mut value, mut size, mut bound) = (0.0, 0.0, 0.0);
        for ((&(j, _), &p), &e) in seen.iter().zip(&p).zip(&errors) {
            let x = p * f64::from(inputs.v[v.index([b, h / s.group(), j, d]) as usize]);
            value += x;
            size += x.abs();
            bound += x.abs() * (e + mean_error);
        }
        let bound = (bound + 2.0 * sums * size) * compound + TINY;
        truth.out[out.index([b, h, i, d]) as usize] = Bounded { value, bound };
    }

    truth.lse.push(Bounded {
        value: lse,
        bound: mean_error * compound
            + sums
            + LOG2_NEAR_1
            + EPS * (6.0 * lse.abs() + 6.0 * max.abs() + 6.0 * sum.ln().abs())
            + TINY,
    });
    // dH/ds_j = -p_j (ln p_j + H); and the two sums of which H is made.
    let sensitivity: f64 = p
        .iter()
        .zip(&errors)
        .map(|(&p, e)| if p > 0.0 { p * (p.ln().abs() + entropy) * e } else { 0.0 })
        .sum();
    let spread: f64 = p.iter().zip(&seen).map(|(p, (_, s))| p * (max - s.score)).sum();
    truth.entropy.push(Bounded {
        value: entropy,
        bound: sensitivity * compound
            + sums * (1.0 + entropy + 2.0 * spread)
            + LOG2_NEAR_1
            + 6.0 * EPS * (sum.ln().abs() + spread)
            // The maximum itself is rounded, and x of every other key with it.
            + mean_error.min(1.0) * spread
            + TINY,
    });
    let score_error = seen.iter().fold(0.0f64, |m, (_, s)| m.max(s.size)) * dot;
    truth.row_max.push(Bounded { value: max, bound: score_error + 4.0 * EPS * max.abs() + TINY });
}

/// How a result differs from the truth.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Comparison {
    /// Largest absolute error.
    pub max_abs: f64,
    /// Largest error relative to the true value, over values that are not 0.
    pub max_rel: f64,
    /// Largest error as a share of its bound; above 1 the result is wrong.
    pub worst: f64,
    /// The index where that is.
    pub at: usize,
}

impl Comparison {
    /// Whether every number is within its bound.
    pub fn passes(&self) -> bool {
        self.worst <= 1.0
    }

    /// The worse of two comparisons.
    pub fn merge(self, other: Self) -> Self {
        let worse = if other.worst > self.worst { other } else { self };
        Comparison {
            max_abs: self.max_abs.max(other.max_abs),
            max_rel: self.max_rel.max(other.max_rel),
            ..worse
        }
    }
}

/// Compares numbers with the truth, one by one. Different lengths, and NaN or infinity on one side only, are infinitely wrong.
pub fn compare(got: &[f32], truth: &[Bounded]) -> Comparison {
    let mut comparison = Comparison::default();
    if got.len() != truth.len() {
        comparison.worst = f64::INFINITY;
        return comparison;
    }
    for (at, (&got, want)) in got.iter().zip(truth).enumerate() {
        let got = f64::from(got);
        let both_nan = got.is_nan() && want.value.is_nan();
        if both_nan || got == want.value {
            continue;
        }
        let abs = (got - want.value).abs();
        let share = if !abs.is_finite() { f64::INFINITY } else { abs / want.bound };
        comparison.max_abs = comparison.max_abs.max(abs);
        if want.value != 0.0 {
            comparison.max_rel = comparison.max_rel.max(abs / want.value.abs());
        }
        if share > comparison.worst || share.is_nan() {
            (comparison.worst, comparison.at) = (share, at);
        }
    }
    comparison
}

impl Truth {
    /// Compares all outputs that are there.
    pub fn compare(&self, got: &Outputs) -> Comparison {
        [(&got.lse, &self.lse), (&got.entropy, &self.entropy), (&got.row_max, &self.row_max)]
            .into_iter()
            .filter_map(|(got, truth)| Some(compare(got.as_deref()?, truth)))
            .fold(compare(&got.out, &self.out), Comparison::merge)
    }

    /// The values alone, rounded to f32, with the statistics that the problem asks for.
    pub fn outputs(&self, problem: &Problem) -> Outputs {
        let round = |numbers: &[Bounded]| numbers.iter().map(|x| x.value as f32).collect::<Vec<_>>();
        Outputs {
            out: round(&self.out),
            lse: problem.stats.lse.then(|| round(&self.lse)),
            entropy: problem.stats.entropy.then(|| round(&self.entropy)),
            row_max: problem.stats.row_max.then(|| round(&self.row_max)),
        }
    }
}
