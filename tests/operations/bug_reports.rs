//! Public bug reports of other samplers and softmaxes, each named after its fault, with its source. Those of attention are in
//! `tests/bug_reports.rs`, those of gradients in `tests/backward.rs`.

use crate::common::{Gpu, Rng};
use crate::gpu;
use crate::sampling::{op, seeds};
use wgpu_attention::sampling::{self, Chain, Inputs, Problem, Seed};
use wgpu_attention::softmax;

/// microsoft/onnxruntime#24855, #24837: a row of nothing but -inf was divided by a sum of 0. It is 0, and the rows beside it are right.
#[test]
fn softmax_of_a_row_that_is_all_minus_infinity() {
    let gpu = gpu!();
    let softmax = softmax::Softmax::new(&gpu.device);
    for len in [1usize, 4, 5, 1000] {
        let mut x: Vec<f32> = (0..3 * len).map(|n| (n as f32 * 0.37).sin()).collect();
        x[len..2 * len].fill(f32::NEG_INFINITY);
        let problem = softmax::Problem::new(3, len as u32);
        let inputs = softmax::Inputs::new(&x);
        let got = softmax.run_blocking(&gpu.queue, &problem, &inputs).expect("a softmax").out;
        assert!(got[len..2 * len].iter().all(|&p| p == 0.0), "{len}: {:?}", &got[len..2 * len]);
        for row in [0, 2] {
            let sum: f64 = got[row * len..(row + 1) * len].iter().map(|&p| f64::from(p)).sum();
            approx::assert_abs_diff_eq!(sum, 1.0, epsilon = 1e-5);
        }
    }
}

fn tokens(gpu: &Gpu, chain: &Chain, logits: &[f32], draws: u32) -> Vec<u32> {
    let problem = Problem::new(draws, logits.len() as u32, chain.clone()).stride(0);
    let seeds = seeds(draws);
    let drawn = op(gpu).run_blocking(&gpu.queue, &problem, &Inputs::new(logits, &seeds)).expect("tokens");
    drawn.tokens.into_iter().map(|token| token.expect("a token")).collect()
}

fn logs(p: &[f32]) -> Vec<f32> {
    p.iter().map(|p| p.ln()).collect()
}

/// flashinfer-ai/flashinfer#2202: top-p kept a mass of .89999 for p = .9, the token at the boundary lost to rounding. What is kept has p in float64
/// (but for the 2^-24 that f32's exp and sums are off), and without its least likely token it has not.
#[test]
fn top_p_keeps_its_mass() {
    let (vocab, p) = (500usize, 0.9f64);
    for seed in 0..1000 {
        let mut rng = Rng::new(seed);
        let logits: Vec<f32> = (0..vocab).map(|_| rng.normal() * 2.0).collect();
        let problem = Problem::new(1, vocab as u32, Chain::new().top_p(p as f32));
        let left = &sampling::left(&problem, &Inputs::new(&logits, &[Seed::default()])).expect("a row")[0];
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let kept: Vec<f64> =
            logits.iter().zip(left).filter_map(|(&x, left)| left.map(|_| f64::from(x).exp() / sum)).collect();
        let mass: f64 = kept.iter().sum();
        let least = kept.iter().copied().fold(1.0, f64::min);
        assert!(mass >= p - 1e-6 && mass - least < p + 1e-6, "seed {seed}: {mass}, {least}");
    }
}

/// flashinfer-ai/flashinfer#384: with one token left, an id far outside of the vocabulary came now and then.
#[test]
fn the_only_token_is_always_drawn() {
    let gpu = gpu!();
    let mut logits = vec![f32::NEG_INFINITY; 32_000];
    logits[17_001] = 0.0;
    for chain in [Chain::new(), Chain::new().top_k(1 << 30).top_p(1.0)] {
        assert!(tokens(gpu, &chain, &logits, 500).iter().all(|&token| token == 17_001), "{chain}");
    }
}

