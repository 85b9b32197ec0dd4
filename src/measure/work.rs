//! A problem with made-up inputs on the device, and the right answer to some of its rows.

use crate::attention::Attention;
use crate::buffers::Buffers;
use crate::error::{Error, Result};
use crate::host::Inputs;
use crate::mask::{Alignment, MaskFormat};
use crate::memory::{create_buffer, create_buffer_unset};
use crate::plan::{Plan, TableData, Tables};
use crate::prepared::Bound;
use crate::problem::Problem;
use crate::readback;
use crate::reference::{self, Bounded, Comparison};
use crate::score::{Sink, alibi_slopes};
use crate::sequences::Sequences;
use crate::sharpness::{LengthScale, Temperature};
use crate::tensor::Tensor;

/// A problem with inputs on the device: what every kernel that is to be compared is given.
///
/// q, k and v are normal numbers (mean 0, deviation 1, the same every time), a bias is the same, lengths are whole, masks hide
/// nothing, temperatures, slopes and the like are usual ones.
#[derive(Debug)]
pub struct Work {
    attention: Attention,
    problem: Problem,
    pub(super) buffers: Owned,
    out_bytes: u64,
    truth: Vec<([u32; 3], Vec<Bounded>)>,
}

/// The buffers of a problem.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) q: wgpu::Buffer,
    pub(super) k: wgpu::Buffer,
    pub(super) v: wgpu::Buffer,
    pub(super) out: wgpu::Buffer,
    bias: Option<wgpu::Buffer>,
    mask: Option<wgpu::Buffer>,
    stats: Option<wgpu::Buffer>,
    tables: Option<wgpu::Buffer>,
}

/// Multiplications that the float64 reference may take: a few tenths of a second. Problems of fewer are checked whole.
const CHECKED: u64 = 1 << 25;

impl Work {
    /// Makes up the inputs, uploads them, and computes the right answer on the CPU: of all rows where that takes some tenths of a
    /// second, else of rows spread over the whole.
    ///
    /// # Errors
    /// What [`Problem::check`] finds; [`Error::Value`] for a problem without elements; [`Error::Missing`] for user code, which has no
    /// float64 twin here; [`Error::LimitExceeded`] for a tensor that is no buffer of the device; [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn new(attention: &Attention, problem: &Problem) -> Result<Work> {
        problem.check()?;
        let s = &problem.shape;
        if problem.is_empty() {
            return Err(Error::value(
                "batch x q_heads x seq_q",
                problem.rows(),
                "at least 1 where time is to be taken",
            ));
        }
        let most = attention.caps().max_buffer_size;
        for tensor in Tensor::ALL {
            let needed = problem.bytes(tensor)?;
            if needed > most {
                return Err(Error::LimitExceeded {
                    what: format!("{} of this problem", tensor.name()),
                    limit: "max_buffer_size",
                    needed,
                    available: most,
                    advice: "measure a smaller problem",
                });
            }
        }
        let made = Made::new(problem)?;
        let inputs = made.inputs();
        let per_row = u64::from(s.seq_k).saturating_mul(u64::from(s.head_dim_qk) + u64::from(s.head_dim_v));
        let rows = pick_rows(problem, (CHECKED / per_row.max(1)).max(8));
        let truth = reference::truth_of_rows(problem, &inputs, &rows)?;

        let [q_type, k_type, v_type, _] = problem.dtypes;
        let upload = |label, bytes: Vec<u8>| upload(attention, label, bytes);
        let results =
            wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let out_bytes = problem.bytes(Tensor::Out)?;
        let stats_bytes = u64::from(problem.stats.count()) * problem.rows() * 4;
        let tables = Tables::new(problem).pack(problem, &inputs.tables)?;
        let buffers = Owned {
            q: upload("q", q_type.encode(inputs.q)).await?,
            k: upload("k", k_type.encode(inputs.k)).await?,
            v: upload("v", v_type.encode(inputs.v)).await?,
            out: create_buffer_unset(attention.context(), "out", out_bytes, results).await?,
            bias: match (problem.bias, inputs.bias) {
                (Some((dtype, _)), Some(bias)) => Some(upload("bias", dtype.encode(bias)).await?),
                _ => None,
            },
            mask: match inputs.mask {
                Some(mask) => Some(upload("mask", mask.to_vec()).await?),
                None => None,
            },
            stats: match stats_bytes {
                0 => None,
                bytes => Some(create_buffer_unset(attention.context(), "stats", bytes, results).await?),
            },
            tables: match tables.is_empty() {
                true => None,
                false => Some(upload("tables", bytemuck::cast_slice(&tables).to_vec()).await?),
            },
        };
        let truth = rows.into_iter().zip(truth).collect();
        Ok(Work { attention: attention.clone(), problem: problem.clone(), buffers, out_bytes, truth })
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The device that the inputs lie on.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Rows whose right answer is known, of [`Shape::rows`](crate::Shape::rows).
    pub fn rows_checked(&self) -> usize {
        self.truth.len()
    }

