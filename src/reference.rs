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
//!                                           (3 eps |x_j| with a soft cap, where scores are in natural units)
//!     + 2 eps (3 g(n) + 2 |x_j|)            rescaling at new maxima, none below s_j: at most one for each of n keys
//! ```
//!
//! and out, a quotient of two sums of n terms, is off by at most
//! `sum_j p_j |v_j| (d_j + sum_i p_i d_i) + eps (2 g(n) + 12) sum_j p_j |v_j|`. The bounds of lse, entropy and row maximum follow
//! in the same way; WGSL's log2 adds 2^-21 near 1.
//!
//! This holds for every order in which the kernels add: the naive kernel all keys of a row one after the other, the tiled kernel a few
//! sums side by side, whose lengths add up to n, with one maximum for a tile, and the row kernel one sum of D products for a score and
//! one of n terms for a row, with a maximum for every few keys.
//!
//! The matrix kernel rounds each weight to f16 before it meets v, in units of 2^-15 so that f16's whole range is in use: by 2^-11 of itself,
//! or, below 2^-29, by no more than 2^-29. [`Truth::of_kernel`] adds `sum_j (2^-11 p_j + 2^-29) |v_j|` to the bound on out for that kernel
//! alone. (Weights are in terms of a running maximum, and what they are divided by is at least 1, so no error grows.) Its products q k
//! are of f16 as given, in f32 sums, and the factor on q comes after them: one rounding as before.
//!
//! Other normalizers have their bounds in `reference/weights.rs`, each beside its formula.
//!
//! Score options add to d_j what their own operations round, a few eps of their terms: soft cap, user code (as fast as its
//! twin grows around the score), bias, ALiBi, length scales. Inputs of 16 bits are rounded first, as a host call rounds them; storing
//! out in 16 bits adds its rounding to the bound, and f16 saturates at +-65504.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::host::Inputs;
use crate::layout::View;
use crate::normalizer::Normalizer;
use crate::problem::Problem;
use crate::score::Sink;
use crate::scores::ScoreStage;
use crate::tensor::Tensor;

mod compare;
pub(crate) mod gradient;
mod score;
mod twin;
mod weights;

pub use compare::{Comparison, compare};
use score::Score;
pub(crate) use score::{Cpu, dense_index, mask_keeps};
pub use twin::twin;
use weights::Weights;

/// A float64 number and how far f32 may be from it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounded {
    /// The true value.
    pub value: f64,
    /// The bound on an f32 kernel's absolute error.
    pub bound: f64,
}

/// The right answer. All statistics are there, whether asked for or not, except those that the problem's normalizer does not have: these are
/// empty.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Truth {
    /// In `Problem::out_layout`; places that a strided layout leaves out are 0.
    pub out: Vec<Bounded>,
    /// (batch, q_heads, seq_q), of packed sequences (q_heads, total_q), as the other statistics; natural logarithm.
    pub lse: Vec<Bounded>,
    /// (batch, q_heads, seq_q), nats.
    pub entropy: Vec<Bounded>,
    /// (batch, q_heads, seq_q).
    pub row_max: Vec<Bounded>,
    /// How much further each number of out may be off where weights are rounded to f16, see [`Truth::of_kernel`].
    pub half_weights: Vec<f64>,
}

/// Twins in Rust of a problem's user code, which is WGSL and does not run on the CPU. Indices are (batch, head, query, key), of the
/// whole problem.
#[derive(Clone, Copy, Default)]
pub struct Mods<'a> {
    /// Twin of [`Problem::score_mod`]: of a score after the soft cap, in natural units, makes the new one.
    pub score: Option<&'a dyn Fn(f64, [u32; 4]) -> f64>,
    /// Twin of [`Problem::mask_mod`]: true where the query attends to the key.
    pub mask: Option<&'a dyn Fn([u32; 4]) -> bool>,
}

impl core::fmt::Debug for Mods<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Mods")
            .field("score", &self.score.is_some())
            .field("mask", &self.mask.is_some())
            .finish()
    }
}

