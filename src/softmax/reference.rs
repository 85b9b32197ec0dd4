//! The truth: the operation in float64 on the CPU, by its formula, sharing nothing with the shaders, and beside each number how far f32 may
//! be off.
//!
//! # Error bounds
//!
//! With `eps = 2^-24` and, over the elements of a row, `d_i = (x_i - m) log2(e) / tau`:
//!
//! ```text
//! e_i = 2 eps (3 + 2 |d_i|)    exp2, as Vulkan allows it: 3 + 2|d| ulp
//!     + 7 eps |d_i|            d itself: difference, 1 / tau (2.5 ulp where the device divides), log2(e), two products
//!     + eps (6 T + 11 |d_i|)   changes of the maximum on the way: T at most, with distances that sum to |d_i|
//! ```
//!
//! bounds the relative error of the i-th term of the sum. A thread adds up at most 32 fours of a tile, or 8 of each of 64 tiles; what
//! threads have is put together in two steps of at most 16, and what workgroups have by 64 threads, which have at least 512 elements
//! from each. So a sum has `depth = 150 + n / 2^15` additions one after the other at most and adds `eps g(depth)`, with `g` as in
//! [`reference`](crate::reference). Results follow to first order.
//!
//! Sparse kinds: y is off by at most 8 eps at the support, a threshold moves no further than the largest error of a y plus that of its
//! sums, `eps g(depth)`, plus the width 2^-24 of the last interval of the search.

use super::host::{Gradients, Inputs, Outputs};
use super::problem::{Kind, Problem, RowTemperature};
use crate::error::Result;
use crate::reference::{Bounded, Comparison, compare};

const EPS: f64 = 1.0 / (1u64 << 24) as f64;
const LOG2_NEAR_1: f64 = 1.0 / (1u64 << 21) as f64;
/// Numbers below f32's normal range may be flushed to 0, a few times on the way.
const TINY: f64 = 1e-36;
/// And so may elements, their halves and the difference of two, each by less than 2^-125 of an element: what they come to is this by the
/// temperature, and counts where that is below 1e-30.
const FLUSHED: f64 = 3.0 / (1u128 << 125) as f64;

/// The right answer. All statistics are there where the kind has them, whether asked for or not.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Truth {
    /// In the layout of the result; places that it leaves out are 0.
    pub out: Vec<Bounded>,
    /// Natural log of the sum of exp(x / tau) of each row. Empty for sparse kinds.
    pub lse: Vec<Bounded>,
    /// Entropy of each row, in nats. Empty for sparse kinds.
    pub entropy: Vec<Bounded>,
    /// Place of each row's largest element, the lowest of equal ones; `u32::MAX` where there is none.
    pub argmax: Vec<u32>,
}

impl Truth {
    /// Compares all outputs that are there. A wrong argmax is infinitely wrong.
    pub fn compare(&self, got: &Outputs) -> Comparison {
        let mut all = [("lse", &got.lse, &self.lse), ("entropy", &got.entropy, &self.entropy)]
            .into_iter()
            .filter_map(|(field, got, truth)| Some(compare(got.as_deref()?, truth).of(field)))
            .fold(compare(&got.out, &self.out).of("out"), Comparison::merge);
        if let Some(argmax) = got.argmax.as_ref().filter(|argmax| **argmax != self.argmax) {
            let at = argmax.iter().zip(&self.argmax).position(|(got, want)| got != want).unwrap_or(0);
            (all.worst, all.at, all.field) = (f64::INFINITY, at, "argmax");
        }
        all
    }
}

fn growth(n: f64) -> f64 {
    n.min(6.0 * n.sqrt())
}

/// Rounding of a sum over n elements of a row, as the module's head says.
fn sum_error(n: usize) -> f64 {
    let n = n as f64;
    EPS * growth(n.min(150.0 + n / 32768.0))
}

