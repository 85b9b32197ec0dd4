//! Tensors of a safetensors file, and the container itself.

use super::error::CaseError;
use crate::dtype::DType;
use safetensors::tensor::{Dtype, Metadata, TensorView};
use std::collections::{BTreeMap, HashMap};

/// A tensor as it is in the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Array {
    pub(crate) fn f32(shape: &[usize], numbers: &[f32]) -> Self {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Array { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    /// Numbers in a storage type, without padding.
    pub(crate) fn stored(dtype: DType, shape: &[usize], numbers: &[f32]) -> Self {
        let mut bytes = dtype.encode(numbers);
        bytes.truncate(numbers.len() * dtype.bits() as usize / 8);
        let dtype = match dtype {
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::Bf16 => Dtype::BF16,
        };
        Array { dtype, shape: shape.to_vec(), bytes }
    }

    pub(crate) fn u8(shape: &[usize], bytes: Vec<u8>) -> Self {
        Array { dtype: Dtype::U8, shape: shape.to_vec(), bytes }
    }

    pub(crate) fn u32(numbers: &[u32]) -> Self {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Array { dtype: Dtype::U32, shape: vec![numbers.len()], bytes }
    }

    pub(crate) fn i32(shape: &[usize], numbers: &[i32]) -> Self {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Array { dtype: Dtype::I32, shape: shape.to_vec(), bytes }
    }

    /// As f32, to which f16 and bf16 widen without loss. Empty for any other dtype.
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::F32 => DType::F32.decode(&self.bytes),
            Dtype::F16 => DType::F16.decode(&self.bytes),
            Dtype::BF16 => DType::Bf16.decode(&self.bytes),
            _ => Vec::new(),
        }
    }

    pub(crate) fn to_i32(&self) -> Vec<i32> {
        self.words().map(i32::from_le_bytes).collect()
    }

    pub(crate) fn to_u32(&self) -> Vec<u32> {
        self.words().map(u32::from_le_bytes).collect()
    }

    fn words(&self) -> impl Iterator<Item = [u8; 4]> + '_ {
        self.bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]])
    }
}

/// The metadata and the tensors of a file.
pub(crate) type Parts = (HashMap<String, String>, BTreeMap<String, Array>);

/// Takes a safetensors file apart.
///
/// The lengths are compared here and not by the safetensors crate, whose sum of them can leave `usize` (and panic) in a file
/// made to that end.
pub(crate) fn read(bytes: &[u8]) -> Result<Parts, CaseError> {
    let bad = |reason: String| CaseError::NotSafetensors(reason);
    let (length, rest) = bytes
        .split_first_chunk::<8>()
        .ok_or_else(|| bad(format!("it has {} bytes, fewer than the 8 of a header length", bytes.len())))?;
    let length = u64::from_le_bytes(*length);
    let (header, data) =
        usize::try_from(length).ok().and_then(|n| rest.split_at_checked(n)).ok_or_else(|| {
            bad(format!("its header should have {length} bytes, but only {} follow", rest.len()))
        })?;
    let metadata: Metadata = serde_json::from_slice(header).map_err(|e| bad(e.to_string()))?;
    if metadata.data_len() != data.len() {
        return Err(bad(format!(
            "its tensors should have {} bytes, but {} follow the header",
            metadata.data_len(),
            data.len()
        )));
    }
    let arrays = metadata.tensors().into_iter().map(|(name, info)| {
        let (start, end) = info.data_offsets;
        let bytes = data.get(start..end).ok_or_else(|| bad(format!("tensor {name:?} is out of range")))?;
        Ok((name, Array { dtype: info.dtype, shape: info.shape.clone(), bytes: bytes.to_vec() }))
    });
    let arrays = arrays.collect::<Result<_, CaseError>>()?;
    Ok((metadata.metadata().clone().unwrap_or_default(), arrays))
}

/// Puts a safetensors file together.
pub(crate) fn write<'a>(
    metadata: HashMap<String, String>,
    arrays: impl IntoIterator<Item = (&'a str, &'a Array)>,
) -> Result<Vec<u8>, CaseError> {
    let bad = |e: safetensors::SafeTensorError| CaseError::NotSafetensors(e.to_string());
    let views = arrays
        .into_iter()
        .map(|(name, a)| Ok((name, TensorView::new(a.dtype, a.shape.clone(), &a.bytes).map_err(bad)?)))
        .collect::<Result<Vec<_>, CaseError>>()?;
    safetensors::serialize(views, (!metadata.is_empty()).then_some(metadata)).map_err(bad)
}
