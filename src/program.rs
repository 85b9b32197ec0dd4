//! Dispatches as plain data, and their way to a device: what the operations beside attention are made of.
//!
//! A plan makes a [`Program`]: which shader, with which params, on which parts of the caller's buffers, in how many workgroups. Here it
//! is compiled ([`Engine::load`]), bound ([`Loaded::bind`]) and recorded ([`Recorded::encode`]). Nothing is written after loading, so that
//! one program twice in a submission cannot disturb itself.

use crate::buffers::{self, Binding, BufferRef};
use crate::caps::Caps;
use crate::context::{CompiledPass, Context, Slot, Variants};
use crate::error::{Error, Result};
use crate::memory::{create_buffer, create_buffer_unset};
use crate::readback::Target;
use bytemuck::Pod;
use core::fmt;
use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU64;
use std::sync::Arc;

/// One entry point of a generated text.
pub(crate) trait Shader: Clone + Eq + Hash + fmt::Display + fmt::Debug {
    type Params: Pod + fmt::Debug + PartialEq;

    fn source(&self) -> String;
    fn entry_point(&self) -> &'static str;
    /// Its storage bindings: never more than the eight that every WebGPU device has.
    fn slots(&self) -> Vec<(Slot, Role)>;
}

/// What is bound to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// The caller's buffer of this number.
    Caller(usize),
    /// Memory of the program's own.
    Scratch,
}

/// A part of a buffer, in bytes from where the caller binds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub start: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dispatch<S: Shader> {
    pub shader: S,
    pub params: S::Params,
    /// One for each slot.
    pub parts: Vec<Part>,
    pub workgroups: [u32; 2],
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Program<S: Shader> {
    pub dispatches: Vec<Dispatch<S>>,
    pub scratch_bytes: u64,
    /// What the parts and the params are aligned to.
    pub binding_alignment: u64,
    pub uniform_alignment: u64,
}

impl<S: Shader> Program<S> {
    pub(crate) fn new(caps: &Caps) -> Self {
        Program {
            dispatches: Vec::new(),
            scratch_bytes: 0,
            binding_alignment: u64::from(caps.min_storage_buffer_offset_alignment.max(16)),
            uniform_alignment: u64::from(caps.min_uniform_buffer_offset_alignment.max(16)),
        }
    }

    fn stride(&self) -> u64 {
        (size_of::<S::Params>() as u64).next_multiple_of(self.uniform_alignment)
    }

    /// Its shaders, each once, in order of their first use.
    pub(crate) fn shaders(&self) -> Vec<&S> {
        let mut all: Vec<&S> = Vec::new();
        for dispatch in &self.dispatches {
            if !all.contains(&&dispatch.shader) {
                all.push(&dispatch.shader);
            }
        }
        all
    }

    /// Whether a device has what the program was made for.
    pub(crate) fn fits(&self, caps: &Caps, threads: u32) -> Result<()> {
        const ADVICE: &str = "plan for this device";
        let largest = self.dispatches.iter().flat_map(|d| &d.parts).map(|p| p.bytes).max().unwrap_or(0);
        let groups = self.dispatches.iter().flat_map(|d| d.workgroups).max().unwrap_or(0);
        let needs = [
            (
                "a workgroup of this plan",
                "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
                threads.into(),
                u64::from(caps.threads()),
            ),
            (
                "the largest binding of this plan",
                "max_storage_buffer_binding_size",
                largest.max(self.scratch_bytes),
                caps.max_storage_buffer_binding_size,
            ),
            (
                "the largest dispatch of this plan",
                "max_compute_workgroups_per_dimension",
                groups.into(),
                caps.max_compute_workgroups_per_dimension.into(),
            ),
            (
                "the alignment of this plan",
                "min_storage_buffer_offset_alignment",
                caps.min_storage_buffer_offset_alignment.into(),
                self.binding_alignment,
            ),
            (
                "the alignment of this plan's params",
                "min_uniform_buffer_offset_alignment",
                caps.min_uniform_buffer_offset_alignment.into(),
                self.uniform_alignment,
            ),
        ];
        for (what, limit, needed, available) in needs {
            if needed > available {
                return Err(Error::LimitExceeded {
                    what: what.to_owned(),
                    limit,
                    needed,
                    available,
                    advice: ADVICE,
                });
            }
        }
        Ok(())
    }
}

