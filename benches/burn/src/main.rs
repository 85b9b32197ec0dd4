//! Times burn's attention on the adapter in use: one JSON line a problem, as `wgpu-attention bench --peer FILE` reads them.
//!
//! ```sh
//! cargo run --release --manifest-path benches/burn/Cargo.toml -- 1,4,4,512,512,64 1,4,4,512,512,64,1 > burn.jsonl
//! ```
//!
//! A problem is batch, q heads, kv heads, queries, keys, head dim, and 1 for causal, which is burn's `is_causal`. Inputs are f32 on the
//! device and stay there, as does what comes out. burn tries its kernels on the first call, which is not timed. A sample is as many calls as take
//! some milliseconds, by the wall clock, until the device is done; the figure is the median. Before that, the answer is compared with
//! float64; `checked.worst` is the largest error as a multiple of the bound that this repository's own kernels must keep.

use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, DeviceKind, Tensor, TensorData, module};
use serde_json::json;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use wgpu_attention::measure::{Cost, Samples};
use wgpu_attention::{Alignment, Inputs, Problem, Shape, reference};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Samples of each problem, and the least time that one takes.
const SAMPLES: usize = 15;
const SAMPLE_SECONDS: f64 = 0.02;
/// Rows that are compared with float64, spread over all heads.
const ROWS: u64 = 512;
/// An answer that is this many bounds off is wrong, not only computed with less care than ours.
const WRONG: f64 = 1e3;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        eprintln!("usage: burn-peer BATCH,Q_HEADS,KV_HEADS,QUERIES,KEYS,HEAD_DIM[,1 for causal] ...");
        return ExitCode::from(2);
    }
    let device = Device::wgpu(DeviceKind::DefaultDevice);
    let mut code = ExitCode::SUCCESS;
    for word in &words {
        match problem(word).and_then(|problem| time(&problem, &device)) {
            Ok(line) => println!("{line}"),
            Err(error) => {
                eprintln!("{word}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn problem(word: &str) -> Result<Problem> {
    let numbers: Vec<u32> = word.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let (&[batch, q_heads, kv_heads, seq_q, seq_k, dim], causal) = match numbers.as_slice() {
        [shape @ .., causal] if shape.len() == 6 => (<&[u32; 6]>::try_from(shape)?, *causal == 1),
        shape => (<&[u32; 6]>::try_from(shape)?, false),
    };
    if q_heads != kv_heads {
        return Err("burn's attention has no grouped heads".into());
    }
    if causal && seq_q != seq_k {
        return Err("which way a causal mask of a rectangle is aligned would have to be known".into());
    }
    let shape = Shape { batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk: dim, head_dim_v: dim };
    let problem = Problem::new(shape);
    let problem = if causal { problem.causal(Alignment::TopLeft) } else { problem };
    problem.check()?;
    Ok(problem)
}

fn time(problem: &Problem, device: &Device) -> Result<serde_json::Value> {
    let Shape { batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk: dim, .. } = problem.shape;
    let sizes = |seq: u32| [batch, q_heads, seq, dim].map(|n| n as usize);
    let data =
        [(1, seq_q), (2, seq_k), (3, seq_k)].map(|(seed, seq)| numbers(seed, sizes(seq).iter().product()));
    let [q, k, v] = &data;
    let tensor =
        |data: &[f32], seq| Tensor::<4>::from_data(TensorData::new(data.to_vec(), sizes(seq)), device);
    let (q_there, k_there, v_there) = (tensor(q, seq_q), tensor(k, seq_k), tensor(v, seq_k));
    let call = || {
        let options = AttentionModuleOptions { is_causal: problem.causal, ..Default::default() };
        module::attention(q_there.clone(), k_there.clone(), v_there.clone(), None, None, options)
    };

    let out = call().into_data();
    let out = out.as_slice::<f32>().map_err(|e| format!("{e:?}"))?;
    let (rows, worst) = check(problem, &Inputs::new(q, k, v), out)?;
    if worst > WRONG {
        return Err(format!("the answer is wrong: {worst:e} times the bound of f32").into());
    }

    let run = |calls: u32| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..calls {
            drop(call());
        }
        device.sync().map_err(|e| format!("{e:?}"))?;
        Ok(start.elapsed().as_secs_f64())
    };
    run(2)?;
    let calls = (SAMPLE_SECONDS / run(1)?).ceil().clamp(1.0, 100.0) as u32;
    let seconds = (0..SAMPLES).map(|_| Ok(run(calls)? / f64::from(calls))).collect::<Result<_>>()?;
    let samples = Samples::new(seconds).ok_or("the clock went backwards")?;
    let (cost, seconds) = (Cost::of(problem)?, samples.median());
    let [low, high] = samples.quartiles();
    Ok(json!({
        "peer": format!("burn 0.22 ({})", if cfg!(feature = "spirv") { "SPIR-V" } else { "WGSL" }),
        "shape": [batch, q_heads, kv_heads, seq_q, seq_k, dim],
        "causal": problem.causal,
        "ms": seconds * 1e3,
        "gflops": cost.flops as f64 / seconds / 1e9,
        "kv_gb_s": cost.kv_bytes as f64 / seconds / 1e9,
        "spread": {
            "min_ms": samples.min() * 1e3, "q1_ms": low * 1e3, "q3_ms": high * 1e3, "samples": SAMPLES, "calls": calls,
        },
        "checked": { "rows": rows, "of": problem.rows(), "worst": worst },
    }))
}

/// Compares some rows with float64: how many, and their largest error in bounds.
fn check(problem: &Problem, inputs: &Inputs<'_>, out: &[f32]) -> Result<(usize, f64)> {
    let Shape { q_heads, seq_q, head_dim_v, .. } = problem.shape;
    let all = problem.rows();
    let step = (all / ROWS).max(1) | 1; // odd, so that heads are met in different rows
    let rows: Vec<[u32; 3]> = (0..all)
        .step_by(step as usize)
        .map(|n| {
            [n / u64::from(q_heads * seq_q), n / u64::from(seq_q) % u64::from(q_heads), n % u64::from(seq_q)]
        })
        .map(|at| at.map(|n| n as u32))
        .collect();
    let truth = reference::truth_of_rows(problem, inputs, &rows)?;
    let dim = head_dim_v as usize;
    let errors = rows.iter().zip(&truth).map(|(&[batch, head, i], truth)| {
        let at = ((batch * q_heads + head) * seq_q + i) as usize * dim;
        reference::compare(&out[at..at + dim], truth).worst
    });
    Ok((rows.len(), errors.fold(0.0, f64::max)))
}

/// Numbers of variance 1, the same on every machine.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut unit = || {
        // SplitMix64 (Steele, Lea and Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 24) as f32
    };
    (0..count).map(|_| (unit() + unit() + unit() + unit() - 2.0) * 3f32.sqrt()).collect()
}
