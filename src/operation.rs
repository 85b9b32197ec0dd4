//! The way of a call that [`Softmax`](crate::Softmax), [`Sampler`](crate::Sampler) and [`Backward`](crate::Backward) share:
//! an [`Operation`] (a device, and what is compiled on it), a plan (how), [`Prepared`] (compiled), [`Bound`] (with your buffers), commands in
//! your encoder. Each of their modules has these types under names of its own, such as [`softmax::Bound`](crate::softmax::Bound).

use crate::buffers::{self, Binding, BufferRef};
use crate::caps::Caps;
use crate::context::{CompiledPass, Context, Slot, Variants, bound};
use crate::error::{Error, Result};
use crate::memory::{create_buffer, create_buffer_unset};
use crate::program::{Dispatch, Part, Planned, Role, Shader};
use crate::readback::Target;
use core::fmt;
use std::collections::HashMap;
use std::sync::Arc;

/// An operation on a device of the app's. Cheap to clone, usable from several threads.
///
/// It never submits or waits, with exceptions that say so: `run` and its kin, which take host slices.
pub struct Operation<P: Planned> {
    inner: Arc<Inner<P>>,
}

struct Inner<P: Planned> {
    context: Context,
    compiled: Variants<P::Shader, CompiledPass>,
}

impl<P: Planned> Clone for Operation<P> {
    fn clone(&self) -> Self {
        Operation { inner: self.inner.clone() }
    }
}

impl<P: Planned> fmt::Debug for Operation<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("device", self.device())
            .field("compiled", &self.compiled())
            .finish()
    }
}

impl<P: Planned> Operation<P> {
    /// For a device of the app's, which may have any limits and no features.
    pub fn new(device: &wgpu::Device) -> Self {
        Self::with_pipeline_cache(device, None)
    }

    /// With the app's own [`wgpu::PipelineCache`], through which compiled variants survive the program.
    pub fn with_pipeline_cache(device: &wgpu::Device, cache: Option<wgpu::PipelineCache>) -> Self {
        let context = Context::new(device, cache);
        Operation { inner: Arc::new(Inner { context, compiled: Variants::default() }) }
    }

    /// The device that everything is made on.
    pub fn device(&self) -> &wgpu::Device {
        &self.context().device
    }

    /// What the device can do, as planning sees it.
    pub fn caps(&self) -> &Caps {
        &self.context().caps
    }

    fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Number of shaders compiled so far.
    pub fn compiled(&self) -> usize {
        self.inner.compiled.len()
    }

    /// Plans a problem for this device.
    ///
    /// # Errors
    /// As the plan's `new`.
    pub fn plan(&self, problem: &P::Problem) -> Result<P> {
        P::of(problem, self.caps())
    }

    async fn compile(&self, shader: &P::Shader) -> Result<Arc<CompiledPass>> {
        if let Some(found) = self.inner.compiled.get(shader) {
            return Ok(found);
        }
        let context = self.context();
        let label = shader.to_string();
        let make = || {
            let module = context.module(&label, shader.source());
            let slots = shader.slots().into_iter().map(|(slot, _)| slot);
            let params = size_of::<<P::Shader as Shader>::Params>();
            context.entry_point(&label, &module, shader.entry_point(), params, slots)
        };
        let compiled = context.scoped(&label, make).await?;
        Ok(self.inner.compiled.keep(shader, compiled))
    }

