//! The variance of q.k, and what becomes of it where q and k are not independent.

use super::chapter::Chapter;
use super::lab::Lab;
use super::normal::normals;
use crate::fail::Result;
use crate::plot::{Axis, Line, Plot, number};
use serde::Serialize;
use wgpu_attention::{Inputs, Problem, Scale, ScoreStage, Shape};

/// Queries and keys of a head.
const ROWS: u32 = 128;
/// Of a band that is drawn.
const CONFIDENCE: f64 = 0.95;
/// Standard errors on both sides that it takes.
const Z: f64 = 1.959_964;
const DIMS: [u32; 10] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const CORRELATIONS: [f64; 2] = [0.1, 0.5];

/// Steps of the progress bar.
pub(super) const STEPS: usize = DIMS.len() * (1 + CORRELATIONS.len());

#[derive(Debug, Serialize)]
pub(super) struct Variance {
    heads: u32,
    rows: u32,
    confidence: f64,
    independent: Vec<Independent>,
    correlated: Vec<Correlated>,
}

/// Independent q and k of one head dim.
#[derive(Debug, Serialize)]
struct Independent {
    head_dim: u32,
    /// Mean of (q.k)², over all pairs.
    variance: f64,
    /// What theory says: the head dim.
    theory: f64,
    /// The exact standard error of `variance`.
    standard_error: f64,
    /// By how many standard errors they differ.
    z: f64,
}

/// q and k whose numbers at the same place of the same token have a correlation.
#[derive(Debug, Serialize)]
struct Correlated {
    correlation: f64,
    head_dim: u32,
    /// Mean of q.k over the pairs of a token with itself.
    mean: f64,
    /// What theory says: correlation times head dim.
    theory: f64,
    standard_error: f64,
    z: f64,
    /// Mean weight of a token's own key among all, with each of `WEIGHTS`.
    weight: [f64; WEIGHTS.len()],
}

const WEIGHTS: [(&str, Scale); 4] = [
    ("no scale", Scale::Value(1.0)),
    ("1/√d", Scale::RsqrtHeadDim),
    ("8/d", Scale::PerHeadDim { numerator: 8.0 }),
    ("1/d", Scale::PerHeadDim { numerator: 1.0 }),
];

pub(super) fn measure(lab: &Lab) -> Result<Variance> {
    let heads = if lab.quick { 2 } else { 8 };
    let mut independent = Vec::new();
    let mut correlated = Vec::new();
    for (stream, head_dim) in (100..).step_by(10).zip(DIMS) {
        let shape = Shape::self_attention(1, heads, ROWS, head_dim);
        let count = (heads * ROWS * head_dim) as usize;
        let q = normals(lab.seed, stream, count);
        let noise = normals(lab.seed, stream + 1, count);
        let problem = Problem::new(shape);
        let raw = |k: &[f32]| -> Result<Vec<f32>> {
            let problem = problem.clone().scale(Scale::Value(1.0));
            let inputs = Inputs::new(&q, k, k);
            let heads = (0..heads).map(|head| lab.scores(&problem, &inputs, ScoreStage::Raw, [0, head]));
            Ok(heads.collect::<Result<Vec<_>>>()?.concat())
        };
        independent.push(Independent::of(head_dim, heads, &raw(&noise)?));
        lab.bar.inc(1);

        for correlation in CORRELATIONS {
            let rest = (1.0 - correlation * correlation).sqrt();
            let k: Vec<f32> = q
                .iter()
                .zip(&noise)
                .map(|(&q, &n)| (correlation * f64::from(q) + rest * f64::from(n)) as f32)
                .collect();
            let own = |head: Vec<f32>| own(&head);
            let scores: Vec<f64> =
                raw(&k)?.chunks((ROWS * ROWS) as usize).flat_map(|head| own(head.to_vec())).collect();
            let mut weight = [0.0; WEIGHTS.len()];
            for (mean, (_, scale)) in weight.iter_mut().zip(WEIGHTS) {
                let problem = problem.clone().scale(scale);
                let inputs = Inputs::new(&q, &k, &k);
                for head in 0..heads {
                    let weights = own(lab.scores(&problem, &inputs, ScoreStage::Probs, [0, head])?);
                    *mean += weights.iter().sum::<f64>() / f64::from(heads * ROWS);
                }
            }
            correlated.push(Correlated::of(correlation, head_dim, &scores, weight));
            lab.bar.inc(1);
        }
    }
    // One curve after the other.
    correlated.sort_by(|a, b| a.correlation.total_cmp(&b.correlation));
    Ok(Variance { heads, rows: ROWS, confidence: CONFIDENCE, independent, correlated })
}

