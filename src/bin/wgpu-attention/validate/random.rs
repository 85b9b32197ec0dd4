//! Random problems over all options together, from a seed.

use crate::work::{Work, uses_positions};
use wgpu_attention::{
    AdaptiveTemperature, Alignment, Broadcast, DType, Dropout, Layout, LengthScale, MaskFormat, NormGains,
    Normalizer, Problem, QkNorm, Result, Scale, Shape, SigmoidBias, Sink, Stats, Temperature, Tensor, Window,
    alibi_slopes,
};

/// SplitMix64: small, seeded, the same on every platform.
#[derive(Debug, Clone)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Any in a range, both ends included.
    fn range(&mut self, low: i64, high: i64) -> i64 {
        let size = (high - low + 1).max(1) as f64;
        low + (self.unit() * size) as i64
    }

    fn pick<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[(self.unit() * N as f64) as usize]
    }

    fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Near enough to a standard normal: variance 1, tails to 4.2.
    fn normal(&mut self) -> f32 {
        ((0..6).map(|_| self.unit()).sum::<f64>() - 3.0) as f32 * std::f32::consts::SQRT_2
    }

    fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Problems in a row that have the options of one seed: what they have in common is compiled once.
const SHARED: u64 = 5;
const LONGEST: i64 = 300;

/// The problem of a seed.
pub(super) fn problem(seed: u64) -> Problem {
    // Multiplied, so that neighbours do not start from neighbouring states.
    let mut options = Rng((seed / SHARED).wrapping_mul(0x5851_f42d_4c95_7f2d));
    let mut sizes = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 1);
    let (head_dim_qk, head_dim_v) = options.pick([
        (1, 1),
        (8, 8),
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
    ]);
    let kv_heads = sizes.range(1, 2) as u32;
    // As many short ones as long ones.
    let length = |rng: &mut Rng| (LONGEST as f64).powf(rng.unit()).round() as u32;
    let shape = Shape {
        batch: sizes.range(1, 2) as u32,
        q_heads: kv_heads * sizes.range(1, 3) as u32,
        kv_heads,
        seq_q: length(&mut sizes),
        seq_k: length(&mut sizes),
        head_dim_qk,
        head_dim_v,
    };
    // One of the packed sequences is as long as the longest, the others have any length up to it.
    let total = |longest: u32, options: &mut Rng, sizes: &mut Rng| {
        options
            .chance(0.15)
            .then(|| longest + (1..shape.batch).map(|_| sizes.range(0, longest.into()) as u32).sum::<u32>())
    };
    let totals = [total(shape.seq_q, &mut options, &mut sizes), total(shape.seq_k, &mut options, &mut sizes)];
    let mut problem = Problem::new(shape).layout(options.pick([Layout::Bhsd, Layout::Bhsd, Layout::Bshd]));
    [problem.packed_q, problem.packed_k] = totals;
    problem.scale = sizes.pick([
        Scale::RsqrtHeadDim,
        Scale::RsqrtHeadDim,
        Scale::PerHeadDim { numerator: 8.0 },
        Scale::Value(-0.2),
        Scale::Value(0.0),
    ]);
    problem.stats = options.pick([Stats::default(), Stats::ALL]);
    add_options(&mut problem, &mut options, &mut sizes);
    add_weights(&mut problem, &mut options, &mut sizes);
    problem
}

/// What makes another shader comes from `options`, numbers from `sizes`.
fn add_options(problem: &mut Problem, options: &mut Rng, sizes: &mut Rng) {
    let s = problem.shape;
    let (sq, sk) = (i64::from(s.seq_q), i64::from(s.seq_k));
    let tau = Temperature::Value(sizes.pick([1.0, 0.3, 7.0]));
    problem.temperature = options.pick([tau, tau, Temperature::PerHead, Temperature::PerRow]);
    problem.causal = options.chance(0.4);
    problem.documents = options.chance(0.15);
    problem.q_len = options.chance(0.2);
    problem.kv_len = options.chance(0.3);
    if options.chance(0.25) {
        let side =
            |options: &mut Rng, sizes: &mut Rng| options.chance(0.6).then(|| sizes.range(0, 40) as u32);
        let (left, right) = (side(options, sizes), side(options, sizes));
        let keep_first = if options.chance(0.4) { sizes.range(1, 8) as u32 } else { 0 };
        problem.window = Some(Window { left, right, keep_first });
    }
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
        let norm = options.pick([QkNorm::l2(), QkNorm::rms(1e-6)]);
        problem.qk_norm =
            Some(norm.gains(options.pick([NormGains::None, NormGains::Shared, NormGains::PerHead])));
    }
    let offset = Alignment::Offset(sizes.range(-sq - 3, sk + 3) as i32);
    let aligned = options.pick([
        Alignment::BottomRight,
        Alignment::BottomRightValid,
        Alignment::TopLeft,
        offset,
        Alignment::PerBatch,
    ]);
    if uses_positions(problem) {
        problem.alignment = aligned;
    }
    if options.chance(0.25) {
        problem.softcap = Some(sizes.pick([0.5, 5.0, 30.0, 50.0]));
    }
    problem.sink = options.pick([Sink::None, Sink::None, Sink::None, Sink::Zero, Sink::PerHead]);
    let stored = options.pick([DType::F32, DType::F32, DType::F16, DType::Bf16]);
    let out = options.pick([DType::F32, stored]);
    problem.dtypes = [stored, stored, stored, out];
    let broadcast = |rng: &mut Rng| {
        Broadcast([s.batch, s.q_heads, s.seq_q, s.seq_k].map(|n| if rng.chance(0.4) { 1 } else { n }))
    };
    if options.chance(0.25) {
        problem.bias = Some((options.pick([DType::F32, stored]), broadcast(sizes)));
    }
    if options.chance(0.25) {
        problem.mask = Some((options.pick([MaskFormat::Bytes, MaskFormat::Bits]), broadcast(sizes)));
    }
}