impl Truth {
    /// With a place for everything.
    fn empty(problem: &Problem) -> Result<Self> {
        let rows = vec![Bounded::default(); problem.rows() as usize];
        let (lse, entropy) = match problem.normalizer {
            Normalizer::Softmax => (rows.clone(), rows.clone()),
            Normalizer::Sigmoid { .. } => (Vec::new(), Vec::new()),
            Normalizer::Sparsemax | Normalizer::Entmax15 => (Vec::new(), rows.clone()),
        };
        let out = vec![Bounded::default(); problem.view(Tensor::Out)?.extent() as usize];
        let half_weights = vec![0.0; out.len()];
        Ok(Truth { out, lse, entropy, row_max: rows, half_weights })
    }
}

impl<'a> Cpu<'a> {
    fn new(problem: &'a Problem, inputs: &'a Inputs<'a>, mods: &Mods<'a>) -> Result<Self> {
        inputs.check(problem)?;
        for (field, given, needed) in [
            ("the float64 twin of score_mod", mods.score.is_some(), problem.score_mod.is_some()),
            ("the float64 twin of mask_mod", mods.mask.is_some(), problem.mask_mod.is_some()),
        ] {
            match (given, needed) {
                (false, true) => return Err(Error::Missing { field, why: "WGSL does not run on the CPU" }),
                (true, false) => return Err(Error::Unused { field, hint: "the problem has no such code" }),
                _ => {}
            }
        }
        Ok(Cpu { problem, inputs, mods: *mods })
    }

    /// The logit beside the keys of a head.
    fn sink(&self, h: u32) -> Option<f64> {
        match self.problem.sink {
            Sink::None => None,
            Sink::Zero => Some(0.0),
            Sink::PerHead => {
                let sink = f64::from(self.inputs.tables.sinks.unwrap_or_default()[h as usize]);
                Some(sink.clamp(-MAX_BIAS, MAX_BIAS))
            }
        }
    }

    /// Refuses a row that the problem does not have.
    fn check_row(&self, row: [u32; 3]) -> Result<()> {
        let s = &self.problem.shape;
        let rows = if row[0] < s.batch { self.sequences().queries(row[0]) } else { 0 };
        for (field, at, size) in
            [("batch", row[0], s.batch), ("head", row[1], s.q_heads), ("row", row[2], rows)]
        {
            if at >= size {
                return Err(Error::value(field, at, "within the problem's shape"));
            }
        }
        Ok(())
    }
}

/// Bias and sinks beyond this are cut off.
const MAX_BIAS: f64 = 1e38;
const EPS: f64 = 1.0 / (1u64 << 24) as f64;
const LOG2_NEAR_1: f64 = 1.0 / (1u64 << 21) as f64;
/// Rounding a weight to f16, and what is lost of one below f16's normal range, which begins at 2^-14 of weights times 2^15.
const HALF_EPS: f64 = 1.0 / (1u64 << 11) as f64;
const HALF_TINY: f64 = 1.0 / (1u64 << 29) as f64;
/// Numbers below f32's normal range may be flushed to 0.
const TINY: f64 = 1e-36;

fn growth(n: f64) -> f64 {
    n.min(6.0 * n.sqrt())
}

/// The scores of one row as the softmax sees them (scaled, capped, biased): `None` for keys it does not see. As many as its batch
/// has keys: seq_k, or the length of a packed sequence.
///
/// # Errors
/// What [`Inputs::check`] finds, and [`Error::Value`] for a row that does not exist.
pub fn scores(problem: &Problem, inputs: &Inputs<'_>, row: [u32; 3]) -> Result<Vec<Option<f64>>> {
    scores_with(problem, inputs, &Mods::default(), row)
}

/// [`scores`] with twins of the problem's user code.
///
/// # Errors
/// As [`scores`] and [`truth_with`].
pub fn scores_with(
    problem: &Problem,
    inputs: &Inputs<'_>,
    mods: &Mods<'_>,
    row: [u32; 3],
) -> Result<Vec<Option<f64>>> {
    let cpu = Cpu::new(problem, inputs, mods)?;
    cpu.check_row(row)?;
    let (q, k) = (problem.view(Tensor::Q)?, problem.view(Tensor::K)?);
    Ok(cpu.scores(&q, &k, row).into_iter().map(|s| s.map(|s| s.score)).collect())
}

