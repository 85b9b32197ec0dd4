//! The smallest complete program: q, k and v in, attention out.
//!
//! ```sh
//! cargo run --example hello_attention
//! ```

use wgpu_attention::{Attention, Inputs, Problem, Shape, headless};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let attention = Attention::new(&gpu.device);

    // One sequence, one head, three positions, head dim 2. Every query looks for the keys that point its way.
    let q = [4.0, 0.0, 0.0, 4.0, 0.0, 0.0];
    let k = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0];
    let v = [1.0, 0.0, 0.0, 1.0, 5.0, 5.0];
    let problem = Problem::new(Shape::self_attention(1, 1, 3, 2)).with_entropy();
    let result = attention.run_blocking(&gpu.queue, &problem, &Inputs::new(&q, &k, &v))?;

    println!("on {}", gpu.adapter.get_info().name);
    let entropies = result.entropy.unwrap_or_default();
    for ((row, out), entropy) in result.out.chunks(2).enumerate().zip(entropies) {
        println!("row {row}: out {out:8.4?}, entropy {entropy:.4} nats");
    }
    Ok(())
}
