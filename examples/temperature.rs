//! What temperature and scale do to the softmax: the mean entropy of the rows, from one-hot to uniform, on the GPU.
//!
//! ```sh
//! cargo run --example temperature
//! ```

use wgpu_attention::{Attention, Inputs, Problem, Scale, Shape, Temperature, headless};

const HEADS: u32 = 4;
const KEYS: u32 = 128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let attention = Attention::new(&gpu.device);
    // Random q and k of deviation 1, 128 keys.
    let mean_entropy = |head_dim, scale, temperature| -> Result<f32, wgpu_attention::Error> {
        let shape = Shape::self_attention(1, HEADS, KEYS, head_dim);
        let length = (HEADS * KEYS * head_dim) as usize;
        let (q, k) = (normal(1, length), normal(2, length));
        let problem = Problem::new(shape).scale(scale).temperature(temperature).with_entropy();
        let result = attention.run_blocking(&gpu.queue, &problem, &Inputs::new(&q, &k, &k))?;
        let entropies = result.entropy.unwrap_or_default();
        Ok(entropies.iter().sum::<f32>() / entropies.len() as f32)
    };
    println!("on {}", gpu.adapter.get_info().name);
    println!("mean entropy in nats; {KEYS} keys, so at most {:.3}\n", (KEYS as f32).ln());

    println!("temperature   entropy   keys that count (e^entropy)     head dim 64, scale 1/sqrt(64)");
    for temperature in [0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 100.0] {
        let entropy = mean_entropy(64, Scale::default(), Temperature::Value(temperature))?;
        println!("{temperature:>11}   {entropy:>7.3}   {:>6.1}", entropy.exp());
    }
    // The temperature is an argument and not a part of the shader.
    println!("shaders compiled for all of these: {}\n", attention.compiled());

    println!("head dim   no scale   1/sqrt(d)     2/d     1/d         temperature 1");
    for head_dim in [4, 16, 64, 256, 1024] {
        let scales = [
            Scale::Value(1.0),
            Scale::RsqrtHeadDim,
            Scale::PerHeadDim { numerator: 2.0 },
            Scale::PerHeadDim { numerator: 1.0 },
        ];
        let mut row = Vec::new();
        for scale in scales {
            row.push(mean_entropy(head_dim, scale, Temperature::default())?);
        }
        println!("{head_dim:>8}   {:>8.3}   {:>9.3}   {:>5.3}   {:>5.3}", row[0], row[1], row[2], row[3]);
    }
    Ok(())
}

/// Numbers with mean 0 and deviation 1, the same at each run: sums of twelve uniform numbers.
fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}
