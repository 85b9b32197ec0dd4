//! Exact attention on every GPU that WebGPU reaches:
//!
//! ```text
//! out = softmax(q k^T * scale / temperature + mask) v
//! ```
//!
//! computed by WGSL compute shaders on the app's own [`wgpu`] device, in tiles with an online softmax, so that the score
//! matrix is never stored. How sharp the softmax is, [`Scale`] and [`Temperature`], is an input like any other: the two are one
//! operation, `softmax(x / tau)`, and cost one multiplication for each number of q.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | q | (batch, q_heads, seq_q, head_dim_qk) | f32 |
//! | k | (batch, kv_heads, seq_k, head_dim_qk) | query head h reads key/value head h / (q_heads / kv_heads) |
//! | v | (batch, kv_heads, seq_k, head_dim_v) | |
//! | out | (batch, q_heads, seq_q, head_dim_v) | 0 in rows that see no key |
//! | lse, entropy, row_max | (batch, q_heads, seq_q) | natural log and nats, where asked for |
//!
//! Memory order is each tensor's [`Layout`]: bhsd, bshd or any strides.
//!
//! # The way of a call
//!
//! [`Problem`] (what) → [`Plan`] (how, and why; pure Rust) → [`Attention::prepare`] (compiled once for each
//! [`PipelineKey`]) → [`Prepared::bind`] (your buffers) → [`Bound::encode`] (into your encoder). Nothing is submitted, nothing waits. For
//! host slices there is [`Attention::run`] and its blocking twin.
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
mod caps;
#[cfg(feature = "case")]
pub mod case;
mod dtype;
mod error;
pub mod headless;
mod host;
mod kernel;
mod layout;
mod mask;
mod plan;
mod prepared;
mod problem;
mod readback;
pub mod reference;
mod score;
mod scores;
mod shader;
mod sharpness;
mod user_code;

pub use attention::Attention;
pub use caps::{AdapterClass, Caps, OPTIONAL_FEATURES, REQUIRED_FEATURES, helpful_limits};
pub use dtype::DType;
pub use error::{Error, Result};
pub use host::{Inputs, Outputs};
pub use kernel::{Access, Kernel, LengthSource, PipelineKey, TemperatureSource};
pub use layout::{Layout, Strides, View};
pub use mask::{Alignment, MaskFormat, Window};
pub use plan::{OutShape, Plan, PlanOptions, Slice, Span, Stat, Table, TableData, Tables, Tiles};
pub use prepared::{Bound, BufferRef, Buffers, Prepared};
pub use problem::{MAX_SEQ, Problem, Shape, Stats, Tensor};
pub use score::{Broadcast, Sink, alibi_slopes};
pub use scores::ScoreStage;
pub use sharpness::{LengthScale, Scale, Temperature};
pub use user_code::UserCode;
pub use wgpu;

/// The examples of the README and of docs/, compiled and run as doctests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/masks.md")]
    mod masks {}
    #[doc = include_str!("../docs/scores.md")]
    mod scores {}
    #[doc = include_str!("../docs/sharpness.md")]
    mod sharpness {}
    #[doc = include_str!("../docs/storage.md")]
    mod storage {}
    #[cfg(feature = "user-code")]
    #[doc = include_str!("../docs/user-code.md")]
    mod user_code {}
}
