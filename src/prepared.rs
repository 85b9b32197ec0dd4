//! From a plan to commands: `Prepared` (compiled), `Bound` (with buffers), `encode`.

use crate::attention::{Attention, CompiledPass, Pipelines};
use crate::error::{Error, Result};
use crate::host::lost;
use crate::kernel::Binding;
use crate::plan::{Plan, Slice, Span};
use crate::problem::Tensor;
use crate::shader::params::Params;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

/// A buffer of the caller's and where in it a tensor begins.
#[derive(Debug, Clone, Copy)]
pub struct BufferRef<'a> {
    /// Created with `BufferUsages::STORAGE`.
    pub buffer: &'a wgpu::Buffer,
    /// In bytes; a multiple of the device's `min_storage_buffer_offset_alignment` (usually 256 or less). A finer
    /// offset goes into [`Layout::Strided`](crate::Layout::Strided).
    pub offset: u64,
}

impl<'a> From<&'a wgpu::Buffer> for BufferRef<'a> {
    fn from(buffer: &'a wgpu::Buffer) -> Self {
        BufferRef { buffer, offset: 0 }
    }
}

/// The buffers of one call, each with `BufferUsages::STORAGE`. q, k, v, bias, mask and tables may share a buffer; out and stats each
/// need one that nothing else of the call is in.
#[derive(Debug, Clone, Copy)]
pub struct Buffers<'a> {
    /// Queries.
    pub q: BufferRef<'a>,
    /// Keys.
    pub k: BufferRef<'a>,
    /// Values.
    pub v: BufferRef<'a>,
    /// The answer. Every element of it is written, and nothing else.
    pub out: BufferRef<'a>,
    /// The additive bias, packed in the order of its sizes; needed when the problem has one.
    pub bias: Option<BufferRef<'a>>,
    /// The dense mask, packed in the order of its sizes; needed when the problem has one.
    pub mask: Option<BufferRef<'a>>,
    /// The statistics, [`Plan::stats_bytes`] long; needed when the problem asks for one.
    pub stats: Option<BufferRef<'a>>,
    /// The small inputs as [`Plan::tables`] lays them out; needed when the problem uses one.
    pub tables: Option<BufferRef<'a>>,
}

impl<'a> Buffers<'a> {
    /// Without bias, mask, statistics and tables.
    pub fn new(
        q: impl Into<BufferRef<'a>>,
        k: impl Into<BufferRef<'a>>,
        v: impl Into<BufferRef<'a>>,
        out: impl Into<BufferRef<'a>>,
    ) -> Self {
        Buffers {
            q: q.into(),
            k: k.into(),
            v: v.into(),
            out: out.into(),
            bias: None,
            mask: None,
            stats: None,
            tables: None,
        }
    }

    /// With a buffer for the statistics.
    pub fn stats(mut self, stats: impl Into<BufferRef<'a>>) -> Self {
        self.stats = Some(stats.into());
        self
    }

    /// With a buffer of small inputs.
    pub fn tables(mut self, tables: impl Into<BufferRef<'a>>) -> Self {
        self.tables = Some(tables.into());
        self
    }

    /// With a buffer for the additive bias.
    pub fn bias(mut self, bias: impl Into<BufferRef<'a>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// With a buffer for the dense mask.
    pub fn mask(mut self, mask: impl Into<BufferRef<'a>>) -> Self {
        self.mask = Some(mask.into());
        self
    }

    fn tensor(&self, tensor: Tensor) -> Option<BufferRef<'a>> {
        match tensor {
            Tensor::Q => Some(self.q),
            Tensor::K => Some(self.k),
            Tensor::V => Some(self.v),
            Tensor::Out => Some(self.out),
            Tensor::Bias => self.bias,
            Tensor::Mask => self.mask,
        }
    }
}

/// A plan whose variant is compiled. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Prepared {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    attention: Attention,
    plan: Plan,
    pipelines: Arc<Pipelines>,
    label: String,
    /// One [`Params`] for each slice. Written once: calls differ only in their buffers, so calls in one submission
    /// cannot disturb each other.
    params: wgpu::Buffer,
    /// The naive kernel's score matrix. Calls may share it, because each writes it before reading it and
    /// the dispatches of a queue take turns.
    scratch: Option<wgpu::Buffer>,
}

