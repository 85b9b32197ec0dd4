//! How far a result is from the truth.

use super::{Bounded, Truth};
use crate::host::Outputs;
use crate::kernel::Kernel;
use crate::problem::Problem;

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
    /// With bounds for one kernel, where that computes less precisely than f32: the matrix kernel rounds weights to f16.
    pub fn of_kernel(mut self, kernel: Kernel) -> Self {
        if kernel == Kernel::Matrix {
            for (out, more) in self.out.iter_mut().zip(&self.half_weights) {
                out.bound += more;
            }
            self.half_weights.fill(0.0);
        }
        self
    }

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