/// The scores of one row at a stage, with how far f32 may be off: the truth of [`Attention::scores`](crate::Attention::scores).
///
/// # Errors
/// As [`scores`].
pub fn scores_at(
    problem: &Problem,
    inputs: &Inputs<'_>,
    stage: ScoreStage,
    row: [u32; 3],
) -> Result<Vec<Bounded>> {
    scores_at_with(problem, inputs, &Mods::default(), stage, row)
}

/// [`scores_at`] with twins of the problem's user code.
///
/// # Errors
/// As [`scores`] and [`truth_with`].
pub fn scores_at_with(
    problem: &Problem,
    inputs: &Inputs<'_>,
    mods: &Mods<'_>,
    stage: ScoreStage,
    row: [u32; 3],
) -> Result<Vec<Bounded>> {
    let cpu = Cpu::new(problem, inputs, mods)?;
    cpu.check_row(row)?;
    let (q, k) = (problem.view(Tensor::Q)?, problem.view(Tensor::K)?);
    let scores = cpu.scores_at(stage, &q, &k, row);
    if stage != ScoreStage::Probs {
        let hidden = Bounded { value: f64::NEG_INFINITY, bound: 0.0 };
        let rounded =
            |s: Score| Bounded { value: s.score, bound: s.error + 4.0 * EPS * s.score.abs() + TINY };
        return Ok(scores.into_iter().map(|s| s.map_or(hidden, rounded)).collect());
    }
    let mut probs = vec![Bounded::default(); scores.len()];
    let (keys, seen) = seen(&scores);
    if !seen.is_empty() {
        let w = Weights::new(&cpu, row, &seen);
        for ((&j, &p), &e) in keys.iter().zip(&w.p).zip(&w.errors) {
            probs[j as usize] = Bounded { value: p, bound: e + 2.0 * w.sums * p + TINY };
        }
    }
    Ok(probs)
}

/// Computes a problem in float64.
///
/// Where a visible key holds NaN or infinity, the truth holds what arithmetic makes of it.
///
/// # Errors
/// What [`Inputs::check`] finds; [`Error::Missing`] for a problem with user code, see [`truth_with`].
pub fn truth(problem: &Problem, inputs: &Inputs<'_>) -> Result<Truth> {
    truth_with(problem, inputs, &Mods::default())
}

/// [`truth`] with twins of the problem's user code.
///
/// # Errors
/// As [`truth`]; [`Error::Missing`] for code without a twin, [`Error::Unused`] for a twin without code.
pub fn truth_with(problem: &Problem, inputs: &Inputs<'_>, mods: &Mods<'_>) -> Result<Truth> {
    let cpu = Cpu::new(problem, inputs, mods)?;
    let s = &problem.shape;
    let views = [
        problem.view(Tensor::Q)?,
        problem.view(Tensor::K)?,
        problem.view(Tensor::V)?,
        problem.view(Tensor::Out)?,
    ];
    let mut truth = Truth::empty(problem)?;
    for b in 0..s.batch {
        for h in 0..s.q_heads {
            for i in 0..cpu.sequences().queries(b) {
                row(&cpu, &views, [b, h, i], &mut truth);
            }
        }
    }
    Ok(truth)
}

/// Some rows of [`truth`], each of head_dim_v numbers: for problems that are too large to compute whole.
///
/// # Errors
/// As [`truth`], and [`Error::Value`] for a row that does not exist.
pub fn truth_of_rows(problem: &Problem, inputs: &Inputs<'_>, rows: &[[u32; 3]]) -> Result<Vec<Vec<Bounded>>> {
    Ok(rows_of_truth(problem, inputs, rows)?.into_iter().map(|row| row.out).collect())
}

