//! Made-up inputs for any problem, and the rows of it that are checked.

use crate::error::Result;
use crate::host::Inputs;
use crate::mask::{Alignment, MaskFormat};
use crate::plan::TableData;
use crate::problem::Problem;
use crate::score::{Sink, alibi_slopes};
use crate::sequences::Sequences;
use crate::sharpness::{LengthScale, Temperature};
use crate::tensor::Tensor;

/// Packed sequences as long as each other, or longer by one.
pub(super) fn even_starts(total: Option<u32>, batch: u32) -> Option<Vec<u32>> {
    let total = u64::from(total?);
    Some((0..=u64::from(batch)).map(|b| (total * b).checked_div(batch.into()).unwrap_or(0) as u32).collect())
}

pub(super) fn sequences<'a>(problem: &'a Problem, [q, k]: &'a [Option<Vec<u32>>; 2]) -> Sequences<'a> {
    let tables = TableData { cu_seqlens_q: q.as_deref(), cu_seqlens_k: k.as_deref(), ..TableData::default() };
    Sequences::new(problem, &tables)
}

/// All rows, or so many that lie spread over all, the first and the last among them.
pub(super) fn pick_rows(problem: &Problem, most: u64) -> Vec<[u32; 3]> {
    let s = &problem.shape;
    let all = problem.rows();
    let starts = even_starts(problem.packed_q, s.batch);
    let place = |row: u64| {
        // Each is below a 32-bit size.
        if let (Some(starts), Some(total)) = (&starts, problem.packed_q) {
            let (h, row) = ((row / u64::from(total)) as u32, (row % u64::from(total)) as u32);
            let b = starts.partition_point(|&start| start <= row) - 1;
            return [b as u32, h, row - starts[b]];
        }
        let (heads, seq) = (u64::from(s.q_heads), u64::from(s.seq_q));
        [(row / seq / heads) as u32, (row / seq % heads) as u32, (row % seq) as u32]
    };
    if all <= most {
        return (0..all).map(place).collect();
    }
    // Steps of the golden ratio: evenly spread, in step with no tile and no head.
    let golden = |n: u64| (((n as f64 * 0.618_033_988_749_895).fract() * all as f64) as u64).min(all - 1);
    let mut rows: Vec<u64> =
        [0, all - 1].into_iter().chain((1..most.saturating_sub(1)).map(golden)).collect();
    rows.sort_unstable();
    rows.dedup();
    rows.into_iter().map(place).collect()
}

/// Made-up inputs.
#[derive(Debug)]
pub(super) struct Made {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    bias: Option<Vec<f32>>,
    mask: Option<Vec<u8>>,
    cu_seqlens_q: Option<Vec<u32>>,
    cu_seqlens_k: Option<Vec<u32>>,
    documents: Option<[Vec<i32>; 2]>,
    q_len: Option<Vec<u32>>,
    kv_len: Option<Vec<u32>>,
    causal_offset: Option<Vec<i32>>,
    temperature: Option<Vec<f32>>,
    alibi_slopes: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    ssmax: Option<Vec<f32>>,
    q_gain: Option<Vec<f32>>,
    k_gain: Option<Vec<f32>>,
    dropout: Option<[u32; 2]>,
}

