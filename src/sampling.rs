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

use crate::buffers::{Binding, BufferRef};
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::program::{Engine, Loaded, Recorded};
use plan::Caller;
use shader::Variant;
use std::sync::Arc;

/// Sampling on a device of the app's. Cheap to clone, usable from several threads.
///
/// It never submits or waits, with an exception that says so: [`Sampler::run`], with its blocking twin.
#[derive(Debug, Clone)]
pub struct Sampler {
    engine: Arc<Engine<Variant>>,
}

impl Sampler {
    /// For a device of the app's, which may have any limits and no features.
    pub fn new(device: &wgpu::Device) -> Self {
        Self::with_pipeline_cache(device, None)
    }

    /// With the app's own [`wgpu::PipelineCache`], through which compiled variants survive the program.
    pub fn with_pipeline_cache(device: &wgpu::Device, cache: Option<wgpu::PipelineCache>) -> Self {
        Sampler { engine: Arc::new(Engine::new(device, cache)) }
    }

    /// The device that everything is made on.
    pub fn device(&self) -> &wgpu::Device {
        &self.engine.context.device
    }

    /// What the device can do, as planning sees it.
    pub fn caps(&self) -> &Caps {
        &self.engine.context.caps
    }

    /// Number of shaders compiled so far: one for each kind of step, whatever the chain.
    pub fn compiled(&self) -> usize {
        self.engine.compiled()
    }

    /// Plans a problem for this device.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan(&self, problem: &Problem) -> Result<Plan> {
        Plan::new(problem, self.caps())
    }

    /// Compiles what a plan needs (or finds it compiled) and makes its params and scratch. After this, binding and encoding neither
    /// compile nor allocate device memory.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] for a plan made for a device that has more than this one; [`Error::Driver`],
    /// [`Error::OutOfMemory`] or [`Error::DeviceLost`].
    pub async fn prepare(&self, plan: &Plan) -> Result<Prepared> {
        plan.program().fits(self.caps(), plan.threads())?;
        let loaded = self.engine.load("sampling", plan.program().clone()).await?;
        Ok(Prepared { plan: plan.clone(), loaded })
    }

    /// [`Sampler::prepare`] for code that is not async.
    ///
    /// # Errors
    /// As [`Sampler::prepare`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn prepare_blocking(&self, plan: &Plan) -> Result<Prepared> {
        pollster::block_on(self.prepare(plan))
    }
}

/// A plan whose shaders are compiled. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Prepared {
    plan: Plan,
    loaded: Loaded<Variant>,
}

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

impl Prepared {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Checks the buffers and binds them. What comes out can be encoded any number of times.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], [`Error::BufferUsage`], [`Error::Offset`], [`Error::Aliased`],
    /// [`Error::Missing`] or [`Error::Unused`], naming the buffer.
    pub fn bind(&self, buffers: &Buffers<'_>) -> Result<Bound> {
        let mut bindings = [None; Caller::COUNT];
        for role in Caller::ALL {
            let field = role.field();
            let bytes = self.plan.bytes(role);
            match (buffers.roles[role as usize], bytes) {
                (None, 0) => {}
                (None, _) => return Err(Error::Missing { field, why: "the chain has a step that reads it" }),
                (Some(_), 0) if self.plan.problem().rows > 0 => {
                    return Err(Error::Unused { field, hint: "the chain has no step that reads it" });
                }
                (Some(buffer), bytes) => {
                    let written = role == Caller::Out;
                    bindings[role as usize] = Some(Binding { field, buffer, bytes, written });
                }
            }
        }
        Ok(Bound { plan: self.plan.clone(), recorded: self.loaded.bind(&bindings)? })
    }
}

/// A plan with its buffers: ready to be recorded, any number of times, into any encoder of the device.
#[derive(Debug, Clone)]
pub struct Bound {
    plan: Plan,
    recorded: Recorded<Variant>,
}

impl Bound {
    /// Records one compute pass. Nothing is submitted, nothing allocated.
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        self.encode_timed(encoder, None);
    }

    /// [`Bound::encode`] with timestamps at the beginning and end of the pass.
    pub fn encode_timed(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) {
        self.recorded.encode(encoder, timestamp_writes);
    }

    /// Records into a compute pass of the caller's. Leaves its pipeline and bind group 0 changed.
    pub fn encode_in_pass(&self, pass: &mut wgpu::ComputePass<'_>) {
        self.recorded.encode_in_pass(pass);
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}