/// Computes a problem in float64.
///
/// # Errors
/// What [`Inputs::check`] finds.
pub fn truth(problem: &Problem, inputs: &Inputs<'_>) -> Result<Truth> {
    inputs.check(problem)?;
    let mut truth = Truth {
        out: vec![Bounded::default(); problem.extent(&problem.out_layout) as usize],
        ..Truth::default()
    };
    if problem.in_place {
        // What lies between the elements stays as it is.
        truth.out = inputs.x[..truth.out.len()].iter().map(|&x| exact(x.into())).collect();
    }
    for r in 0..problem.row_count() {
        let row: Vec<f64> = (0..u64::from(problem.len))
            .map(|i| f64::from(problem.x_type.round(inputs.x[problem.index(&problem.x_layout, r, i)])))
            .collect();
        let tau = tau(problem, inputs.temperature, r);
        let mut argmax = u32::MAX;
        for (i, &x) in (0..).zip(&row) {
            if x > f64::NEG_INFINITY && (argmax == u32::MAX || x > row[argmax as usize]) {
                argmax = i;
            }
        }
        let out = if argmax == u32::MAX {
            empty(problem, &mut truth, row.len())
        } else if problem.kind.is_sparse() {
            sparse(problem.kind, &row, row[argmax as usize], tau)
        } else {
            exponential(problem.kind, &row, row[argmax as usize], tau, &mut truth)
        };
        truth.argmax.push(argmax);
        for (i, out) in (0..).zip(out) {
            truth.out[problem.index(&problem.out_layout, r, i)] = out;
        }
    }
    Ok(truth)
}

fn tau(problem: &Problem, temperature: Option<&[f32]>, row: u64) -> f64 {
    match problem.temperature {
        RowTemperature::Value(tau) => tau.into(),
        RowTemperature::PerRow => temperature.unwrap_or_default()[row as usize].into(),
    }
}

fn exact(value: f64) -> Bounded {
    Bounded { value, bound: 0.0 }
}

fn empty(problem: &Problem, truth: &mut Truth, len: usize) -> Vec<Bounded> {
    if !problem.kind.is_sparse() {
        truth.lse.push(exact(f64::NEG_INFINITY));
        truth.entropy.push(exact(0.0));
    }
    let nothing = if problem.kind == Kind::LogSoftmax { f64::NEG_INFINITY } else { 0.0 };
    vec![exact(nothing); len]
}

fn exponential(kind: Kind, row: &[f64], max: f64, tau: f64, truth: &mut Truth) -> Vec<Bounded> {
    let log2_e = core::f64::consts::LOG2_E;
    let seen = row.iter().filter(|x| **x > f64::NEG_INFINITY).count();
    let sums = sum_error(seen) + EPS;
    let changes = growth((seen as f64).min(100.0 + seen as f64 / 32768.0));
    let d = |x: f64| (max - x) / tau * log2_e;
    // Of exp2(d) alone, and of a term of the sum.
    let flushed = FLUSHED / tau;
    let exp_error = |d: f64| 2.0 * EPS * (3.0 + 2.0 * d) + 7.0 * EPS * d + flushed;
    let term_error = |d: f64| exp_error(d) + EPS * (6.0 * changes + 11.0 * d);

    let terms: Vec<f64> = row.iter().map(|&x| (-d(x) / log2_e).exp()).collect();
    let sum: f64 = terms.iter().sum();
    let ln_sum = sum.ln();
    let mut mean_error = 0.0;
    let mut spread = 0.0;
    let mut entropy = 0.0;
    for (&x, &t) in row.iter().zip(&terms).filter(|(_, t)| **t > 0.0) {
        let p = t / sum;
        mean_error += p * term_error(d(x));
        spread += p * (max - x) / tau;
        entropy += p * (ln_sum + (max - x) / tau);
    }
    let sum_error = mean_error + sums;
    let ln_error = sum_error * 1.01 + LOG2_NEAR_1 + 6.0 * EPS * ln_sum.abs();

    let lse = max / tau + ln_sum;
    let lse_bound = ln_error + 6.0 * EPS * (max / tau).abs() + 2.0 * EPS * lse.abs() + flushed + TINY;
    // Beyond f32 there is no right answer.
    let beyond = (max / tau).abs() > 3.3e38;
    truth.lse.push(Bounded { value: lse, bound: if beyond { f64::INFINITY } else { lse_bound } });

    // dH/dz_i = -p_i (ln p_i + H); and the two sums of which H is made.
    let sensitivity: f64 = row
        .iter()
        .zip(&terms)
        .filter(|(_, t)| **t > 0.0)
        .map(|(&x, &t)| {
            let p = t / sum;
            p * ((ln_sum + (max - x) / tau).abs() + entropy) * (term_error(d(x)) + 7.0 * EPS)
        })
        .sum();
    truth.entropy.push(Bounded {
        value: entropy.max(0.0),
        bound: sensitivity * 1.01
            + sums * (1.0 + entropy + 2.0 * spread)
            + LOG2_NEAR_1
            + 16.0 * EPS * (ln_sum.abs() + spread)
            + TINY,
    });

    row.iter()
        .zip(&terms)
        .map(|(&x, &t)| match kind {
            Kind::LogSoftmax if x == f64::NEG_INFINITY => exact(x),
            Kind::LogSoftmax => {
                let z = (x - max) / tau;
                let value = z - ln_sum;
                let bound = ln_error + 8.0 * EPS * z.abs() + 2.0 * EPS * value.abs() + flushed + TINY;
                // Results below the range of f32 are cut off there.
                Bounded { value, bound: if z < -3.3e38 { f64::INFINITY } else { bound } }
            }
            _ => {
                let value = t / sum;
                let e = exp_error(d(x).min(2000.0)) + sum_error + 8.0 * EPS;
                Bounded { value, bound: value * e.exp_m1() + TINY }
            }
        })
        .collect()
}

