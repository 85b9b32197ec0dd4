//! The kernels that never store scores in f32 on the CPU, with the shaders' order of operations: what rounding alone does.

use super::{Cpu, Mods};
use crate::error::{Error, Result};
use crate::host::{Inputs, Outputs};
use crate::kernel::Search;
use crate::normalizer::{Normalizer, SigmoidBias};
use crate::plan::{KeyMovement, Plan};
use crate::problem::Problem;
use crate::qk_norm::{NormGains, NormKind, QkNorm};
use crate::score::Sink;
use crate::tensor::Tensor;
use core::f32::consts::{LN_2, LOG2_E};

const NOTHING: f32 = -3.0e38;
const FLOOR: f32 = -1000.0;
const SMALLEST_SQUARE: f32 = 1.2e-38;
const MAX_BIAS: f32 = 1.0e38;

/// Computes a plan of the tiled or the row kernel in f32, key tile by key tile and sum by sum as `shaders/tiled.wgsl` and
/// `shaders/rows.wgsl` do.
///
/// A GPU's result differs from this only by what its `exp2`, `log2`, division and fma round differently. So the error of the
/// twin against [`truth`](super::truth) shows how much of a GPU's error is the scheme's and how much the device's.
///
/// # Errors
/// What [`Inputs::check`] finds; [`Error::KernelUnavailable`] for a plan of another kernel, and for a problem whose keys are gone through
/// more than once (adaptive temperature, top-k, sparsemax, entmax); [`Error::Missing`] for a problem with
/// user code, which does not run on the CPU.
pub fn twin(plan: &Plan, inputs: &Inputs<'_>) -> Result<Outputs> {
    let problem = plan.problem();
    let cpu = Cpu::new(problem, inputs, &Mods::default())?;
    let order = match (plan.tiles(), plan.rows()) {
        (Some(tiles), _) => {
            let dims = 4 * tiles.dim_chunk as usize;
            Order {
                keys: tiles.keys(),
                sums: tiles.key_lanes(),
                dims,
                fours: false,
                blocks: None,
                lazy: false,
            }
        }
        (_, Some(rows)) => {
            let fours = rows.movement == KeyMovement::Broadcast;
            let lazy = rows.lazy && problem.normalizer.is_softmax() && !problem.stats.entropy;
            Order { keys: rows.keys, sums: 1, dims: usize::MAX, fours, blocks: Some(BLOCK), lazy }
        }
        _ => {
            return Err(Error::KernelUnavailable {
                kernel: plan.kernel().name(),
                reason: "it has no f32 twin: the tiled and the row kernel have".to_owned(),
            });
        }
    };
    if problem.search() != Search::None {
        return Err(Error::KernelUnavailable {
            kernel: plan.kernel().name(),
            reason: "its f32 twin goes through the keys once, and this problem needs more passes".to_owned(),
        });
    }
    let s = &problem.shape;
    let out_view = problem.view(Tensor::Out)?;
    let sequences = cpu.sequences();
    let rows = vec![0.0; problem.rows() as usize];
    let mut outputs = Outputs {
        out: vec![0.0; out_view.extent() as usize],
        lse: problem.stats.lse.then(|| rows.clone()),
        entropy: problem.stats.entropy.then(|| rows.clone()),
        row_max: problem.stats.row_max.then(|| rows.clone()),
    };
    for b in 0..s.batch {
        for h in 0..s.q_heads {
            for i in 0..sequences.queries(b) {
                let (o, [lse, entropy, row_max]) = row(&cpu, order, [b, h, i])?;
                for (d, x) in (0..).zip(o) {
                    outputs.out[sequences.in_q(&out_view, [b, h, i, d])] = x;
                }
                for (list, x) in [
                    (&mut outputs.lse, lse),
                    (&mut outputs.entropy, entropy),
                    (&mut outputs.row_max, row_max),
                ] {
                    if let Some(list) = list {
                        list[sequences.row_number([b, h, i])] = x;
                    }
                }
            }
        }
    }
    Ok(outputs)
}

/// The order of a kernel's operations.
#[derive(Debug, Clone, Copy)]
struct Order {
    /// Keys that are given weights by one maximum.
    keys: u32,
    /// Sums of weights side by side, one for each thread of a row.
    sums: u32,
    /// Dims of a sum of products; sums of chunks are added.
    dims: usize,
    /// Four products are summed before they meet what was there.
    fours: bool,
    /// Tiles whose weights are summed before they are added to the others, where the order is that of the row kernel: it also sums
    /// what a tile adds to out before it meets what was there.
    blocks: Option<u32>,
    /// The maximum that sums are in terms of follows the largest score only where it has fallen behind by more than [`SLACK`], and what a key adds
    /// to out meets what was there at once.
    lazy: bool,
}

/// As in `shaders/rows.wgsl`.
const BLOCK: u32 = 64;
const SLACK: f32 = 8.0;

