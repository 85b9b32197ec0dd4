//! Random problems over all options together.

use super::{Rng, set_causal};
use wgpu_attention::{
    AdaptiveTemperature, Alignment, Broadcast, DType, Dropout, Layout, LengthScale, MaskFormat, NormGains,
    Normalizer, Problem, QkNorm, Scale, Shape, SigmoidBias, Sink, Stats, Strides, Temperature, Tensor,
    Window,
};

/// A few head dims, so that most of the time is not the compiler's.
pub fn any_problem(rng: &mut Rng) -> Problem {
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
        seq_q: length(rng).max(1),
        seq_k: length(rng),
        head_dim_qk,
        head_dim_v,
    };
    let mut problem = Problem::new(shape);
    let mut total = |longest: u32| {
        rng.chance(0.2).then(|| (0..shape.batch).map(|_| rng.range(0, longest.into()) as u32).sum())
    };
    (problem.packed_q, problem.packed_k) = (total(shape.seq_q), total(shape.seq_k));
    for tensor in Tensor::MAIN {
        let layout = any_layout(rng, problem.view(tensor).unwrap().sizes(), tensor);
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
        Some(Alignment::BottomRightValid),
        Some(Alignment::TopLeft),
        Some(offset),
        Some(Alignment::PerBatch),
    ]);
    set_causal(&mut problem, causal);
    problem.documents = rng.chance(0.2);
    problem.q_len = rng.chance(0.3);
    problem.kv_len = rng.chance(0.4);
    add_options(&mut problem, rng);
    problem.stats = rng.pick(&[Stats::default(), Stats::ALL, Stats { lse: true, ..Stats::default() }]);
    add_weights(&mut problem, rng);
    problem
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
    if rng.chance(0.2) {
        let norm = rng.pick(&[QkNorm::l2(), QkNorm::rms(1e-6), QkNorm::rms(0.5)]);
        let gains = rng.pick(&[NormGains::None, NormGains::Shared, NormGains::PerHead]);
        problem.qk_norm = Some(norm.gains(gains));
    }
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

/// What comes after the scores.
fn add_weights(problem: &mut Problem, rng: &mut Rng) {
    if rng.chance(0.2) {
        let number = SigmoidBias::Value(rng.range(-6, 3) as f32);
        let bias = rng.pick(&[number, SigmoidBias::MinusLogSeqK, SigmoidBias::MinusLogVisible]);
        problem.normalizer = Normalizer::Sigmoid { bias };
        (problem.sink, problem.stats.lse, problem.stats.entropy) = (Sink::None, false, false);
    }
    // Scores that are all alike have no k largest.
    let apart = problem.scale != Scale::Value(0.0) && problem.softcap.is_none_or(|cap| cap > 1.0);
    if problem.normalizer == Normalizer::Softmax {
        match rng.below(12) {
            0 if problem.sink == Sink::None => {
                problem.adaptive_temperature = Some(AdaptiveTemperature::default());
            }
            1 if apart => problem.top_k = Some(rng.range(8, 60) as u32),
            n @ 2..=3 => {
                problem.normalizer = if n == 2 { Normalizer::Sparsemax } else { Normalizer::Entmax15 };
                (problem.sink, problem.stats.lse) = (Sink::None, false);
            }
            _ => {}
        }
    }
    if rng.chance(0.2) {
        problem.dropout = Some(Dropout { rate: rng.pick(&[0.0, 0.1, 0.5, 0.9]) });
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
