//! Exact attention on every GPU that WebGPU reaches:
//!
//! ```text
//! out = softmax(cap(q k^T * scale / temperature) + bias + mask) v
//! ```
//!
//! computed by WGSL compute shaders on the app's own [`wgpu`] device, in tiles with an online softmax, so that the score
//! matrix is never stored. How sharp the softmax is, [`Scale`] and [`Temperature`], is an input like any other: the two are one
//! operation, `softmax(x / tau)`, and cost one multiplication for each number of q.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | q | (batch, q_heads, seq_q, head_dim_qk) | |
//! | k | (batch, kv_heads, seq_k, head_dim_qk) | query head h reads key/value head h / (q_heads / kv_heads) |
//! | v | (batch, kv_heads, seq_k, head_dim_v) | |
//! | bias, mask | (batch, q_heads, seq_q, seq_k), each its size or 1 | [`Broadcast`]; where the problem has them |
//! | out | (batch, q_heads, seq_q, head_dim_v) | 0 in rows that see no key |
//! | lse, entropy, row_max | (batch, q_heads, seq_q) | f32, natural log and nats, where asked for |
//!
//! Memory order is each tensor's [`Layout`]: bhsd, bshd or any strides. Storage is each tensor's [`DType`]: f32, f16 or bf16;
//! arithmetic is f32. Sequences of different lengths may be padded ([`Problem::with_q_len`], [`Problem::with_kv_len`]) or packed
//! one after the other ([`Problem::packed`]). Small inputs, such as lengths, temperatures and sinks, lie in one buffer, see [`Table`].
//!
//! # The order of a score
//!
//! q.k (of [normalised](Problem::qk_norm) q and k), times [`Scale`] and [`LengthScale`], divided by [`Temperature`]; [soft cap](Problem::softcap); the
//! [user's function](Problem::score_mod); plus [bias](Problem::bias), minus [ALiBi](Problem::with_alibi); masks
//! ([causal](Problem::causal), [window](Problem::window), valid [queries](Problem::with_q_len) and [keys](Problem::with_kv_len),
//! [dense](Problem::mask), the [user's](Problem::mask_mod), all combined by AND); the softmax with its [`Sink`], or another
//! [`Normalizer`]; [dropout](Problem::dropout). Scores have to fit f32:
//! |score| log2(e) below 3e38.
//!
//! Gradients, that of the temperature among them, are in [`backward`].
//!
//! # The way of a call
//!
//! [`Problem`] (what) → [`Plan`] (how, and why; pure Rust) → [`Attention::prepare`] (compiled once for each
//! [`PipelineKey`]) → [`Prepared::bind`] (your buffers) → [`Bound::encode`] (into your encoder). Nothing is submitted, nothing waits. For
//! host slices there is [`Attention::run`] and its blocking twin; for the scores themselves, [`Attention::scores`].
//!
//! Softmax alone, over rows of any length, forward and backward, is in [`softmax`]; drawing tokens from logits in [`sampling`].
//!
//! All of these types are `Send + Sync` except in browsers. On OpenGL use one thread all the same: wgpu gives its context to one
//! thread at a time, and gives up when another holds it for long.
//!
//! ```
//! # #[cfg(not(target_arch = "wasm32"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wgpu_attention::{Attention, Alignment, Inputs, Problem, Shape, Temperature, headless};
//!
//! let gpu = headless::open_blocking(&headless::Options::default())?; // or your app's own device
//! let attention = Attention::new(&gpu.device);
//!
//! let shape = Shape::self_attention(1, 4, 100, 64);
//! let x: Vec<f32> = (0..4 * 100 * 64).map(|n| (n as f32 * 0.37).sin()).collect();
//! let problem = Problem::new(shape)
//!     .causal(Alignment::BottomRight)
//!     .temperature(Temperature::Value(0.7))
//!     .with_entropy();
//!
//! let inputs = Inputs::new(&x, &x, &x);
//! let result = attention.run_blocking(&gpu.queue, &problem, &inputs)?;
//!
//! // How right is it? Compare with float64.
//! let truth = wgpu_attention::reference::truth(&problem, &inputs)?;
//! assert!(truth.compare(&result).passes());
//! # Ok(())
//! # }
//! # #[cfg(target_arch = "wasm32")]
//! # fn main() {}
//! ```
//!
//! # Features
//!
//! - `backends` (default): wgpu's Vulkan, Metal, DX12, GL and WebGPU back ends. Off where your app chooses them.
//! - `user-code`: score and mask functions of your own, in WGSL ([`UserCode`]).
//! - `case`: case files, one problem with its right answer in a safetensors file.
//! - `measure`: a stopwatch, the adapter's ceilings and kernels against them ([`measure`]), and the tuner ([`tune`]).
//! - `cli`: the program `wgpu-attention`.

