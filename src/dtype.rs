//! Storage types. Arithmetic is f32 whatever the storage.

use half::{bf16, f16};

/// How the numbers of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DType {
    /// IEEE single precision.
    #[default]
    F32,
    /// IEEE half precision. Unpacked by the shader, so that no device feature is needed, or a type of the shader's own where the device has it
    /// ([`PlanOptions::native_f16`](crate::PlanOptions)). As an output it saturates at +-65504.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl DType {
    /// Bits of one number.
    pub fn bits(self) -> u32 {
        match self {
            DType::F32 => 32,
            DType::F16 | DType::Bf16 => 16,
        }
    }

    /// Bytes of so many numbers, in whole 32-bit words.
    pub(crate) fn bytes(self, numbers: u64) -> u64 {
        numbers.saturating_mul(u64::from(self.bits() / 8)).div_ceil(4).saturating_mul(4)
    }

    /// The name in labels and files.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }

    /// The number as this type stores it, rounded to nearest even.
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// Bytes of a slice in this type, padded to whole 32-bit words.
    pub fn encode(self, data: &[f32]) -> Vec<u8> {
        let mut bytes: Vec<u8> = match self {
            DType::F32 => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::F16 => data.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            DType::Bf16 => data.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        };
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// The numbers in bytes of this type; a trailing part of a number is left out.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            DType::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            DType::Bf16 => {
                bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
        }
    }

    /// How far storing may move a number in f64, relative and absolute. Packing in a shader may round towards
    /// zero, and may flush numbers below the normal range.
    pub(crate) fn rounding(self) -> (f64, f64) {
        match self {
            DType::F32 => (0.0, 0.0),
            DType::F16 => (2f64.powi(-10), 2f64.powi(-14)),
            DType::Bf16 => (2f64.powi(-8), 0.0),
        }
    }
}
