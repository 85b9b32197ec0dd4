//! `cargo bench --features measure --bench host`: what a call costs the host, in time and allocations. Nothing runs on the device.
//!
//! `encode` records a compute pass into the app's encoder; `finish` is wgpu's work when the encoder is finished, for each such
//! call.

use wgpu_attention::measure::Work;
use wgpu_attention::{Alignment, Attention, Problem, Shape, Temperature, headless};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let attention = Attention::new(&gpu.device);
    let info = gpu.adapter.get_info();
    println!("adapter  {}, {} {}, {}", info.name, info.driver, info.driver_info, info.backend);
    println!("wgpu-attention {}\n", env!("CARGO_PKG_VERSION"));
    println!("{:<34} {:>10} {:>10} {:>24}", "problem", "encode us", "finish us", "allocations of a call");
    let shape = Shape::self_attention(1, 4, 64, 64);
    for (name, problem) in [
        ("plain", Problem::new(shape)),
        ("causal, temperature per head, lse", {
            Problem::new(shape).causal(Alignment::BottomRight).temperature(Temperature::PerHead).with_lse()
        }),
        ("decode", Problem::new(Shape { seq_q: 1, ..shape })),
    ] {
        let work = pollster::block_on(Work::new(&attention, &problem))?;
        let ready = pollster::block_on(work.prepare(&attention.plan(&problem)?))?;
        let [encode, finish] = ready.host_cost(&gpu.device);
        // In one pass, so that what is counted is recording and not the making of passes; wgpu's own list of commands grows now
        // and then.
        const CALLS: u32 = 1000;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let counted = allocation_counter::measure(|| {
            for _ in 0..CALLS {
                ready.record(0, &mut pass);
            }
        });
        println!(
            "{name:<34} {:>10.2} {:>10.2} {:>24.3}",
            encode * 1e6,
            finish * 1e6,
            counted.count_total as f64 / f64::from(CALLS)
        );
    }
    Ok(())
}