/// The diagonal: each token's number for its own key.
fn own(head: &[f32]) -> Vec<f64> {
    head.iter().step_by(ROWS as usize + 1).map(|&x| f64::from(x)).collect()
}

impl Independent {
    /// From the raw scores of all heads.
    ///
    /// The mean is known to be 0, so the mean of z² is an unbiased estimate. Its error is not that of independent samples: scores of
    /// a row share q, those of a column k. With z = q.k of two normal vectors, E z⁴ = 3 (d² + 2d); two scores that share a
    /// vector x have E z² z'² = E |x|⁴ = d² + 2d. So over m rows and n keys of h independent heads
    ///
    /// ```text
    /// Var(mean z²) = (2 d² + 6 d + 2 d (m - 1) + 2 d (n - 1)) / (h m n)
    /// ```
    fn of(head_dim: u32, heads: u32, raw: &[f32]) -> Self {
        let d = f64::from(head_dim);
        let variance = raw.iter().map(|&z| f64::from(z).powi(2)).sum::<f64>() / raw.len() as f64;
        let shared = 2.0 * 2.0 * d * f64::from(ROWS - 1);
        let standard_error = ((2.0 * d * d + 6.0 * d + shared) / f64::from(heads * ROWS * ROWS)).sqrt();
        Independent { head_dim, variance, theory: d, standard_error, z: (variance - d) / standard_error }
    }
}

impl Correlated {
    /// From each token's raw score with itself. Each is a sum of d products with mean rho and variance 1 + rho².
    fn of(correlation: f64, head_dim: u32, scores: &[f64], weight: [f64; WEIGHTS.len()]) -> Self {
        let d = f64::from(head_dim);
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        let theory = correlation * d;
        let standard_error = (d * (1.0 + correlation * correlation) / scores.len() as f64).sqrt();
        Correlated {
            correlation,
            head_dim,
            mean,
            theory,
            standard_error,
            z: (mean - theory) / standard_error,
            weight,
        }
    }
}

