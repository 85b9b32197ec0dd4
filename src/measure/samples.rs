//! Times of one thing, and what may be said of them.

use serde::{Deserialize, Serialize};

/// Times in seconds, in ascending order; never empty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// `None` for no times at all, and where one of them is not a number from 0.
    pub fn new(mut seconds: Vec<f64>) -> Option<Self> {
        if seconds.is_empty() || !seconds.iter().all(|s| s.is_finite() && *s >= 0.0) {
            return None;
        }
        seconds.sort_by(f64::total_cmp);
        Some(Samples(seconds))
    }

    /// The times, in ascending order.
    pub fn seconds(&self) -> &[f64] {
        &self.0
    }

    /// The value below which a share of the times lies, interpolated between the two next to it (type 7 of Hyndman and Fan 1996,
    /// what NumPy and R do). Shares are cut off at 0 and 1.
    pub fn quantile(&self, share: f64) -> f64 {
        let at = share.clamp(0.0, 1.0) * (self.0.len() - 1) as f64;
        let below = self.0[at.floor() as usize];
        let above = self.0[at.ceil() as usize];
        below + (above - below) * at.fract()
    }

    /// The median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.quantile(0.0)
    }

    /// First and third quartile.
    pub fn quartiles(&self) -> [f64; 2] {
        [self.quantile(0.25), self.quantile(0.75)]
    }

    /// How far the median may be off: `1.57 (q3 - q1) / sqrt(n)`. Medians whose intervals of this half-width do not overlap
    /// differ at about 95 % confidence (McGill, Tukey and Larsen 1978, "Variations of box plots").
    pub fn noise(&self) -> f64 {
        noise(self.quartiles(), self.0.len())
    }
}

/// [`Samples::noise`] of times of which only quartiles and number are known.
pub fn noise([q1, q3]: [f64; 2], samples: usize) -> f64 {
    1.57 * (q3 - q1) / (samples.max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_numpy() {
        let samples = Samples::new(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(samples.seconds(), [1.0, 2.0, 3.0, 4.0]);
        // numpy.percentile([1, 2, 3, 4], [0, 25, 50, 75, 100])
        assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(|s| samples.quantile(s)), [1.0, 1.75, 2.5, 3.25, 4.0]);
        assert_eq!((samples.min(), samples.median(), samples.quartiles()), (1.0, 2.5, [1.75, 3.25]));
        assert_eq!(samples.noise(), 1.57 * 1.5 / 2.0);
        let one = Samples::new(vec![7.0]).unwrap();
        assert_eq!((one.min(), one.median(), one.quartiles(), one.noise()), (7.0, 7.0, [7.0, 7.0], 0.0));
    }

    #[test]
    fn no_times_and_no_numbers_are_refused() {
        for wrong in [vec![], vec![f64::NAN], vec![1.0, f64::INFINITY], vec![-1.0]] {
            assert_eq!(Samples::new(wrong), None);
        }
    }
}
