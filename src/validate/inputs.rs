//! Random inputs for a problem, from a seed.

use super::{Rng, user_code};
use crate::error::Result;
use crate::layout::View;
use crate::mask::{Alignment, MaskFormat};
use crate::owned::OwnedInputs;
use crate::problem::Problem;
use crate::qk_norm::NormGains;
use crate::score::{Sink, alibi_slopes};
use crate::sharpness::{LengthScale, Temperature};
use crate::tensor::Tensor;

/// Inputs for a problem: normally distributed, every sixth pair hidden by mask or bias, and NaN where anything may be: beyond the valid queries
/// and keys, and in the places that a layout leaves out.
///
/// # Errors
/// As [`Problem::view`].
pub fn inputs(problem: &Problem, seed: u64) -> Result<OwnedInputs> {
    let mut rng = Rng(seed.wrapping_mul(0x9e6c_63d0_876a_68ee) ^ 2);
    let s = problem.shape;
    let (batches, heads, rows) = (0..s.batch, s.q_heads as usize, problem.rows() as usize);
    let (sq, sk) = (i64::from(s.seq_q), i64::from(s.seq_k));
    let cu_seqlens_q = problem.packed_q.map(|total| starts(&mut rng, total, s.batch, s.seq_q));
    let cu_seqlens_k = problem.packed_k.map(|total| starts(&mut rng, total, s.batch, s.seq_k));
    let mut lengths = |seq| batches.clone().map(|_| rng.range(0, seq) as u32).collect::<Vec<_>>();
    let q_len = problem.q_len.then(|| lengths(sq));
    let kv_len = problem.kv_len.then(|| lengths(sk));
    let mut fill = |tensor, lens: &Option<Vec<u32>>| -> Result<Vec<f32>> {
        let view = problem.view(tensor)?;
        let (alone, strides) = (problem.packed_q.or(problem.packed_k).is_none(), view.strides());
        // A place that is broadcast over batches is seen where any of them sees it.
        let lens = lens.as_deref().filter(|_| alone && strides.batch > 0 && strides.seq > 0);
        Ok(numbers(&view, lens, &mut rng))
    };
    let main = [fill(Tensor::Q, &q_len)?, fill(Tensor::K, &kv_len)?, fill(Tensor::V, &kv_len)?];
    let mut own = OwnedInputs { cu_seqlens_q, cu_seqlens_k, q_len, kv_len, ..OwnedInputs::new(main) };

    // Stretches of 40 with one number, and one in five out of place.
    let mut documents = |seq: i64, batch: u32| -> Vec<i32> {
        (0..i64::from(batch) * seq).map(|n| (n % seq.max(1) / 40 + rng.range(0, 5) / 5) as i32).collect()
    };
    if problem.documents {
        let mut of = |total: Option<u32>, seq: i64| match total {
            Some(total) => documents(total.into(), 1),
            None => documents(seq, s.batch),
        };
        own.documents_q = Some(of(problem.packed_q, sq));
        own.documents_k = Some(of(problem.packed_k, sk));
    }
    if problem.alignment == Alignment::PerBatch {
        own.causal_offset = Some(batches.map(|_| rng.range(-sq - 2, sk + 2) as i32).collect());
    }
    let temperatures = match problem.temperature {
        Temperature::PerHead => Some(heads),
        Temperature::PerRow => Some(rows),
        Temperature::Value(_) => None,
    };
    own.temperature =
        temperatures.map(|n| (0..n).map(|_| 10f64.powf(rng.unit() * 2.0 - 1.0) as f32).collect());
    own.alibi_slopes = problem.alibi.then(|| alibi_slopes(s.q_heads));
    own.sinks = (problem.sink == Sink::PerHead).then(|| rng.normals(heads));
    own.ssmax = (problem.length_scale == LengthScale::Ssmax)
        .then(|| (0..heads).map(|_| rng.unit() as f32 + 0.1).collect());
    if let Some(norm) = problem.qk_norm.filter(|norm| norm.gains != NormGains::None) {
        let dim = s.head_dim_qk as usize;
        let [q, k] = if norm.gains == NormGains::Shared { [1, 1] } else { [s.q_heads, s.kv_heads] };
        own.q_gain = Some(rng.normals(q as usize * dim));
        own.k_gain = Some(rng.normals(k as usize * dim));
    }
    own.dropout = problem.dropout.map(|_| [rng.next() as u32, rng.next() as u32]);
    if problem.user_params == user_code::PARAMS {
        let slopes = [0.05f32, -0.02].map(f32::to_bits);
        own.user = Some(
            [slopes, [rng.range(0, sk) as u32, rng.range(0, sk) as u32]].into_iter().flatten().collect(),
        );
    }
    let elements = |tensor| problem.view(tensor).map(|view| view.extent() as usize);
    if problem.bias.is_some() {
        let mut any = |_| if rng.chance(1.0 / 6.0) { f32::NEG_INFINITY } else { 2.0 * rng.normal() };
        own.bias = Some((0..elements(Tensor::Bias)?).map(&mut any).collect());
    }
    if let Some((format, _)) = problem.mask {
        let keeps: Vec<bool> = (0..elements(Tensor::Mask)?).map(|_| rng.chance(5.0 / 6.0)).collect();
        own.mask = Some(match format {
            MaskFormat::Bits => keeps
                .chunks(8)
                .map(|bits| bits.iter().rev().fold(0, |byte, &keep| byte << 1 | u8::from(keep)))
                .collect(),
            // Any byte but 0 means yes.
            MaskFormat::Bytes => {
                keeps.iter().map(|&keep| if keep { rng.range(1, 255) as u8 } else { 0 }).collect()
            }
        });
    }
    Ok(own)
}

/// A tensor; its rows beyond these lengths are NaN.
fn numbers(view: &View, lens: Option<&[u32]>, rng: &mut Rng) -> Vec<f32> {
    let mut numbers = vec![f32::NAN; view.extent() as usize];
    let [batches, heads, seq, dims] = view.sizes();
    for b in 0..batches {
        let len = lens.and_then(|lens| lens.get(b as usize)).map_or(seq, |&len| len.min(seq));
        for h in 0..heads {
            for i in 0..len {
                for d in 0..dims {
                    numbers[view.index([b, h, i, d]) as usize] = rng.normal();
                }
            }
        }
    }
    numbers
}

/// Starts of packed sequences of lengths as they come, which add up. The first is the longest.
fn starts(rng: &mut Rng, total: u32, batch: u32, longest: u32) -> Vec<u32> {
    let (mut starts, mut last) = (vec![0], 0);
    for others in (0..batch).rev() {
        let left = total - last;
        let most = left.min(longest);
        let least = if last == 0 { most } else { left.saturating_sub(others * longest) };
        last += rng.range(least.into(), most.into()) as u32;
        starts.push(last);
    }
    starts
}
