//! How far a result is from the truth.

use super::{Bounded, Truth};
use crate::host::Outputs;
use crate::kernel::Kernel;
use crate::problem::Problem;

/// How a result differs from the truth.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Comparison {
    /// Largest absolute error.
    pub max_abs: f64,
    /// Largest error relative to the true value, over values that are not 0.
    pub max_rel: f64,
    /// Largest error as a share of its bound; above 1 the result is wrong.
    pub worst: f64,
    /// The index where that is,
    pub at: usize,
    /// and the list that it is in, by its field's name: `out`, `lse` and so on; empty for [`compare`], which has one.
    pub field: &'static str,
    /// Numbers that have no true value (NaN in float64, from NaN or infinity in the inputs): nothing is said about them.
    pub unspecified: usize,
}

impl Comparison {
    /// Whether every number that has a true value is within its bound.
    pub fn passes(&self) -> bool {
        self.worst <= 1.0
    }

    /// Says which list was compared.
    pub(crate) fn of(self, field: &'static str) -> Self {
        Comparison { field, ..self }
    }

    /// The worse of two comparisons.
    pub fn merge(self, other: Self) -> Self {
        let worse = if other.worst > self.worst { other } else { self };
        Comparison {
            max_abs: self.max_abs.max(other.max_abs),
            max_rel: self.max_rel.max(other.max_rel),
            unspecified: self.unspecified + other.unspecified,
            ..worse
        }
    }
}

/// Compares numbers with the truth, one by one. Different lengths, and NaN or infinity where the truth is another number, are infinitely
/// wrong. Where the truth is NaN there is nothing to compare with: such numbers are counted.
pub fn compare(got: &[f32], truth: &[Bounded]) -> Comparison {
    let mut comparison = Comparison::default();
    if got.len() != truth.len() {
        comparison.worst = f64::INFINITY;
        return comparison;
    }
    for (at, (&got, want)) in got.iter().zip(truth).enumerate() {
        let got = f64::from(got);
        if want.value.is_nan() {
            comparison.unspecified += 1;
            continue;
        }
        if got == want.value {
            continue;
        }
        // NaN, from a number or from a bound, would lose every comparison below.
        let or_infinite = |x: f64| if x.is_nan() { f64::INFINITY } else { x };
        let abs = or_infinite((got - want.value).abs());
        let share = if abs.is_finite() { or_infinite(abs / want.bound) } else { f64::INFINITY };
        comparison.max_abs = comparison.max_abs.max(abs);
        if want.value != 0.0 {
            comparison.max_rel = comparison.max_rel.max(or_infinite(abs / want.value.abs()));
        }
        if share > comparison.worst {
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
        [
            ("lse", &got.lse, &self.lse),
            ("entropy", &got.entropy, &self.entropy),
            ("row_max", &got.row_max, &self.row_max),
        ]
        .into_iter()
        .filter_map(|(field, got, truth)| Some(compare(got.as_deref()?, truth).of(field)))
        .fold(compare(&got.out, &self.out).of("out"), Comparison::merge)
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

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Bounded = Bounded { value: 1.0, bound: 1e-6 };

    #[test]
    fn what_is_infinitely_wrong() {
        for (got, want) in [
            (f32::NAN, ONE),
            (f32::INFINITY, ONE),
            (1.0, Bounded { value: f64::INFINITY, bound: 1.0 }),
            (f32::NEG_INFINITY, Bounded { value: f64::INFINITY, bound: f64::INFINITY }),
            (1.5, Bounded { value: 1.0, bound: f64::NAN }),
            (1.5, Bounded { value: 1.0, bound: 0.0 }),
        ] {
            let wrong = compare(&[1.0, got], &[ONE, want]);
            assert!(
                !wrong.passes() && wrong.worst == f64::INFINITY && wrong.at == 1,
                "{got}, {want:?}: {wrong:?}"
            );
            assert!(wrong.max_abs > 0.0, "{wrong:?}");
            // Whatever it is merged with, and on whichever side.
            let (right, wrong) = (compare(&[1.0], &[ONE]).of("out"), wrong.of("lse"));
            for merged in [right.merge(wrong), wrong.merge(right)] {
                assert!(!merged.passes() && merged.at == 1 && merged.field == "lse", "{merged:?}");
            }
        }
        assert!(!compare(&[1.0], &[ONE, ONE]).passes());
    }

    #[test]
    fn what_has_no_true_value_is_counted() {
        let nothing = Bounded { value: f64::NAN, bound: f64::NAN };
        let some = compare(&[f32::NAN, 3.0, 1.0], &[nothing, nothing, ONE]);
        assert!(some.passes());
        assert_eq!(some.merge(some).unspecified, 4);
    }
}