    /// Compiles what a plan needs (or finds it compiled) and makes its params and scratch. After this, binding and encoding neither
    /// compile nor allocate device memory.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] for a plan made for a device that has more than this one; [`Error::Driver`],
    /// [`Error::OutOfMemory`] or [`Error::DeviceLost`].
    pub async fn prepare(&self, plan: &P) -> Result<Prepared<P>> {
        let (program, context) = (plan.program(), self.context());
        program.fits(self.caps())?;
        let mut passes = Vec::new();
        for dispatch in &program.dispatches {
            passes.push(self.compile(&dispatch.shader).await?);
        }
        let stride = program.stride();
        let bytes = stride * program.dispatches.len().max(1) as u64;
        let params = create_buffer(context, &program.label, bytes, wgpu::BufferUsages::UNIFORM, |bytes| {
            for (dispatch, place) in program.dispatches.iter().zip(bytes.chunks_exact_mut(stride as usize)) {
                let words = bytemuck::bytes_of(&dispatch.params);
                place[..words.len()].copy_from_slice(words);
            }
        })
        .await?;
        let scratch = match program.scratch_bytes {
            0 => None,
            bytes => {
                Some(create_buffer_unset(context, &program.label, bytes, wgpu::BufferUsages::STORAGE).await?)
            }
        };
        let operation = self.clone();
        Ok(Prepared { shared: Arc::new(Shared { operation, plan: plan.clone(), passes, params, scratch }) })
    }

    /// [`Operation::prepare`] for code that is not async.
    ///
    /// # Errors
    /// As [`Operation::prepare`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn prepare_blocking(&self, plan: &P) -> Result<Prepared<P>> {
        pollster::block_on(self.prepare(plan))
    }

    /// A buffer with contents, for a one-shot call.
    pub(crate) async fn upload<T: bytemuck::NoUninit>(
        &self,
        label: &str,
        data: &[T],
    ) -> Result<wgpu::Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let fill = |mapped: &mut [u8]| mapped.copy_from_slice(bytes);
        create_buffer(self.context(), label, bytes.len() as u64, usage, fill).await
    }

    /// A buffer for results of a one-shot call.
    pub(crate) async fn result(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        create_buffer_unset(self.context(), label, bytes, usage).await
    }

    /// Records, **submits** and reads results back: the first bytes of each buffer, as words.
    pub(crate) async fn submit(
        &self,
        queue: &wgpu::Queue,
        bound: &Bound<P>,
        results: &[(&wgpu::Buffer, u64)],
    ) -> Result<Vec<Vec<u32>>> {
        let target = Target::new(self.context(), results.iter().map(|r| r.1).sum()).await?;
        let mut encoder = self
            .device()
            .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("wgpu-attention") });
        bound.encode(&mut encoder);
        let mut at = 0;
        for (buffer, bytes) in results {
            encoder.copy_buffer_to_buffer(buffer, 0, target.buffer(), at, *bytes);
            at += bytes;
        }
        let pending = target.map(self.context(), queue.submit([encoder.finish()]))?;
        let bytes = pending.read().await?;
        let mut words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(results.iter().map(|r| words.by_ref().take(r.1 as usize / 4).collect()).collect())
    }
}

/// A plan whose shaders are compiled. Cheap to clone.
pub struct Prepared<P: Planned> {
    shared: Arc<Shared<P>>,
}

struct Shared<P: Planned> {
    operation: Operation<P>,
    plan: P,
    /// One for each dispatch.
    passes: Vec<Arc<CompiledPass>>,
    /// Nothing is written to it after preparing, so that one plan twice in a submission cannot disturb itself.
    params: wgpu::Buffer,
    /// Calls may share it: each writes it before reading it, and the dispatches of a queue take turns.
    scratch: Option<wgpu::Buffer>,
}

impl<P: Planned> Clone for Prepared<P> {
    fn clone(&self) -> Self {
        Prepared { shared: self.shared.clone() }
    }
}

impl<P: Planned> fmt::Debug for Prepared<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("plan", self.plan()).finish_non_exhaustive()
    }
}

impl<P: Planned> Prepared<P> {
    /// The plan.
    pub fn plan(&self) -> &P {
        &self.shared.plan
    }

