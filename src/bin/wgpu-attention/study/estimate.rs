//! A mean with its standard error.

use serde::Serialize;

/// The mean of independent numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub mean: f64,
    /// Deviation of the numbers over the square root of their count.
    pub standard_error: f64,
}

impl Estimate {
    pub(super) fn of(numbers: &[f64]) -> Self {
        let n = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / n;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Estimate { mean, standard_error: (variance / n).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_few_numbers() {
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 6.0]);
        assert_eq!(estimate.mean, 3.0);
        assert!((estimate.standard_error - (14.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-15);
    }
}
