//! Dispatches as plain data: what a plan of an operation beside attention is made of.
//!
//! A plan makes a [`Program`]: which shader, with which params, on which parts of the caller's buffers, in how many workgroups. What brings
//! it to a device is in `operation.rs`.

use crate::buffers::BufferRef;
use crate::caps::Caps;
use crate::context::Slot;
use crate::error::{Result, within};
use bytemuck::Pod;
use core::fmt;
use std::hash::Hash;

/// What is an operation's own: its plan, made for a device's capabilities, with a program and the buffers that it wants.
pub trait Planned: Clone + fmt::Debug {
    type Problem;
    type Shader: Shader;
    /// The caller's buffers by name.
    type Buffers<'a>;

    fn of(problem: &Self::Problem, caps: &Caps) -> Result<Self>;
    fn program(&self) -> &Program<Self::Shader>;
    /// The caller's buffers, in the order of [`Role::Caller`].
    fn wanted(&self) -> Vec<Wanted>;
    /// Those that were given, in the same order.
    fn given<'b, 'a: 'b>(buffers: &'b Self::Buffers<'a>) -> &'b [Option<BufferRef<'a>>];
}

/// A buffer of the caller's, as a plan wants it.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Its name in errors.
    pub field: &'static str,
    /// `None` where the problem does not have it.
    pub bytes: Option<u64>,
    pub written: bool,
    /// What asks for it.
    pub why: &'static str,
    /// How to ask for it.
    pub hint: &'static str,
}

/// One entry point of a generated text.
pub trait Shader: Clone + Eq + Hash + fmt::Display + fmt::Debug {
    type Params: Pod + fmt::Debug + PartialEq;

    fn source(&self) -> String;
    fn entry_point(&self) -> &'static str;
    /// Its storage bindings: never more than the eight that every WebGPU device has.
    fn slots(&self) -> Vec<(Slot, Role)>;
}

/// What is bound to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The caller's buffer of this number.
    Caller(usize),
    /// Memory of the program's own.
    Scratch,
}

/// A part of a buffer, in bytes from where the caller binds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    pub start: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch<S: Shader> {
    pub shader: S,
    pub params: S::Params,
    /// One for each slot.
    pub parts: Vec<Part>,
    pub workgroups: [u32; 2],
}

#[derive(Debug, Clone, PartialEq)]
pub struct Program<S: Shader> {
    /// Names it to tools that look at a device.
    pub label: String,
    /// Threads of the largest workgroup.
    pub threads: u32,
    pub dispatches: Vec<Dispatch<S>>,
    pub scratch_bytes: u64,
    /// What the parts and the params are aligned to.
    pub binding_alignment: u64,
    pub uniform_alignment: u64,
}

impl<S: Shader> Program<S> {
    pub(crate) fn new(label: String, threads: u32, caps: &Caps) -> Self {
        Program {
            label,
            threads,
            dispatches: Vec::new(),
            scratch_bytes: 0,
            binding_alignment: u64::from(caps.min_storage_buffer_offset_alignment.max(16)),
            uniform_alignment: u64::from(caps.min_uniform_buffer_offset_alignment.max(16)),
        }
    }

    pub(crate) fn stride(&self) -> u64 {
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
    pub(crate) fn fits(&self, caps: &Caps) -> Result<()> {
        const ADVICE: &str = "plan for this device";
        let largest = self.dispatches.iter().flat_map(|d| &d.parts).map(|p| p.bytes).max().unwrap_or(0);
        let groups = self.dispatches.iter().flat_map(|d| d.workgroups).max().unwrap_or(0);
        let needs = [
            (
                "a workgroup of this plan",
                "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
                self.threads.into(),
                caps.threads().into(),
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
        needs
            .into_iter()
            .try_for_each(|(what, limit, needed, available)| within(what, limit, needed, available, ADVICE))
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