impl Made {
    pub(super) fn new(problem: &Problem) -> Result<Self> {
        let s = &problem.shape;
        let numbers =
            |seed, tensor| -> Result<Vec<f32>> { Ok(normal(seed, problem.view(tensor)?.extent() as usize)) };
        let heads = s.q_heads as usize;
        let mask_bytes = match problem.mask {
            Some((MaskFormat::Bits, _)) => problem.view(Tensor::Mask)?.extent().div_ceil(8),
            _ => problem.view(Tensor::Mask)?.extent(),
        };
        let offset = Alignment::BottomRight.offset(s.seq_q, s.seq_k).unwrap_or(0);
        let gain = |n: usize| problem.gain_counts().map(|counts| vec![1.0; counts[n] as usize]);
        Ok(Made {
            q: numbers(1, Tensor::Q)?,
            k: numbers(2, Tensor::K)?,
            v: numbers(3, Tensor::V)?,
            bias: problem.bias.is_some().then(|| numbers(4, Tensor::Bias)).transpose()?,
            mask: problem.mask.map(|_| vec![0xff; mask_bytes as usize]),
            cu_seqlens_q: even_starts(problem.packed_q, s.batch),
            cu_seqlens_k: even_starts(problem.packed_k, s.batch),
            documents: problem.documents.then(|| problem.document_counts().map(|n| vec![0; n as usize])),
            q_len: problem.q_len.then(|| vec![s.seq_q; s.batch as usize]),
            kv_len: problem.kv_len.then(|| vec![s.seq_k; s.batch as usize]),
            causal_offset: (problem.alignment == Alignment::PerBatch).then(|| vec![offset; s.batch as usize]),
            temperature: match problem.temperature {
                Temperature::Value(_) => None,
                Temperature::PerHead => Some(vec![1.0; heads]),
                Temperature::PerRow => Some(vec![1.0; problem.rows() as usize]),
            },
            alibi_slopes: problem.alibi.then(|| alibi_slopes(s.q_heads)),
            sinks: (problem.sink == Sink::PerHead).then(|| vec![0.0; heads]),
            ssmax: (problem.length_scale == LengthScale::Ssmax).then(|| vec![0.2; heads]),
            q_gain: gain(0),
            k_gain: gain(1),
            dropout: problem.dropout.map(|_| [1, 2]),
        })
    }

    /// Every field is named, so that an input which the library learns cannot be forgotten here.
    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            bias: self.bias.as_deref(),
            mask: self.mask.as_deref(),
            tables: TableData {
                cu_seqlens_q: self.cu_seqlens_q.as_deref(),
                cu_seqlens_k: self.cu_seqlens_k.as_deref(),
                documents_q: self.documents.as_ref().map(|d| d[0].as_slice()),
                documents_k: self.documents.as_ref().map(|d| d[1].as_slice()),
                q_len: self.q_len.as_deref(),
                kv_len: self.kv_len.as_deref(),
                causal_offset: self.causal_offset.as_deref(),
                temperature: self.temperature.as_deref(),
                alibi_slopes: self.alibi_slopes.as_deref(),
                sinks: self.sinks.as_deref(),
                ssmax: self.ssmax.as_deref(),
                q_gain: self.q_gain.as_deref(),
                k_gain: self.k_gain.as_deref(),
                dropout: self.dropout,
                // User code has no float64 twin here, so that a problem with it is refused.
                user: None,
            },
        }
    }
}

/// Normal numbers, near enough: sums of four uniform ones (Irwin and Hall), of deviation 1.
fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let deviation = (4.0f64 / 12.0).sqrt();
    (0..count)
        .map(|_| {
            // SplitMix64 (Steele, Lea and Flood 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            let uniform = |n: u32| f64::from((z >> (16 * n)) as u16) / 65536.0;
            (((0..4).map(uniform).sum::<f64>() - 2.0) / deviation) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    #[test]
    fn made_up_numbers_are_normal_and_always_the_same() {
        let x = normal(1, 10_000);
        let mean = x.iter().sum::<f32>() / 1e4;
        let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 1e4).sqrt();
        // Four standard errors: 1 / sqrt(n) of the mean, less than 1 / sqrt(2 n) of the deviation.
        assert!(mean.abs() < 0.04 && (deviation - 1.0).abs() < 0.03, "{mean} {deviation}");
        assert_eq!(x, normal(1, 10_000));
        assert_ne!(x, normal(2, 10_000));
    }

    #[test]
    fn rows_are_all_or_spread() {
        let problem = Problem::new(Shape::self_attention(2, 3, 50, 8));
        assert_eq!(pick_rows(&problem, 300).len(), 300);
        let some = pick_rows(&problem, 40);
        assert!((30..=40).contains(&some.len()), "{}", some.len());
        assert_eq!((some[0], some[some.len() - 1]), ([0, 0, 0], [1, 2, 49]));
        for (b, h) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            assert!(some.iter().filter(|r| r[..2] == [b, h]).count() >= 4, "{b} {h}");
        }
        assert!(pick_rows(&problem, 8).len() >= 6);
    }
}
