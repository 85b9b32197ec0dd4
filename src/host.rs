//! The one-shot call: host slices in, host vectors out. For scripts, tests and first steps.

use crate::attention::Attention;
use crate::block_mask::BlockMask;
use crate::buffers::Buffers;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::memory::{Temporary, create_buffer, create_buffer_unset};
use crate::plan::{Plan, PlanOptions, Stat, TableData, tables};
use crate::prepared::Bound;
use crate::problem::Problem;
use crate::readback;
use crate::score::Broadcast;
use crate::sequences::Sequences;
use crate::tensor::Tensor;

/// Host inputs of a problem. Numbers are f32 here; for a tensor stored as f16 or bf16 they are rounded on their way.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Inputs<'a> {
    /// Queries, in `Problem::q_layout`.
    pub q: &'a [f32],
    /// Keys, in `Problem::k_layout`.
    pub k: &'a [f32],
    /// Values, in `Problem::v_layout`.
    pub v: &'a [f32],
    /// The additive bias, packed in the order of its sizes, where the problem has one.
    pub bias: Option<&'a [f32]>,
    /// The dense mask, packed in the order of its sizes, where the problem has one: a byte for each pair, or 8
    /// pairs a byte.
    pub mask: Option<&'a [u8]>,
    /// The small inputs (lengths, offsets, temperatures, slopes, sinks, ...), where the problem uses them.
    pub tables: TableData<'a>,
}

impl<'a> Inputs<'a> {
    /// Without bias, mask and tables.
    pub fn new(q: &'a [f32], k: &'a [f32], v: &'a [f32]) -> Self {
        Inputs { q, k, v, bias: None, mask: None, tables: TableData::default() }
    }

    /// With the starts of packed sequences in q, and in k and v, (batch + 1) each: prefix sums of their lengths, from 0.
    pub fn cu_seqlens(mut self, q: &'a [u32], k: &'a [u32]) -> Self {
        (self.tables.cu_seqlens_q, self.tables.cu_seqlens_k) = (Some(q), Some(k));
        self
    }

    /// With the documents of queries, (batch, seq_q), and of keys, (batch, seq_k); of packed sequences (total_q) and (total_k).
    pub fn documents(mut self, q: &'a [i32], k: &'a [i32]) -> Self {
        (self.tables.documents_q, self.tables.documents_k) = (Some(q), Some(k));
        self
    }

    /// With valid query counts, (batch), each at most seq_q.
    pub fn q_len(mut self, q_len: &'a [u32]) -> Self {
        self.tables.q_len = Some(q_len);
        self
    }

    /// With valid key counts, (batch), each at most seq_k.
    pub fn kv_len(mut self, kv_len: &'a [u32]) -> Self {
        self.tables.kv_len = Some(kv_len);
        self
    }

    /// With offsets of the positions, (batch), for [`Alignment::PerBatch`](crate::Alignment::PerBatch).
    pub fn causal_offset(mut self, causal_offset: &'a [i32]) -> Self {
        self.tables.causal_offset = Some(causal_offset);
        self
    }

    /// With temperatures, (q_heads) or (batch, q_heads, seq_q), each finite and above 0.
    pub fn temperature(mut self, temperature: &'a [f32]) -> Self {
        self.tables.temperature = Some(temperature);
        self
    }

    /// With ALiBi slopes, (q_heads), each finite.
    pub fn alibi_slopes(mut self, slopes: &'a [f32]) -> Self {
        self.tables.alibi_slopes = Some(slopes);
        self
    }

    /// With sink logits, (q_heads), each finite.
    pub fn sinks(mut self, sinks: &'a [f32]) -> Self {
        self.tables.sinks = Some(sinks);
        self
    }

    /// With the s of Scalable-Softmax, (q_heads), each finite.
    pub fn ssmax(mut self, s: &'a [f32]) -> Self {
        self.tables.ssmax = Some(s);
        self
    }

