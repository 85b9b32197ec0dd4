//! Random problems over all options together, with every kernel, against float64.
//!
//! `WGPU_ATTENTION_CASES=1000` runs more of them, `WGPU_ATTENTION_SEED=7` starts elsewhere: the seed of a case that fails
//! is in its message, and running from it with one case repeats it.

#[path = "common/mod.rs"]
mod common;

use common::{Case, Rng, indices};
use wgpu_attention::{
    Alignment, Broadcast, DType, Kernel, Layout, LengthScale, MaskFormat, PlanOptions, Problem, Scale, Shape,
    Sink, Stats, Strides, Temperature, Tensor, Tiles, Window,
};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")),
        Err(_) => default,
    }
}

/// A few head dims and tiles, so that most of the time is not the compiler's.
fn any_case(seed: u64) -> (Case, PlanOptions) {
    let mut rng = Rng::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let kv_heads = rng.range(1, 4) as u32;
    let dims = [(8, 8), (8, 8), (16, 12), (5, 7), (64, 64)];
    let (head_dim_qk, head_dim_v) = rng.pick(&dims);
    let length = |rng: &mut Rng| {
        let edges = [0, 1, 1, 3, 4, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100];
        if rng.chance(0.5) { rng.pick(&edges) } else { rng.range(1, 150) as u32 }
    };
    let shape = Shape {
        batch: rng.range(1, 4) as u32,
        q_heads: kv_heads * rng.range(1, 4) as u32,
        kv_heads,
        seq_q: length(&mut rng).max(1),
        seq_k: length(&mut rng),
        head_dim_qk,
        head_dim_v,
    };
    let mut problem = Problem::new(shape);
    for tensor in Tensor::MAIN {
        let layout = any_layout(&mut rng, problem.view(tensor).unwrap().sizes(), tensor);
        match tensor {
            Tensor::Q => problem.q_layout = layout,
            Tensor::K => problem.k_layout = layout,
            Tensor::V => problem.v_layout = layout,
            _ => problem.out_layout = layout,
        }
    }
    problem.scale = rng.pick(&[
        Scale::RsqrtHeadDim,
        Scale::RsqrtHeadDim,
        Scale::PerHeadDim { numerator: 4.0 },
        Scale::Value(-0.3),
        Scale::Value(0.0),
        Scale::Value(1.0),
    ]);
    problem.temperature = rng.pick(&[
        Temperature::Value(1.0),
        Temperature::Value(0.3),
        Temperature::Value(7.0),
        Temperature::PerHead,
        Temperature::PerRow,
    ]);
    let (sq, sk) = (i64::from(shape.seq_q), i64::from(shape.seq_k));
    let offset = Alignment::Offset(rng.range(-sq - 3, sk + 3) as i32);
    let causal = rng.pick(&[
        None,
        None,
        Some(Alignment::BottomRight),
        Some(Alignment::TopLeft),
        Some(offset),
        Some(Alignment::PerBatch),
    ]);
    common::set_causal(&mut problem, causal);
    problem.kv_len = rng.chance(0.4);
    add_options(&mut problem, &mut rng);
    problem.stats = rng.pick(&[Stats::default(), Stats::ALL, Stats { lse: true, ..Stats::default() }]);
    let mut case = Case::new(problem, seed).vacuous_above(0.05);
    // What nobody sees may hold anything.
    if let Some(lens) = case.kv_len.clone() {
        for tensor in [Tensor::K, Tensor::V] {
            // A place that is broadcast over batches is seen where any of them sees it.
            let strides = case.problem.view(tensor).unwrap().strides();
            if strides.batch == 0 || strides.seq == 0 {
                continue;
            }
            for at in indices(&case.problem, tensor) {
                if at[2] >= lens[at[0] as usize] {
                    case.set(tensor, at, f32::NAN);
                }
            }
        }
    }
    let options = rng.pick(&[
        PlanOptions::kernel(Kernel::Tiled),
        PlanOptions::tiles(Tiles {
            threads: 32,
            row_groups: 4,
            keys_per_thread: 2,
            dim_chunk: 2,
            v_chunk: 8,
        }),
    ]);
    (case, options)
}

