//! `cargo bench --bench operations`: softmax against a copy of the same bytes, and drawing tokens on the device against reading the
//! logits back and drawing on the CPU. Wall clock from submitting to the device's being done, medians; answers are checked first.

use std::time::{Duration, Instant};
use wgpu_attention::sampling::{self, Chain, LlamaCpp, Sampler, Seed};
use wgpu_attention::softmax::{self, Kind, Softmax};
use wgpu_attention::{headless, wgpu};

/// How long one line may take, about.
const BUDGET: Duration = Duration::from_millis(1500);

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let info = gpu.adapter.get_info();
    println!("adapter  {}, {} {}, {}", info.name, info.driver, info.driver_info, info.backend);
    println!("wgpu-attention {}\n", env!("CARGO_PKG_VERSION"));
    softmaxes(&gpu)?;
    samplers(&gpu)
}

/// Median time of some work, after a first go that is not counted.
fn median(mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
    work()?;
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || (start.elapsed() < BUDGET && times.len() < 200) {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn submit(gpu: &headless::Gpu, record: impl Fn(&mut wgpu::CommandEncoder)) -> Result<()> {
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    record(&mut encoder);
    gpu.queue.submit([encoder.finish()]);
    gpu.device.poll(wgpu::PollType::wait_indefinitely())?;
    Ok(())
}

fn buffer(gpu: &headless::Gpu, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    let usage = usage | wgpu::BufferUsages::COPY_DST;
    gpu.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
}

fn upload(gpu: &headless::Gpu, words: &[u32]) -> wgpu::Buffer {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    let buffer = buffer(gpu, words.len() as u64 * 4, usage);
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    gpu.queue.write_buffer(&buffer, 0, &bytes);
    buffer
}

/// Reproducible numbers between -8 and 8.
fn numbers(n: usize) -> Vec<f32> {
    (0..n as u32).map(|n| (n.wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 20) as f32 - 8.0).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn softmaxes(gpu: &headless::Gpu) -> Result<()> {
    println!("softmax: GB/s count each element read once and written once, as a copy does");
    println!("{:<12} {:>18} {:>10} {:>8} {:>10}", "kind", "rows x elements", "ms", "GB/s", "of a copy");
    let softmax = Softmax::new(&gpu.device);
    let storage = wgpu::BufferUsages::STORAGE;
    for (rows, len) in [(100_000, 10), (4096, 1000), (64, 50_257), (1, 1_000_000), (1, 10_000_000)] {
        let x = numbers((rows * len) as usize);
        let source = upload(gpu, &bits(&x));
        let target = buffer(gpu, source.size(), storage);
        let copy = median(|| {
            submit(gpu, |encoder| encoder.copy_buffer_to_buffer(&source, 0, &target, 0, source.size()))
        })?;
        for kind in Kind::ALL {
            let problem = softmax::Problem::new(rows, len).kind(kind);
            let inputs = softmax::Inputs::new(&x);
            let result = softmax.run_blocking(&gpu.queue, &problem, &inputs)?;
            if !softmax::truth(&problem, &inputs)?.compare(&result).passes() {
                return Err(format!("{} of {rows} x {len} is wrong", kind.name()).into());
            }
            let prepared = softmax.prepare_blocking(&softmax.plan(&problem)?)?;
            let bound = prepared.bind(&softmax::Buffers::new(&source, &target))?;
            let time = median(|| submit(gpu, |encoder| bound.encode(encoder)))?;
            println!(
                "{:<12} {:>18} {:>10.3} {:>8.2} {:>9.0}%",
                kind.name(),
                format!("{rows} x {len}"),
                time.as_secs_f64() * 1e3,
                2.0 * source.size() as f64 / time.as_secs_f64() / 1e9,
                100.0 * copy.as_secs_f64() / time.as_secs_f64()
            );
        }
    }
    println!();
    Ok(())
}

fn samplers(gpu: &headless::Gpu) -> Result<()> {
    let settings = LlamaCpp::default();
    let chain = Chain::llama_cpp(settings);
    println!("sampling: {chain}; then Gumbel noise");
    println!("{:>6} {:>8} {:>14} {:>22}", "rows", "vocab", "device ms", "read back + CPU ms");
    let sampler = Sampler::new(&gpu.device);
    for vocab in [32_000u32, 128_256, 262_144] {
        for rows in [1u32, 8, 64] {
            let x = numbers((rows * vocab) as usize);
            let seeds: Vec<Seed> = (0..rows).map(|offset| Seed { seed: 1, offset }).collect();
            let problem = sampling::Problem::new(rows, vocab, chain.clone());
            let plan = sampler.plan(&problem)?;
            let one = sampling::Problem::new(1, vocab, chain.clone());
            let want = sampling::twin(&one, &sampling::Inputs::new(&x, &seeds[..1]))?;
            let got = sampler.run_blocking(&gpu.queue, &problem, &sampling::Inputs::new(&x, &seeds))?;
            if got.tokens[..1] != want.tokens {
                return Err(format!("{rows} x {vocab}: another token than the CPU's").into());
            }

            let logits = upload(gpu, &bits(&x));
            let words = upload(gpu, &plan.settings(&seeds, None)?);
            let out =
                buffer(gpu, plan.out_bytes(), wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
            let tokens = buffer(gpu, plan.out_bytes(), wgpu::BufferUsages::MAP_READ);
            let bound =
                sampler.prepare_blocking(&plan)?.bind(&sampling::Buffers::new(&logits, &words, &out))?;
            let on_device = median(|| {
                let mut encoder = gpu.device.create_command_encoder(&Default::default());
                bound.encode(&mut encoder);
                encoder.copy_buffer_to_buffer(&out, 0, &tokens, 0, plan.out_bytes());
                read(gpu, encoder, &tokens, |bytes| assert!(bytes.len() as u64 == plan.out_bytes()))
            })?;
            let host = buffer(gpu, logits.size(), wgpu::BufferUsages::MAP_READ);
            let mut drawn = 0;
            let on_host = median(|| {
                let mut encoder = gpu.device.create_command_encoder(&Default::default());
                encoder.copy_buffer_to_buffer(&logits, 0, &host, 0, logits.size());
                read(gpu, encoder, &host, |bytes| {
                    for row in bytes.chunks_exact(vocab as usize * 4) {
                        drawn += draw(row, &settings);
                    }
                })
            })?;
            std::hint::black_box(drawn);
            println!(
                "{rows:>6} {vocab:>8} {:>14.3} {:>22.3}",
                on_device.as_secs_f64() * 1e3,
                on_host.as_secs_f64() * 1e3
            );
        }
    }
    Ok(())
}

/// Submits, waits, and hands over what came to a mapped buffer.
fn read(
    gpu: &headless::Gpu,
    encoder: wgpu::CommandEncoder,
    host: &wgpu::Buffer,
    mut then: impl FnMut(&[u8]),
) -> Result<()> {
    gpu.queue.submit([encoder.finish()]);
    host.map_async(wgpu::MapMode::Read, .., |_| {});
    gpu.device.poll(wgpu::PollType::wait_indefinitely())?;
    then(&host.get_mapped_range(..)?);
    host.unmap();
    Ok(())
}

/// The same chain on the CPU, as one would write it there: a partial sort for top-k, the rest on the 40 that are left.
fn draw(row: &[u8], settings: &LlamaCpp) -> usize {
    let mut logits: Vec<(f32, usize)> = row
        .chunks_exact(4)
        .enumerate()
        .map(|(token, b)| (f32::from_le_bytes([b[0], b[1], b[2], b[3]]), token))
        .collect();
    let k = settings.top_k as usize;
    logits.select_nth_unstable_by(k - 1, |a, b| b.0.total_cmp(&a.0));
    logits.truncate(k);
    logits.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let most = logits[0].0;
    let sum: f32 = logits.iter().map(|l| (l.0 - most).exp()).sum();
    let mut mass = 0.0;
    logits.retain(|l| {
        let before = mass;
        mass += (l.0 - most).exp() / sum;
        before < settings.top_p && l.0 >= most + settings.min_p.ln()
    });
    let weights: Vec<f32> = logits.iter().map(|l| ((l.0 - most) / settings.temperature).exp()).collect();
    let mut left = 0.37 * weights.iter().sum::<f32>();
    for (weight, &(_, token)) in weights.iter().zip(&logits) {
        left -= weight;
        if left <= 0.0 {
            return token;
        }
    }
    logits[0].1
}
