//! What is drawn has the distribution that float64 says, by chi-square tests, and tokens that are out never come.

use crate::common::{Gpu, Rng};
use crate::gpu;
use crate::sampling::op;
use wgpu_attention::sampling::{self, Chain, Inputs, Problem, Seed};

/// Draws from one row of logits: how often each token came.
fn counts(gpu: &Gpu, chain: &Chain, logits: &[f32], draws: u32, seed: u64) -> Vec<u64> {
    let mut counts = vec![0; logits.len()];
    let batch = 20_000.min(draws);
    for first in (0..draws).step_by(batch as usize) {
        let rows = batch.min(draws - first);
        let problem = Problem::new(rows, logits.len() as u32, chain.clone()).stride(0);
        let seeds: Vec<Seed> = (first..first + rows).map(|offset| Seed { seed, offset }).collect();
        let drawn = op(gpu).run_blocking(&gpu.queue, &problem, &Inputs::new(logits, &seeds)).expect("tokens");
        for token in drawn.tokens {
            counts[token.expect("a token") as usize] += 1;
        }
    }
    counts
}

/// Pearson's statistic against a distribution, where it would be passed by chance once in 10^6 (4.75 deviations, Wilson and Hilferty's
/// approximation). Tokens that are expected less than 10 times count together.
fn assert_chi_square(counts: &[u64], distribution: &[f64], what: &str) {
    let total = counts.iter().sum::<u64>() as f64;
    let (mut statistic, mut cells) = (0.0, 0.0);
    let mut rare = (0.0, 0.0);
    for (&count, &p) in counts.iter().zip(distribution) {
        assert!(p > 0.0 || count == 0, "{what}: a token that is out came {count} times");
        let (count, expected) = (count as f64, p * total);
        if expected >= 10.0 {
            statistic += (count - expected).powi(2) / expected;
            cells += 1.0;
        } else {
            rare = (rare.0 + count, rare.1 + expected);
        }
    }
    if rare.1 >= 10.0 {
        statistic += (rare.0 - rare.1).powi(2) / rare.1;
        cells += 1.0;
    } else {
        assert!(rare.0 <= 40.0, "{what}: {} rare tokens where {} were expected", rare.0, rare.1);
    }
    let freedom: f64 = cells - 1.0;
    if freedom < 1.0 {
        return;
    }
    let spread = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - spread + 4.75 * spread.sqrt()).powi(3);
    assert!(statistic < limit, "{what}: chi-square {statistic:.1} with {freedom} degrees of freedom");
}

fn distribution(chain: &Chain, logits: &[f32]) -> Vec<f64> {
    let problem = Problem::new(1, logits.len() as u32, chain.clone());
    sampling::distribution(&problem, &Inputs::new(logits, &[Seed::default()])).expect("a row").remove(0)
}

#[test]
fn draws_have_the_filtered_distribution() {
    let gpu = gpu!();
    let mut rng = Rng::new(1);
    let logits: Vec<f32> = (0..60).map(|_| 2.0 * rng.normal()).collect();
    for (n, chain) in (0..).zip([
        Chain::new(),
        Chain::new().temperature(0.5),
        Chain::new().temperature(3.0),
        Chain::new().temperature(f32::INFINITY),
        Chain::new().top_k(7),
        Chain::new().top_p(0.8),
        Chain::new().min_p(0.1),
        Chain::new().typical(0.6),
        Chain::new().top_n_sigma(1.5),
        Chain::new().dynamic_temperature(0.2, 2.0, 1.5),
        Chain::new().temperature(1.4).top_k(30).top_p(0.9).min_p(0.02),
    ]) {
        let counts = counts(gpu, &chain, &logits, 15_000, n);
        assert_chi_square(&counts, &distribution(&chain, &logits), &chain.to_string());
    }
}

/// 10^6 draws in which masked tokens never come, and the others as often as they should.
#[test]
fn a_million_draws_without_a_masked_token() {
    let gpu = gpu!();
    let mut rng = Rng::new(2);
    let logits: Vec<f32> =
        (0..40).map(|n| if n % 3 == 0 { f32::NEG_INFINITY } else { rng.normal() }).collect();
    let chain = Chain::new();
    let counts = counts(gpu, &chain, &logits, 1_000_000, 99);
    assert_eq!(counts.iter().sum::<u64>(), 1_000_000);
    assert_chi_square(&counts, &distribution(&chain, &logits), "10^6 draws");
}

/// The sets that stay are those of float64, and their probabilities too, for every step on its own and in both presets' orders.
#[test]
fn what_is_left_is_what_float64_leaves() {
    let mut rng = Rng::new(3);
    for n in 0..60 {
        let vocab = rng.pick(&[3u32, 50, 700, 5000]);
        let logits: Vec<f32> = (0..vocab).map(|_| 2.5 * rng.normal()).collect();
        let history: Vec<u32> = (0..20).map(|_| rng.below(u64::from(vocab) + 3) as u32).collect();
        for chain in [
            Chain::new().penalties(1.3, 0.2, 0.4),
            Chain::new().penalties(1.0, 0.0, 0.0).temperature(0.6).top_k(1 + vocab / 3),
            Chain::new().penalties(1.1, 0.0, 0.0).top_p(0.3 + n as f32 / 100.0),
            Chain::new().penalties(1.0, 0.1, 0.0).typical(0.2 + n as f32 / 100.0),
            Chain::new().penalties(1.0, 0.1, 0.0).min_p(0.05).top_n_sigma(1.2),
            Chain::new().penalties(1.0, 0.0, 0.3).dynamic_temperature(0.3, 1.9, 0.8).top_p(0.9),
        ] {
            let problem = Problem::new(1, vocab, chain.clone()).with_history(20);
            let seeds = [Seed::default()];
            let inputs = Inputs::new(&logits, &seeds).history(&history);
            let truth = &sampling::distribution(&problem, &inputs).expect("a row")[0];
            let left = &sampling::left(&problem, &inputs).expect("a row")[0];
            let most = left.iter().flatten().fold(f32::MIN, |m, &l| m.max(l));
            let weights: Vec<f64> =
                left.iter().map(|l| l.map_or(0.0, |l| f64::from(l - most).exp())).collect();
            let sum: f64 = weights.iter().sum();
            for (token, (w, p)) in weights.iter().zip(truth).enumerate() {
                assert_eq!(*w > 0.0, *p > 0.0, "{chain}, token {token} of {vocab}");
                approx::assert_abs_diff_eq!(w / sum, p, epsilon = 2e-5);
            }
        }
    }
}

/// The log-probability is that of the distribution drawn from.
#[test]
fn log_probabilities() {
    let gpu = gpu!();
    let mut rng = Rng::new(4);
    let (rows, vocab) = (20, 3000);
    let logits: Vec<f32> = (0..vocab).map(|_| 2.0 * rng.normal()).collect();
    for chain in [Chain::new(), Chain::new().temperature(0.7).top_k(100).top_p(0.95)] {
        let problem = Problem::new(rows, vocab, chain.clone()).stride(0).with_log_probs();
        let seeds = crate::sampling::seeds(rows);
        let inputs = Inputs::new(&logits, &seeds);
        let drawn = op(gpu).run_blocking(&gpu.queue, &problem, &inputs).expect("tokens");
        let p = distribution(&chain, &logits);
        for (token, log_prob) in drawn.tokens.iter().zip(drawn.log_probs.expect("asked for")) {
            let want = p[token.expect("a token") as usize].ln();
            approx::assert_abs_diff_eq!(f64::from(log_prob), want, epsilon = 3e-5);
        }
    }
}