/// Everything between q.k and the softmax, and the storage. Half of all cases are plain, so that combinations with little in them
/// are drawn too.
fn add_options(problem: &mut Problem, rng: &mut Rng) {
    if rng.chance(0.5) {
        return;
    }
    let s = problem.shape;
    let dtype = |rng: &mut Rng| rng.pick(&[DType::F32, DType::F16, DType::Bf16]);
    if rng.chance(0.5) {
        problem.dtypes = [dtype(rng), dtype(rng), dtype(rng), dtype(rng)];
    }
    if rng.chance(0.3) {
        let side = |rng: &mut Rng| rng.chance(0.6).then(|| rng.range(0, 40) as u32);
        let keep_first = if rng.chance(0.4) { rng.range(0, 70) as u32 } else { 0 };
        problem.window = Some(Window { left: side(rng), right: side(rng), keep_first });
    }
    problem.alibi = rng.chance(0.2);
    problem.length_scale = match rng.below(8) {
        0 => LengthScale::Ssmax,
        1 => LengthScale::LogTrainLen { train_len: rng.range(2, 60) as u32 },
        2 => LengthScale::Llama4 { coef: 0.3, floor: rng.range(1, 20) as u32 },
        3 => LengthScale::Yarn { factor: 4.0 },
        _ => LengthScale::None,
    };
    if problem.window.is_some() || problem.alibi {
        let offset = Alignment::Offset(rng.range(-40, 40) as i32);
        problem.alignment = rng.pick(&[problem.alignment, Alignment::TopLeft, offset, Alignment::PerBatch]);
    }
    if rng.chance(0.3) {
        let cap = [0.5, 5.0, 30.0, 50.0];
        problem.softcap = Some(rng.pick(&cap));
    }
    problem.sink = rng.pick(&[Sink::None, Sink::None, Sink::Zero, Sink::PerHead]);
    let sizes = |rng: &mut Rng| {
        Broadcast([s.batch, s.q_heads, s.seq_q, s.seq_k].map(|n| if rng.chance(0.4) { 1 } else { n }))
    };
    if rng.chance(0.3) {
        problem.bias = Some((dtype(rng), sizes(rng)));
    }
    if rng.chance(0.3) {
        let format = rng.pick(&[MaskFormat::Bytes, MaskFormat::Bits]);
        problem.mask = Some((format, sizes(rng)));
    }
}

fn any_layout(rng: &mut Rng, [_, heads, seq, dim]: [u32; 4], tensor: Tensor) -> Layout {
    let (heads, seq, dim) = (u64::from(heads), u64::from(seq), u64::from(dim));
    let room = rng.below(3) * 4 + rng.below(2);
    let offset = rng.pick(&[0, 0, 4, 3]);
    let row = dim + room;
    let strided = |batch, head, seq, dim| Layout::Strided(Strides { offset, batch, head, seq, dim });
    match rng.below(8) {
        0 | 1 => Layout::Bshd,
        2 => strided(heads * seq * row, seq * row, row, 1), // padded rows
        3 => strided(heads * seq * row + 1, row, heads * row, 1), // the same, bshd
        4 => strided(heads * seq * dim, seq * dim, 1, seq.max(1)), // transposed
        5 if tensor != Tensor::Out => strided(heads * seq * dim, 0, dim, 1), // one head for all
        6 if tensor != Tensor::Out => strided(0, seq * dim, dim, 1), // one batch for all
        _ => Layout::Bhsd,
    }
}

/// Every second case, so that two threads share the work.
fn run(parity: u64) {
    let gpu = gpu!();
    let (first, cases) = (number("WGPU_ATTENTION_SEED", 1), number("WGPU_ATTENTION_CASES", 60));
    for seed in (first..first + cases).filter(|seed| seed % 2 == parity) {
        let (case, tiled) = any_case(seed);
        let check = || {
            for options in [tiled, PlanOptions::kernel(Kernel::Naive)] {
                common::check(gpu, &case, &options);
            }
        };
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) {
            common::say(&format!("repeat with WGPU_ATTENTION_SEED={seed} WGPU_ATTENTION_CASES=1"));
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn random_problems_agree_with_float64_even_seeds() {
    run(0);
}

#[test]
fn random_problems_agree_with_float64_odd_seeds() {
    run(1);
}