    /// With gains of normalised q and k, [`NormGains`](crate::NormGains), each finite.
    pub fn gains(mut self, q_gain: &'a [f32], k_gain: &'a [f32]) -> Self {
        (self.tables.q_gain, self.tables.k_gain) = (Some(q_gain), Some(k_gain));
        self
    }

    /// With seed and offset of dropout.
    pub fn dropout(mut self, seed: u32, offset: u32) -> Self {
        self.tables.dropout = Some([seed, offset]);
        self
    }

    /// With the numbers that score_mod and mask_mod read, as many as [`Problem::user_params`] says; floats by their bits.
    pub fn user(mut self, numbers: &'a [u32]) -> Self {
        self.tables.user = Some(numbers);
        self
    }

    /// With an additive bias, packed in the order of its sizes.
    pub fn bias(mut self, bias: &'a [f32]) -> Self {
        self.bias = Some(bias);
        self
    }

    /// With a dense mask, packed in the order of its sizes: a byte for each pair, or 8 pairs a byte, lowest bit first.
    pub fn mask(mut self, mask: &'a [u8]) -> Self {
        self.mask = Some(mask);
        self
    }

    /// Checks lengths and values against a problem.
    ///
    /// # Errors
    /// What [`Problem::check`] finds, [`Error::Length`], [`Error::Missing`], [`Error::Unused`] or [`Error::Value`].
    pub fn check(&self, problem: &Problem) -> Result<()> {
        problem.check()?;
        for (tensor, slice, layout) in [
            (Tensor::Q, self.q, problem.q_layout),
            (Tensor::K, self.k, problem.k_layout),
            (Tensor::V, self.v, problem.v_layout),
        ] {
            let expected = problem.view(tensor)?.extent();
            let got = slice.len() as u64;
            // A strided tensor may lie in a longer slice, a packed one is exactly its elements.
            let packed = !matches!(layout, Layout::Strided(_));
            if got < expected || (packed && got != expected) {
                return Err(Error::Length { field: tensor.name(), got, expected });
            }
        }
        for (tensor, got, sizes, words) in [
            (
                Tensor::Bias,
                self.bias.map(<[f32]>::len),
                problem.bias.map(|(_, sizes)| sizes),
                ("Problem::bias", "ask for it with Problem::bias"),
            ),
            (
                Tensor::Mask,
                self.mask.map(<[u8]>::len),
                problem.mask.map(|(_, sizes)| sizes),
                ("Problem::mask", "ask for it with Problem::mask"),
            ),
        ] {
            let expected = match sizes {
                Some(sizes) => Some(dense_length(problem, tensor, sizes, got)?),
                None => None,
            };
            tables::present(tensor.name(), got, expected, words)?;
        }
        tables::check(problem, &self.tables)
    }

    /// Looks for NaN and infinity in q, k, v and bias, as they are stored: 70000 in f16 is infinite. Nothing else calls it, so that it costs
    /// only who asks.
    ///
    /// Without it, NaN and infinity are left to the device wherever a row sees them, and that row is unspecified. Many devices carry them
    /// into the result, but none has to: WGSL lets compilers assume that they do not occur.
    ///
    /// In q, k and v, what lies beyond valid queries and keys, between packed sequences or in the gaps of a layout is nobody's number and may
    /// be anything. A bias is looked at whole; -inf in it hides, and is welcome. What masks hide is looked at all the same.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for the first that is found, in the order of batch, head, row and dim; before that what [`Inputs::check`] finds.
    pub fn check_finite(&self, problem: &Problem) -> Result<()> {
        self.check(problem)?;
        let find = |field: &'static str, dtype: DType, index: u64, numbers: &[f32]| {
            let value = numbers.get(index as usize).copied().unwrap_or_default();
            let stored = dtype.round(value);
            match stored.is_finite() || (field == "bias" && stored == f32::NEG_INFINITY) {
                true => Ok(()),
                false => Err(Error::NotFinite { field, index, value, stored }),
            }
        };
        let sequences = Sequences::new(problem, &self.tables);
        for (tensor, numbers, lens) in [
            (Tensor::Q, self.q, self.tables.q_len),
            (Tensor::K, self.k, self.tables.kv_len),
            (Tensor::V, self.v, self.tables.kv_len),
        ] {
            let view = problem.view(tensor)?;
            let [_, heads, _, dims] = view.sizes();
            let dtype = problem.dtypes[tensor as usize];
            for b in 0..problem.shape.batch {
                let is_q = tensor == Tensor::Q;
                let rows = if is_q { sequences.queries(b) } else { sequences.keys(b) };
                let valid = lens.and_then(|lens| lens.get(b as usize)).map_or(rows, |&len| len.min(rows));
                for h in 0..heads {
                    for at in (0..valid).flat_map(|i| (0..dims).map(move |d| [b, h, i, d])) {
                        let index = if is_q { sequences.in_q(&view, at) } else { sequences.in_k(&view, at) };
                        find(tensor.name(), dtype, index as u64, numbers)?;
                    }
                }
            }
        }
        if let (Some((dtype, _)), Some(bias)) = (problem.bias, self.bias) {
            (0..bias.len() as u64).try_for_each(|index| find("bias", dtype, index, bias))?;
        }
        Ok(())
    }
}

