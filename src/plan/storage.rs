//! How numbers are loaded and stored: whether f16 is a type of the shader's own, or two halves of a word that the shader unpacks; and whether
//! words are of 64 bits.

use super::PlanOptions;
use crate::caps::{AdapterClass, Caps};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Access, Kernel, PipelineKey};

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
        (None, None) if options.wide_words == Some(true) => {
            Ok((false, Some("unpacked: words of 64 bits were asked for".to_owned())))
        }
        (None, None) => Ok(match caps.class {
            AdapterClass::Cpu => (false, Some("unpacked, which was mostly faster on processors".to_owned())),
            _ => (true, Some("a type of the shader: the device has the feature SHADER_F16".to_owned())),
        }),
    }
}

/// The access to each tensor with words of 64 bits, where rows are aligned, and why or why not, if it could be. The variant has words of 32.
pub(super) fn wide_words(
    key: &PipelineKey,
    caps: &Caps,
    options: &PlanOptions,
) -> Result<([Access; 4], Option<String>)> {
    let plain = key.access;
    let wide = plain.map(|access| if access == Access::Vec4 { Access::Wide } else { access });
    let without = if key.kernel != Kernel::Rows {
        Some("only the row kernel has them")
    } else if wide == plain {
        Some("no tensor has rows that start and end at multiples of four")
    } else if key.native_f16 {
        Some("f16 is a type of the shader")
    } else if !caps.shader_int64 {
        Some("the device was made without the feature SHADER_INT64")
    } else {
        None
    };
    match (without, options.wide_words) {
        (Some(reason), Some(true)) => Err(Error::KernelUnavailable {
            kernel: key.kernel.name(),
            reason: format!("it cannot have words of 64 bits: {reason}"),
        }),
        (Some(_), _) => Ok((plain, None)),
        (None, Some(true)) => Ok((wide, Some("of 64 bits: it was asked for".to_owned()))),
        (None, Some(false)) => Ok((plain, Some("of 32 bits: it was asked for".to_owned()))),
        (None, None) => Ok(match caps.class {
            AdapterClass::Cpu => {
                (wide, Some("of 64 bits, of which a processor has half as many to load and store".to_owned()))
            }
            _ => (plain, Some("of 32 bits: loads are of 16 bytes already".to_owned())),
        }),
    }
}