fn row(cpu: &Cpu<'_>, order: Order, [b, h, i]: [u32; 3]) -> Result<(Vec<f32>, [f32; 3])> {
    let (problem, inputs) = (cpu.problem, cpu.inputs);
    let s = &problem.shape;
    let sequences = cpu.sequences();
    if !cpu.is_row(b, i) {
        return Ok((vec![0.0; s.head_dim_v as usize], [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]));
    }
    let (q, k, v) = (problem.view(Tensor::Q)?, problem.view(Tensor::K)?, problem.view(Tensor::V)?);
    let kv_head = h / s.group();
    // Through f64, because a twin of each length rule would only repeat it: the factor is rounded to f32 here.
    let exact = cpu.row_factor([b, h, i]).value;
    let factor = match problem.softcap {
        None => exact * core::f64::consts::LOG2_E,
        Some(cap) => exact / f64::from(cap),
    } as f32;
    let [q_type, k_type, v_type, out_type] = problem.dtypes;
    let q_at = |d| q_type.round(inputs.q[sequences.in_q(&q, [b, h, i, d])]);
    let gain = cpu.gains(h);
    let q_row: Vec<f32> = match problem.qk_norm {
        Some(norm) if norm.gains != NormGains::None => {
            (0..s.head_dim_qk).map(|d| q_at(d) * factor * gain(d) as f32).collect()
        }
        _ => (0..s.head_dim_qk).map(|d| q_at(d) * factor).collect(),
    };
    let norm_of = |norm, at: &dyn Fn(u32) -> f32| inverse_norm(norm, (0..s.head_dim_qk).map(at));
    let q_norm = problem.qk_norm.map(|norm| norm_of(norm, &q_at));

    let unit = Unit::of(problem);
    let online = problem.normalizer.is_softmax();
    let level = level(cpu, unit, [b, i]);
    let lanes = order.sums;
    let mut m = NOTHING;
    let mut key_max = m;
    // Each thread of a row keeps sums of its own until the end.
    let mut l = vec![0.0f32; lanes as usize];
    let mut u = vec![0.0f32; lanes as usize];
    let mut o = vec![0.0f32; s.head_dim_v as usize];
    // Of the blocks before, where there are blocks.
    let (mut earlier_l, mut earlier_u) = (0.0f32, 0.0f32);
    let mut tile = 0;
    let seq_k = sequences.keys(b);
    while tile < seq_k {
        let keys = tile..(tile + order.keys).min(seq_k);
        let scores: Vec<f32> = keys
            .clone()
            .map(|j| {
                if !cpu.visible([b, h, i, j]) {
                    return NOTHING;
                }
                let key = |d| k_type.round(inputs.k[sequences.in_k(&k, [b, kv_head, j, d as u32])]);
                // Sums of their own of each chunk, and of each four numbers where keys are handed round and with a soft cap.
                let sum_of = |first: usize, dims: &[f32], from: f32| {
                    (first..).zip(dims).fold(from, |sum, (d, &q)| q.mul_add(key(d), sum))
                };
                let chunk = order.dims.min(q_row.len());
                let product = (0..).step_by(chunk).zip(q_row.chunks(chunk)).map(|(first, dims)| {
                    if problem.softcap.is_none() && !order.fours {
                        return sum_of(first, dims, 0.0);
                    }
                    (first..).step_by(4).zip(dims.chunks(4)).map(|(d, four)| sum_of(d, four, 0.0)).sum()
                });
                let mut product: f32 = product.sum();
                if let (Some(norm), Some(q_norm)) = (problem.qk_norm, q_norm) {
                    product *= q_norm * norm_of(norm, &|d| key(d as usize));
                }
                finish_score(cpu, unit, product, [b, h, i, j])
            })
            .collect();
        key_max = scores.iter().copied().fold(key_max, f32::max);
        let new = if order.lazy && key_max <= m + SLACK { m } else { key_max };
        let mut alpha = 1.0;
        if online {
            let by = (m - new).max(FLOOR);
            alpha = unit.weight(by);
            let (l, u) = (l.iter_mut().chain([&mut earlier_l]), u.iter_mut().chain([&mut earlier_u]));
            for (l, u) in l.zip(u) {
                *u = alpha * (*u + *l * by);
                *l *= alpha;
            }
        }
        m = new;
        let mut added = vec![0.0f32; o.len()];
        let at_once = order.blocks.is_none() || order.lazy;
        if at_once {
            o.iter_mut().for_each(|o| *o *= alpha);
            core::mem::swap(&mut o, &mut added);
        }
        for (j, &score) in keys.zip(&scores) {
            if score == NOTHING {
                continue;
            }
            let mut p = match problem.normalizer {
                // Sparsemax and entmax were refused above.
                Normalizer::Softmax | Normalizer::Sparsemax | Normalizer::Entmax15 => unit.weight(score - m),
                Normalizer::Sigmoid { .. } => {
                    1.0 / (1.0 + ((score + level) * (-LOG2_E / unit.natural)).min(126.0).exp2())
                }
            };
            let lane = ((j - tile) % lanes) as usize;
            l[lane] += p;
            u[lane] += p * (score - m).max(FLOOR);
            if let (Some(dropout), Some(seed)) = (problem.dropout, inputs.tables.dropout)
                && !dropout.keeps(s, seed, [b, h, i, j])
            {
                p = 0.0;
            }
            for (d, o) in (0..).zip(&mut added) {
                *o = p.mul_add(v_type.round(inputs.v[sequences.in_k(&v, [b, kv_head, j, d])]), *o);
            }
        }
        if at_once {
            o = added;
        } else {
            o.iter_mut().zip(added).for_each(|(o, added)| *o = o.mul_add(alpha, added));
        }
        if order.blocks.is_some_and(|block| tile / order.keys % block == block - 1) {
            earlier_l += core::mem::take(&mut l[0]);
            earlier_u += core::mem::take(&mut u[0]);
        }
        tile += order.keys;
    }
    let l: f32 = earlier_l + l.iter().sum::<f32>();
    let u: f32 = earlier_u + u.iter().sum::<f32>();
    // The sink takes its share of the denominator.
    let sink = match problem.sink {
        Sink::None => NOTHING,
        Sink::Zero => 0.0,
        Sink::PerHead => {
            inputs.tables.sinks.unwrap_or_default()[h as usize].clamp(-MAX_BIAS, MAX_BIAS) * unit.natural
        }
    };
    let base = m;
    let m = key_max.max(sink);
    let by = (base - m).max(FLOOR);
    let alpha = unit.weight(by);
    let u = alpha * (u + l * by);
    let keys = alpha * l;
    let l = if problem.sink == Sink::None { keys } else { keys + unit.weight((sink - m).max(FLOOR)) };
    if l == 0.0 {
        return Ok((vec![0.0; o.len()], [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]));
    }
    let mut factor = if online { 1.0 / l * alpha } else { 1.0 };
    if let Some(dropout) = problem.dropout {
        factor *= (1.0 / dropout.keep()) as f32;
    }
    o.iter_mut().for_each(|o| *o = out_type.round(*o * factor));
    let row_max = if key_max == NOTHING { f32::NEG_INFINITY } else { unit.to_natural(key_max) };
    let log_l = l.log2() * unit.log2;
    Ok((o, [unit.to_natural(m + log_l), unit.to_natural((keys * log_l - u) / l).max(0.0), row_max]))
}

