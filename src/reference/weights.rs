//! The weights of one row in float64, how far f32 may be from them, and the statistics that follow from them.

use super::score::{Cpu, Score};
use super::{Bounded, EPS, LOG2_NEAR_1, TINY, growth};
use crate::normalizer::{Normalizer, SigmoidBias};
use crate::problem::Problem;
use crate::sharpness::AdaptiveTemperature;

/// The weights of a row that sees a key, before dropout.
pub(super) struct Weights {
    /// The weights.
    pub(super) p: Vec<f64>,
    /// How far each may be off, absolutely, except for what adding up their sum does.
    pub(super) errors: Vec<f64>,
    /// Relative, of a sum over all keys.
    pub(super) sums: f64,
    pub(super) row_max: Bounded,
    /// Where the normalizer has one.
    pub(super) lse: Option<Bounded>,
    /// Where the weights are a distribution.
    pub(super) entropy: Option<Bounded>,
}

impl Weights {
    /// Of row (batch, head, row), from the scores of the keys that it sees.
    pub(super) fn new(cpu: &Cpu<'_>, [b, h, i]: [u32; 3], seen: &[Score]) -> Self {
        match cpu.problem.normalizer {
            Normalizer::Softmax => {
                let sink = cpu.sink(h);
                match (cpu.problem.adaptive_temperature, cpu.problem.top_k) {
                    (Some(adaptive), _) => adapted(cpu.problem, seen, &adaptive),
                    (None, Some(k)) => top_k(cpu.problem, seen, sink, k),
                    (None, None) => softmax(cpu.problem, seen, sink),
                }
            }
            Normalizer::Sparsemax => entmax(cpu.problem, seen, 1),
            Normalizer::Entmax15 => entmax(cpu.problem, seen, 2),
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
        let rescaling = 2.0 * EPS * (3.0 * growth(n) + 2.0 * x);
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

/// A softmax of the scores times beta = max(1, poly(H)), where its own entropy H is above a threshold, else 1.
///
/// beta is off by what H and Horner's rule are, and by a jump where H is within its error of the threshold and poly(H) above 1. It is
/// the same for all keys: what it does to the weights are its errors times the distances to the largest score. The products
/// s beta are rounded, each by itself.
fn adapted(problem: &Problem, seen: &[Score], adaptive: &AdaptiveTemperature) -> Weights {
    let before = softmax(problem, seen, None);
    let h = before.entropy.unwrap_or_default();
    let poly = |h: f64| adaptive.coefficients.iter().fold(0.0, |sum, &c| sum * h + f64::from(c));
    let size = |h: f64| adaptive.coefficients.iter().fold(0.0, |sum, &c| sum * h + f64::from(c).abs());
    let above = f64::from(adaptive.above);
    let raised = |h: f64| if h > above { poly(h).max(1.0) } else { 1.0 };
    let beta = raised(h.value);
    // The polynomial is nowhere steeper than the one with all coefficients positive, which grows ever faster.
    let high = h.value + h.bound;
    let slope = (size(high + 1e-3) - size(high)) / 1e-3;
    let jump = if (h.value - above).abs() <= h.bound { poly(above).max(1.0) - 1.0 } else { 0.0 };
    let beta_error = slope * h.bound + jump + 12.0 * EPS * size(high);

    let max = before.row_max.value;
    let scaled = |s: &Score| Score {
        score: s.score * beta,
        error: s.error * (beta + beta_error)
            + 3.0 * EPS * (s.score * beta).abs()
            + beta_error * (max - s.score),
    };
    let seen: Vec<Score> = seen.iter().map(scaled).collect();
    let mut after = softmax(problem, &seen, None);
    // Of the largest score itself, which the weights do not see.
    after.row_max.bound += beta_error * max.abs();
    if let Some(lse) = &mut after.lse {
        lse.bound += beta_error * max.abs();
    }
    after
}

/// A softmax of the k largest scores, the first of equal ones.
///
/// f32 may take others for the k largest, where scores are within their errors of one another. The k-th largest score that it finds lies
/// between the k-th largest of s - e and that of s + e. A key that is above the latter for certain is kept, one that is
/// below the former is not. Of those between, as many are kept as should be, but perhaps others: each may have its weight or none.
/// Their scores differ by no more than their errors, so that the sum of the weights stays what it was to that much.
fn top_k(problem: &Problem, seen: &[Score], sink: Option<f64>, k: u32) -> Weights {
    let k = k as usize;
    if seen.len() <= k {
        return softmax(problem, seen, sink);
    }
    let kth = |f: &dyn Fn(&Score) -> f64| {
        let mut values: Vec<f64> = seen.iter().map(f).collect();
        values.sort_by(|a, b| b.total_cmp(a));
        values[k - 1]
    };
    let (low, high) = (kth(&|s| s.score - s.error), kth(&|s| s.score + s.error));
    let mut order: Vec<usize> = (0..seen.len()).collect();
    // Stable: of equal scores the first stay first.
    order.sort_by(|&a, &b| seen[b].score.total_cmp(&seen[a].score));
    let mut kept = vec![false; seen.len()];
    order[..k].iter().for_each(|&j| kept[j] = true);
    let open = |s: &Score| s.score - s.error <= high && s.score + s.error >= low;
    let may_enter = seen.iter().zip(&kept).any(|(s, &kept)| !kept && open(s));

    let chosen: Vec<Score> = seen.iter().zip(&kept).filter_map(|(s, &kept)| kept.then_some(*s)).collect();
    let among = softmax(problem, &chosen, sink);
    let mut weights = Weights { p: vec![0.0; seen.len()], errors: vec![0.0; seen.len()], ..among };
    let (mut p, mut errors) = (among.p.iter(), among.errors.iter());
    for j in (0..seen.len()).filter(|&j| kept[j]) {
        weights.p[j] = p.next().copied().unwrap_or_default();
        weights.errors[j] = errors.next().copied().unwrap_or_default();
    }
    if may_enter {
        let least = chosen.iter().fold(f64::INFINITY, |m, s| m.min(s.score));
        let share = order[..k].last().map_or(0.0, |&j| weights.p[j]);
        let moved = seen.iter().zip(&kept).filter(|(s, kept)| **kept && open(s)).count() as f64 * share;
        let apart =
            seen.iter().filter(|s| open(s)).fold(0.0f64, |m, s| m.max((s.score - least).abs() + s.error));
        // The weights of those that stay move with the sum; statistics move as the weights and their logarithms do.
        let shift = moved * (apart.min(500.0).exp() - 1.0);
        for (j, s) in seen.iter().enumerate() {
            weights.errors[j] += weights.p[j] * shift;
            if open(s) {
                weights.errors[j] += share * apart.min(500.0).exp();
            }
        }
        for stat in [&mut weights.lse, &mut weights.entropy].into_iter().flatten() {
            stat.bound += shift * (2.0 + stat.value.abs() + share.max(1e-300).ln().abs());
        }
    }
    weights
}

/// [d_j - t]_+^g, with d_j = (s_j - max) / g and the t for which they sum to 1: sparsemax for g = 1, 1.5-entmax for g = 2 (a - 1 is 1/g).
///
/// The truth is by sorting: the largest r keys are the support for the only r whose threshold lies between the d of the r-th
/// and of the next. f32 computes
///
/// ```text
/// d_j with an error of x_j = e_j / g + 4 eps |d_j|
/// t   with one of x + dt: x = max x_j of the keys that can have a weight, because t moves by no more than the scores do;
///     dt what the search leaves: 2^-21 / slope + 2^-22 |t|, and eps (g(n + 8) + 6) / slope + 8 eps |t| for rounding in f(t)
///     and in the steps; slope = -f'(t) = g sum p^(1 - 1/g)
/// ```
///
/// A weight u^g of which u is off by X = x_j + x + dt is off by at most (u + X)^g - u^g. It is divided by the sum of all, which misses
/// 1 by what dt does to it: slope dt + r dt^2.
fn entmax(problem: &Problem, seen: &[Score], g: i32) -> Weights {
    let gf = f64::from(g);
    let row_max = row_max(seen);
    let d: Vec<f64> = seen.iter().map(|s| (s.score - row_max.value) / gf).collect();
    let mut sorted = d.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    // Only keys nearer than 1 to the largest can have a weight, so that nothing overflows.
    sorted.retain(|&d| d > -1.0);
    let (mut sum, mut squares, mut t) = (0.0, 0.0, -1.0);
    for (n, &d) in (1..).zip(&sorted) {
        sum += d;
        squares += d * d;
        let n = f64::from(n);
        let mean = sum / n;
        // sum (d - t)^g = 1.
        let root = match g {
            1 => mean - 1.0 / n,
            _ => mean - ((1.0 - (squares - n * mean * mean)) / n).max(0.0).sqrt(),
        };
        if root > d {
            break;
        }
        t = root;
    }
    let u: Vec<f64> = d.iter().map(|d| (d - t).max(0.0)).collect();
    let p: Vec<f64> = u.iter().map(|u| u.powi(g)).collect();
    let slope = gf * u.iter().filter(|&&u| u > 0.0).map(|u| u.powi(g - 1)).sum::<f64>();
    let support = u.iter().filter(|&&u| u > 0.0).count() as f64;

    // In natural units log2(e) and the product with it are rounded too.
    let roundings = if problem.softcap.is_some() { 6.0 } else { 4.0 };
    let x: Vec<f64> = seen.iter().zip(&d).map(|(s, d)| s.error / gf + roundings * EPS * d.abs()).collect();
    // No weight: below -1 by more than the errors of this key and of the largest one.
    let top = seen.iter().zip(&d).fold(0.0f64, |m, (s, &d)| if d == 0.0 { m.max(s.error) } else { m });
    let can = |d: f64, x: f64| d + x + top > -1.0;
    let x_most = d.iter().zip(&x).filter(|&(&d, &x)| can(d, x)).fold(0.0f64, |m, (_, &x)| m.max(x));
    let n = seen.len() as f64;
    let dt = (NEAR + EPS * (growth(n + 8.0) + 6.0)) / slope + (FINEST + 8.0 * EPS) * t.abs();
    let missing = slope * dt + support * dt * dt;
    let errors: Vec<f64> = (d.iter().zip(&x))
        .zip(u.iter().zip(&p))
        .map(|((&d, &x), (&u, &p))| {
            let off = x + x_most + dt;
            // What is further below the threshold than that stays at 0.
            let weight = if d - t > -off { (u + off).powi(g) - p } else { 0.0 };
            weight * (1.0 + missing) + p * (missing + 8.0 * EPS)
        })
        .collect();

    let sums = sums(seen.len());
    let entropy: f64 = p.iter().map(|&p| minus_p_ln_p(p)).sum();
    // -p ln p is concave: within p +- e it is furthest off at one of the ends, or at its maximum.
    let h = minus_p_ln_p;
    let off = |p: f64, e: f64| {
        let (low, high) = ((p - e).max(0.0), p + e);
        let at_most = 1f64.exp().recip();
        let peak = if low < at_most && at_most < high { (h(at_most) - h(p)).abs() } else { 0.0 };
        (h(low) - h(p)).abs().max((h(high) - h(p)).abs()).max(peak)
    };
    let sensitivity: f64 = p.iter().zip(&errors).map(|(&p, &e)| off(p, e)).sum();
    let bound = sensitivity + 3.0 * LOG2_NEAR_1 + (2.0 * sums + 16.0 * EPS) * (1.0 + entropy) + TINY;
    Weights { p, errors, sums, row_max, lse: None, entropy: Some(Bounded { value: entropy, bound }) }
}

/// How near to 1 the kernels bring the sum of the weights, and to what share of the threshold they find it.
const NEAR: f64 = 1.0 / (1u64 << 21) as f64;
const FINEST: f64 = 1.0 / (1u64 << 22) as f64;

fn minus_p_ln_p(p: f64) -> f64 {
    if p > 0.0 { -p * p.ln() } else { 0.0 }
}
