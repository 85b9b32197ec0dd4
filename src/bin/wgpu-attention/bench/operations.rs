//! The operations beside attention: softmax against the adapter's ceilings, and drawing tokens on the device against reading the logits
//! back and drawing on the processor.

use super::report::{LeftOut, OperationRow, Spread};
use super::suite::rounded;
use crate::fail::Result;
use crate::gpu::Gpu;
use indicatif::ProgressBar;
use std::time::{Duration, Instant};
use wgpu_attention::measure::{Effort, Limit, Roofs, Samples, Stopwatch};
use wgpu_attention::sampling::{self, Chain, LlamaCpp, Sampler, Seed};
use wgpu_attention::softmax::{self, Kind, Softmax};
use wgpu_attention::{Error, wgpu};

/// Rows by elements: about 64 MB in all, read and written, of rows from short to longer than any workgroup sees.
const SOFTMAXES: [[u32; 2]; 5] = [[65_536, 128], [8192, 1024], [2048, 4096], [256, 32_768], [8, 1_048_576]];
const VOCABULARIES: [u32; 3] = [32_000, 128_256, 262_144];
const BATCHES: [u32; 3] = [1, 8, 64];

/// What is measured with: a stopwatch for the device alone, and the wall clock for what ends on the host.
pub(super) struct Bench<'a> {
    pub gpu: &'a Gpu,
    pub stopwatch: &'a Stopwatch,
    pub roofs: &'a Roofs,
    pub end: Instant,
    pub effort: Duration,
    pub rows: Vec<OperationRow>,
    pub left_out: Vec<LeftOut>,
}

/// Number of figures, about.
pub(super) const FIGURES: u32 =
    (SOFTMAXES.len() * Kind::ALL.len() + 2 * VOCABULARIES.len() * BATCHES.len()) as u32;

/// A problem and its row, or why there is none.
enum Outcome {
    Row(OperationRow),
    Wrong(String),
}