#![forbid(unsafe_code)]
#![warn(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod attention;
pub mod backward;
mod block_mask;
mod buffers;
mod caps;
#[cfg(feature = "case")]
pub mod case;
mod context;
mod dropout;
mod dtype;
mod error;
pub mod headless;
mod host;
mod kernel;
mod layout;
mod mask;
#[cfg(feature = "measure")]
pub mod measure;
mod memory;
mod needs;
mod normalizer;
pub mod operation;
mod owned;
mod plan;
mod prepared;
mod problem;
mod program;
mod qk_norm;
pub mod random;
mod readback;
pub mod reference;
pub mod sampling;
mod score;
mod scores;
mod sequences;
mod shader;
mod shape;
mod sharpness;
pub mod softmax;
mod tensor;
#[cfg(feature = "measure")]
pub mod tune;
mod user_code;
pub mod validate;

pub use attention::Attention;
pub use backward::Backward;
pub use block_mask::BlockMask;
pub use buffers::{BufferRef, Buffers, MaskBuffers};
pub use caps::{AdapterClass, Caps, MATRIX_FEATURES, OPTIONAL_FEATURES, REQUIRED_FEATURES, helpful_limits};
pub use dropout::Dropout;
pub use dtype::DType;
pub use error::{Error, Result};
pub use host::{Inputs, Outputs};
pub use kernel::{
    Access, Kernel, LengthSource, NormalizerSource, OffsetSource, PipelineKey, Search, TemperatureSource,
};
pub use layout::{Layout, Strides, View};
pub use mask::{Alignment, MaskFormat, TileMask, Window};
pub use normalizer::{Normalizer, SigmoidBias};
pub use owned::OwnedInputs;
pub use plan::{
    KeyMovement, MatrixTiles, OutShape, Plan, PlanOptions, RowTiles, Slice, Span, Stat, Table, TableData,
    Tables, TileClasses, Tiles,
};
pub use prepared::{Bound, Prepared};
pub use problem::Problem;
pub use qk_norm::{NormGains, NormKind, QkNorm};
pub use sampling::Sampler;
pub use score::{Broadcast, Sink, alibi_slopes};
pub use scores::ScoreStage;
pub use sequences::Sequences;
pub use shape::{MAX_SEQ, Shape, Stats};
pub use sharpness::{AdaptiveTemperature, LengthScale, Scale, Temperature};
pub use softmax::Softmax;
pub use tensor::Tensor;
pub use user_code::UserCode;
pub use wgpu;

/// The examples of the README and of docs/, compiled and run as doctests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/backward.md")]
    mod backward {}
    #[doc = include_str!("../docs/masks.md")]
    mod masks {}
    #[doc = include_str!("../docs/normalizers.md")]
    mod normalizers {}
    #[doc = include_str!("../docs/sampling.md")]
    mod sampling {}
    #[doc = include_str!("../docs/scores.md")]
    mod scores {}
    #[doc = include_str!("../docs/sharpness.md")]
    mod sharpness {}
    #[doc = include_str!("../docs/softmax.md")]
    mod softmax {}
    #[doc = include_str!("../docs/storage.md")]
    mod storage {}
    #[cfg(feature = "user-code")]
    #[doc = include_str!("../docs/user-code.md")]
    mod user_code {}
}
