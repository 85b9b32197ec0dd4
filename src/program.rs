//! Dispatches as plain data: what a plan of an operation beside attention is made of.
//!
//! A plan makes a [`Program`]: which shader, with which params, on which parts of the caller's buffers, in how many workgroups. What brings
//! it to a device is in `operation.rs`.

use crate::buffers::BufferRef;
use crate::caps::Caps;
use crate::context::Slot;
use crate::error::Result;
use crate::needs::{self, Limit, Need};
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
    /// What it needs of a device beside bindings and workgroups, which the dispatches tell.
    pub(crate) needs: Vec<Need>,
    /// Subgroups of this size and no other.
    pub subgroup: Option<u32>,
    /// Words of 64 bits.
    pub wide_words: bool,
    pub dispatches: Vec<Dispatch<S>>,
    pub scratch_bytes: u64,
    /// What the parts and the params are aligned to.
    pub binding_alignment: u64,
    pub uniform_alignment: u64,
}

impl<S: Shader> Program<S> {
    /// Without a dispatch, and without a need.
    pub(crate) fn new(label: String, caps: &Caps) -> Self {
        Program {
            label,
            needs: Vec::new(),
            subgroup: None,
            wide_words: false,
            dispatches: Vec::new(),
            scratch_bytes: 0,
            binding_alignment: u64::from(caps.min_storage_buffer_offset_alignment.max(16)),
            uniform_alignment: u64::from(caps.min_uniform_buffer_offset_alignment.max(16)),
        }
    }

    /// Refuses what the device does not have, and keeps the list for the device that it is prepared on.
    pub(crate) fn require(&mut self, needs: Vec<Need>, caps: &Caps) -> Result<()> {
        needs::check(&needs, caps)?;
        self.needs = needs;
        Ok(())
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
        let of_dispatches = [
            Need {
                what: "the largest binding of this plan",
                limit: Limit::Binding,
                needed: largest.max(self.scratch_bytes),
                advice: ADVICE,
            },
            Need {
                what: "the largest dispatch of this plan",
                limit: Limit::Workgroups,
                needed: groups.into(),
                advice: ADVICE,
            },
        ];
        needs::check(&self.needs, caps)?;
        if let Some(size) = self.subgroup {
            needs::check_subgroup(size, caps, ADVICE)?;
        }
        if self.wide_words {
            needs::check_wide_words(caps, ADVICE)?;
        }
        needs::check(&of_dispatches, caps)?;
        needs::check_alignment(self.binding_alignment, self.uniform_alignment, caps, ADVICE)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::{Problem, Shape};
    use crate::{backward, sampling, softmax};

    type Fits<'a> = &'a dyn Fn(&Caps) -> Result<()>;

    /// A plan goes to any device, so whatever its numbers were made of is asked of that device too: too few rounds of a loop, or another
    /// size of subgroups, would be wrong numbers in silence.
    #[test]
    fn a_plan_for_another_device_is_refused() {
        let many = Caps::webgpu_default();
        let mut processor = Caps::webgpu_default();
        (processor.class, processor.subgroup_size) = (crate::AdapterClass::Cpu, Some(8));
        processor.shader_int64 = true;

        let chain = sampling::Chain::new().top_k(40);
        let sampling = sampling::Plan::new(&sampling::Problem::new(1, 1_000_000, chain), &many).unwrap();
        let forward = Problem::new(Shape { seq_k: 1, ..Shape::self_attention(1, 1, 70_000, 1) });
        let backward = backward::Plan::new(&backward::Problem::new(forward), &many).unwrap();
        let softmax = softmax::Plan::new(&softmax::Problem::new(3, 1 << 24), &many).unwrap();
        let row = softmax::Plan::new(&softmax::Problem::new(3, 1000), &processor).unwrap();

        let refused = |change: fn(&mut Caps), limit: &str, fits: Fits<'_>| {
            let mut caps = processor.clone();
            caps.class = many.class;
            assert_eq!(fits(&caps), Ok(()), "{limit}");
            change(&mut caps);
            let error = fits(&caps);
            let named =
                matches!(&error, Err(Error::LimitExceeded { limit: named, .. }) if named.contains(limit));
            assert!(named, "{limit}: {error:?}");
        };
        let plans: [Fits<'_>; 3] =
            [&|caps| sampling.program().fits(caps), &|caps| backward.program().fits(caps), &|caps| {
                softmax.program().fits(caps)
            }];
        for fits in plans {
            refused(|caps| caps.max_loop_iterations = 100, "max_loop_iterations", fits);
            refused(|caps| caps.max_compute_workgroup_storage_size = 128, "workgroup_storage_size", fits);
            refused(|caps| caps.max_storage_buffers_per_shader_stage = 2, "max_storage_buffers", fits);
            refused(|caps| caps.max_compute_invocations_per_workgroup = 4, "max_compute_invocations", fits);
            refused(
                |caps| caps.max_storage_buffer_binding_size = 64,
                "max_storage_buffer_binding_size",
                fits,
            );
        }
        let row: Fits<'_> = &|caps| row.program().fits(caps);
        refused(|caps| caps.subgroup_size = Some(32), "subgroup_size", row);
        refused(|caps| caps.subgroup_size = None, "subgroup_size", row);
        refused(|caps| caps.shader_int64 = false, "SHADER_INT64", row);
    }
}
