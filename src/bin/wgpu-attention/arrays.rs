//! Tensors in .npy and .safetensors files.

use crate::fail::{Fail, Result};
use npyz::WriterBuilder;
use safetensors::tensor::{Dtype, Metadata, TensorView};
use std::collections::BTreeMap;
use std::path::Path;
use wgpu_attention::DType;

/// A tensor of numbers in C order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub shape: Vec<usize>,
    pub numbers: Vec<f32>,
    /// How the file stores them.
    pub dtype: DType,
}

/// A tensor of yes (not 0) and no in C order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Flags {
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The kinds of files, by extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Npy,
    Safetensors,
}

impl Kind {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("npy") => Ok(Kind::Npy),
            Some("safetensors") => Ok(Kind::Safetensors),
            Some(other) => {
                Err(Fail::file(path, format_args!("ends in .{other}, but expected is .npy or .safetensors")))
            }
            None => Err(Fail::file(path, "has no ending, but expected is .npy or .safetensors")),
        }
    }
}

pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Fail::file(path, format_args!("cannot be read: {e}")))
}

/// Numbers in a .npy file: float32, or float16.
pub(crate) fn read_npy(path: &Path) -> Result<Array> {
    let bytes = read_bytes(path)?;
    let file = NpyFile::open(path, &bytes)?;
    let (dtype, size) = match file.descr.as_str() {
        "'<f4'" | "'>f4'" => (DType::F32, 4),
        "'<f2'" => (DType::F16, 2),
        _ => return Err(file.wrong_type(path, "'<f4' (float32) or '<f2' (float16)")),
    };
    let shape = file.shape(path, size)?;
    let numbers = match dtype {
        DType::F16 => DType::F16.decode(file.data),
        _ => npyz::NpyFile::with_header(file.header, file.data)
            .into_vec()
            .map_err(|e| Fail::file(path, format_args!("is not a whole .npy file: {e}")))?,
    };
    Ok(Array { shape, numbers, dtype })
}