/// ml-explore/mlx-lm#388: top-k and then top-p, of a mass that was not made whole again, left no token.
#[test]
fn top_p_after_top_k_counts_what_top_k_left() {
    let gpu = gpu!();
    let logits = logs(&[0.5, 0.3, 0.2]);
    let chain = Chain::new().temperature(0.01).top_k(1).top_p(0.8);
    assert!(tokens(gpu, &chain, &logits, 100).iter().all(|&token| token == 0));
}

/// skyzh/tiny-llm#32: the most likely token was heavier than top-p, and nothing was left.
#[test]
fn a_token_heavier_than_top_p_stays() {
    let gpu = gpu!();
    let logits = logs(&[0.95, 0.03, 0.02]);
    for p in [0.9, 0.5, 1e-9] {
        assert!(tokens(gpu, &Chain::new().top_p(p), &logits, 100).iter().all(|&token| token == 0), "{p}");
    }
}

/// vllm-project/vllm-ascend#16503: one row of temperature 0 among others was divided by it.
#[test]
fn a_row_of_temperature_0_among_others() {
    let gpu = gpu!();
    let (vocab, draws) = (4, 3000);
    let row = [1.0f32, 3.0, 2.5, -1.0];
    let chains: Vec<Chain> =
        (0..3 * draws).map(|n| Chain::new().temperature([0.0, 1.0, 0.7][n % 3])).collect();
    let logits: Vec<f32> = (0..3 * draws).flat_map(|_| row).collect();
    let seeds = seeds(3 * draws as u32);
    let problem = Problem::new(3 * draws as u32, vocab, chains[0].clone());
    let inputs = Inputs::new(&logits, &seeds).chains(&chains);
    let got = op(gpu).run_blocking(&gpu.queue, &problem, &inputs).expect("tokens");
    for (n, t) in [0.0f64, 1.0, 0.7].into_iter().enumerate() {
        let mut counts = [0.0; 4];
        got.tokens
            .iter()
            .skip(n)
            .step_by(3)
            .for_each(|token| counts[token.expect("a token") as usize] += 1.0);
        if n == 0 {
            assert_eq!(counts[1], draws as f64);
            continue;
        }
        let weights = row.map(|x| (f64::from(x) / t).exp());
        let sum: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            let p = weight / sum;
            // Five deviations.
            let room = 5.0 * (draws as f64 * p * (1.0 - p)).sqrt();
            assert!((count - draws as f64 * p).abs() <= room, "T = {t}: {count} of {draws}, expected {p}");
        }
    }
}

/// abetlen/llama-cpp-python#1322, ggml-org/llama.cpp#7203: temperature 0 did not give the most likely token. Of equal ones it is the first.
#[test]
fn temperature_0_is_the_first_of_the_largest() {
    let gpu = gpu!();
    let (rows, vocab) = (20u32, 50_257u32);
    let mut rng = Rng::new(7203);
    // Coarse, so that the largest comes several times.
    let logits: Vec<f32> = (0..rows * vocab).map(|_| (rng.normal() * 8.0).round() / 8.0).collect();
    let seeds = seeds(rows);
    let problem = Problem::new(rows, vocab, Chain::new().temperature(0.0));
    let got = op(gpu).run_blocking(&gpu.queue, &problem, &Inputs::new(&logits, &seeds)).expect("tokens");
    for (row, token) in logits.chunks(vocab as usize).zip(got.tokens) {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(token, row.iter().position(|&x| x == most).map(|at| at as u32));
    }
}

/// oobabooga/textgen#5451: top-k of 0, which is off, gave the same token each time.
#[test]
fn top_k_of_0_is_off() {
    let gpu = gpu!();
    let logits = [0.0f32, 1.0, 2.0, -1.0];
    let draws = 4000;
    let tokens = tokens(gpu, &Chain::new().temperature(5.0).top_k(0), &logits, draws);
    let weights = logits.map(|x| (f64::from(x) / 5.0).exp());
    let sum: f64 = weights.iter().sum();
    for (token, weight) in (0..).zip(weights) {
        let (count, p) = (tokens.iter().filter(|&&t| t == token).count() as f64, weight / sum);
        let room = 5.0 * (f64::from(draws) * p * (1.0 - p)).sqrt();
        assert!((count - f64::from(draws) * p).abs() <= room, "token {token} came {count} times");
    }
}
