//! Differential attention (Ye et al. 2024, arXiv 2410.05258): two softmaxes of which one is taken from the other, so that what both
//! give to irrelevant keys cancels, as noise does in a differential amplifier. It is two calls and a subtraction.
//!
//! ```text
//! out = (softmax(q1 k1^T / sqrt(d)) - lambda softmax(q2 k2^T / sqrt(d))) v
//! lambda = exp(a1 . b1) - exp(a2 . b2) + lambda_init          four learned vectors of a layer
//! lambda_init = 0.8 - 0.6 exp(-0.3 (layer - 1))               layer from 1: from 0.2 towards 0.8
//! head = (1 - lambda_init) RMSNorm(out)                       so that gradients are those of a usual layer
//! ```
//!
//! q and k come out of their projections as (batch, seq, 2 heads, d), v as (batch, seq, heads, 2 d). The two halves need no copies: each
//! call reads its own heads by strides.

use wgpu_attention::{
    Alignment, Attention, Inputs, Layout, Problem, Shape, Strides, headless,
    reference::{self, Bounded},
};

const HEADS: u32 = 2;
const SEQ: u32 = 64;
const D: u32 = 16;
const LAYER: u32 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let attention = Attention::new(&gpu.device);

    let wave = |n: u32, step: f32| (0..n).map(|i| (i as f32 * step).sin() * 2.0).collect::<Vec<_>>();
    let (q, k) = (wave(SEQ * 2 * HEADS * D, 0.37), wave(SEQ * 2 * HEADS * D, 0.73));
    let v = wave(SEQ * HEADS * 2 * D, 0.11);
    let inputs = Inputs::new(&q, &k, &v);

    // One call for each half: heads 0, 2, ... of q and k, then heads 1, 3, ...
    let problem = |half: u32| {
        let (head, row) = (u64::from(2 * D), u64::from(2 * HEADS * D));
        let strides = Strides { offset: u64::from(half * D), batch: 0, head, seq: row, dim: 1 };
        let halves = Layout::Strided(strides);
        Problem::new(Shape { head_dim_v: 2 * D, ..Shape::self_attention(1, HEADS, SEQ, D) })
            .layouts(halves, halves, Layout::Bshd, Layout::Bhsd)
            .causal(Alignment::BottomRight)
    };
    let [first, second] = [problem(0), problem(1)];
    let one = attention.run_blocking(&gpu.queue, &first, &inputs)?.out;
    let two = attention.run_blocking(&gpu.queue, &second, &inputs)?.out;

    let lambda_init = 0.8 - 0.6 * (-0.3 * f64::from(LAYER - 1)).exp();
    let vector = |step: f64| (0..D).map(|i| 0.2 * (f64::from(i) * step).cos()).collect::<Vec<_>>();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lambda = dot(&vector(0.05), &vector(0.1)).exp() - dot(&vector(0.7), &vector(0.9)).exp() + lambda_init;
    let difference: Vec<f32> = one.iter().zip(&two).map(|(a, b)| a - lambda as f32 * b).collect();

    // The bounds of the two calls add up; lambda and the difference are rounded.
    let truth =
        reference::truth(&first, &inputs)?.out.into_iter().zip(reference::truth(&second, &inputs)?.out);
    let eps = f64::from(f32::EPSILON);
    let truth: Vec<Bounded> = truth
        .map(|(a, b)| Bounded {
            value: a.value - lambda * b.value,
            bound: a.bound + lambda.abs() * b.bound + eps * (a.value.abs() + 2.0 * (lambda * b.value).abs()),
        })
        .collect();
    let comparison = reference::compare(&difference, &truth);
    assert!(comparison.passes(), "{comparison:?}");

    // Each row of each head by its root mean square, and the factor that keeps its size.
    let normalised: Vec<f32> = difference
        .chunks(2 * D as usize)
        .flat_map(|row| {
            let mean_square = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
            let factor = (1.0 - lambda_init as f32) / (mean_square + 1e-5).sqrt();
            row.iter().map(move |x| x * factor)
        })
        .collect();

    println!("lambda_init {lambda_init:.4} in layer {LAYER}, lambda {lambda:.4}");
    println!("largest error {:.1e}, {:.0}% of its bound", comparison.max_abs, comparison.worst * 100.0);
    println!("head 0, last row: {:.3?} ...", &normalised[(SEQ as usize - 1) * 2 * D as usize..][..4]);
    Ok(())
}