/// The threshold by sorting, in float64 exact enough: with the k largest y in the support, the sum of p is 1.
fn sparse(kind: Kind, row: &[f64], max: f64, tau: f64) -> Vec<Bounded> {
    let power = if kind == Kind::Entmax15 { 2.0 } else { 1.0 };
    let y: Vec<f64> = row.iter().map(|&x| (x - max) / (power * tau)).collect();
    let mut sorted: Vec<f64> = y.iter().copied().filter(|y| *y > -1.0).collect();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let (mut s1, mut s2, mut threshold) = (0.0, 0.0, -1.0);
    for (n, &y) in sorted.iter().enumerate() {
        let k = (n + 1) as f64;
        s1 += y;
        s2 += y * y;
        let t = if power == 1.0 {
            (s1 - 1.0) / k
        } else {
            // sum (y - t)^2 = 1, the smaller root.
            let mean = s1 / k;
            mean - ((1.0 - (s2 - s1 * mean)) / k).max(0.0).sqrt()
        };
        // The k-th belongs to the support if it lies above the threshold that it makes.
        if y > t || n == 0 {
            threshold = t;
        }
    }
    let y_error = 8.0 * EPS + FLUSHED / tau;
    let v_error = 2.0 * y_error + 4.0 * sum_error(row.len()) + 8.0 * EPS;
    y.iter()
        .map(|&y| {
            let v = (y - threshold).max(0.0);
            if power == 1.0 {
                Bounded { value: v, bound: v_error }
            } else {
                Bounded { value: v * v, bound: (2.0 * v + v_error) * v_error + 2.0 * EPS * v * v }
            }
        })
        .zip(row)
        .map(|(p, &x)| if x == f64::NEG_INFINITY { exact(0.0) } else { p })
        .collect()
}

/// The gradient of a problem in float64, from the result of the forward call (as it is, with its rounding) and the gradient that comes
/// in: dx in `Problem::x_layout`, and that of each row's temperature.
///
/// With z = x / tau, dz = w o (dy - c): w is y for softmax, 1 on the support for sparsemax, sqrt y for entmax 1.5, and
/// c = sum w dy / sum w, for softmax with its sum of 1. For log-softmax dz = dy - exp(y) sum dy. Then dx = dz / tau and
/// dtau = -(sum dz z) / tau.
///
/// # Errors
/// [`Error::Value`](crate::Error::Value) and [`Error::Length`](crate::Error::Length).
pub fn gradient_truth(
    problem: &Problem,
    [out, d_out]: [&[f32]; 2],
    temperature: Option<&[f32]>,
) -> Result<[Vec<Bounded>; 2]> {
    problem.check()?;
    let extent = problem.extent(&problem.out_layout);
    for (field, slice) in [("out", out), ("d_out", d_out)] {
        if (slice.len() as u64) < extent {
            return Err(crate::Error::Length { field, got: slice.len() as u64, expected: extent });
        }
    }
    let mut dx = vec![Bounded::default(); problem.extent(&problem.x_layout) as usize];
    let mut d_temperature = Vec::new();
    for r in 0..problem.row_count() {
        let tau = tau(problem, temperature, r);
        let at = |i| problem.index(&problem.out_layout, r, i);
        let row: Vec<[f64; 2]> =
            (0..u64::from(problem.len)).map(|i| [f64::from(out[at(i)]), f64::from(d_out[at(i)])]).collect();
        let (dz, dtau) = gradient_row(problem.kind, &row, tau);
        for (i, dz) in (0..).zip(dz) {
            let bound = dz.bound / tau + 7.0 * EPS * dz.value.abs() / tau + TINY;
            dx[problem.index(&problem.x_layout, r, i)] = Bounded { value: dz.value / tau, bound };
        }
        d_temperature.push(dtau);
    }
    Ok([dx, d_temperature])
}

