//! Names of the tensors of a forward pass.

/// Names the tensors of a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// The answer.
    Out,
    /// The additive bias.
    Bias,
    /// The dense mask.
    Mask,
}

impl Tensor {
    /// All of them.
    pub const ALL: [Tensor; 6] = [Tensor::Q, Tensor::K, Tensor::V, Tensor::Out, Tensor::Bias, Tensor::Mask];

    /// q, k, v and out, which every problem has.
    pub const MAIN: [Tensor; 4] = [Tensor::Q, Tensor::K, Tensor::V, Tensor::Out];

    /// The number of its binding in the shaders.
    pub(crate) fn binding(self) -> u32 {
        match self {
            Tensor::Q => 1,
            Tensor::K => 2,
            Tensor::V => 3,
            Tensor::Out => 4,
            Tensor::Bias => 7,
            Tensor::Mask => 8,
        }
    }

    /// Whether it belongs to key/value heads.
    pub(crate) fn is_kv(self) -> bool {
        matches!(self, Tensor::K | Tensor::V)
    }

    /// `q`, `k`, `v`, `out`, `bias` or `mask`: the name in errors, shaders and files.
    pub fn name(self) -> &'static str {
        match self {
            Tensor::Q => "q",
            Tensor::K => "k",
            Tensor::V => "v",
            Tensor::Out => "out",
            Tensor::Bias => "bias",
            Tensor::Mask => "mask",
        }
    }
}