/// What comes after the scores.
fn add_weights(problem: &mut Problem, options: &mut Rng, sizes: &mut Rng) {
    if options.chance(0.2) {
        let number = SigmoidBias::Value(sizes.pick([-3.0, 0.0, 1.0]));
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

/// Inputs for a problem: normally distributed, every sixth pair hidden by mask or bias, and NaN beyond the valid keys, where
/// anything may be.
pub(super) fn work(problem: &Problem, seed: u64) -> Result<Work> {
    let mut rng = Rng(seed.wrapping_mul(0x9e6c_63d0_876a_68ee) ^ 2);
    let s = problem.shape;
    let elements = |tensor| problem.view(tensor).map(|view| view.extent() as usize);
    let main = [elements(Tensor::Q)?, elements(Tensor::K)?, elements(Tensor::V)?].map(|n| rng.normals(n));
    let mut work = Work::new(problem.clone(), main);
    let (batches, heads, rows) = (0..s.batch, s.q_heads as usize, problem.rows() as usize);
    let (sq, sk) = (i64::from(s.seq_q), i64::from(s.seq_k));
    work.cu_seqlens_q = problem.packed_q.map(|total| starts(&mut rng, total, s.batch, s.seq_q));
    work.cu_seqlens_k = problem.packed_k.map(|total| starts(&mut rng, total, s.batch, s.seq_k));
    let mut documents = |seq: i64, batch: u32| {
        (0..i64::from(batch) * seq).map(|n| (n % seq.max(1) / 40 + rng.range(0, 5) / 5) as i32).collect()
    };
    if problem.documents {
        work.documents_q = Some(match problem.packed_q {
            Some(total) => documents(total.into(), 1),
            None => documents(sq, s.batch),
        });
        work.documents_k = Some(match problem.packed_k {
            Some(total) => documents(total.into(), 1),
            None => documents(sk, s.batch),
        });
    }
    let mut lengths = |seq| batches.clone().map(|_| rng.range(0, seq) as u32).collect::<Vec<_>>();
    work.q_len = problem.q_len.then(|| lengths(sq));
    work.kv_len = problem.kv_len.then(|| lengths(sk));
    for (tensor, numbers, lens) in [
        (Tensor::Q, &mut work.q, &work.q_len),
        (Tensor::K, &mut work.k, &work.kv_len),
        (Tensor::V, &mut work.v, &work.kv_len),
    ] {
        let view = problem.view(tensor)?;
        let [sequences, heads, seq, dims] = view.sizes();
        if sequences != s.batch || problem.packed_q.is_some() || problem.packed_k.is_some() {
            continue;
        }
        for (b, &len) in (0..).zip(lens.iter().flatten()) {
            for (h, j, d) in
                (0..heads).flat_map(|h| (len..seq).flat_map(move |j| (0..dims).map(move |d| (h, j, d))))
            {
                numbers[view.index([b, h, j, d]) as usize] = f32::NAN;
            }
        }
    }
    if problem.alignment == Alignment::PerBatch {
        work.causal_offset = Some(batches.map(|_| rng.range(-sq - 2, sk + 2) as i32).collect());
    }
    let temperatures = match problem.temperature {
        Temperature::PerHead => Some(heads),
        Temperature::PerRow => Some(rows),
        _ => None,
    };
    work.temperature =
        temperatures.map(|n| (0..n).map(|_| 10f64.powf(rng.unit() * 2.0 - 1.0) as f32).collect());
    work.alibi_slopes = problem.alibi.then(|| alibi_slopes(s.q_heads));
    work.sinks = (problem.sink == Sink::PerHead).then(|| rng.normals(heads));
    work.ssmax = (problem.length_scale == LengthScale::Ssmax)
        .then(|| (0..heads).map(|_| rng.unit() as f32 + 0.1).collect());
    if let Some(norm) = problem.qk_norm.filter(|norm| norm.gains != NormGains::None) {
        let dim = s.head_dim_qk as usize;
        let [q, k] = if norm.gains == NormGains::Shared { [1, 1] } else { [s.q_heads, s.kv_heads] };
        (work.q_gain, work.k_gain) =
            (Some(rng.normals(q as usize * dim)), Some(rng.normals(k as usize * dim)));
    }
    work.dropout = problem.dropout.map(|_| [rng.next() as u32, rng.next() as u32]);
    if problem.bias.is_some() {
        let mut any = |_| if rng.chance(1.0 / 6.0) { f32::NEG_INFINITY } else { 2.0 * rng.normal() };
        work.bias = Some((0..elements(Tensor::Bias)?).map(&mut any).collect());
    }
    if let Some((format, _)) = problem.mask {
        let keeps: Vec<bool> = (0..elements(Tensor::Mask)?).map(|_| rng.chance(5.0 / 6.0)).collect();
        work.mask = Some(match format {
            MaskFormat::Bits => keeps
                .chunks(8)
                .map(|bits| bits.iter().rev().fold(0, |byte, &keep| byte << 1 | u8::from(keep)))
                .collect(),
            _ => keeps.iter().map(|&keep| u8::from(keep)).collect(),
        });
    }
    Ok(work)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_makes_a_problem_with_its_inputs() {
        for seed in 0..500 {
            let work = work(&problem(seed), seed).unwrap();
            let check = work.inputs().check(&work.problem);
            assert!(check.is_ok(), "seed {seed}: {check:?}");
        }
        assert_eq!(problem(7), problem(7));
        assert_ne!(problem(7), problem(8));
    }
}
