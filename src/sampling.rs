//! Drawing tokens from logits, on the device: only the tokens come back.
//!
//! A [`Chain`] of steps changes the logits or takes tokens out, in the order that you give; then a token is drawn as the largest of logit + Gumbel
//! noise, or is the largest. [`Problem`] (what) → [`Plan`] (how; pure Rust) → [`Sampler::prepare`] → [`Prepared::bind`] (your
//! buffers) → [`Bound::encode`] (into your encoder). For host slices there is [`Sampler::run`] and its blocking twin.
//!
//! # What is promised
//!
//! A token is a function of its row's logits, settings, seed and offset: the same in any batch, on every device, and from [`twin`] on the
//! CPU. For probabilities, sums, entropies and noise are computed in whole numbers (docs/sampling.md says how); the f32 arithmetic that is left (a penalty, a bias, one multiplication by 1/T, the distance to the largest logit) is single
//! operations that WGSL wants rounded correctly, between which bits are looked at, so that none can be fused.
//!
//! ```
//! # #[cfg(not(target_arch = "wasm32"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wgpu_attention::{headless, sampling::{self, Chain, Inputs, Problem, Sampler, Seed}};
//!
//! let gpu = headless::open_blocking(&headless::Options::default())?; // or your app's own device
//! let sampler = Sampler::new(&gpu.device);
//! let logits: Vec<f32> = (0..2 * 1000).map(|n| (n as f32 * 0.7).sin() * 4.0).collect();
//! let seeds = [Seed { seed: 7, offset: 0 }, Seed { seed: 7, offset: 1 }];
//!
//! let chain = Chain::new().temperature(0.8).top_k(40).top_p(0.95).min_p(0.05);
//! let problem = Problem::new(2, 1000, chain).with_log_probs();
//! let inputs = Inputs::new(&logits, &seeds);
//! let drawn = sampler.run_blocking(&gpu.queue, &problem, &inputs)?;
//! assert_eq!(drawn, sampling::twin(&problem, &inputs)?);
//! # Ok(())
//! # }
//! # #[cfg(target_arch = "wasm32")]
//! # fn main() {}
//! ```

mod chain;
mod fixed;
mod host;
mod plan;
mod problem;
mod reference;
mod shader;
mod twin;

pub use chain::{Chain, LlamaCpp, Step, Transformers};
pub use host::{Draws, Inputs};
pub use plan::Plan;
pub use problem::{Finish, Problem, Seed};
pub use reference::distribution;
pub use twin::{left, twin};

use crate::buffers::BufferRef;
use crate::operation;
use plan::Caller;

/// Sampling on a device of the app's. Cheap to clone, usable from several threads. It compiles a shader for each kind of step, whatever the chain.
///
/// It never submits or waits, with an exception that says so: [`Sampler::run`], with its kin.
pub type Sampler = operation::Operation<Plan>;

/// A plan whose shaders are compiled. Cheap to clone.
pub type Prepared = operation::Prepared<Plan>;

/// A plan with its buffers: ready to be recorded, any number of times, into any encoder of the device.
pub type Bound = operation::Bound<Plan>;

/// The buffers of one call, each with `BufferUsages::STORAGE`.
#[derive(Debug, Clone, Copy)]
pub struct Buffers<'a> {
    roles: [Option<BufferRef<'a>>; Caller::COUNT],
}

impl<'a> Buffers<'a> {
    /// f32 logits; settings as [`Plan::settings`] makes them; and [`Plan::out_bytes`] for the results: a u32 token for each row
    /// (`u32::MAX` where every token was out), then an f32 log-probability for each row where asked for.
    pub fn new(
        logits: impl Into<BufferRef<'a>>,
        settings: impl Into<BufferRef<'a>>,
        out: impl Into<BufferRef<'a>>,
    ) -> Self {
        let mut buffers = Buffers { roles: [None; Caller::COUNT] };
        buffers.roles[Caller::Logits as usize] = Some(logits.into());
        buffers.roles[Caller::Settings as usize] = Some(settings.into());
        buffers.roles[Caller::Out as usize] = Some(out.into());
        buffers
    }

    /// With histories, u32, (rows, `Problem::history`); `u32::MAX` where there is no token. The app may add to them on the device.
    pub fn history(mut self, history: impl Into<BufferRef<'a>>) -> Self {
        self.roles[Caller::History as usize] = Some(history.into());
        self
    }

    /// With biases, (rows, `Problem::bias`) pairs of a u32 token (`u32::MAX`: none) and an f32.
    pub fn bias(mut self, bias: impl Into<BufferRef<'a>>) -> Self {
        self.roles[Caller::Bias as usize] = Some(bias.into());
        self
    }

    /// With masks of allowed tokens, u32, (rows, [`Problem::allowed_words`]), the lowest bit first.
    pub fn allowed(mut self, allowed: impl Into<BufferRef<'a>>) -> Self {
        self.roles[Caller::Allowed as usize] = Some(allowed.into());
        self
    }
}