impl Bench<'_> {
    pub(super) fn run(&mut self, bar: &ProgressBar) -> Result<()> {
        bar.set_length((SOFTMAXES.len() * Kind::ALL.len() + VOCABULARIES.len() * BATCHES.len()) as u64);
        bar.set_message("measuring");
        let softmax = Softmax::new(self.gpu.attention.device());
        for [rows, len] in SOFTMAXES {
            for kind in Kind::ALL {
                let problem = softmax::Problem::new(rows, len).kind(kind);
                self.note(kind.name(), [rows, len], |bench| bench.softmax(&softmax, &problem))?;
                bar.inc(1);
            }
        }
        let sampler = Sampler::new(self.gpu.attention.device());
        for vocab in VOCABULARIES {
            for rows in BATCHES {
                self.note("sampling", [rows, vocab], |bench| bench.sampling(&sampler, rows, vocab))?;
                bar.inc(1);
            }
        }
        Ok(())
    }

    fn note(
        &mut self,
        operation: &str,
        [rows, len]: [u32; 2],
        measure: impl FnOnce(&Self) -> Result<Outcome, Error>,
    ) -> Result<()> {
        let (because, wrong) = if Instant::now() > self.end {
            ("there was no time for it (--seconds)".to_owned(), false)
        } else {
            match measure(self) {
                Ok(Outcome::Row(row)) => {
                    self.rows.push(row);
                    return Ok(());
                }
                Ok(Outcome::Wrong(because)) => (because, true),
                Err(error @ Error::DeviceLost(_)) => return Err(error.into()),
                Err(error) => (error.to_string(), false),
            }
        };
        let problem = format!("{rows} x {len}");
        self.left_out.push(LeftOut { problem, kernel: operation.to_owned(), because, wrong });
        Ok(())
    }

    fn row(
        &self,
        operation: &str,
        [rows, len]: [u32; 2],
        times: &Samples,
        bytes: u64,
        exps: u64,
    ) -> OperationRow {
        let median = times.median().max(1e-9);
        let [q1, q3] = times.quartiles();
        // What is written goes through memory as a copy does.
        let memory = if operation == "sampling" { self.roofs.memory() } else { self.roofs.best_copy() };
        let floors = [(bytes as f64 / memory, Limit::Memory), (exps as f64 / self.roofs.exp2, Limit::Exp2)];
        let (floor, limit) = if floors[1].0 > floors[0].0 { floors[1] } else { floors[0] };
        OperationRow {
            operation: operation.to_owned(),
            rows,
            len,
            ms: rounded(median * 1e3),
            gb_s: rounded(bytes as f64 / median / 1e9),
            share: rounded(floor / median),
            limit,
            spread: Spread {
                min_ms: rounded(times.min() * 1e3),
                q1_ms: rounded(q1 * 1e3),
                q3_ms: rounded(q3 * 1e3),
                samples: times.seconds().len(),
                calls: 1,
            },
            with_token_ms: None,
            on_processor_ms: None,
        }
    }

    fn effort(&self) -> Effort {
        let mut effort = Effort::default();
        effort.time = self.effort;
        effort
    }

    fn softmax(&self, softmax: &Softmax, problem: &softmax::Problem) -> Result<Outcome, Error> {
        // Right first, on as many rows as float64 on the host has time for.
        let few = softmax::Problem::new(problem.rows[1].min((1 << 20) / problem.len).max(1), problem.len)
            .kind(problem.kind);
        let x = numbers(few.row_count() * u64::from(few.len));
        let inputs = softmax::Inputs::new(&x);
        let checked =
            softmax::truth(&few, &inputs)?.compare(&softmax.run_blocking(&self.gpu.queue, &few, &inputs)?);
        if !checked.passes() {
            return Ok(Outcome::Wrong(format!("wrong: an error of {:.1} times its bound", checked.worst)));
        }
        let elements = problem.row_count() * u64::from(problem.len);
        let x = self.upload(&numbers(elements));
        let out = self.buffer(x.size(), wgpu::BufferUsages::STORAGE);
        let bound =
            softmax.prepare_blocking(&softmax.plan(problem)?)?.bind(&softmax::Buffers::new(&x, &out))?;
        let times = pollster::block_on(
            self.stopwatch.measure_recorded(&|pass| bound.encode_in_pass(pass), &self.effort()),
        )?;
        let exps = if problem.kind.is_sparse() { 0 } else { elements };
        let shape = [problem.rows[1], problem.len];
        Ok(Outcome::Row(self.row(problem.kind.name(), shape, &times.samples, 8 * elements, exps)))
    }

    fn sampling(&self, sampler: &Sampler, rows: u32, vocab: u32) -> Result<Outcome, Error> {
        let settings = LlamaCpp::default();
        let problem = sampling::Problem::new(rows, vocab, Chain::llama_cpp(settings));
        let logits = numbers(u64::from(rows) * u64::from(vocab));
        let seeds: Vec<Seed> = (0..rows).map(|offset| Seed { seed: 1, offset }).collect();
        let inputs = sampling::Inputs::new(&logits, &seeds);
        if sampler.run_blocking(&self.gpu.queue, &problem, &inputs)? != sampling::twin(&problem, &inputs)? {
            return Ok(Outcome::Wrong("wrong: other tokens than the processor's".to_owned()));
        }
        let plan = sampler.plan(&problem)?;
        let logits = self.upload(&logits);
        let settings_buffer = self.upload(&plan.settings(&seeds, None)?);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let out = self.buffer(plan.out_bytes(), usage);
        let bound = sampler.prepare_blocking(&plan)?.bind(&sampling::Buffers::new(
            &logits,
            &settings_buffer,
            &out,
        ))?;
        let times = pollster::block_on(
            self.stopwatch.measure_recorded(&|pass| bound.encode_in_pass(pass), &self.effort()),
        )?;

        let tokens = self.buffer(plan.out_bytes(), wgpu::BufferUsages::MAP_READ);
        let with_token = self.wall(|| {
            let mut encoder = self.encoder();
            bound.encode(&mut encoder);
            encoder.copy_buffer_to_buffer(&out, 0, &tokens, 0, plan.out_bytes());
            self.read(encoder, &tokens, |bytes| {
                std::hint::black_box(bytes.len());
            })
        })?;
        let host = self.buffer(logits.size(), wgpu::BufferUsages::MAP_READ);
        let on_processor = self.wall(|| {
            let mut encoder = self.encoder();
            encoder.copy_buffer_to_buffer(&logits, 0, &host, 0, logits.size());
            self.read(encoder, &host, |bytes| {
                for row in bytes.chunks_exact(vocab as usize * 4) {
                    std::hint::black_box(draw(row, &settings));
                }
            })
        })?;
        let row = self.row("sampling", [rows, vocab], &times.samples, logits.size(), 0);
        Ok(Outcome::Row(OperationRow {
            with_token_ms: Some(rounded(with_token * 1e3)),
            on_processor_ms: Some(rounded(on_processor * 1e3)),
            ..row
        }))
    }

    /// Median seconds of some work, after a first go that is not counted.
    fn wall(&self, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        work()?;
        let start = Instant::now();
        let mut times = Vec::new();
        while times.len() < 5 || (start.elapsed() < self.effort && times.len() < 200) {
            let start = Instant::now();
            work()?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(Samples::new(times).map_or(f64::NAN, |times| times.median()))
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu.attention.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    fn buffer(&self, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        let usage = usage | wgpu::BufferUsages::COPY_DST;
        self.gpu.attention.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some("bench"),
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    fn upload<T: bytemuck::NoUninit>(&self, data: &[T]) -> wgpu::Buffer {
        let words: &[u8] = bytemuck::cast_slice(data);
        let buffer =
            self.buffer(words.len() as u64, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
        self.gpu.queue.write_buffer(&buffer, 0, words);
        buffer
    }

    /// Submits, waits, and hands over what came to a mapped buffer.
    fn read(
        &self,
        encoder: wgpu::CommandEncoder,
        host: &wgpu::Buffer,
        mut then: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let lost = |e: &dyn std::fmt::Display| Error::DeviceLost(e.to_string());
        self.gpu.queue.submit([encoder.finish()]);
        host.map_async(wgpu::MapMode::Read, .., |_| {});
        self.gpu.attention.device().poll(wgpu::PollType::wait_indefinitely()).map_err(|e| lost(&e))?;
        then(&host.get_mapped_range(..).map_err(|e| lost(&e))?);
        host.unmap();
        Ok(())
    }
}

/// Reproducible numbers between -8 and 8.
fn numbers(n: u64) -> Vec<f32> {
    (0..n as u32).map(|n| (n.wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 20) as f32 - 8.0).collect()
}

/// The same chain on the processor, as one would write it there for speed: one sweep that keeps what may be among the k largest, and the
/// rest on the k that are left.
fn draw(row: &[u8], settings: &LlamaCpp) -> u32 {
    let k = settings.top_k as usize;
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0);
    let mut kept: Vec<(f32, u32)> = Vec::with_capacity(8 * k);
    let mut least = f32::NEG_INFINITY;
    for (token, bytes) in (0..).zip(row.as_chunks::<4>().0) {
        let logit = f32::from_le_bytes(*bytes);
        if logit > least {
            kept.push((logit, token));
            if kept.len() == 8 * k {
                kept.select_nth_unstable_by(k - 1, order);
                kept.truncate(k);
                least = kept[k - 1].0;
            }
        }
    }
    kept.sort_unstable_by(order);
    kept.truncate(k);
    let most = kept[0].0;
    let sum: f32 = kept.iter().map(|l| (l.0 - most).exp()).sum();
    let lowest = most + settings.min_p.ln();
    let mut mass = 0.0;
    kept.retain(|l| {
        let before = mass;
        mass += (l.0 - most).exp() / sum;
        before < settings.top_p && l.0 >= lowest
    });
    let weights: Vec<f32> = kept.iter().map(|l| ((l.0 - most) / settings.temperature).exp()).collect();
    let mut left = 0.37 * weights.iter().sum::<f32>();
    for (weight, &(_, token)) in weights.iter().zip(&kept) {
        left -= weight;
        if left <= 0.0 {
            return token;
        }
    }
    kept[0].1
}
