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

use crate::dtype::DType;
use crate::error::Result;
use crate::host::{Inputs, Outputs};
use crate::layout::View;
use crate::mask::{Alignment, MaskFormat};
use crate::problem::{Problem, Tensor};
use crate::score::Sink;
use crate::sharpness::{LengthScale, Temperature};

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

/// Whether query `i` of head `h` of batch `b` sees key `j`: all masks, and no bias of -inf. The inputs were checked.
fn visible(problem: &Problem, inputs: &Inputs<'_>, [b, h, i, j]: [u32; 4]) -> bool {
    if !near(problem, inputs, [b, i, j]) {
        return false;
    }
    if let (Some((format, sizes)), Some(mask)) = (problem.mask, inputs.mask) {
        let at = dense_index(sizes.strides(), [b, h, i, j]);
        if !mask_keeps(format, mask, at) {
            return false;
        }
    }
    bias(problem, inputs, [b, h, i, j]) != f64::NEG_INFINITY
}

/// Whether lengths, causal mask and window let query `i` of batch `b` see key `j`.
fn near(problem: &Problem, inputs: &Inputs<'_>, [b, i, j]: [u32; 3]) -> bool {
    if let Some(lens) = inputs.tables.kv_len
        && j >= lens[b as usize]
    {
        return false;
    }
    let distance = i64::from(j) - position(problem, inputs, b, i);
    if problem.causal && distance > 0 {
        return false;
    }
    if let Some(window) = problem.window {
        let near = window.left.is_none_or(|left| -distance <= i64::from(left))
            && window.right.is_none_or(|right| distance <= i64::from(right));
        if !near && j >= window.keep_first {
            return false;
        }
    }
    true
}

/// Element `at` of a dense mask.
pub(crate) fn mask_keeps(format: MaskFormat, mask: &[u8], at: usize) -> bool {
    match format {
        MaskFormat::Bytes => mask[at] != 0,
        MaskFormat::Bits => mask[at / 8] >> (at % 8) & 1 == 1,
    }
}

pub(crate) fn dense_index(strides: [u64; 4], at: [u32; 4]) -> usize {
    strides.iter().zip(at).map(|(&step, n)| step * u64::from(n)).sum::<u64>() as usize
}

/// The additive bias of a pair, as it is stored; 0 where there is none.
fn bias(problem: &Problem, inputs: &Inputs<'_>, at: [u32; 4]) -> f64 {
    match (problem.bias, inputs.bias) {
        (Some((dtype, sizes)), Some(bias)) => f64::from(dtype.round(bias[dense_index(sizes.strides(), at)])),
        _ => 0.0,
    }
}

/// Position of a query among the keys.
pub(crate) fn position(problem: &Problem, inputs: &Inputs<'_>, b: u32, i: u32) -> i64 {
    let offset = match problem.alignment {
        Alignment::PerBatch => i64::from(inputs.tables.causal_offset.unwrap_or_default()[b as usize]),
        Alignment::TopLeft => 0,
        Alignment::Offset(offset) => i64::from(offset),
        Alignment::BottomRight => i64::from(problem.shape.seq_k) - i64::from(problem.shape.seq_q),
    };
    i64::from(i) + offset
}

/// `scale / temperature` of one row, times its length scale. The bound is that of the length scale alone.
fn row_factor(problem: &Problem, inputs: &Inputs<'_>, [b, h, i]: [u32; 3]) -> Bounded {
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
    let n = || {
        let n = (0..s.seq_k).filter(|&j| near(problem, inputs, [b, i, j])).count();
        n.max(1) as f64
    };
    // The multiplier, and what multiplies its logarithm.
    let (length, coef) = match problem.length_scale {
        LengthScale::None | LengthScale::Yarn { .. } => (1.0, 0.0), // is in factor()
        LengthScale::Ssmax => {
            let s = f64::from(inputs.tables.ssmax.unwrap_or_default()[h as usize]);
            (s * n().ln(), s)
        }
        LengthScale::LogTrainLen { train_len } => {
            let coef = 1.0 / f64::from(train_len).ln();
            ((n().ln() * coef).max(1.0), coef)
        }
        LengthScale::Llama4 { coef, floor } => {
            let steps = (position(problem, inputs, b, i).max(0) + 1) / i64::from(floor);
            (1.0 + f64::from(coef) * (steps as f64 + 1.0).ln(), f64::from(coef))
        }
    };
    let base = problem.factor() / tau;
    let value = base * length;
    // WGSL's log is good to 2^-21 near 1 and to 3 ulp elsewhere.
    let bound = if coef == 0.0 {
        0.0
    } else {
        base.abs() * coef.abs() * 2.0 * LOG2_NEAR_1 + 10.0 * EPS * value.abs()
    };
    Bounded { value, bound }
}