/// How many numbers (of a bias) or bytes (of a mask) there have to be. A problem without a pair reads none; what is as long as its own
/// sizes say is welcome there all the same, so that an app may keep it for when there are pairs.
fn dense_length(problem: &Problem, tensor: Tensor, sizes: Broadcast, got: Option<usize>) -> Result<u64> {
    let stored = |elements: u64| if problem.bits(tensor) == 1 { elements.div_ceil(8) } else { elements };
    let view = problem.view(tensor)?;
    let own = stored(sizes.0.iter().fold(1, |n, &size| n.saturating_mul(size.into())));
    Ok(if view.elements() == 0 && got.is_some_and(|got| got as u64 == own) {
        own
    } else {
        stored(view.extent())
    })
}

/// Host results of a problem.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outputs {
    /// The answer, in `Problem::out_layout`, packed where q is; places that a strided layout leaves out are 0. f16 and bf16 are widened to f32.
    pub out: Vec<f32>,
    /// (batch, q_heads, seq_q), or (q_heads, total_q) of packed sequences, as the other statistics; where asked for: natural log of the sum of exp(score).
    pub lse: Option<Vec<f32>>,
    /// (batch, q_heads, seq_q), where asked for: entropy of the weights, in nats.
    pub entropy: Option<Vec<f32>>,
    /// (batch, q_heads, seq_q), where asked for: the largest score of a key.
    pub row_max: Option<Vec<f32>>,
}

impl Attention {
    /// Computes a problem on host slices: plans, compiles what is not compiled yet, makes its buffers, uploads, **submits to
    /// `queue`** and reads back. Nothing of it but the compiled variant is kept, so a loop is better off with
    /// [`Attention::prepare`].
    ///
    /// On native a thread waits for the device meanwhile, so that the future can be awaited on any executor. (On OpenGL that
    /// thread takes its turn at the context.)
    ///
    /// # Errors
    /// What [`Inputs::check`], [`Plan::new`] and [`Attention::prepare`] find; [`Error::LimitExceeded`] for a tensor that is larger
    /// than a buffer of the device may be; [`Error::OutOfMemory`], [`Error::DeviceLost`].
    ///
    /// ```
    /// # #[cfg(not(target_arch = "wasm32"))]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use wgpu_attention::{Attention, Inputs, Problem, Shape, headless};
    /// let gpu = headless::open_blocking(&headless::Options::default())?;
    /// let attention = Attention::new(&gpu.device);
    /// let problem = Problem::new(Shape::self_attention(1, 1, 2, 1));
    /// let inputs = Inputs::new(&[0.0, 0.0], &[1.0, 2.0], &[10.0, 20.0]);
    /// let result = attention.run_blocking(&gpu.queue, &problem, &inputs)?;
    /// assert_eq!(result.out, [15.0, 15.0]); // q = 0 sees both keys alike
    /// # Ok(())
    /// # }
    /// # #[cfg(target_arch = "wasm32")]
    /// # fn main() {}
    /// ```
    pub async fn run(&self, queue: &wgpu::Queue, problem: &Problem, inputs: &Inputs<'_>) -> Result<Outputs> {
        self.run_with(queue, problem, inputs, &PlanOptions::default()).await
    }

