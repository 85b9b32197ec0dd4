//! A problem that fails, made smaller while it still fails.

use crate::work::uses_positions;
use wgpu_attention::{
    Alignment, Broadcast, DType, Layout, LengthScale, NormGains, Normalizer, Problem, Scale, Shape, Sink,
    Stats, Temperature,
};

/// Problems to try at most: each costs a shader.
const TRIES: u32 = 60;

/// The smallest problem that this way of looking finds.
pub(super) fn shrink(problem: &Problem, mut fails: impl FnMut(&Problem) -> bool) -> Problem {
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

/// Each with one option less or one size halved.
fn candidates(problem: &Problem) -> Vec<Problem> {
    let options: [fn(&mut Problem); 24] = [
        |p| p.mask = None,
        |p| p.bias = None,
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
        |p| p.causal = false,
        |p| (p.packed_q, p.packed_k) = (None, None),
        |p| p.documents = false,
        |p| p.q_len = false,
        |p| p.kv_len = false,
        |p| p.alignment = Alignment::default(),
        |p| p.temperature = Temperature::default(),
        |p| p.scale = Scale::default(),
        |p| p.dtypes = [DType::F32; 4],
        |p| p.stats = Stats::default(),
        |p| *p = p.clone().layout(Layout::Bhsd),
    ];
    let sizes: [fn(&mut Shape); 6] = [
        |s| s.seq_k /= 2,
        |s| s.seq_q = s.seq_q.div_ceil(2),
        |s| (s.head_dim_qk, s.head_dim_v) = (s.head_dim_qk.div_ceil(2), s.head_dim_v.div_ceil(2)),
        |s| s.batch = s.batch.div_ceil(2),
        |s| (s.q_heads, s.kv_heads) = (s.q_heads / s.kv_heads.max(1), 1),
        |s| s.q_heads = s.kv_heads,
    ];
    let mut all: Vec<Problem> = sizes.iter().map(|change| resized(problem, *change)).collect();
    all.extend(options.iter().map(|change| {
        let mut smaller = problem.clone();
        change(&mut smaller);
        if !uses_positions(&smaller) {
            smaller.alignment = Alignment::default();
        }
        smaller
    }));
    all.retain(|candidate| candidate != problem);
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
    // No more rows than the sequences can have.
    let s = smaller.shape;
    let fit = |total: u32, longest: u32| total.min(s.batch.saturating_mul(longest));
    smaller.packed_q = smaller.packed_q.map(|total| fit(total, s.seq_q));
    smaller.packed_k = smaller.packed_k.map(|total| fit(total, s.seq_k));
    smaller.bias = smaller.bias.map(|(dtype, sizes)| (dtype, follow(sizes)));
    smaller.mask = smaller.mask.map(|(format, sizes)| (format, follow(sizes)));
    smaller
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::random;
    use super::*;

    #[test]
    fn what_makes_it_fail_is_left() {
        let seed = (0..5000).find(|&seed| {
            let p = random::problem(seed);
            p.softcap.is_some() && p.shape.seq_k > 100 && p.mask.is_some()
        });
        let problem = random::problem(seed.unwrap());
        let small = shrink(&problem, |p| {
            random::work(p, 3).unwrap().inputs().check(p).unwrap();
            p.softcap.is_some() && p.shape.seq_k >= 10
        });
        assert!((10..20).contains(&small.shape.seq_k), "{small:?}");
        assert_eq!((small.shape.seq_q, small.shape.batch, small.shape.q_heads), (1, 1, 1));
        let mut plain = Problem::new(small.shape);
        plain.softcap = small.softcap;
        assert_eq!(small, plain);
    }
}