impl Prepared {
    pub(crate) async fn new(attention: Attention, plan: Plan, pipelines: Arc<Pipelines>) -> Result<Self> {
        let label = plan.key().to_string();
        let stride = plan.params_stride();
        let params = create_buffer(
            &attention,
            &label,
            stride * plan.slices().len().max(1) as u64,
            wgpu::BufferUsages::UNIFORM,
            |bytes| {
                for (n, slice) in plan.slices().iter().enumerate() {
                    let at = n * stride as usize;
                    let words = bytemuck::bytes_of(&slice.params);
                    bytes[at..at + words.len()].copy_from_slice(words);
                }
            },
        )
        .await?;
        let scratch = match plan.scratch_bytes() {
            0 => None,
            bytes => {
                let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
                Some(create_buffer_unset(&attention, &label, bytes, usage).await?)
            }
        };
        Ok(Prepared { shared: Arc::new(Shared { attention, plan, pipelines, label, params, scratch }) })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Checks the buffers and binds them. What comes out can be encoded any number of times.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], [`Error::BufferUsage`], [`Error::Offset`], [`Error::Aliased`],
    /// [`Error::Missing`] or [`Error::Unused`], naming the buffer.
    pub fn bind(&self, buffers: &Buffers<'_>) -> Result<Bound> {
        let plan = self.plan();
        self.check(buffers)?;
        let passes = &self.shared.pipelines.passes;
        let mut groups: Vec<Vec<wgpu::BindGroup>> = Vec::new();
        let mut known: HashMap<[Span; 6], usize> = HashMap::new();
        let group_of_slice = plan
            .slices()
            .iter()
            .map(|slice| {
                *known.entry(slice.spans).or_insert_with(|| {
                    groups.push(
                        passes
                            .iter()
                            .zip(0..)
                            .map(|(pass, n)| self.bind_group(buffers, slice, pass, n))
                            .collect(),
                    );
                    groups.len() - 1
                })
            })
            .collect();
        Ok(Bound { prepared: self.clone(), groups, group_of_slice })
    }