/// Whole numbers in a .npy file: int32.
pub(crate) fn read_npy_integers(path: &Path) -> Result<Vec<i32>> {
    let bytes = read_bytes(path)?;
    let file = NpyFile::open(path, &bytes)?;
    if file.descr != "'<i4'" {
        return Err(file.wrong_type(path, "'<i4' (int32)"));
    }
    file.shape(path, 4)?;
    Ok(file.data.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// 32-bit words of a .npy file: float32 by its bits, or int32 or uint32.
pub(crate) fn read_npy_words(path: &Path) -> Result<Vec<u32>> {
    let bytes = read_bytes(path)?;
    let file = NpyFile::open(path, &bytes)?;
    if !matches!(file.descr.as_str(), "'<f4'" | "'<i4'" | "'<u4'") {
        return Err(file.wrong_type(path, "'<f4' (float32), '<i4' (int32) or '<u4' (uint32)"));
    }
    file.shape(path, 4)?;
    Ok(file.data.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Yes and no in a .npy file: bool, or uint8.
pub(crate) fn read_npy_flags(path: &Path) -> Result<Flags> {
    let bytes = read_bytes(path)?;
    let file = NpyFile::open(path, &bytes)?;
    if !matches!(file.descr.as_str(), "'|b1'" | "'|u1'") {
        return Err(file.wrong_type(path, "'|b1' (bool) or '|u1' (uint8)"));
    }
    Ok(Flags { shape: file.shape(path, 1)?, bytes: file.data.to_vec() })
}

/// A .npy file of which the header is read.
struct NpyFile<'a> {
    header: npyz::NpyHeader,
    descr: String,
    data: &'a [u8],
}

impl<'a> NpyFile<'a> {
    fn open(path: &Path, bytes: &'a [u8]) -> Result<Self> {
        if !bytes.starts_with(b"\x93NUMPY") {
            return Err(Fail::file(path, "is not a whole .npy file: it does not begin as one"));
        }
        if !sizes_fit(bytes) {
            return Err(Fail::file(path, "is not a whole .npy file: its shape is beyond 2^64 bytes"));
        }
        let mut data = bytes;
        let header = npyz::NpyHeader::from_reader(&mut data)
            .map_err(|e| Fail::file(path, format_args!("is not a whole .npy file: {e}")))?;
        if header.order() != npyz::Order::C {
            return Err(Fail::file(
                path,
                "is in Fortran order, but expected is C order (numpy.ascontiguousarray)",
            ));
        }
        Ok(NpyFile { descr: header.dtype().descr(), header, data })
    }

    fn wrong_type(&self, path: &Path, expected: &str) -> Fail {
        Fail::file(path, format_args!("holds numbers of type {}, but expected is {expected}", self.descr))
    }

    /// The shape, compared with the data before any memory is taken for what the header promises.
    fn shape(&self, path: &Path, size: usize) -> Result<Vec<usize>> {
        let shape: Option<Vec<usize>> =
            self.header.shape().iter().map(|&n| usize::try_from(n).ok()).collect();
        let needed = |shape: &Vec<usize>| shape.iter().try_fold(size, |n, &size| n.checked_mul(size));
        match (shape.as_ref().and_then(needed), shape) {
            (Some(needed), Some(shape)) if needed == self.data.len() => Ok(shape),
            _ => Err(Fail::file(
                path,
                format_args!(
                    "has {} bytes of data, which is not what its shape {:?} needs",
                    self.data.len(),
                    self.header.shape()
                ),
            )),
        }
    }
}

/// Whether the product of all numbers in a .npy header, the size of an element among them, is below 2^64. npyz multiplies
/// the shape before anything can be checked, and panics where that overflows.
fn sizes_fit(bytes: &[u8]) -> bool {
    let start = if bytes.get(6) == Some(&1) { 10 } else { 12 };
    let length =
        bytes.get(8..start).unwrap_or_default().iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
    let header = bytes.get(start..).unwrap_or_default();
    let header = &header[..length.min(header.len())];
    header
        .split(|b| !b.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())
        .try_fold(1u64, |product, n| product.checked_mul(n?.max(1)))
        .is_some()
}

/// A safetensors file whose lengths were compared.
pub(crate) struct Tensors<'a> {
    pub metadata: Metadata,
    data: &'a [u8],
}

impl<'a> Tensors<'a> {
    pub(crate) fn read(path: &Path, bytes: &'a [u8]) -> Result<Self> {
        let bad = |what: String| Fail::file(path, format_args!("is not a safetensors file: {what}"));
        let (length, rest) =
            bytes.split_first_chunk::<8>().ok_or_else(|| bad("it is too short".to_owned()))?;
        let (header, data) = usize::try_from(u64::from_le_bytes(*length))
            .ok()
            .and_then(|n| rest.split_at_checked(n))
            .ok_or_else(|| bad("its header is longer than the file".to_owned()))?;
        let metadata: Metadata = serde_json::from_slice(header).map_err(|e| bad(e.to_string()))?;
        if metadata.data_len() != data.len() {
            return Err(bad(format!(
                "its tensors need {} bytes, but {} are there",
                metadata.data_len(),
                data.len()
            )));
        }
        Ok(Tensors { metadata, data })
    }

    pub(crate) fn is_case(&self) -> bool {
        self.metadata.metadata().as_ref().is_some_and(|m| m.contains_key("case"))
    }

    pub(crate) fn get(&self, path: &Path, name: &str) -> Result<Array> {
        let Some(info) = self.metadata.info(name) else {
            let names = self.metadata.offset_keys().join(", ");
            return Err(Fail::file(
                path,
                format_args!("has no tensor {name:?}; it has {names} (choose with --names Q,K,V)"),
            ));
        };
        let dtype = match info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::Bf16,
            other => {
                return Err(Fail::file(
                    path,
                    format_args!("tensor {name:?} has dtype {other:?}, but expected is F32, F16 or BF16"),
                ));
            }
        };
        let (start, end) = info.data_offsets;
        let numbers = dtype.decode(self.data.get(start..end).unwrap_or_default());
        Ok(Array { shape: info.shape.clone(), numbers, dtype })
    }
}

/// The contents of a .npy file, in f32.
pub(crate) fn npy(array: &Array) -> Result<Vec<u8>> {
    let shape: Vec<u64> = array.shape.iter().map(|&n| n as u64).collect();
    let mut bytes = Vec::new();
    let write = |bytes: &mut Vec<u8>| {
        let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(bytes).begin_nd()?;
        writer.extend(array.numbers.iter().copied())?;
        writer.finish()
    };
    write(&mut bytes).map_err(|e| Fail::usage(format!("cannot make a .npy file: {e}")))?;
    Ok(bytes)
}

/// The contents of a .safetensors file, in f32.
pub(crate) fn safetensors(arrays: &BTreeMap<&str, Array>) -> Result<Vec<u8>> {
    let fail = |e: safetensors::SafeTensorError| Fail::usage(format!("cannot make a safetensors file: {e}"));
    let bytes: Vec<(&str, &Array, Vec<u8>)> = arrays
        .iter()
        .map(|(name, array)| (*name, array, array.numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = bytes
        .iter()
        .map(|(name, array, bytes)| {
            Ok((*name, TensorView::new(Dtype::F32, array.shape.clone(), bytes).map_err(fail)?))
        })
        .collect::<Result<Vec<_>>>()?;
    safetensors::serialize(views, None).map_err(fail)
}
