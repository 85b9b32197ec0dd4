//! From a plan to commands: `Prepared` (compiled), `Bound` (with buffers), `encode`.

use crate::attention::{Attention, Pipelines};
use crate::buffers::{self, BufferRef, Buffers, Given, MaskBuffers};
use crate::context::{CompiledPass, Context, bound};
use crate::error::{Error, Result};
use crate::kernel::Binding;
use crate::memory::{create_buffer, create_buffer_unset};
use crate::plan::{Plan, Slice, Span, TileClasses};
use crate::shader::params::Params;
use crate::tensor::Tensor;
use core::ops::Range;
use std::collections::HashMap;
use std::sync::Arc;

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
    /// The naive kernel's score matrix, or the classes of mask tiles. Calls may share it, because each writes it before reading it and
    /// the dispatches of a queue take turns.
    scratch: Option<wgpu::Buffer>,
}

impl Prepared {
    pub(crate) async fn new(attention: Attention, plan: Plan, pipelines: Arc<Pipelines>) -> Result<Self> {
        let label = plan.key().to_string();
        let stride = plan.params_stride();
        let params = create_buffer(
            attention.context(),
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
                Some(create_buffer_unset(attention.context(), &label, bytes, usage).await?)
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
        let Some(mask) = buffers.block_mask else {
            return self.bind_passes(&buffers.into(), None, 0..usize::MAX);
        };
        match self.plan().classes() {
            None => Err(Error::Unused {
                field: "block_mask",
                hint: "the plan classifies no mask tiles, see Plan::classes_reason",
            }),
            Some(classes) if classes != mask.classes() => Err(Error::Value {
                field: "block_mask",
                value: format!("of {:?}", mask.classes()),
                rule: "of the same tiles, batches and heads as the plan's",
            }),
            // The first pass is the one that finds classes.
            Some(_) => self.bind_passes(&buffers.into(), Some(mask.buffer()), 1..usize::MAX),
        }
    }

    pub(crate) fn context(&self) -> &Context {
        self.shared.attention.context()
    }

    /// Binds what the pass that finds classes of mask tiles reads, and a buffer for the classes.
    pub(crate) fn bind_classes(&self, buffers: MaskBuffers<'_>, classes: &wgpu::Buffer) -> Result<Bound> {
        self.bind_passes(&buffers.into(), Some(classes), 0..1)
    }

    /// Binds some of the passes, if need be with a buffer of the caller's for classes.
    fn bind_passes(
        &self,
        buffers: &Given<'_>,
        classes: Option<&wgpu::Buffer>,
        which: Range<usize>,
    ) -> Result<Bound> {
        let plan = self.plan();
        self.check(buffers)?;
        let classes = classes.or(self.shared.scratch.as_ref());
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
                            .take(which.end)
                            .skip(which.start)
                            .map(|(pass, n)| self.bind_group(buffers, classes, slice, pass, n))
                            .collect(),
                    );
                    groups.len() - 1
                })
            })
            .collect();
        Ok(Bound { prepared: self.clone(), groups, group_of_slice, first_pass: which.start })
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

    fn check(&self, buffers: &Given<'_>) -> Result<()> {
        let plan = self.plan();
        if plan.slices().is_empty() {
            return Ok(());
        }
        // Nothing but masks writes no statistics.
        let stats = if buffers.main.is_some() { plan.stats_bytes() } else { 0 };
        let tables = plan.tables().bytes();
        let has = |tensor| plan.tensor_bytes(tensor) > 0;
        let problem = plan.problem();
        for (field, given, needed, why, hint) in [
            (
                "bias",
                buffers.masks.bias.is_some(),
                problem.bias.is_some() && has(Tensor::Bias),
                "Problem::bias",
                "ask for it with Problem::bias",
            ),
            (
                "mask",
                buffers.masks.mask.is_some(),
                problem.mask.is_some() && has(Tensor::Mask),
                "Problem::mask",
                "ask for it with Problem::mask",
            ),
            (
                "stats",
                buffers.stats().is_some(),
                stats > 0,
                "Problem::stats",
                "ask for a statistic, as with Problem::with_lse",
            ),
            (
                "tables",
                buffers.masks.tables.is_some(),
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
        let block_mask = buffers.block_mask.map(|mask| BufferRef::from(mask.buffer()));
        let classes = plan.classes().map_or(0, TileClasses::bytes);
        let all: Vec<_> = tensors
            .into_iter()
            .chain([
                ("stats", buffers.stats(), stats),
                ("tables", buffers.masks.tables, tables),
                ("block_mask", block_mask, classes),
            ])
            .filter_map(|(field, buffer, bytes)| {
                let written = matches!(field, "out" | "stats");
                Some(buffers::Binding { field, buffer: buffer?, bytes, written })
            })
            .collect();
        buffers::check(&all, plan.binding_alignment())
    }

    fn bind_group(
        &self,
        buffers: &Given<'_>,
        classes: Option<&wgpu::Buffer>,
        slice: &Slice,
        pass: &CompiledPass,
        number: usize,
    ) -> wgpu::BindGroup {
        let shared = &self.shared;
        let plan = &shared.plan;
        let nothing = &shared.attention.context().nothing;
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
                Binding::Stats => buffers.stats().map(|b| (b.buffer, b.offset, plan.stats_bytes())),
                Binding::Tables => buffers.masks.tables.map(|b| (b.buffer, b.offset, plan.tables().bytes())),
                Binding::Classes | Binding::NewClasses => {
                    let bytes = plan.classes().map_or(0, |classes| classes.bytes());
                    classes.map(|b| (b, 0, bytes))
                }
                Binding::Scores => shared.scratch.as_ref().map(|b| (b, 0, plan.scratch_bytes())),
            };
            match part {
                Some((buffer, offset, bytes)) if bytes > 0 => bound(at, buffer, offset, bytes),
                _ => bound(at, nothing, 0, 16),
            }
        };
        let params = bound(0, &shared.params, 0, size_of::<Params>() as u64);
        let kernel_pass = &plan.key().passes()[number];
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
    /// The pass that the first group of each set is of: those before it are left out.
    first_pass: usize,
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

    /// Records the passes that find classes of mask tiles, once for what slices have in common.
    pub(crate) fn encode_classes(&self, pass: &mut wgpu::ComputePass<'_>) {
        let plan = self.plan();
        let Some(classes) = plan.classes() else {
            return;
        };
        for (number, slice) in plan.slices().iter().enumerate() {
            if classes.is_first(slice.params.first_batch, slice.params.first_head) {
                self.encode_passes(pass, number, 1);
            }
        }
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

    /// Records the passes that are bound, as far as the last of these.
    fn encode_passes(&self, pass: &mut wgpu::ComputePass<'_>, slice: usize, end: usize) {
        let shared = &self.prepared.shared;
        let (Some(part), Some(&group)) = (shared.plan.slices().get(slice), self.group_of_slice.get(slice))
        else {
            return;
        };
        // At most 2^16 slices, with a stride of a few hundred bytes.
        let offset = slice as u32 * shared.plan.params_stride() as u32;
        let passes = shared.pipelines.passes.iter().zip(&part.workgroups).take(end).skip(self.first_pass);
        for ((compiled, &[x, y]), bind_group) in passes.zip(&self.groups[group]) {
            // The naive kernel has passes with nothing to do where there is no key.
            if x == 0 || y == 0 {
                continue;
            }
            pass.set_pipeline(&compiled.pipeline);
            pass.set_bind_group(0, bind_group, &[offset]);
            pass.dispatch_workgroups(x, y, 1);
        }
    }

    /// Gives back the device memory of the plan that it was made of, for a caller who knows that nobody else has it.
    pub(crate) fn destroy(&self) {
        let shared = &self.prepared.shared;
        shared.params.destroy();
        if let Some(scratch) = &shared.scratch {
            scratch.destroy();
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.prepared.plan()
    }
}