    /// [`Attention::run`] with a kernel or tiles of your choice.
    ///
    /// # Errors
    /// As [`Attention::run`].
    pub async fn run_with(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        inputs: &Inputs<'_>,
        options: &PlanOptions,
    ) -> Result<Outputs> {
        inputs.check(problem)?;
        let plan = self.plan_with(problem, options)?;
        self.run_plan(queue, &plan, inputs).await
    }

    /// [`Attention::run`] for a plan made before.
    ///
    /// # Errors
    /// As [`Attention::run`].
    pub async fn run_plan(&self, queue: &wgpu::Queue, plan: &Plan, inputs: &Inputs<'_>) -> Result<Outputs> {
        let submitted = self.submit(queue, plan, inputs, false).await?;
        submitted.read().await
    }

    /// [`Attention::run_plan`] with classes of mask tiles that were found before.
    pub(crate) async fn run_plan_block_mask(
        &self,
        queue: &wgpu::Queue,
        plan: &Plan,
        inputs: &Inputs<'_>,
    ) -> Result<Outputs> {
        let submitted = self.submit(queue, plan, inputs, true).await?;
        submitted.read().await
    }

    /// [`Attention::run`] for code that is not async: waits for the device.
    ///
    /// # Errors
    /// As [`Attention::run`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_blocking(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        inputs: &Inputs<'_>,
    ) -> Result<Outputs> {
        self.run_with_blocking(queue, problem, inputs, &PlanOptions::default())
    }

    /// [`Attention::run_with`] for code that is not async: waits for the device.
    ///
    /// # Errors
    /// As [`Attention::run`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_with_blocking(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        inputs: &Inputs<'_>,
        options: &PlanOptions,
    ) -> Result<Outputs> {
        pollster::block_on(self.run_with(queue, problem, inputs, options))
    }

    async fn submit(
        &self,
        queue: &wgpu::Queue,
        plan: &Plan,
        inputs: &Inputs<'_>,
        block_mask: bool,
    ) -> Result<Submitted> {
        inputs.check(plan.problem())?;
        if plan.slices().is_empty() {
            return Ok(Submitted { plan: plan.clone(), readback: None });
        }
        let host = self.bind_host_with(plan, inputs, block_mask).await?;
        let parts: Vec<_> = [(&host.out, plan.tensor_bytes(Tensor::Out))]
            .into_iter()
            .chain(host.stats.as_ref().map(|stats| (stats, plan.stats_bytes())))
            .collect();
        let bytes = parts.iter().map(|p| p.1).sum();
        let target = readback::Target::new(self.context(), bytes).await?;

        let mut encoder = self
            .device()
            .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("attention") });
        if let Some(block_mask) = &host.block_mask {
            block_mask.encode(&mut encoder);
        }
        host.bound.encode(&mut encoder);
        let mut at = 0;
        for (buffer, bytes) in &parts {
            encoder.copy_buffer_to_buffer(buffer, 0, target.buffer(), at, *bytes);
            at += bytes;
        }
        let submission = queue.submit([encoder.finish()]);
        Ok(Submitted { plan: plan.clone(), readback: Some(target.map(self.context(), submission)?) })
    }

    /// Uploads host inputs, makes the outputs and binds them all. The inputs were checked.
    pub(crate) async fn bind_host(&self, plan: &Plan, inputs: &Inputs<'_>) -> Result<HostBound> {
        self.bind_host_with(plan, inputs, false).await
    }

    async fn bind_host_with(&self, plan: &Plan, inputs: &Inputs<'_>, block_mask: bool) -> Result<HostBound> {
        let problem = plan.problem();
        let prepared = self.prepare(plan).await?;
        let storage = wgpu::BufferUsages::STORAGE;
        let results = storage | wgpu::BufferUsages::COPY_SRC;
        let [q_type, k_type, v_type, _] = problem.dtypes;
        let q = self.upload("q", &q_type.encode(inputs.q), storage).await?;
        let k = self.upload("k", &k_type.encode(inputs.k), storage).await?;
        let v = self.upload("v", &v_type.encode(inputs.v), storage).await?;
        let unset = async |label, bytes| {
            create_buffer_unset(self.context(), label, bytes, results).await.map(Temporary)
        };
        let out = unset("out", plan.tensor_bytes(Tensor::Out)).await?;
        let stats = match plan.stats_bytes() {
            0 => None,
            bytes => Some(unset("stats", bytes).await?),
        };
        let bias = match (problem.bias, inputs.bias) {
            (Some((dtype, _)), Some(data)) => Some(self.upload("bias", &dtype.encode(data), storage).await?),
            _ => None,
        };
        let mask = match inputs.mask {
            Some(data) => Some(self.upload("mask", data, storage).await?),
            None => None,
        };
        let tables = match plan.tables().bytes() {
            0 => None,
            _ => Some(self.upload("tables", &plan.tables().pack(problem, &inputs.tables)?, storage).await?),
        };
        let mut buffers = Buffers::new(&*q, &*k, &*v, &*out);
        buffers.bias = bias.as_deref().map(Into::into);
        buffers.mask = mask.as_deref().map(Into::into);
        buffers.stats = stats.as_deref().map(Into::into);
        buffers.tables = tables.as_deref().map(Into::into);
        let block_mask = if block_mask { Some(prepared.block_mask(&buffers).await?) } else { None };
        buffers.block_mask = block_mask.as_ref();
        let bound = prepared.bind(&buffers)?;
        let read = [Some(q), Some(k), Some(v), bias, mask, tables].into_iter().flatten().collect();
        Ok(HostBound { bound, block_mask, out, stats, _read: read })
    }

    async fn upload<T: bytemuck::NoUninit>(
        &self,
        label: &str,
        data: &[T],
        usage: wgpu::BufferUsages,
    ) -> Result<Temporary> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        create_buffer(self.context(), label, bytes.len() as u64, usage, |mapped| {
            mapped.copy_from_slice(bytes);
        })
        .await
        .map(Temporary)
    }
}

