//! The one-shot call: host slices in, host vectors out. For scripts, tests and first steps.

use crate::attention::Attention;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::plan::{Plan, PlanOptions, Stat, TableData, tables};
use crate::prepared::{Buffers, create_buffer, create_buffer_unset};
use crate::problem::{Problem, Tensor};
use crate::readback;

/// Host inputs of a problem.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Inputs<'a> {
    /// Queries, in `Problem::q_layout`.
    pub q: &'a [f32],
    /// Keys, in `Problem::k_layout`.
    pub k: &'a [f32],
    /// Values, in `Problem::v_layout`.
    pub v: &'a [f32],
    /// Lengths, offsets and temperatures, where the problem uses them.
    pub tables: TableData<'a>,
}

impl<'a> Inputs<'a> {
    /// Without tables.
    pub fn new(q: &'a [f32], k: &'a [f32], v: &'a [f32]) -> Self {
        Inputs { q, k, v, tables: TableData::default() }
    }

    /// With valid key counts, one for each batch.
    pub fn kv_len(mut self, kv_len: &'a [u32]) -> Self {
        self.tables.kv_len = Some(kv_len);
        self
    }

    /// With causal offsets, one for each batch.
    pub fn causal_offset(mut self, causal_offset: &'a [i32]) -> Self {
        self.tables.causal_offset = Some(causal_offset);
        self
    }

    /// With temperatures, one for each head or each row.
    pub fn temperature(mut self, temperature: &'a [f32]) -> Self {
        self.tables.temperature = Some(temperature);
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
        tables::check(problem, &self.tables)
    }
}

/// Host results of a problem.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outputs {
    /// The answer, in `Problem::out_layout`; places that a strided layout leaves out are 0.
    pub out: Vec<f32>,
    /// (batch, q_heads, seq_q), where asked for.
    pub lse: Option<Vec<f32>>,
    /// (batch, q_heads, seq_q), where asked for.
    pub entropy: Option<Vec<f32>>,
    /// (batch, q_heads, seq_q), where asked for.
    pub row_max: Option<Vec<f32>>,
}

impl Attention {
    /// Computes a problem on host slices: uploads, **submits to `queue`** and reads back.
    ///
    /// On native a thread waits for the device meanwhile, so that the future can be awaited on any executor.
    ///
    /// # Errors
    /// What [`Inputs::check`] and [`Plan::new`] find; [`Error::OutOfMemory`], [`Error::DeviceLost`].
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

    /// [`Attention::run`] with choices of your own.
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
        let submitted = self.submit(queue, plan, inputs).await?;
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

    async fn submit(&self, queue: &wgpu::Queue, plan: &Plan, inputs: &Inputs<'_>) -> Result<Submitted> {
        let problem = plan.problem();
        inputs.check(problem)?;
        if plan.slices().is_empty() {
            return Ok(Submitted { plan: plan.clone(), readback: None });
        }
        let prepared = self.prepare(plan).await?;
        let storage = wgpu::BufferUsages::STORAGE;
        let results = storage | wgpu::BufferUsages::COPY_SRC;
        let q = self.upload("q", inputs.q, storage).await?;
        let k = self.upload("k", inputs.k, storage).await?;
        let v = self.upload("v", inputs.v, storage).await?;
        let out_bytes = plan.tensor_bytes(Tensor::Out);
        let out = create_buffer_unset(self, "out", out_bytes, results).await?;
        let mut buffers = Buffers::new(&q, &k, &v, &out);
        let stats;
        if plan.stats_bytes() > 0 {
            stats = create_buffer_unset(self, "stats", plan.stats_bytes(), results).await?;
            buffers = buffers.stats(&stats);
        }
        let tables;
        if plan.tables().bytes() > 0 {
            let words = plan.tables().pack(problem, &inputs.tables)?;
            tables = self.upload("tables", &words, storage).await?;
            buffers = buffers.tables(&tables);
        }
        let bound = prepared.bind(&buffers)?;
        let parts =
            [(&out, out_bytes)].into_iter().chain(buffers.stats.map(|s| (s.buffer, plan.stats_bytes())));
        let parts: Vec<_> = parts.collect();
        let bytes = parts.iter().map(|p| p.1).sum();
        let target = readback::Target::new(self, bytes).await?;

        let mut encoder = self
            .device()
            .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("attention") });
        bound.encode(&mut encoder);
        let mut at = 0;
        for (buffer, bytes) in parts {
            encoder.copy_buffer_to_buffer(buffer, 0, target.buffer(), at, bytes);
            at += bytes;
        }
        let submission = queue.submit([encoder.finish()]);
        Ok(Submitted { plan: plan.clone(), readback: Some(target.map(self, submission)?) })
    }

    async fn upload<T: bytemuck::NoUninit>(
        &self,
        label: &str,
        data: &[T],
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        create_buffer(self, label, bytes.len() as u64, usage, |mapped| {
            mapped.copy_from_slice(bytes);
        })
        .await
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
        let floats = |range: core::ops::Range<u64>| -> Vec<f32> {
            bytes
                .get(range.start as usize..range.end as usize)
                .unwrap_or_default()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect()
        };
        let out_bytes = if bytes.is_empty() { 0 } else { self.plan.tensor_bytes(Tensor::Out) };
        let stat = |stat| {
            let range = self.plan.stats_range(stat)?;
            Some(floats(out_bytes + range.start..out_bytes + range.end))
        };
        Ok(Outputs {
            out: floats(0..out_bytes),
            lse: stat(Stat::Lse),
            entropy: stat(Stat::Entropy),
            row_max: stat(Stat::RowMax),
        })
    }
}

/// The error of a host call on a device that is gone.
pub(crate) fn lost(what: impl core::fmt::Display) -> Error {
    Error::DeviceLost(what.to_string())
}