/// The scores of one row as the softmax sees them (scaled, capped, biased): `None` for keys it does not see.
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
    /// How far rounding may move it.
    error: f64,
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
    let [q_type, k_type, ..] = problem.dtypes;
    let slope = inputs.tables.alibi_slopes.map_or(0.0, |slopes| f64::from(slopes[h as usize]));
    let position = position(problem, inputs, b, i);
    (0..s.seq_k)
        .map(|j| {
            if !visible(problem, inputs, [b, h, i, j]) {
                return None;
            }
            let (mut dot, mut size) = (0.0, 0.0);
            for d in 0..s.head_dim_qk {
                let x = f64::from(q_type.round(inputs.q[q.index([b, h, i, d]) as usize]))
                    * f64::from(k_type.round(inputs.k[k.index([b, h / s.group(), j, d]) as usize]));
                dot += x;
                size += x.abs();
            }
            let mut score = dot * factor.value;
            let dims = f64::from(s.head_dim_qk.next_multiple_of(4));
            let mut error = (EPS * growth(dims + 8.0) * factor.value.abs() + factor.bound) * size;
            if let Some(cap) = problem.softcap {
                let cap = f64::from(cap);
                score = cap * (score / cap).tanh();
                // tanh made of an exp2, two sums and a quotient is off by less than 10 eps; one more for the product.
                error += 12.0 * EPS * cap;
            }
            let added =
                [bias(problem, inputs, [b, h, i, j]), -slope * (position - i64::from(j)).abs() as f64];
            for term in added {
                score += term;
                error += EPS * (3.0 * term.abs() + score.abs());
            }
            Some(Score { score, error })
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
    let sink = match problem.sink {
        Sink::None => None,
        Sink::Zero => Some(0.0),
        Sink::PerHead => Some(f64::from(inputs.tables.sinks.unwrap_or_default()[h as usize])),
    };
    if seen.is_empty() {
        // Out stays 0.
        let minus_infinity = Bounded { value: f64::NEG_INFINITY, bound: 0.0 };
        truth.lse.push(sink.map_or(minus_infinity, |sink| Bounded {
            value: sink,
            bound: 8.0 * EPS * sink.abs() + LOG2_NEAR_1,
        }));
        truth.entropy.push(Bounded::default());
        truth.row_max.push(minus_infinity);
        return;
    }
    let key_max = seen.iter().fold(f64::NEG_INFINITY, |m, (_, s)| m.max(s.score));
    let max = key_max.max(sink.unwrap_or(f64::NEG_INFINITY));
    let min = seen.iter().fold(f64::INFINITY, |m, (_, s)| m.min(s.score));
    let sum: f64 = seen.iter().map(|(_, s)| s.score).chain(sink).map(|s| (s - max).exp()).sum();
    let lse = max + sum.ln();
    let p: Vec<f64> = seen.iter().map(|(_, s)| (s.score - lse).exp()).collect();
    let entropy: f64 = p.iter().map(|&p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum();

    // Relative error of each weight, as the module's head says.
    let n = seen.len() as f64;
    let log2_e = core::f64::consts::LOG2_E;
    let rescaling = 2.0 * EPS * (3.0 * (n / 16.0).ceil() + 2.0 * (max - min) * log2_e);
    let error = |score: Score| {
        let x = (max - score.score) * log2_e;
        score.error + 2.0 * EPS * (3.0 + 2.0 * x) + EPS * x + rescaling
    };
    let errors: Vec<f64> = seen.iter().map(|&(_, s)| error(s)).collect();
    let sink_error = sink
        .map_or(0.0, |score| (score - lse).exp() * error(Score { score, error: 2.0 * EPS * score.abs() }));
    let mean_error: f64 = p.iter().zip(&errors).map(|(p, e)| p * e).sum::<f64>() + sink_error;
    // First-order terms hold while errors are small; beyond that they compound.
    let compound = errors.iter().zip(&p).fold(0.0f64, |m, (e, p)| m.max(e * p.min(1.0))).exp();
    let sums = EPS * (growth(n + 8.0) + 6.0);

    let [_, _, v_type, out_type] = problem.dtypes;
    let (storing_rel, storing_abs) = out_type.rounding();
    for d in 0..s.head_dim_v {
        let (mut value, mut size, mut bound) = (0.0, 0.0, 0.0);
        for ((&(j, _), &p), &e) in seen.iter().zip(&p).zip(&errors) {
            let x = p * f64::from(v_type.round(inputs.v[v.index([b, h / s.group(), j, d]) as usize]));
            value += x;
            size += x.abs();
            bound += x.abs() * (e + mean_error);
        }
        if out_type == DType::F16 {
            value = value.clamp(-65504.0, 65504.0);
        }
        let bound = (bound + 2.0 * sums * size) * compound + storing_rel * value.abs() + storing_abs + TINY;
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
    let score_error = seen.iter().fold(0.0f64, |m, (_, s)| m.max(s.error));
    truth.row_max.push(Bounded { value: key_max, bound: score_error + 4.0 * EPS * key_max.abs() + TINY });
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