    /// Binds and encodes in one call. This creates bind groups, so a loop that reuses its buffers is better off with
    /// [`Prepared::bind`].
    ///
    /// # Errors
    /// As [`Prepared::bind`].
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder, buffers: &Buffers<'_>) -> Result<()> {
        self.bind(buffers)?.encode(encoder);
        Ok(())
    }

    fn check(&self, buffers: &Buffers<'_>) -> Result<()> {
        let plan = self.plan();
        if plan.slices().is_empty() {
            return Ok(());
        }
        let stats = plan.stats_bytes();
        let tables = plan.tables().bytes();
        let has = |tensor| plan.tensor_bytes(tensor) > 0;
        let problem = plan.problem();
        for (field, given, needed, why, hint) in [
            (
                "bias",
                buffers.bias.is_some(),
                problem.bias.is_some() && has(Tensor::Bias),
                "Problem::bias",
                "ask for it with Problem::bias",
            ),
            (
                "mask",
                buffers.mask.is_some(),
                problem.mask.is_some() && has(Tensor::Mask),
                "Problem::mask",
                "ask for it with Problem::mask",
            ),
            (
                "stats",
                buffers.stats.is_some(),
                stats > 0,
                "Problem::stats",
                "ask for a statistic, as with Problem::with_lse",
            ),
            (
                "tables",
                buffers.tables.is_some(),
                tables > 0,
                "an option of it reads a table, see Plan::tables",
                "no option of it reads a table",
            ),
        ] {
            // A tensor that the problem has, but without elements, may be given or not.
            let wanted = match field {
                "bias" => problem.bias.is_some(),
                "mask" => problem.mask.is_some(),
                _ => needed,
            };
            match given {
                false if needed => return Err(Error::Missing { field, why }),
                true if !wanted => return Err(Error::Unused { field, hint }),
                _ => {}
            }
        }
        let tensors = Tensor::ALL.map(|t| (t.name(), buffers.tensor(t), plan.tensor_bytes(t)));
        let all = tensors
            .into_iter()
            .chain([("stats", buffers.stats, stats), ("tables", buffers.tables, tables)])
            .filter_map(|(field, buffer, bytes)| Some((field, buffer?, bytes)))
            .filter(|&(_, _, bytes)| bytes > 0);
        let all: Vec<_> = all.collect();
        for &(field, BufferRef { buffer, offset }, needed) in &all {
            if !buffer.usage().contains(wgpu::BufferUsages::STORAGE) {
                return Err(Error::BufferUsage { field, usage: "STORAGE" });
            }
            let alignment = plan.binding_alignment();
            if !offset.is_multiple_of(alignment) {
                return Err(Error::Offset { field, offset, alignment });
            }
            let available = buffer.size().saturating_sub(offset);
            if needed > available {
                return Err(Error::BufferTooSmall { field, needed, available });
            }
        }
        for &(written, out, _) in all.iter().filter(|b| matches!(b.0, "out" | "stats")) {
            for &(read, other, _) in &all {
                if read != written && out.buffer == other.buffer {
                    return Err(Error::Aliased { written, read });
                }
            }
        }
        Ok(())
    }

    fn bind_group(
        &self,
        buffers: &Buffers<'_>,
        slice: &Slice,
        pass: &CompiledPass,
        number: usize,
    ) -> wgpu::BindGroup {
        let shared = &self.shared;
        let plan = &shared.plan;
        let nothing = &shared.attention.inner.nothing;
        let entry = |binding, buffer, offset, size| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset,
                size: NonZeroU64::new(size),
            }),
        };
        let storage = |binding: Binding| {
            let at = binding.number();
            // check() has seen that what is needed is there; what is not needed has no element.
            let part = match binding {
                Binding::Tensor(tensor) => {
                    let bits = u64::from(plan.problem().bits(tensor));
                    let Span { start, len } = slice.spans[tensor as usize];
                    let bytes = (len * bits).div_ceil(32) * 4;
                    buffers.tensor(tensor).map(|b| (b.buffer, b.offset + start * bits / 8, bytes))
                }
                Binding::Stats => buffers.stats.map(|b| (b.buffer, b.offset, plan.stats_bytes())),
                Binding::Tables => buffers.tables.map(|b| (b.buffer, b.offset, plan.tables().bytes())),
                Binding::Scores => shared.scratch.as_ref().map(|b| (b, 0, plan.scratch_bytes())),
            };
            match part {
                Some((buffer, offset, bytes)) if bytes > 0 => entry(at, buffer, offset, bytes),
                _ => entry(at, nothing, 0, 16),
            }
        };
        let params = entry(0, &shared.params, 0, size_of::<Params>() as u64);
        let kernel_pass = &plan.kernel().passes()[number];
        let entries: Vec<_> =
            [params].into_iter().chain(kernel_pass.bindings(plan.key()).map(storage)).collect();
        shared.attention.device().create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&shared.label),
            layout: &pass.layout,
            entries: &entries,
        })
    }
}

/// A plan with its buffers: ready to be recorded, any number of times, into any encoder of the device.
#[derive(Debug, Clone)]
pub struct Bound {
    prepared: Prepared,
    /// For each set of spans, one for each pass.
    groups: Vec<Vec<wgpu::BindGroup>>,
    group_of_slice: Vec<usize>,
}