    /// Checks the buffers and binds them. What comes out can be encoded any number of times.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], [`Error::BufferUsage`], [`Error::Offset`], [`Error::Aliased`],
    /// [`Error::Missing`] or [`Error::Unused`], naming the buffer.
    pub fn bind(&self, buffers: &P::Buffers<'_>) -> Result<Bound<P>> {
        let bindings = self
            .plan()
            .wanted()
            .into_iter()
            .zip(P::given(buffers))
            .map(|(wanted, &given)| match (given, wanted.bytes) {
                (None, None | Some(0)) => Ok(None),
                (None, Some(_)) => Err(Error::Missing { field: wanted.field, why: wanted.why }),
                (Some(_), None) => Err(Error::Unused { field: wanted.field, hint: wanted.hint }),
                (Some(buffer), Some(bytes)) => {
                    Ok(Some(Binding { field: wanted.field, buffer, bytes, written: wanted.written }))
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let program = self.plan().program();
        if !program.dispatches.is_empty() {
            let all: Vec<Binding<'_>> = bindings.iter().flatten().copied().collect();
            buffers::check(&all, program.binding_alignment)?;
        }
        let mut known: HashMap<(&P::Shader, &[Part]), wgpu::BindGroup> = HashMap::new();
        let groups = program
            .dispatches
            .iter()
            .zip(&self.shared.passes)
            .map(|(dispatch, pass)| {
                known
                    .entry((&dispatch.shader, &dispatch.parts))
                    .or_insert_with(|| self.bind_group(dispatch, pass, &bindings))
                    .clone()
            })
            .collect();
        Ok(Bound { prepared: self.clone(), groups })
    }

    fn bind_group(
        &self,
        dispatch: &Dispatch<P::Shader>,
        pass: &CompiledPass,
        bindings: &[Option<Binding<'_>>],
    ) -> wgpu::BindGroup {
        let shared = &self.shared;
        let context = shared.operation.context();
        let storage = |((slot, role), part): ((Slot, Role), &Part)| {
            let found = match role {
                Role::Scratch => shared.scratch.as_ref().map(BufferRef::from),
                Role::Caller(n) => bindings.get(n).copied().flatten().map(|b| b.buffer),
            };
            match found {
                Some(b) if part.bytes > 0 => bound(slot.number, b.buffer, b.offset + part.start, part.bytes),
                _ => bound(slot.number, &context.nothing, 0, 16),
            }
        };
        let params = bound(0, &shared.params, 0, size_of::<<P::Shader as Shader>::Params>() as u64);
        let slots = dispatch.shader.slots().into_iter().zip(&dispatch.parts).map(storage);
        let entries: Vec<_> = [params].into_iter().chain(slots).collect();
        context.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&shared.plan.program().label),
            layout: &pass.layout,
            entries: &entries,
        })
    }
}

/// A plan with its buffers: ready to be recorded, any number of times, into any encoder of the device.
pub struct Bound<P: Planned> {
    prepared: Prepared<P>,
    /// One for each dispatch.
    groups: Vec<wgpu::BindGroup>,
}

impl<P: Planned> Clone for Bound<P> {
    fn clone(&self) -> Self {
        Bound { prepared: self.prepared.clone(), groups: self.groups.clone() }
    }
}

impl<P: Planned> fmt::Debug for Bound<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("plan", self.plan()).finish_non_exhaustive()
    }
}

impl<P: Planned> Bound<P> {
    /// The plan.
    pub fn plan(&self) -> &P {
        self.prepared.plan()
    }

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
        let label = Some(self.plan().program().label.as_str());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes });
        self.encode_in_pass(&mut pass);
    }

    /// Records into a compute pass of the caller's. Leaves its pipeline and bind group 0 changed.
    pub fn encode_in_pass(&self, pass: &mut wgpu::ComputePass<'_>) {
        let program = self.plan().program();
        let dispatches = program.dispatches.iter().zip(&self.prepared.shared.passes).zip(&self.groups);
        let mut at = 0;
        for ((dispatch, compiled), group) in dispatches {
            let [x, y] = dispatch.workgroups;
            pass.set_pipeline(&compiled.pipeline);
            // A buffer of params has less than 4 GiB.
            pass.set_bind_group(0, group, &[at as u32]);
            pass.dispatch_workgroups(x, y, 1);
            at += program.stride();
        }
    }
}

// WebGPU objects belong to one thread in a browser; everywhere else these are shared freely.
#[cfg(not(target_arch = "wasm32"))]
const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<crate::Softmax>();
    send_sync::<crate::Sampler>();
    send_sync::<crate::Backward>();
    send_sync::<crate::sampling::Bound>();
};
