//! What the temperature does: the mean entropy of the rows, from one-hot to uniform, computed on the GPU.
//!
//! ```sh
//! cargo run --example temperature
//! ```

use wgpu_attention::{Attention, Inputs, Problem, Shape, Temperature, headless};

const HEADS: u32 = 4;
const KEYS: u32 = 128;
const HEAD_DIM: u32 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let attention = Attention::new(&gpu.device);
    let shape = Shape::self_attention(1, HEADS, KEYS, HEAD_DIM);
    let length = (HEADS * KEYS * HEAD_DIM) as usize;
    let (q, k, v) = (normal(1, length), normal(2, length), normal(3, length));
    let inputs = Inputs::new(&q, &k, &v);

    println!("on {}: {KEYS} keys, so at most {:.3} nats", gpu.adapter.get_info().name, (KEYS as f32).ln());
    println!("temperature   mean entropy   keys that count (e^entropy)");
    for temperature in [0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 100.0] {
        let problem = Problem::new(shape).temperature(Temperature::Value(temperature)).with_entropy();
        let result = attention.run_blocking(&gpu.queue, &problem, &inputs)?;
        let entropies = result.entropy.unwrap_or_default();
        let mean = entropies.iter().sum::<f32>() / entropies.len() as f32;
        println!("{temperature:>11}   {mean:>12.4}   {:>12.1}", mean.exp());
    }
    // The temperature is an argument and not a part of the shader.
    println!("compiled shaders: {}", attention.compiled());
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