impl Bound {
    /// Records one compute pass. Nothing is submitted, nothing allocated.
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        self.encode_timed(encoder, None);
    }

    /// [`Bound::encode`] with timestamps at the beginning and end of the pass.
    pub fn encode_timed(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some(&self.prepared.shared.label),
            timestamp_writes,
        });
        self.encode_in_pass(&mut pass);
    }

    /// Records into a compute pass of the caller's. Leaves its pipeline and bind group 0 changed.
    pub fn encode_in_pass(&self, pass: &mut wgpu::ComputePass<'_>) {
        for slice in 0..self.slices() {
            self.encode_slice(pass, slice);
        }
    }

    /// Number of slices: more than 1 where the planner cut the problem up so that no dispatch takes too long or
    /// binds too much. An app may submit between them.
    pub fn slices(&self) -> usize {
        self.group_of_slice.len()
    }

    /// Records one slice. A number beyond the last records nothing.
    pub fn encode_slice(&self, pass: &mut wgpu::ComputePass<'_>, slice: usize) {
        self.encode_passes(pass, slice, usize::MAX);
    }

    /// Records the first passes of the naive kernel and copies its scores out, slice by slice. For problems of one
    /// head, whose slices are rows one after the other.
    pub(crate) fn encode_scores(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        passes: usize,
        target: &wgpu::Buffer,
    ) {
        let shared = &self.prepared.shared;
        let Some(scratch) = &shared.scratch else {
            return;
        };
        let mut at = 0;
        for (number, slice) in shared.plan.slices().iter().enumerate() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some(&shared.label),
                timestamp_writes: None,
            });
            self.encode_passes(&mut pass, number, passes);
            drop(pass);
            let bytes = u64::from(slice.params.rows) * u64::from(slice.params.seq_k) * 4;
            encoder.copy_buffer_to_buffer(scratch, 0, target, at, bytes);
            at += bytes;
        }
    }

    fn encode_passes(&self, pass: &mut wgpu::ComputePass<'_>, slice: usize, count: usize) {
        let shared = &self.prepared.shared;
        let (Some(part), Some(&group)) = (shared.plan.slices().get(slice), self.group_of_slice.get(slice))
        else {
            return;
        };
        // At most 2^16 slices, with a stride of a few hundred bytes.
        let offset = slice as u32 * shared.plan.params_stride() as u32;
        let passes = shared.pipelines.passes.iter().zip(&self.groups[group]).take(count);
        for ((compiled, bind_group), &[x, y]) in passes.zip(&part.workgroups) {
            // The naive kernel has passes with nothing to do where there is no key.
            if x == 0 || y == 0 {
                continue;
            }
            pass.set_pipeline(&compiled.pipeline);
            pass.set_bind_group(0, bind_group, &[offset]);
            pass.dispatch_workgroups(x, y, 1);
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.prepared.plan()
    }
}

/// A buffer with contents; running out of memory is an error and not a panic.
pub(crate) async fn create_buffer(
    attention: &Attention,
    label: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
    fill: impl FnOnce(&mut [u8]),
) -> Result<wgpu::Buffer> {
    // Mapped buffers come in multiples of four bytes, and none is empty.
    let size = bytes.next_multiple_of(4).max(4);
    let mut contents = vec![0; bytes as usize];
    fill(&mut contents);
    let buffer = create(attention, label, size, usage, true).await?;
    {
        // Memory was there, or create() would have said so. What is left is a device that is gone: it makes invalid buffers
        // and reports nothing.
        let mut mapped = buffer.get_mapped_range_mut(..).map_err(lost)?;
        mapped.slice(..bytes as usize).copy_from_slice(&contents);
    }
    buffer.unmap();
    Ok(buffer)
}

/// A buffer of zeros.
pub(crate) async fn create_buffer_unset(
    attention: &Attention,
    label: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> Result<wgpu::Buffer> {
    create(attention, label, bytes.next_multiple_of(4).max(4), usage, false).await
}

async fn create(
    attention: &Attention,
    label: &str,
    size: u64,
    usage: wgpu::BufferUsages,
    mapped_at_creation: bool,
) -> Result<wgpu::Buffer> {
    let available = attention.caps().max_buffer_size;
    if size > available {
        return Err(Error::LimitExceeded {
            what: label.to_owned(),
            limit: "max_buffer_size",
            needed: size,
            available,
            advice: "ask for a device with larger limits (helpful_limits), or call once for each batch",
        });
    }
    let device = attention.device();
    let scope = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let buffer =
        device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation });
    match scope.pop().await {
        None => Ok(buffer),
        Some(_) => Err(Error::OutOfMemory { label: label.to_owned(), bytes: size }),
    }
}