/// As in `shaders/qk_norm.wgsl`.
fn inverse_norm(norm: QkNorm, row: impl ExactSizeIterator<Item = f32>) -> f32 {
    let dims = row.len() as f32;
    let squares: f32 = row.map(|x| x * x).sum();
    let eps = norm.kernel_eps();
    let squares = match norm.kind {
        NormKind::Rms => (squares * (1.0 / dims) + eps).max(SMALLEST_SQUARE),
        NormKind::L2 => squares.max(eps.max(SMALLEST_SQUARE)),
    };
    1.0 / squares.sqrt()
}

/// The unit of scores, as in `shaders/score.wgsl`: log2, or natural units with a soft cap.
#[derive(Clone, Copy)]
struct Unit {
    /// How much of it a natural unit is.
    natural: f32,
    /// How much of it a log2 is.
    log2: f32,
}

impl Unit {
    fn of(problem: &Problem) -> Self {
        match problem.softcap {
            None => Unit { natural: LOG2_E, log2: 1.0 },
            Some(_) => Unit { natural: 1.0, log2: LN_2 },
        }
    }

    fn weight(self, difference: f32) -> f32 {
        (difference * (LOG2_E / self.natural)).exp2()
    }

    fn to_natural(self, score: f32) -> f32 {
        score * (LN_2 / self.log2)
    }
}

/// As `row_level` of `shaders/weights_*.wgsl`.
fn level(cpu: &Cpu<'_>, unit: Unit, [b, i]: [u32; 2]) -> f32 {
    match cpu.problem.normalizer {
        Normalizer::Sigmoid { bias: SigmoidBias::MinusLogVisible } => {
            -(cpu.visible_keys([b, i]) as f32).log2() * unit.log2
        }
        normalizer => normalizer.constant_bias(cpu.problem.shape.seq_k) as f32 * unit.natural,
    }
}

/// As `finish_scores` of `shaders/score.wgsl`, for a pair that is visible.
fn finish_score(cpu: &Cpu<'_>, unit: Unit, product: f32, [b, h, i, j]: [u32; 4]) -> f32 {
    let (problem, inputs) = (cpu.problem, cpu.inputs);
    let mut s = product;
    if let Some(cap) = problem.softcap {
        let e = (-2.0 * LOG2_E * product.abs()).exp2();
        let z = product * product;
        let series = product
            + product * z * (-1.0 / 3.0 + z * (2.0 / 15.0 + z * (-17.0 / 315.0 + z * (62.0 / 2835.0))));
        s = if z < 0.0625 { cap * series } else { product.signum() * (cap - cap * (2.0 * e / (1.0 + e))) };
    }
    if let Some(slopes) = inputs.tables.alibi_slopes {
        let distance = (cpu.position(b, i) - i64::from(j)).abs();
        s -= slopes[h as usize] * unit.natural * distance as f32;
    }
    if problem.bias.is_some() {
        s += (cpu.bias([b, h, i, j]) as f32).clamp(-MAX_BIAS, MAX_BIAS) * unit.natural;
    }
    s
}
