//! A problem that fails, made smaller while it still fails.

use crate::dtype::DType;
use crate::layout::Layout;
use crate::mask::{Alignment, MaskFormat};
use crate::normalizer::Normalizer;
use crate::problem::Problem;
use crate::qk_norm::NormGains;
use crate::score::{Broadcast, Sink};
use crate::shape::{Shape, Stats};
use crate::sharpness::{LengthScale, Scale, Temperature};

/// Problems to try at most: each costs a shader.
const TRIES: u32 = 100;

/// The smallest problem that this way of looking finds: one option less or one size smaller, as long as it fails.
pub fn shrink(problem: &Problem, mut fails: impl FnMut(&Problem) -> bool) -> Problem {
    let mut best = problem.clone();
    let mut tries = 0;
    loop {
        let smaller = candidates(&best).into_iter().find(|candidate| {
            tries += 1;
            tries <= TRIES && fails(candidate)
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

/// Each with one size halved, one option less, or one size a little smaller.
fn candidates(problem: &Problem) -> Vec<Problem> {
    let options: [fn(&mut Problem); 35] = [
        |p| p.mask = None,
        |p| p.bias = None,
        |p| p.score_mod = None,
        |p| p.mask_mod = None,
        |p| p.softcap = None,
        |p| p.alibi = false,
        |p| p.sink = Sink::None,
        |p| p.normalizer = Normalizer::Softmax,
        |p| p.dropout = None,
        |p| p.adaptive_temperature = None,
        |p| p.top_k = None,
        |p| p.length_scale = LengthScale::None,
        |p| p.qk_norm = p.qk_norm.map(|norm| norm.gains(NormGains::None)),
        |p| p.qk_norm = None,
        |p| p.window = None,
        |p| p.window = p.window.map(|window| crate::mask::Window { keep_first: 0, ..window }),
        |p| p.causal = false,
        |p| (p.packed_q, p.packed_k) = (None, None),
        |p| p.documents = false,
        |p| p.q_len = false,
        |p| p.kv_len = false,
        |p| p.alignment = Alignment::default(),
        |p| p.temperature = Temperature::default(),
        |p| p.scale = Scale::default(),
        |p| p.dtypes = [DType::F32; 4],
        |p| p.dtypes[0] = DType::F32,
        |p| p.dtypes[1] = DType::F32,
        |p| p.dtypes[2] = DType::F32,
        |p| p.dtypes[3] = DType::F32,
        |p| p.bias = p.bias.map(|(_, sizes)| (DType::F32, sizes)),
        |p| p.mask = p.mask.map(|(_, sizes)| (MaskFormat::Bytes, sizes)),
        |p| p.stats = Stats::default(),
        |p| *p = p.clone().layout(Layout::Bhsd),
        |p| (p.q_layout, p.out_layout) = (Layout::Bhsd, Layout::Bhsd),
        |p| (p.k_layout, p.v_layout) = (Layout::Bhsd, Layout::Bhsd),
    ];
    let halves: [fn(&mut Shape); 6] = [
        |s| s.seq_k /= 2,
        |s| s.seq_q = s.seq_q.div_ceil(2),
        |s| (s.head_dim_qk, s.head_dim_v) = (s.head_dim_qk.div_ceil(2), s.head_dim_v.div_ceil(2)),
        |s| s.batch = s.batch.div_ceil(2),
        |s| (s.q_heads, s.kv_heads) = (s.q_heads / s.kv_heads.max(1), 1),
        |s| s.q_heads = s.kv_heads,
    ];
    let steps: [fn(&mut Shape); 4] = [
        |s| s.seq_k = s.seq_k.saturating_sub(1),
        |s| s.seq_q = s.seq_q.saturating_sub(1).max(1),
        |s| s.head_dim_qk = s.head_dim_qk.saturating_sub(1).max(1),
        |s| s.head_dim_v = s.head_dim_v.saturating_sub(1).max(1),
    ];
    let mut all: Vec<Problem> = halves.iter().map(|change| resized(problem, *change)).collect();
    all.extend(options.iter().map(|change| {
        let mut smaller = problem.clone();
        change(&mut smaller);
        if !smaller.uses_positions() {
            smaller.alignment = Alignment::default();
        }
        if smaller.score_mod.is_none() && smaller.mask_mod.is_none() {
            smaller.user_params = 0;
        }
        smaller
    }));
    all.extend(steps.iter().map(|change| resized(problem, *change)));
    all.retain(|candidate| candidate != problem && candidate.check().is_ok());
    all
}

fn resized(problem: &Problem, change: fn(&mut Shape)) -> Problem {
    let mut smaller = problem.clone();
    change(&mut smaller.shape);
    let sizes = |s: &Shape| [s.batch, s.q_heads, s.seq_q, s.seq_k];
    let (old, new) = (sizes(&problem.shape), sizes(&smaller.shape));
    // What was broadcast stays so; what had the old size has the new one.
    let follow = |Broadcast(mut dense): Broadcast| {
        for ((size, old), new) in dense.iter_mut().zip(old).zip(new) {
            *size = if *size == old { new } else { *size };
        }
        Broadcast(dense)
    };
    // No more rows than the sequences can have, and enough for the longest.
    let s = smaller.shape;
    let fit = |total: u32, longest: u32| total.min(s.batch.saturating_mul(longest)).max(longest);
    smaller.packed_q = smaller.packed_q.map(|total| fit(total, s.seq_q));
    smaller.packed_k = smaller.packed_k.map(|total| fit(total, s.seq_k));
    smaller.bias = smaller.bias.map(|(dtype, sizes)| (dtype, follow(sizes)));
    smaller.mask = smaller.mask.map(|(format, sizes)| (format, follow(sizes)));
    smaller
}

#[cfg(test)]
mod tests {
    use super::super::{inputs, problem};
    use super::*;

    #[test]
    fn what_makes_it_fail_is_left() {
        let seed = (0..5000).find(|&seed| {
            let p = problem(seed);
            p.softcap.is_some() && p.shape.seq_k > 100 && p.mask.is_some()
        });
        let problem = problem(seed.unwrap());
        let mut tries = 0;
        let small = shrink(&problem, |p| {
            tries += 1;
            inputs(p, 3).unwrap().as_inputs().check(p).unwrap();
            p.softcap.is_some() && p.shape.seq_k >= 10
        });
        assert!((10..20).contains(&small.shape.seq_k), "{small:?} after {tries}");
        assert_eq!((small.shape.seq_q, small.shape.batch, small.shape.q_heads), (1, 1, 1));
        let mut plain = Problem::new(small.shape);
        plain.softcap = small.softcap;
        assert_eq!(small, plain);
    }
}