impl Variance {
    pub(super) fn chapter(&self) -> Chapter {
        let dim = || Axis::log2("head dim d");
        let ratio: Vec<[f64; 2]> =
            self.independent.iter().map(|x| [f64::from(x.head_dim), x.variance / x.theory]).collect();
        let band: Vec<[f64; 3]> = self
            .independent
            .iter()
            .map(|x| (f64::from(x.head_dim), Z * x.standard_error / x.theory))
            .map(|(d, half)| [d, 1.0 - half, 1.0 + half])
            .collect();
        let theory = |f: fn(f64) -> f64| DIMS.map(|d| [f64::from(d), f(f64::from(d))]).to_vec();
        let variance = Plot::new("Variance of q·k, independent q and k", dim(), Axis::log2("variance"))
            .line(Line::dots("measured", self.points(|x| x.variance)))
            .line(Line::theory("theory: d", theory(|d| d)));
        let relative = Plot::new("Variance of q·k over d", dim(), Axis::linear("variance / d"))
            .line(Line::dots("measured", ratio))
            .line(Line::theory("theory: 1, with its 95 % band", theory(|_| 1.0)).band(band));
        let rows = self.independent.iter().map(|x| {
            [
                x.head_dim.to_string(),
                number(x.variance),
                number(x.theory),
                format!("± {}", number(Z * x.standard_error)),
                format!("{:+.2}", x.z),
            ]
        });
        let own = Plot::new("Score of a token with itself", dim(), Axis::log2("mean q·k"))
            .lines((0..).zip(CORRELATIONS).flat_map(|(n, rho)| {
                let curve = |f: fn(&Correlated) -> f64| self.curve(rho, f);
                [
                    Line::dots(format!("measured, correlation {rho}"), curve(|x| x.mean)).colour(n),
                    Line::theory(format!("theory: {rho} d"), curve(|x| x.theory)).colour(n),
                ]
            }))
            .line(Line::theory("√d, the spread of the others", theory(f64::sqrt)).colour(7));
        let weights = CORRELATIONS.map(|rho| {
            let lines = (0..).zip(WEIGHTS).map(|(n, (name, _))| {
                let points = self.correlated.iter().filter(|x| x.correlation == rho);
                Line::measured(name, points.map(|x| [f64::from(x.head_dim), x.weight[n]]).collect())
            });
            Plot::new(
                format!("Weight of a token's own key, correlation {rho}"),
                dim(),
                Axis::log10("weight").range(0.005, 1.0),
            )
            .lines(lines)
        });
        let correlated_rows = self.correlated.iter().map(|x| {
            let [none, rsqrt, eight, inverse] = x.weight.map(number);
            [
                x.correlation.to_string(),
                x.head_dim.to_string(),
                number(x.mean),
                number(x.theory),
                format!("± {}", number(Z * x.standard_error)),
                format!("{:+.2}", x.z),
                none,
                rsqrt,
                eight,
                inverse,
            ]
        });
        Chapter::new("Why a scale: the variance of q·k")
            .text(
                "Let the d numbers of q and of k be independent, with mean 0 and variance 1. Each product q<sub>i</sub>k<sub>i</sub> \
                 has mean 0 and variance 1, so their sum has variance d: scores grow like √d.",
            )
            .formula("Var(q·k) = Σ Var(q_i k_i) = d")
            .plots([variance, relative])
            .table(
                format!(
                    "Mean of (q·k)² over {} heads of {ROWS} × {ROWS} pairs, standard normal q and k. The band is 1.96 exact standard \
                     errors of that mean, normal approximation; z is the distance in standard errors.",
                    self.heads
                ),
                ["d", "measured", "theory", "95 % band", "z"],
                rows,
            )
            .text(
                "The standard error counts the kurtosis of a product of normal numbers (9 instead of 3) and that scores of a row share \
                 q, and those of a column share k: they are uncorrelated, but their squares are not.",
            )
            .formula("Var(mean z²) = (2d² + 6d + 2d (rows − 1) + 2d (keys − 1)) / (heads · rows · keys)")
            .text(
                "<strong>Where the argument fails.</strong> It needs q and k to be independent. Training aligns them: let the numbers of \
                 q and k of the same token have a correlation ρ. Their score has mean ρd, which grows like d and not like √d. With 1/√d \
                 the weight of a token's own key then still depends on d, and goes to 1; a scale of c/d keeps the mean score at cρ. That is \
                 the case for which μP (Yang et al. 2022) uses c/d, with a c that makes it agree with 1/√d at a head dim one knows, \
                 such as 8/d at 64.",
            )
            .formula("k = ρ q + √(1 − ρ²) noise:   mean(q·k) = ρ d,   Var(q·k) = (1 + ρ²) d")
            .plots(std::iter::once(own).chain(weights))
            .table(
                format!(
                    "Mean of q·k over the {} pairs of a token with itself, and the mean weight of its own key among {ROWS}. With 8/d it \
                     does not depend on d once d is large; with 1/d it does not either, but is near 1/{ROWS} = {}, that of any key.",
                    self.heads * ROWS,
                    number(1.0 / f64::from(ROWS))
                ),
                ["ρ", "d", "mean q·k", "theory", "95 % band", "z", "weight, no scale", "1/√d", "8/d", "1/d"],
                correlated_rows,
            )
    }

    fn points(&self, f: fn(&Independent) -> f64) -> Vec<[f64; 2]> {
        self.independent.iter().map(|x| [f64::from(x.head_dim), f(x)]).collect()
    }

    fn curve(&self, rho: f64, f: fn(&Correlated) -> f64) -> Vec<[f64; 2]> {
        let points = self.correlated.iter().filter(|x| x.correlation == rho);
        points.map(|x| [f64::from(x.head_dim), f(x)]).collect()
    }
}