/// Workgroups in x and y: one dimension holds only so many. `None` where two do not hold them either.
pub(crate) fn fold(workgroups: u64, caps: &Caps) -> Option<[u32; 2]> {
    let most = u64::from(caps.max_compute_workgroups_per_dimension.max(1));
    let y = workgroups.div_ceil(most).max(1);
    let x = workgroups.div_ceil(y);
    // Both are at most `most`, which has 32 bits.
    (y <= most).then_some([x as u32, y as u32])
}

/// A device with the shaders that were compiled on it.
#[derive(Debug)]
pub(crate) struct Engine<S: Shader> {
    pub context: Context,
    compiled: Variants<S, CompiledPass>,
}

impl<S: Shader> Engine<S> {
    pub(crate) fn new(device: &wgpu::Device, cache: Option<wgpu::PipelineCache>) -> Self {
        Engine { context: Context::new(device, cache), compiled: Variants::default() }
    }

    /// Number of shaders compiled so far.
    pub(crate) fn compiled(&self) -> usize {
        self.compiled.len()
    }

    async fn compile(&self, shader: &S) -> Result<Arc<CompiledPass>> {
        if let Some(found) = self.compiled.get(shader) {
            return Ok(found);
        }
        let label = shader.to_string();
        let make = || {
            let module = self.context.module(&label, shader.source());
            let slots = shader.slots().into_iter().map(|(slot, _)| slot);
            self.context.entry_point(&label, &module, shader.entry_point(), size_of::<S::Params>(), slots)
        };
        let compiled = self.context.scoped(&label, make).await?;
        Ok(self.compiled.keep(shader, compiled))
    }

    /// Compiles what a program needs, and makes its params and scratch.
    pub(crate) async fn load(self: &Arc<Self>, label: &str, program: Program<S>) -> Result<Loaded<S>> {
        let mut passes = Vec::new();
        for dispatch in &program.dispatches {
            passes.push(self.compile(&dispatch.shader).await?);
        }
        let stride = program.stride();
        let count = program.dispatches.len().max(1) as u64;
        let usage = wgpu::BufferUsages::UNIFORM;
        let params = create_buffer(&self.context, label, stride * count, usage, |bytes| {
            for (n, dispatch) in program.dispatches.iter().enumerate() {
                let words = bytemuck::bytes_of(&dispatch.params);
                let at = n * stride as usize;
                bytes[at..at + words.len()].copy_from_slice(words);
            }
        })
        .await?;
        let scratch = match program.scratch_bytes {
            0 => None,
            bytes => {
                Some(create_buffer_unset(&self.context, label, bytes, wgpu::BufferUsages::STORAGE).await?)
            }
        };
        let label = label.to_owned();
        Ok(Loaded {
            shared: Arc::new(Shared { engine: self.clone(), program, passes, label, params, scratch }),
        })
    }

    /// A buffer with contents, for a one-shot call.
    pub(crate) async fn upload<T: bytemuck::NoUninit>(
        &self,
        label: &str,
        data: &[T],
    ) -> Result<wgpu::Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        create_buffer(&self.context, label, bytes.len() as u64, usage, |mapped| mapped.copy_from_slice(bytes))
            .await
    }

    /// A buffer for results of a one-shot call.
    pub(crate) async fn result(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        create_buffer_unset(&self.context, label, bytes, usage).await
    }

    /// Records, **submits** and reads results back: the first bytes of each buffer, as words.
    pub(crate) async fn submit(
        &self,
        queue: &wgpu::Queue,
        recorded: &Recorded<S>,
        results: &[(&wgpu::Buffer, u64)],
    ) -> Result<Vec<Vec<u32>>> {
        let bytes = results.iter().map(|r| r.1).sum();
        let target = Target::new(&self.context, bytes).await?;
        let mut encoder = self
            .context
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("wgpu-attention") });
        recorded.encode(&mut encoder, None);
        let mut at = 0;
        for (buffer, bytes) in results {
            encoder.copy_buffer_to_buffer(buffer, 0, target.buffer(), at, *bytes);
            at += bytes;
        }
        let pending = target.map(&self.context, queue.submit([encoder.finish()]))?;
        let bytes = pending.read().await?;
        let mut words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(results.iter().map(|r| words.by_ref().take(r.1 as usize / 4).collect()).collect())
    }
}