/// [`truth_of_rows`], each row as a truth of its own in which only out is filled in.
pub(crate) fn rows_of_truth(problem: &Problem, inputs: &Inputs<'_>, rows: &[[u32; 3]]) -> Result<Vec<Truth>> {
    let cpu = Cpu::new(problem, inputs, &Mods::default())?;
    let views = [
        problem.view(Tensor::Q)?,
        problem.view(Tensor::K)?,
        problem.view(Tensor::V)?,
        problem.view(Tensor::Out)?,
    ];
    let mut truth = Truth::empty(problem)?;
    let sequences = cpu.sequences();
    rows.iter()
        .map(|&at| {
            cpu.check_row(at)?;
            row(&cpu, &views, at, &mut truth);
            let [b, h, i] = at;
            let places = (0..problem.shape.head_dim_v).map(|d| sequences.in_q(&views[3], [b, h, i, d]));
            let (out, half_weights) = places.map(|at| (truth.out[at], truth.half_weights[at])).unzip();
            Ok(Truth { out, half_weights, ..Truth::default() })
        })
        .collect()
}

fn row(cpu: &Cpu<'_>, [q, k, v, out]: &[View; 4], [b, h, i]: [u32; 3], truth: &mut Truth) {
    let (problem, inputs) = (cpu.problem, cpu.inputs);
    let s = &problem.shape;
    let sequences = cpu.sequences();
    let at = sequences.row_number([b, h, i]);
    let scores = cpu.scores(q, k, [b, h, i]);
    let (keys, seen) = seen(&scores);
    if seen.is_empty() {
        // Out stays 0.
        let minus_infinity = Bounded { value: f64::NEG_INFINITY, bound: 0.0 };
        if problem.normalizer.is_softmax() {
            // A row beyond q_len has no softmax, and so no sink in it.
            truth.lse[at] = cpu.sink(h).filter(|_| cpu.is_row(b, i)).map_or(minus_infinity, |sink| Bounded {
                value: sink,
                bound: 8.0 * EPS * sink.abs() + LOG2_NEAR_1,
            });
        }
        truth.row_max[at] = minus_infinity;
        return;
    }
    let Weights { mut p, mut errors, sums, row_max, lse, entropy } = Weights::new(cpu, [b, h, i], &seen);
    for (list, statistic) in
        [(&mut truth.lse, lse), (&mut truth.entropy, entropy), (&mut truth.row_max, Some(row_max))]
    {
        if let Some(statistic) = statistic {
            list[at] = statistic;
        }
    }

    // What is dropped is dropped without error; the factor on the rest is rounded, and multiplied with.
    let (mut scaling, mut dropped_up) = (0.0, 1.0);
    if let (Some(dropout), Some(seed)) = (problem.dropout, inputs.tables.dropout) {
        (scaling, dropped_up) = (2.0 * EPS, 1.0 / dropout.keep());
        for ((&j, p), e) in keys.iter().zip(&mut p).zip(&mut errors) {
            let factor = if dropout.keeps(s, seed, [b, h, i, j]) { 1.0 / dropout.keep() } else { 0.0 };
            (*p, *e) = (*p * factor, *e * factor);
        }
    }
    let [_, _, v_type, out_type] = problem.dtypes;
    let (storing_rel, storing_abs) = out_type.rounding();
    for d in 0..s.head_dim_v {
        let (mut value, mut size, mut bound, mut all) = (0.0, 0.0, 0.0, 0.0);
        for ((&j, &p), &e) in keys.iter().zip(&p).zip(&errors) {
            let v = f64::from(v_type.round(inputs.v[sequences.in_k(v, [b, h / s.group(), j, d])]));
            value += p * v;
            size += (p * v).abs();
            bound += e * v.abs();
            all += v.abs();
        }
        if out_type == DType::F16 {
            value = value.clamp(-65504.0, 65504.0);
        }
        let bound = bound + (2.0 * sums + scaling) * size + storing_rel * value.abs() + storing_abs + TINY;
        let place = sequences.in_q(out, [b, h, i, d]);
        truth.out[place] = Bounded { value, bound };
        truth.half_weights[place] = HALF_EPS * size + HALF_TINY * dropped_up * all;
    }
}

/// The keys that a row sees, and their scores.
fn seen(scores: &[Option<Score>]) -> (Vec<u32>, Vec<Score>) {
    (0..).zip(scores).filter_map(|(j, score)| Some((j, (*score)?))).unzip()
}
