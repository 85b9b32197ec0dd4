//! Whether f16 is a type of the shader's own, or two halves of a word that the shader unpacks.

use super::PlanOptions;
use crate::caps::{AdapterClass, Caps};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Access, PipelineKey};

/// Whether a variant has f16 as a type, and why, if it could. The variant is the one without.
pub(super) fn native_f16(
    key: &PipelineKey,
    caps: &Caps,
    options: &PlanOptions,
) -> Result<(bool, Option<String>)> {
    // Where rows are not aligned, two threads may share a word that one of them writes.
    let can = key.dtypes.iter().zip(key.access).any(|(&d, access)| d == DType::F16 && access == Access::Vec4);
    let without = if !can {
        Some("no tensor is stored as f16 in rows that start and end at multiples of four")
    } else if !caps.shader_f16 {
        Some("the device was made without the feature SHADER_F16")
    } else {
        None
    };
    match (without, options.native_f16) {
        (Some(reason), Some(true)) => Err(Error::KernelUnavailable {
            kernel: key.kernel.name(),
            reason: format!("it cannot have f16 as a type: {reason}"),
        }),
        (Some(_), _) if !can => Ok((false, None)),
        (Some(reason), _) => Ok((false, Some(format!("unpacked: {reason}")))),
        (None, Some(true)) => Ok((true, Some("a type of the shader: it was asked for".to_owned()))),
        (None, Some(false)) => Ok((false, Some("unpacked: it was asked for".to_owned()))),
        (None, None) => Ok(match caps.class {
            AdapterClass::Cpu => (false, Some("unpacked, which was mostly faster on processors".to_owned())),
            _ => (true, Some("a type of the shader: the device has the feature SHADER_F16".to_owned())),
        }),
    }
}
