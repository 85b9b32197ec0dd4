//! A problem with made-up inputs on the device, and the right answer to some of its rows.

use super::made::{Made, even_starts, pick_rows, sequences};
use crate::attention::Attention;
use crate::buffers::Buffers;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::memory::{create_buffer, create_buffer_unset};
use crate::plan::{Plan, Tables};
use crate::prepared::Bound;
use crate::problem::Problem;
use crate::readback;
use crate::reference::{self, Comparison, Truth};
use crate::tensor::Tensor;
use std::time::Duration;
#[cfg(not(target_arch = "wasm32"))]
use std::time::Instant;
#[cfg(target_arch = "wasm32")]
use web_time::Instant;

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
    truth: Vec<([u32; 3], Truth)>,
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
        let truth = reference::rows_of_truth(problem, &inputs, &rows)?;

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
        let start = Instant::now();
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
        let took = start.elapsed();
        let out = self.problem.dtypes[Tensor::Out as usize].decode(&bytes);
        self.compare(&out, ready.kernel(), took)
    }

    /// A kernel of the caller's own is held to what f32 can do.
    fn compare(&self, out: &[f32], kernel: Option<Kernel>, took: Duration) -> Result<Checked> {
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
            let truth = truth.clone().of_kernel(kernel.unwrap_or(Kernel::Tiled));
            comparison = comparison.merge(reference::compare(&row(*at), &truth.out));
        }
        let rows = (0..s.batch).flat_map(|b| {
            let queries = sequences.queries(b);
            (0..s.q_heads).flat_map(move |h| (0..queries).map(move |i| [b, h, i]))
        });
        let unwritten = rows.filter(|&at| !row(at).iter().all(|x| x.is_finite())).count() as u64;
        Ok(Checked { comparison, rows: self.truth.len(), of: self.problem.rows(), unwritten, took })
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
    /// From recording the call to having its output here: with what the driver compiles only then.
    pub took: Duration,
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
    /// The member of the family that it is.
    fn kernel(&self) -> Option<Kernel> {
        match &self.0 {
            Inner::Plan(bound) => Some(bound.plan().kernel()),
            #[cfg(feature = "user-code")]
            Inner::Custom(_) => None,
        }
    }

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
