//! Normal numbers from a seed: the same on every machine, and each of them has a place of its own.

use std::f64::consts::TAU;
use wgpu_attention::random::threefry2x32;

/// `count` independent standard normal numbers (Box and Muller 1958). Different streams of a seed are independent.
pub(super) fn normals(seed: u64, stream: u32, count: usize) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    // In (0, 1); the smallest, 2^-33, bounds the numbers by 6.8.
    let unit = |word: u32| (f64::from(word) + 0.5) * 2f64.powi(-32);
    (0..count.div_ceil(2) as u32)
        .flat_map(|pair| {
            let [a, b] = threefry2x32(key, [pair, stream]).map(unit);
            let (radius, (sin, cos)) = ((-2.0 * a.ln()).sqrt(), (TAU * b).sin_cos());
            [(radius * cos) as f32, (radius * sin) as f32]
        })
        .take(count)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean, variance, skewness and kurtosis, each within 5 of its standard errors (a chance of 6e-7 each).
    #[test]
    fn moments_are_those_of_a_normal_distribution() {
        let n = 200_000;
        let x = normals(3, 1, n);
        let moment = |power: i32| x.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / n as f64;
        // The variance of x^p is (2p - 1)!! - ((p - 1)!!)^2 for even p.
        for (power, mean, variance) in [(1, 0.0, 1.0f64), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let error = (variance / n as f64).sqrt();
            assert!((moment(power) - mean).abs() < 5.0 * error, "moment {power}: {}", moment(power));
        }
        let same = normals(3, 1, 10);
        assert_eq!(same, x[..10]);
        let correlation =
            x.iter().zip(normals(3, 2, n)).map(|(&a, b)| f64::from(a * b)).sum::<f64>() / n as f64;
        assert!(correlation.abs() < 5.0 / (n as f64).sqrt(), "{correlation}");
    }
}