    /// Compiles a plan of this problem, and binds it to the inputs.
    ///
    /// # Errors
    /// As [`Attention::prepare`]; [`Error::Value`] for a plan of another problem.
    pub async fn prepare(&self, plan: &Plan) -> Result<Ready> {
        if *plan.problem() != self.problem {
            return Err(Error::value("plan", plan.key(), "a plan of the problem whose inputs were made"));
        }
        let prepared = self.attention.prepare(plan).await?;
        let Owned { q, k, v, out, .. } = &self.buffers;
        let mut buffers = Buffers::new(q, k, v, out);
        buffers.bias = self.buffers.bias.as_ref().map(Into::into);
        buffers.mask = self.buffers.mask.as_ref().map(Into::into);
        buffers.stats = self.buffers.stats.as_ref().map(Into::into);
        buffers.tables = self.buffers.tables.as_ref().map(Into::into);
        Ok(Ready(Inner::Plan(prepared.bind(&buffers)?)))
    }

    /// Runs it once, with NaN in every place of out before, and compares: the known rows with their bounds, and all others with
    /// what no kernel may leave behind, NaN or infinity.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`].
    pub async fn check(&self, queue: &wgpu::Queue, ready: &Ready) -> Result<Checked> {
        let device = self.attention.device();
        let nan = vec![0xff; self.out_bytes as usize];
        queue.write_buffer(&self.buffers.out, 0, &nan);
        for part in 0..ready.parts() {
            let mut encoder =
                device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("check") });
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            ready.record(part, &mut pass);
            drop(pass);
            queue.submit([encoder.finish()]);
        }
        let target = readback::Target::new(self.attention.context(), self.out_bytes).await?;
        let mut encoder =
            device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("check") });
        encoder.copy_buffer_to_buffer(&self.buffers.out, 0, target.buffer(), 0, self.out_bytes);
        let submission = queue.submit([encoder.finish()]);
        let bytes = target.map(self.attention.context(), submission)?.read().await?;
        let out = self.problem.dtypes[Tensor::Out as usize].decode(&bytes);
        self.compare(&out)
    }

    fn compare(&self, out: &[f32]) -> Result<Checked> {
        let view = self.problem.view(Tensor::Out)?;
        let s = &self.problem.shape;
        let starts =
            [even_starts(self.problem.packed_q, s.batch), even_starts(self.problem.packed_k, s.batch)];
        let sequences = sequences(&self.problem, &starts);
        let row = |[b, h, i]: [u32; 3]| -> Vec<f32> {
            let number = |d| out.get(sequences.in_q(&view, [b, h, i, d])).copied().unwrap_or(f32::NAN);
            (0..s.head_dim_v).map(number).collect()
        };
        let mut comparison = Comparison::default();
        for (at, truth) in &self.truth {
            comparison = comparison.merge(reference::compare(&row(*at), truth));
        }
        let rows = (0..s.batch).flat_map(|b| {
            let queries = sequences.queries(b);
            (0..s.q_heads).flat_map(move |h| (0..queries).map(move |i| [b, h, i]))
        });
        let unwritten = rows.filter(|&at| !row(at).iter().all(|x| x.is_finite())).count() as u64;
        Ok(Checked { comparison, rows: self.truth.len(), of: self.problem.rows(), unwritten })
    }
}