/// A program whose shaders are compiled. Cheap to clone.
#[derive(Debug)]
pub(crate) struct Loaded<S: Shader> {
    shared: Arc<Shared<S>>,
}

impl<S: Shader> Clone for Loaded<S> {
    fn clone(&self) -> Self {
        Loaded { shared: self.shared.clone() }
    }
}

#[derive(Debug)]
struct Shared<S: Shader> {
    engine: Arc<Engine<S>>,
    program: Program<S>,
    /// One for each dispatch.
    passes: Vec<Arc<CompiledPass>>,
    label: String,
    params: wgpu::Buffer,
    /// Calls may share it: each writes it before reading it, and the dispatches of a queue take turns.
    scratch: Option<wgpu::Buffer>,
}

impl<S: Shader> Loaded<S> {
    /// Checks the caller's buffers and binds them. `None` where a role is not in use.
    pub(crate) fn bind(&self, bindings: &[Option<Binding<'_>>]) -> Result<Recorded<S>> {
        let shared = &self.shared;
        let program = &shared.program;
        if !program.dispatches.is_empty() {
            let all: Vec<Binding<'_>> = bindings.iter().flatten().copied().collect();
            buffers::check(&all, program.binding_alignment)?;
        }
        let mut known: HashMap<(&S, &[Part]), wgpu::BindGroup> = HashMap::new();
        let groups = program
            .dispatches
            .iter()
            .zip(&shared.passes)
            .map(|(dispatch, pass)| {
                known
                    .entry((&dispatch.shader, &dispatch.parts))
                    .or_insert_with(|| self.bind_group(dispatch, pass, bindings))
                    .clone()
            })
            .collect();
        Ok(Recorded { loaded: self.clone(), groups })
    }

    fn bind_group(
        &self,
        dispatch: &Dispatch<S>,
        pass: &CompiledPass,
        bindings: &[Option<Binding<'_>>],
    ) -> wgpu::BindGroup {
        let shared = &self.shared;
        let context = &shared.engine.context;
        let entry = |binding, buffer, offset, size| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset,
                size: NonZeroU64::new(size),
            }),
        };
        let storage = |((slot, role), part): ((Slot, Role), &Part)| {
            let found = match role {
                Role::Scratch => shared.scratch.as_ref().map(|b| BufferRef { buffer: b, offset: 0 }),
                Role::Caller(n) => bindings.get(n).copied().flatten().map(|b| b.buffer),
            };
            match found {
                Some(b) if part.bytes > 0 => entry(slot.number, b.buffer, b.offset + part.start, part.bytes),
                _ => entry(slot.number, &context.nothing, 0, 16),
            }
        };
        let params = entry(0, &shared.params, 0, size_of::<S::Params>() as u64);
        let slots = dispatch.shader.slots().into_iter().zip(&dispatch.parts).map(storage);
        let entries: Vec<_> = [params].into_iter().chain(slots).collect();
        context.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&shared.label),
            layout: &pass.layout,
            entries: &entries,
        })
    }
}

/// A program with its buffers.
#[derive(Debug)]
pub(crate) struct Recorded<S: Shader> {
    loaded: Loaded<S>,
    /// One for each dispatch.
    groups: Vec<wgpu::BindGroup>,
}

impl<S: Shader> Clone for Recorded<S> {
    fn clone(&self) -> Self {
        Recorded { loaded: self.loaded.clone(), groups: self.groups.clone() }
    }
}

impl<S: Shader> Recorded<S> {
    /// Records one compute pass. Nothing is submitted, nothing allocated.
    pub(crate) fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some(&self.loaded.shared.label),
            timestamp_writes,
        });
        self.encode_in_pass(&mut pass);
    }

    pub(crate) fn encode_in_pass(&self, pass: &mut wgpu::ComputePass<'_>) {
        let shared = &self.loaded.shared;
        let stride = shared.program.stride();
        let dispatches = shared.program.dispatches.iter().zip(&shared.passes).zip(&self.groups);
        for (n, ((dispatch, compiled), group)) in dispatches.enumerate() {
            let [x, y] = dispatch.workgroups;
            pass.set_pipeline(&compiled.pipeline);
            // A buffer of params has less than 4 GiB.
            pass.set_bind_group(0, group, &[(n as u64 * stride) as u32]);
            pass.dispatch_workgroups(x, y, 1);
        }
    }
}
