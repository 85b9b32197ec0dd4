//! How much of a gradient a softmax lets through.
//!
//! The Jacobian of `p = softmax(s)` is `J = diag(p) - p pᵀ`, that is `∂p_i/∂s_j = p_i ([i = j] - p_j)`. It is symmetric and
//! positive semidefinite, so its trace is the sum of its eigenvalues.

use serde::Serialize;

/// Of one row of weights, or the mean of many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Jacobian {
    /// `Σ p_i (1 - p_i)`: 1 - 1/n for n equal weights, 0 for a single one.
    pub trace: f64,
    /// Frobenius norm: `‖J‖² = Σ_i p_i² ((1 - p_i)² + Σ_{j≠i} p_j²)`.
    pub norm: f64,
}

impl Jacobian {
    /// Without subtracting numbers that are nearly equal: 1 - p of the largest weight is the sum of the others, so that a nearly
    /// one-hot row keeps its digits.
    pub(super) fn of(p: &[f64]) -> Self {
        let largest = p.iter().copied().fold(0.0, f64::max);
        let (mut others, mut others_squared, mut seen) = (0.0, 0.0, false);
        for &p in p {
            if p == largest && !seen {
                seen = true;
            } else {
                others += p;
                others_squared += p * p;
            }
        }
        let sum = largest + others;
        let squares = largest * largest + others_squared;
        let (mut trace, mut norm) = (0.0, 0.0);
        let mut seen = false;
        for &p in p {
            let (rest, rest_squared) = if p == largest && !seen {
                seen = true;
                (others, others_squared)
            } else {
                (sum - p, squares - p * p)
            };
            trace += p * rest;
            norm += p * p * (rest * rest + rest_squared);
        }
        Jacobian { trace, norm: norm.sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition, element by element.
    fn dense(p: &[f64]) -> Jacobian {
        let element = |i: usize, j: usize| p[i] * (f64::from(u8::from(i == j)) - p[j]);
        let n = p.len();
        let all = (0..n * n).map(|at| element(at / n, at % n).powi(2)).sum::<f64>();
        Jacobian { trace: (0..n).map(|i| element(i, i)).sum(), norm: all.sqrt() }
    }

    #[test]
    fn formulas_agree_with_the_definition() {
        for p in [&[1.0][..], &[0.5, 0.5], &[0.7, 0.2, 0.1], &[0.25; 4], &[0.4, 0.4, 0.1, 0.1, 0.0]] {
            let (a, b) = (Jacobian::of(p), dense(p));
            assert!(
                (a.trace - b.trace).abs() < 1e-15 && (a.norm - b.norm).abs() < 1e-15,
                "{p:?}: {a:?} {b:?}"
            );
        }
    }

    #[test]
    fn a_row_that_is_nearly_one_hot_keeps_its_digits() {
        let tiny = 1e-20;
        let j = Jacobian::of(&[1.0, tiny]);
        assert!(
            (j.trace / (2.0 * tiny) - 1.0).abs() < 1e-12 && (j.norm / (2.0 * tiny) - 1.0).abs() < 1e-12,
            "{j:?}"
        );
    }
}