/// A bound plan with buffers of its own. They are given back with it, so let it go only after its commands were submitted.
pub(crate) struct HostBound {
    pub(crate) bound: Bound,
    block_mask: Option<BlockMask>,
    out: Temporary,
    stats: Option<Temporary>,
    _read: Vec<Temporary>,
}

impl Drop for HostBound {
    fn drop(&mut self) {
        self.bound.destroy();
    }
}

/// Work on its way: what is left to do is to wait for the readback.
struct Submitted {
    plan: Plan,
    readback: Option<readback::Pending>,
}

impl Submitted {
    async fn read(self) -> Result<Outputs> {
        let bytes = match self.readback {
            Some(pending) => pending.read().await?,
            None => Vec::new(),
        };
        let part = |range: core::ops::Range<u64>| {
            bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
        };
        let problem = self.plan.problem();
        let out_bytes = if bytes.is_empty() { 0 } else { self.plan.tensor_bytes(Tensor::Out) };
        let mut out = problem.dtypes[Tensor::Out as usize].decode(part(0..out_bytes));
        // The buffer is whole words; an odd number of 16-bit elements leaves one over.
        out.truncate(problem.view(Tensor::Out)?.extent() as usize);
        let stat = |stat| {
            let range = self.plan.stats_range(stat)?;
            Some(DType::F32.decode(part(out_bytes + range.start..out_bytes + range.end)))
        };
        Ok(Outputs { out, lse: stat(Stat::Lse), entropy: stat(Stat::Entropy), row_max: stat(Stat::RowMax) })
    }
}

/// The error of a host call on a device that is gone.
pub(crate) fn lost(what: impl core::fmt::Display) -> Error {
    Error::DeviceLost(what.to_string())
}
