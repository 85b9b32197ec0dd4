//! Drawing tokens in an app: logits in a buffer of the device, settings written for each token, one token read back. Here the
//! "model" is a fixed table of bigrams over letters, so that what the chain does can be seen.
//!
//! ```sh
//! cargo run --example sampling
//! ```

use wgpu_attention::sampling::{Buffers, Chain, Inputs, LlamaCpp, Problem, Sampler, Seed, twin};
use wgpu_attention::{headless, wgpu};

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz ";
const TEXT: &str = "the quick brown fox jumps over the lazy dog and then the other dog thinks that the fox is there \
                    in the garden with the rest of them when they were not at all tired of the chase";
const LENGTH: u32 = 40;

/// Logits of the letter after another: logarithms of counts.
fn logits_after(letter: usize) -> Vec<f32> {
    let index = |c: u8| LETTERS.iter().position(|&l| l == c);
    let mut counts = vec![0.01f32; LETTERS.len()];
    for pair in TEXT.as_bytes().windows(2) {
        if let (Some(a), Some(b)) = (index(pair[0]), index(pair[1]))
            && a == letter
        {
            counts[b] += 1.0;
        }
    }
    counts.into_iter().map(f32::ln).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let sampler = Sampler::new(&gpu.device);
    println!("on {}\n", gpu.adapter.get_info().name);
    let llama = |temperature| Chain::llama_cpp(LlamaCpp { temperature, ..LlamaCpp::default() });
    for (name, chain) in [
        ("greedy", Chain::new().temperature(0.0)),
        ("temperature 0.5", Chain::new().temperature(0.5)),
        ("temperature 1", Chain::new()),
        ("temperature 3", Chain::new().temperature(3.0)),
        ("llama.cpp", llama(0.8)),
        ("no repeats", llama(0.8).penalties(1.0, 1.0, 1.0)),
    ] {
        println!("{name:16} {}", write(&gpu, &sampler, &chain)?);
    }
    Ok(())
}

fn write(
    gpu: &headless::Gpu,
    sampler: &Sampler,
    chain: &Chain,
) -> Result<String, Box<dyn std::error::Error>> {
    let vocab = LETTERS.len() as u32;
    let penalised = chain.to_string().contains("penalties");
    let mut problem = Problem::new(1, vocab, chain.clone());
    if penalised {
        problem = problem.with_history(8);
    }
    // Once: plan, compile, make buffers, bind.
    let plan = sampler.plan(&problem)?;
    let prepared = sampler.prepare_blocking(&plan)?;
    let buffer = |size, usage| {
        let usage = usage | wgpu::BufferUsages::COPY_DST;
        gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    };
    let storage = wgpu::BufferUsages::STORAGE;
    let logits = buffer(plan.logits_bytes(), storage);
    let settings = buffer(plan.settings_bytes(), storage);
    let history = buffer(8 * 4, storage);
    let out = buffer(plan.out_bytes(), storage | wgpu::BufferUsages::COPY_SRC);
    let host = buffer(plan.out_bytes(), wgpu::BufferUsages::MAP_READ);
    let mut buffers = Buffers::new(&logits, &settings, &out);
    if penalised {
        buffers = buffers.history(&history);
    }
    let bound = prepared.bind(&buffers)?;

    let mut text = vec![LETTERS.len() - 1];
    for offset in 0..LENGTH {
        // A model would have left its logits on the device.
        let model = logits_after(text[text.len() - 1]);
        let seeds = [Seed { seed: 42, offset }];
        let mut recent = [u32::MAX; 8];
        for (place, &letter) in recent.iter_mut().zip(text.iter().rev()) {
            *place = letter as u32;
        }
        gpu.queue.write_buffer(&logits, 0, bytes_of_floats(&model).as_slice());
        gpu.queue.write_buffer(&settings, 0, bytes_of_words(&plan.settings(&seeds, None)?).as_slice());
        gpu.queue.write_buffer(&history, 0, bytes_of_words(&recent).as_slice());
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        bound.encode(&mut encoder);
        encoder.copy_buffer_to_buffer(&out, 0, &host, 0, plan.out_bytes());
        gpu.queue.submit([encoder.finish()]);
        host.map_async(wgpu::MapMode::Read, .., |_| {});
        gpu.device.poll(wgpu::PollType::wait_indefinitely())?;
        let bytes: [u8; 4] = host.get_mapped_range(..)?[..4].try_into()?;
        host.unmap();
        let token = u32::from_le_bytes(bytes);

        // The CPU draws the same.
        let mut inputs = Inputs::new(&model, &seeds);
        if penalised {
            inputs = inputs.history(&recent);
        }
        if twin(&problem, &inputs)?.tokens != [Some(token)] {
            return Err(format!("the device drew {token}, and the CPU did not").into());
        }
        text.push(token as usize);
    }
    Ok(text.iter().map(|&letter| LETTERS[letter] as char).collect())
}

fn bytes_of_floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn bytes_of_words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}
