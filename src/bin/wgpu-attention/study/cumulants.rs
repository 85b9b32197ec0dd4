//! The scores of a head under its own weights: means, variances and what follows them, in float64.

/// Visible scores at temperature 1 of each row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scores(Vec<Vec<f64>>);

/// Cumulants of a row's scores at some temperature, under the weights that they make: mean, variance, third, fourth.
pub(super) type Cumulants = [f64; 4];

impl Scores {
    /// From a score matrix in which keys that are not visible are -inf.
    pub(super) fn new(matrix: &[f32], keys: usize) -> Self {
        let visible = |row: &[f32]| row.iter().filter(|s| s.is_finite()).map(|&s| f64::from(s)).collect();
        Scores(matrix.chunks(keys.max(1)).map(visible).collect())
    }

    /// Mean over the rows of what `f` makes of each row's cumulants.
    pub(super) fn mean(&self, temperature: f64, f: impl Fn(&Cumulants) -> f64) -> f64 {
        self.0.iter().map(|row| f(&cumulants(row, temperature))).sum::<f64>() / self.0.len().max(1) as f64
    }
}

fn cumulants(scores: &[f64], temperature: f64) -> Cumulants {
    let s = || scores.iter().map(|s| s / temperature);
    let largest = s().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = s().map(|s| (s - largest).exp()).sum();
    let expect = |f: &dyn Fn(f64) -> f64| s().map(|s| (s - largest).exp() / sum * f(s)).sum::<f64>();
    let mean = expect(&|s| s);
    let [two, three, four] = [2, 3, 4].map(|power| expect(&|s| (s - mean).powi(power)));
    [mean, two, three, four - 3.0 * two * two]
}

/// Third derivative of the entropy with respect to the log of the temperature. With the cumulants `K_n` of the scores s under their
/// own weights, `d K_n / d ln temperature = -(n K_n + K_(n+1))`, and `d H / d ln temperature = K_2`: two more derivatives give
/// `4 K_2 + 5 K_3 + K_4`.
pub(super) fn third_derivative([_, k2, k3, k4]: &Cumulants) -> f64 {
    4.0 * k2 + 5.0 * k3 + k4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each derivative that the study uses, against central differences of the entropy in float64.
    #[test]
    fn derivatives_of_the_entropy() {
        let scores = [2.0f64, -1.0, 0.3, 1.7, 0.0];
        let entropy = |x: f64| {
            let s = scores.map(|s| s / x.exp());
            let lse = s.iter().map(|s| s.exp()).sum::<f64>().ln();
            s.iter().map(|s| (s - lse).exp() * (lse - s)).sum::<f64>()
        };
        for x in [-1.0f64, 0.0, 0.7] {
            let k = cumulants(&scores, x.exp());
            let h = 1e-3;
            let [a, b, c, d] = [-2.0, -1.0, 1.0, 2.0].map(|n| entropy(x + n * h));
            let first = (c - b) / (2.0 * h);
            let third = (d - 2.0 * c + 2.0 * b - a) / (2.0 * h.powi(3));
            assert!((first - k[1]).abs() < 1e-5, "{first} {k:?}");
            assert!((third - third_derivative(&k)).abs() < 1e-4, "{third} {k:?}");
        }
    }

    #[test]
    fn hidden_keys_do_not_count() {
        let scores = Scores::new(&[0.0, f32::NEG_INFINITY, 1.0, 3.0], 2);
        assert_eq!(scores.0, [vec![0.0], vec![1.0, 3.0]]);
        let mean = (0.0 + (1.0 + 3.0 * 2f64.exp()) / (1.0 + 2f64.exp())) / 2.0;
        assert!((scores.mean(1.0, |k| k[0]) - mean).abs() < 1e-15);
    }
}
