//! What a plan needs of a device, as a list: asked of the capabilities that it is made for, and again of the device that it is prepared on.

use crate::caps::Caps;
use crate::error::{Error, Result};

/// A number that a device gives, by the name it has in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Threads of a workgroup.
    Threads,
    /// Rounds of all loops of a thread.
    LoopIterations,
    StorageBuffers,
    WorkgroupMemory,
    /// Bytes of a binding.
    Binding,
    /// Bytes of a binding whose elements of 4 bytes are found by 32-bit indices.
    Indexed,
    /// Workgroups in one dimension.
    Workgroups,
    /// What 32-bit numbers count, on any device.
    Numbers,
}

impl Limit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Limit::Threads => "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
            Limit::LoopIterations => "max_loop_iterations",
            Limit::StorageBuffers => "max_storage_buffers_per_shader_stage",
            Limit::WorkgroupMemory => "max_compute_workgroup_storage_size",
            Limit::Binding | Limit::Indexed => "max_storage_buffer_binding_size",
            Limit::Workgroups => "max_compute_workgroups_per_dimension",
            Limit::Numbers => "32-bit numbers",
        }
    }

    pub(crate) fn of(self, caps: &Caps) -> u64 {
        match self {
            Limit::Threads => caps.threads().into(),
            Limit::LoopIterations => caps.loop_iterations(),
            Limit::StorageBuffers => caps.max_storage_buffers_per_shader_stage.into(),
            Limit::WorkgroupMemory => caps.max_compute_workgroup_storage_size.into(),
            Limit::Binding => caps.max_storage_buffer_binding_size,
            Limit::Indexed => caps.max_storage_buffer_binding_size.min(4 * u64::from(u32::MAX)),
            Limit::Workgroups => caps.max_compute_workgroups_per_dimension.into(),
            Limit::Numbers => u32::MAX.into(),
        }
    }
}

/// So much of a limit, for what, and what to do where there is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) what: &'static str,
    pub(crate) limit: Limit,
    pub(crate) needed: u64,
    pub(crate) advice: &'static str,
}

/// The first need that is not met.
pub(crate) fn check(needs: &[Need], caps: &Caps) -> Result<()> {
    for &Need { what, limit, needed, advice } in needs {
        let available = limit.of(caps);
        if needed > available {
            return Err(Error::LimitExceeded {
                what: what.to_owned(),
                limit: limit.name(),
                needed,
                available,
                advice,
            });
        }
    }
    Ok(())
}

/// Whether what a plan aligns (its bindings, its params) is aligned for a device too: alignments are powers of two, so the larger one serves
/// both.
pub(crate) fn check_alignment(bindings: u64, params: u64, caps: &Caps, advice: &'static str) -> Result<()> {
    for (what, limit, planned, device) in [
        (
            "a binding that this plan aligned for another device",
            "min_storage_buffer_offset_alignment",
            bindings,
            caps.min_storage_buffer_offset_alignment,
        ),
        (
            "the params that this plan aligned for another device",
            "min_uniform_buffer_offset_alignment",
            params,
            caps.min_uniform_buffer_offset_alignment,
        ),
    ] {
        let device = u64::from(device.max(1));
        if !planned.is_multiple_of(device) {
            // More alignment than the plan gives.
            return Err(Error::LimitExceeded {
                what: what.to_owned(),
                limit,
                needed: device,
                available: planned,
                advice,
            });
        }
    }
    Ok(())
}

/// Whether a device has subgroups of the one size that a shader is written for: another size would give wrong numbers, and no error.
pub(crate) fn check_subgroup(size: u32, caps: &Caps, advice: &'static str) -> Result<()> {
    if caps.subgroup_size == Some(size) {
        return Ok(());
    }
    Err(Error::LimitExceeded {
        what: "a kernel for subgroups of one size, and the feature SUBGROUP,".to_owned(),
        limit: "subgroup_size",
        needed: size.into(),
        available: caps.subgroup_size.unwrap_or(0).into(),
        advice,
    })
}

/// Whether a device has words of 64 bits, for a shader that is written with them.
pub(crate) fn check_wide_words(caps: &Caps, advice: &'static str) -> Result<()> {
    if caps.shader_int64 {
        return Ok(());
    }
    Err(Error::LimitExceeded {
        what: "a kernel with words of 64 bits".to_owned(),
        limit: "SHADER_INT64, a feature",
        needed: 1,
        available: 0,
        advice,
    })
}