async fn upload(attention: &Attention, label: &str, bytes: Vec<u8>) -> Result<wgpu::Buffer> {
    create_buffer(attention.context(), label, bytes.len() as u64, wgpu::BufferUsages::STORAGE, |mapped| {
        mapped.copy_from_slice(&bytes);
    })
    .await
}

/// How right an answer was.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Checked {
    /// Of the rows that were compared with float64.
    pub comparison: Comparison,
    /// How many these were.
    pub rows: usize,
    /// Of how many.
    pub of: u64,
    /// Rows, of all, with a number that is NaN or infinite, which it also is where nothing was written.
    pub unwritten: u64,
}

impl Checked {
    /// Whether every number that was compared is within its bound, and all others are finite.
    pub fn passes(&self) -> bool {
        self.comparison.passes() && self.unwritten == 0
    }
}

/// Something that computes a problem, ready to be recorded any number of times.
#[derive(Debug)]
pub struct Ready(pub(super) Inner);

#[derive(Debug)]
pub(super) enum Inner {
    Plan(Bound),
    #[cfg(feature = "user-code")]
    Custom(super::custom::Bound),
}

impl Ready {
    /// Slices, see [`Bound::slices`].
    pub fn parts(&self) -> usize {
        match &self.0 {
            Inner::Plan(bound) => bound.slices(),
            #[cfg(feature = "user-code")]
            Inner::Custom(bound) => bound.slices(),
        }
    }

    /// What recording costs the host, in seconds a call: a compute pass with all slices into an encoder (what
    /// [`Bound::encode`] does), and the share of such a call in finishing the encoder, where wgpu checks it. The lower quartile of several
    /// runs; nothing is submitted.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn host_cost(&self, device: &wgpu::Device) -> [f64; 2] {
        use std::time::Instant;
        let calls = (50 / self.parts().max(1)).max(1) as u32;
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..9 {
            let mut encoder =
                device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("host cost") });
            let start = Instant::now();
            for _ in 0..calls {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                for part in 0..self.parts() {
                    self.record(part, &mut pass);
                }
            }
            let encoded = Instant::now();
            drop(encoder.finish());
            let finished = Instant::now();
            costs[0].push(encoded.duration_since(start).as_secs_f64() / f64::from(calls));
            costs[1].push(finished.duration_since(encoded).as_secs_f64() / f64::from(calls));
        }
        costs.map(|costs| super::Samples::new(costs).map_or(f64::NAN, |costs| costs.quantile(0.25)))
    }

    /// Records one of them.
    pub fn record(&self, part: usize, pass: &mut wgpu::ComputePass<'_>) {
        match &self.0 {
            Inner::Plan(bound) => bound.encode_slice(pass, part),
            #[cfg(feature = "user-code")]
            Inner::Custom(bound) => bound.encode_slice(pass, part),
        }
    }
}

/// Packed sequences as long as each other, or longer by one.
fn even_starts(total: Option<u32>, batch: u32) -> Option<Vec<u32>> {
    let total = u64::from(total?);
    Some((0..=u64::from(batch)).map(|b| (total * b).checked_div(batch.into()).unwrap_or(0) as u32).collect())
}

fn sequences<'a>(problem: &'a Problem, [q, k]: &'a [Option<Vec<u32>>; 2]) -> Sequences<'a> {
    let tables = TableData { cu_seqlens_q: q.as_deref(), cu_seqlens_k: k.as_deref(), ..TableData::default() };
    Sequences::new(problem, &tables)
}

/// All rows, or so many that lie spread over all, the first and the last among them.
fn pick_rows(problem: &Problem, most: u64) -> Vec<[u32; 3]> {
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
struct Made {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    bias: Option<Vec<f32>>,
    mask: Option<Vec<u8>>,
    cu_seqlens_q: Option<Vec<u32>>,
    cu_seqlens_k: Option<Vec<u32>>,
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
    fn new(problem: &Problem) -> Result<Self> {
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
    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            bias: self.bias.as_deref(),
            mask: self.mask.as_deref(),
            tables: TableData {
                cu_seqlens_q: self.cu_seqlens_q.as_deref(),
                cu_seqlens_k: self.cu_seqlens_k.as_deref(),
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
