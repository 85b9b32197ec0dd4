//! Random problems over all options together, from a seed.

use super::{Rng, user_code};
use crate::dropout::Dropout;
use crate::dtype::DType;
use crate::layout::{Layout, Strides};
use crate::mask::{Alignment, MaskFormat, Window};
use crate::normalizer::{Normalizer, SigmoidBias};
use crate::problem::Problem;
use crate::qk_norm::{NormGains, QkNorm};
use crate::score::{Broadcast, Sink};
use crate::shape::{Shape, Stats};
use crate::sharpness::{AdaptiveTemperature, LengthScale, Scale, Temperature};
use crate::tensor::Tensor;

/// Problems in a row that have the options of one seed: what they have in common is compiled once.
const SHARED: u64 = 5;
const LONGEST: i64 = 300;
const WIDEST: i64 = 320;
/// Products of batch, heads, queries, keys and head dim: more would keep float64 busy for seconds.
const MOST_WORK: u64 = 1 << 23;

/// The problem of a seed: lengths up to 300, head dims up to 320, any options together. Five seeds in a row, from a multiple of five, share their
/// options.
pub fn problem(seed: u64) -> Problem {
    problem_of(seed / SHARED, seed)
}

/// The problem with the options of one seed and the sizes of another: what makes another shader comes of the former, numbers come of
/// the latter.
pub fn problem_of(options: u64, sizes: u64) -> Problem {
    // Multiplied, so that neighbours do not start from neighbouring states.
    let mut options = Rng(options.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let mut sizes = Rng(sizes.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 1);
    let shape = shape(&mut options, &mut sizes);
    // One of the packed sequences is as long as the longest, the others have any length up to it.
    let total = |longest: u32, options: &mut Rng, sizes: &mut Rng| {
        options
            .chance(0.15)
            .then(|| longest + (1..shape.batch).map(|_| sizes.range(0, longest.into()) as u32).sum::<u32>())
    };
    let mut problem = Problem::new(shape);
    problem.packed_q = total(shape.seq_q, &mut options, &mut sizes);
    problem.packed_k = total(shape.seq_k, &mut options, &mut sizes);
    set_layouts(&mut problem, &mut options, &mut sizes);
    // A product of many numbers is large: no scale of 1 there.
    let sharp = if shape.head_dim_qk > 16 { Scale::Value(-0.2) } else { Scale::Value(1.0) };
    problem.scale = sizes.pick([
        Scale::RsqrtHeadDim,
        Scale::RsqrtHeadDim,
        Scale::PerHeadDim { numerator: 8.0 },
        sharp,
        Scale::Value(-0.2),
        Scale::Value(0.0),
    ]);
    problem.stats = options.pick([Stats::default(), Stats::ALL, Stats { lse: true, ..Stats::default() }]);
    // A fourth has little beside its shape, so that such problems are drawn too.
    if options.chance(0.75) {
        add_masks(&mut problem, &mut options, &mut sizes);
        add_scores(&mut problem, &mut options, &mut sizes);
        add_weights(&mut problem, &mut options, &mut sizes);
    }
    set_storage(&mut problem, &mut options);
    problem
}

fn shape(options: &mut Rng, sizes: &mut Rng) -> Shape {
    let any = (options.range(1, WIDEST) as u32, options.range(1, WIDEST) as u32);
    let (head_dim_qk, head_dim_v) = options.pick([
        (1, 1),
        (5, 7),
        (8, 8),
        (16, 12),
        (33, 20),
        (64, 64),
        (64, 64),
        (64, 64),
        (80, 80),
        (128, 128),
        (128, 128),
        (192, 128),
        (256, 256),
        (320, 320),
        any,
        any,
    ]);
    // As many short ones as long ones, and those at the edge of a tile.
    let length = |sizes: &mut Rng| {
        let any = (LONGEST as f64).powf(sizes.unit()).round() as u32;
        sizes.pick([any, any, any, any, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129])
    };
    let (seq_q, seq_k) = (length(sizes), if sizes.chance(0.03) { 0 } else { length(sizes) });
    let mut shape = Shape {
        batch: sizes.range(1, 3) as u32,
        q_heads: 0,
        kv_heads: sizes.range(1, 3) as u32,
        seq_q,
        seq_k,
        head_dim_qk,
        head_dim_v,
    };
    let mut group = sizes.range(1, 4) as u32;
    loop {
        shape.q_heads = shape.kv_heads * group;
        let work = [shape.batch, shape.q_heads, seq_q, seq_k, head_dim_qk.max(head_dim_v)];
        let too_much = work.into_iter().map(u64::from).product::<u64>() > MOST_WORK;
        match (too_much, shape.batch, shape.kv_heads, group) {
            (true, 2.., _, _) => shape.batch -= 1,
            (true, _, 2.., _) => shape.kv_heads -= 1,
            (true, _, _, 2..) => group -= 1,
            _ => return shape,
        }
    }
}

fn set_layouts(problem: &mut Problem, options: &mut Rng, sizes: &mut Rng) {
    match options.pick([0, 0, 0, 1, 2]) {
        0 => {}
        1 => *problem = problem.clone().layout(Layout::Bshd),
        _ => {
            for tensor in Tensor::MAIN {
                let sizes_of = problem.view(tensor).map_or([0; 4], |view| view.sizes());
                let layout = any_layout(options, sizes, sizes_of, tensor);
                match tensor {
                    Tensor::Q => problem.q_layout = layout,
                    Tensor::K => problem.k_layout = layout,
                    Tensor::V => problem.v_layout = layout,
                    _ => problem.out_layout = layout,
                }
            }
        }
    }
}

fn any_layout(options: &mut Rng, sizes: &mut Rng, [_, heads, seq, dim]: [u32; 4], tensor: Tensor) -> Layout {
    let (heads, seq, dim) = (u64::from(heads), u64::from(seq), u64::from(dim));
    // Whether rows start at multiples of four is compiled in.
    let room = 4 * sizes.range(0, 2) as u64 + options.pick([0, 0, 1]);
    let offset = options.pick([0, 0, 4, 3]);
    let row = dim + room;
    let strided = |batch, head, seq, dim| Layout::Strided(Strides { offset, batch, head, seq, dim });
    match options.range(0, 7) {
        0 | 1 => Layout::Bshd,
        2 => strided(heads * seq * row, seq * row, row, 1), // padded rows
        3 => strided(heads * seq * row + 1, row, heads * row, 1), // the same, bshd
        4 => strided(heads * seq * dim, seq * dim, 1, seq.max(1)), // transposed
        5 if tensor != Tensor::Out => strided(heads * seq * dim, 0, dim, 1), // one head for all
        6 if tensor != Tensor::Out => strided(0, seq * dim, dim, 1), // one batch for all
        _ => Layout::Bhsd,
    }
}

fn add_masks(problem: &mut Problem, options: &mut Rng, sizes: &mut Rng) {
    let s = problem.shape;
    let (sq, sk) = (i64::from(s.seq_q), i64::from(s.seq_k));
    problem.causal = options.chance(0.4);
    problem.documents = options.chance(0.15);
    problem.q_len = options.chance(0.2);
    problem.kv_len = options.chance(0.3);
    if options.chance(0.25) {
        let side =
            |options: &mut Rng, sizes: &mut Rng| options.chance(0.6).then(|| sizes.range(0, 40) as u32);
        let (left, right) = (side(options, sizes), side(options, sizes));
        let keep_first = if options.chance(0.4) { sizes.range(1, 70) as u32 } else { 0 };
        problem.window = Some(Window { left, right, keep_first });
    }
    if options.chance(0.25) {
        problem.mask = Some((options.pick([MaskFormat::Bytes, MaskFormat::Bits]), broadcast(&s, sizes)));
    }
    if options.chance(0.1) && !user_code::ready().masks.is_empty() {
        let masks = &user_code::ready().masks;
        let n = options.range(0, masks.len() as i64 - 1) as usize;
        problem.mask_mod = Some(masks[n].0.clone());
        problem.user_params = user_code::PARAMS;
    }
    // Of no use yet, where nothing counts from it; see `add_scores`.
    let offset = Alignment::Offset(sizes.range(-sq - 3, sk + 3) as i32);
    problem.alignment = options.pick([
        Alignment::BottomRight,
        Alignment::BottomRightValid,
        Alignment::TopLeft,
        offset,
        Alignment::PerBatch,
    ]);
}

fn broadcast(s: &Shape, sizes: &mut Rng) -> Broadcast {
    Broadcast([s.batch, s.q_heads, s.seq_q, s.seq_k].map(|n| if sizes.chance(0.4) { 1 } else { n }))
}

fn add_scores(problem: &mut Problem, options: &mut Rng, sizes: &mut Rng) {
    let tau = Temperature::Value(sizes.pick([1.0, 0.3, 7.0]));
    problem.temperature = options.pick([tau, tau, Temperature::PerHead, Temperature::PerRow]);
    problem.alibi = options.chance(0.2);
    let train_len = sizes.range(2, 60) as u32;
    let floor = sizes.range(1, 20) as u32;
    problem.length_scale = options.pick([
        LengthScale::None,
        LengthScale::None,
        LengthScale::None,
        LengthScale::None,
        LengthScale::Ssmax,
        LengthScale::LogTrainLen { train_len },
        LengthScale::Llama4 { coef: 0.3, floor },
        LengthScale::Yarn { factor: 4.0 },
    ]);
    if options.chance(0.2) {
        let norm = options.pick([QkNorm::l2(), QkNorm::rms(1e-6), QkNorm::rms(0.5)]);
        problem.qk_norm =
            Some(norm.gains(options.pick([NormGains::None, NormGains::Shared, NormGains::PerHead])));
    }
    if options.chance(0.25) {
        problem.softcap = Some(sizes.pick([0.5, 5.0, 30.0, 50.0]));
    }
    if options.chance(0.25) {
        let dtype = options.pick([DType::F32, DType::F16, DType::Bf16]);
        problem.bias = Some((dtype, broadcast(&problem.shape, sizes)));
    }
    if options.chance(0.1) && !user_code::ready().scores.is_empty() {
        let scores = &user_code::ready().scores;
        let n = options.range(0, scores.len() as i64 - 1) as usize;
        problem.score_mod = Some(scores[n].0.clone());
        problem.user_params = user_code::PARAMS;
    }
    problem.sink = options.pick([Sink::None, Sink::None, Sink::None, Sink::Zero, Sink::PerHead]);
    if !problem.uses_positions() {
        problem.alignment = Alignment::default();
    }
}

/// What comes after the scores.
fn add_weights(problem: &mut Problem, options: &mut Rng, sizes: &mut Rng) {
    if options.chance(0.15) {
        let number = SigmoidBias::Value(sizes.range(-6, 3) as f32);
        let bias = options.pick([number, SigmoidBias::MinusLogSeqK, SigmoidBias::MinusLogVisible]);
        problem.normalizer = Normalizer::Sigmoid { bias };
        // What it does not have.
        (problem.sink, problem.stats.lse, problem.stats.entropy) = (Sink::None, false, false);
    }
    // Scores that are all alike have no k largest.
    let apart = problem.scale != Scale::Value(0.0) && problem.softcap.is_none_or(|cap| cap > 1.0);
    if problem.normalizer == Normalizer::Softmax {
        match options.pick([0, 0, 0, 0, 0, 0, 1, 2, 3, 4]) {
            1 if problem.sink == Sink::None => {
                problem.adaptive_temperature = Some(AdaptiveTemperature::default());
            }
            2 if apart => problem.top_k = Some(sizes.range(8, 60) as u32),
            n @ 3..=4 => {
                problem.normalizer = if n == 3 { Normalizer::Sparsemax } else { Normalizer::Entmax15 };
                (problem.sink, problem.stats.lse) = (Sink::None, false);
            }
            _ => {}
        }
    }
    if options.chance(0.2) {
        problem.dropout = Some(Dropout { rate: sizes.pick([0.0, 0.1, 0.5, 0.9]) });
    }
}

fn set_storage(problem: &mut Problem, options: &mut Rng) {
    let mut any = || options.pick([DType::F32, DType::F16, DType::Bf16]);
    let [q, k, v, out] = [any(), any(), any(), any()];
    problem.dtypes = options.pick([
        [DType::F32; 4],
        [DType::F32; 4],
        [q, q, q, q],
        [q, q, q, DType::F32],
        [q, k, v, out],
        [q, k, v, out],
    ]);
}

#[cfg(test)]
mod tests {
    use super::super::inputs;
    use super::*;

    #[test]
    fn every_seed_makes_a_problem_with_its_inputs() {
        for seed in 0..500 {
            let problem = problem(seed);
            let inputs = inputs(&problem, seed).unwrap();
            let check = inputs.as_inputs().check(&problem);
            assert!(check.is_ok(), "seed {seed}: {check:?}");
        }
        assert_eq!(problem(7), problem(7));
        assert_ne!(problem(7), problem(8));
    }

    #[test]
    fn as_many_sizes_as_there_are() {
        let shapes: Vec<Shape> = (0..3000).map(|seed| problem_of(seed, seed).shape).collect();
        for (name, least, most) in [
            ("seq_q", shapes.iter().map(|s| s.seq_q).min(), shapes.iter().map(|s| s.seq_q).max()),
            ("seq_k", shapes.iter().map(|s| s.seq_k.max(1)).min(), shapes.iter().map(|s| s.seq_k).max()),
        ] {
            assert_eq!((least, most.map(|n| n > 290)), (Some(1), Some(true)), "{name}");
        }
        let dims: std::collections::HashSet<u32> = shapes.iter().map(|s| s.head_dim_qk).collect();
        assert!(dims.len() > 150 && dims.contains(&1) && dims.contains(&320), "{}", dims.len());
    }
}