fn gradient_row(kind: Kind, row: &[[f64; 2]], tau: f64) -> (Vec<Bounded>, Bounded) {
    let log = kind == Kind::LogSoftmax;
    let visible = |y: f64| if log { y != f64::NEG_INFINITY } else { y != 0.0 };
    // Weight of an element with its relative error: square roots may be off by 4.5 ulp, exp2(y log2 e) as the module's head says.
    let weight = |y: f64| match kind {
        Kind::Softmax => (y, 0.0),
        Kind::LogSoftmax => (y.exp(), 2.0 * EPS * (3.0 + 3.0 * y.abs()) + 4.0 * EPS * y.abs()),
        Kind::Sparsemax => (1.0, 0.0),
        Kind::Entmax15 => (y.sqrt(), 9.0 * EPS),
    };
    let seen = || row.iter().filter(|[y, _]| visible(*y));
    let sums = sum_error(row.len()) + 2.0 * EPS;
    let factor = |y: f64| if log { (1.0, 0.0) } else { weight(y) };
    let total: f64 = seen().map(|&[y, dy]| factor(y).0 * dy).sum();
    let size: f64 = seen().map(|&[y, dy]| factor(y).0 * dy.abs()).sum();
    let norm: f64 =
        if kind.is_sparse() { seen().map(|&[y, _]| factor(y).0).sum::<f64>().max(1e-30) } else { 1.0 };
    let c = total / norm;
    let c_bound = 2.0 * (sums + 9.0 * EPS) * size / norm + 6.0 * EPS * c.abs();

    let (mut sum, mut sum_bound) = (0.0, 0.0);
    let dz = row
        .iter()
        .map(|&[y, dy]| {
            if !visible(y) {
                return exact(0.0);
            }
            let (w, w_error) = weight(y);
            let (value, bound) = if log {
                (dy - w * c, w * (c_bound + (w_error + 2.0 * EPS) * c.abs()) + EPS * (dy - w * c).abs())
            } else {
                let value = w * (dy - c);
                (value, w * c_bound + (w_error + 3.0 * EPS) * value.abs())
            };
            // z up to a constant of the row, with its error.
            let (g, g_error) = match kind {
                Kind::Softmax => (y.ln(), LOG2_NEAR_1 + 6.0 * EPS * y.ln().abs()),
                Kind::Entmax15 => (2.0 * y.sqrt(), 18.0 * EPS * y.sqrt()),
                _ => (y, 0.0),
            };
            sum += value * g;
            sum_bound += bound * g.abs() + value.abs() * (g_error + (sums + 2.0 * EPS) * g.abs());
            Bounded { value, bound: bound + TINY }
        })
        .collect();
    let dtau = Bounded {
        value: -sum / tau,
        bound: sum_bound / tau + 7.0 * EPS * (sum / tau).abs() + TINY * row.len() as f64 * 100.0,
    };
    (dz, dtau)
}

impl Gradients {
    /// Compares with [`gradient_truth`].
    pub fn compare(&self, [dx, d_temperature]: &[Vec<Bounded>; 2]) -> Comparison {
        let all = compare(&self.dx, dx).of("dx");
        match &self.d_temperature {
            Some(got) => all.merge(compare(got, d_temperature).of("d_temperature")),
            None => all,
        }
    }
}
