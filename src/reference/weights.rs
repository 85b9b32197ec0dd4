//! The weights of one row in float64, how far f32 may be from them, and the statistics that follow from them.

use super::score::{Cpu, Score};
use super::{Bounded, EPS, LOG2_NEAR_1, TINY, growth};
use crate::normalizer::{Normalizer, SigmoidBias};
use crate::problem::Problem;

/// The weights of a row that sees a key, before dropout.
pub(super) struct Weights {
    /// The weights.
    pub(super) p: Vec<f64>,
    /// How far each may be off, absolutely, except for what adding up their sum does.
    pub(super) errors: Vec<f64>,
    /// Relative, of a sum over all keys.
    pub(super) sums: f64,
    pub(super) row_max: Bounded,
    /// Where the normaliser has one.
    pub(super) lse: Option<Bounded>,
    /// Where the weights are a distribution.
    pub(super) entropy: Option<Bounded>,
}

impl Weights {
    /// Of row (batch, head, row), from the scores of the keys that it sees.
    pub(super) fn new(cpu: &Cpu<'_>, [b, h, i]: [u32; 3], seen: &[Score]) -> Self {
        match cpu.problem.normalizer {
            Normalizer::Softmax => softmax(cpu.problem, seen, cpu.sink(h)),
            Normalizer::Sigmoid { bias } => {
                let bias = match bias {
                    SigmoidBias::Value(b) => Bounded { value: b.into(), bound: 0.0 },
                    SigmoidBias::MinusLogSeqK => {
                        Bounded { value: -f64::from(cpu.problem.shape.seq_k).ln(), bound: 0.0 }
                    }
                    // WGSL's log2 is good to 2^-21 near 1 and to 3 ulp elsewhere.
                    SigmoidBias::MinusLogVisible => {
                        let value = -cpu.visible_keys([b, i]).ln();
                        Bounded { value, bound: LOG2_NEAR_1 + 6.0 * EPS * value.abs() }
                    }
                };
                sigmoid(seen, bias)
            }
        }
    }
}

/// Rounding of sums over n keys.
fn sums(n: usize) -> f64 {
    EPS * (growth(n as f64 + 8.0) + 6.0)
}

/// The largest score, off by no more than the largest key is, or by what another may come out above it.
fn row_max(seen: &[Score]) -> Bounded {
    let value = seen.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.score));
    let above = seen.iter().fold(0.0f64, |m, s| m.max(s.score + s.error - value));
    let below = seen.iter().fold(f64::INFINITY, |m, s| m.min(value - s.score + s.error));
    Bounded { value, bound: above.max(below) + 4.0 * EPS * value.abs() + TINY }
}

/// exp(s - max) / sum, as the module's head says.
fn softmax(problem: &Problem, seen: &[Score], sink: Option<f64>) -> Weights {
    let row_max = row_max(seen);
    let max = row_max.value.max(sink.unwrap_or(f64::NEG_INFINITY));
    let sum: f64 = seen.iter().map(|s| s.score).chain(sink).map(|s| (s - max).exp()).sum();
    let lse = max + sum.ln();
    // Not exp(s - lse): next to a maximum of 1e38 the logarithm of the sum is lost.
    let p: Vec<f64> = seen.iter().map(|s| (s.score - max).exp() / sum).collect();

    let n = seen.len() as f64;
    let log2_e = core::f64::consts::LOG2_E;
    // The difference is rounded; in natural units log2(e) and the product with it are too.
    let roundings = if problem.softcap.is_some() { 3.0 } else { 1.0 };
    // Relative, of a weight before it is divided by their sum.
    let error = |score: Score| {
        let x = (max - score.score) * log2_e;
        let rescaling = 2.0 * EPS * (3.0 * (n / 16.0).ceil() + 2.0 * x);
        score.error + 2.0 * EPS * (3.0 + 2.0 * x) + roundings * EPS * x + rescaling
    };
    let relative: Vec<f64> = seen.iter().map(|&s| error(s)).collect();
    let sink_error = sink.map_or(0.0, |score| {
        (score - max).exp() / sum * error(Score { score, error: 2.0 * EPS * score.abs() })
    });
    // Of the sum.
    let mean_error: f64 = p.iter().zip(&relative).map(|(p, e)| p * e).sum::<f64>() + sink_error;
    // First-order terms hold while errors are small; beyond that they compound.
    let compound = relative.iter().zip(&p).fold(0.0f64, |m, (e, p)| m.max(e * p.min(1.0))).exp();
    let sums = sums(seen.len());

    let lse_bound = mean_error * compound
        + sums
        + LOG2_NEAR_1
        + EPS * (6.0 * lse.abs() + 6.0 * max.abs() + 6.0 * sum.ln().abs())
        + TINY;
    let entropy: f64 = p.iter().map(|&p| minus_p_ln_p(p)).sum();
    // dH/ds_j = -p_j (ln p_j + H); and the two sums of which H is made.
    let sensitivity: f64 = p
        .iter()
        .zip(&relative)
        .map(|(&p, e)| if p > 0.0 { p * (p.ln().abs() + entropy) * e } else { 0.0 })
        .sum();
    let spread: f64 = p.iter().zip(seen).map(|(p, s)| p * (max - s.score)).sum();
    let entropy_bound = sensitivity * compound
        + sums * (1.0 + entropy + 2.0 * spread)
        + LOG2_NEAR_1
        + 6.0 * EPS * (sum.ln().abs() + spread)
        // The maximum itself is rounded, and x of every other key with it.
        + mean_error.min(1.0) * spread
        + TINY;
    let errors = p.iter().zip(&relative).map(|(p, e)| p * (e + mean_error) * compound).collect();
    Weights {
        p,
        errors,
        sums,
        row_max,
        lse: Some(Bounded { value: lse, bound: lse_bound }),
        entropy: Some(Bounded { value: entropy, bound: entropy_bound }),
    }
}

/// 1 / (1 + exp(-x)) with x = s + bias. The derivative is p (1 - p). What f32 does to x: it is a sum of two numbers in units of
/// log2; exp2 is off by 3 + 2|x| ulp of itself, which acts as an error of x; then a sum and a quotient of 2.5 ulp.
fn sigmoid(seen: &[Score], bias: Bounded) -> Weights {
    let weight = |s: &Score| {
        let x = s.score + bias.value;
        // Without cancellation on either side.
        let (p, rest) = if x < 0.0 {
            (x.exp() / (1.0 + x.exp()), 1.0 / (1.0 + x.exp()))
        } else {
            (1.0 / (1.0 + (-x).exp()), (-x).exp() / (1.0 + (-x).exp()))
        };
        let rounding = 3.0 * EPS * (s.score.abs() + bias.value.abs() + x.abs());
        let dx =
            s.error + bias.bound + rounding + 2.0 * EPS * (3.0 + 2.0 * x.abs() * core::f64::consts::LOG2_E);
        // Beyond first order it grows by no more than exp(dx); and p is never off by more than 1.
        (p, (p * rest * dx * dx.min(500.0).exp()).min(1.0) + 8.0 * EPS * p + TINY)
    };
    let (p, errors) = seen.iter().map(weight).unzip();
    Weights { p, errors, sums: sums(seen.len()), row_max: row_max(seen), lse: None, entropy: None }
}

fn minus_p_ln_p(p: f64) -> f64 {
    if p > 0.0 { -p * p.ln() } else { 0.0 }
}
