//! Softmax as an operation of its own: the sharpness of [`softmax(x / tau)`](Kind) over rows of any length, forward and backward.
//!
//! | | out | |
//! |---|---|---|
//! | [`Kind::Softmax`] | exp(x / tau) / sum exp(x / tau) | 0 for -inf |
//! | [`Kind::LogSoftmax`] | its logarithm | -inf for -inf |
//! | [`Kind::Sparsemax`] | max(x / tau - t, 0) | exactly 0 below a threshold |
//! | [`Kind::Entmax15`] | max(x / (2 tau) - t, 0)^2 | between the two |
//!
//! The way of a call is that of attention: [`Problem`] (what) → [`Plan`] (how; pure Rust, says why) → [`Softmax::prepare`] →
//! [`Prepared::bind`] (your buffers) → [`Bound::encode`] (into your encoder). For host slices there is [`Softmax::run`] and its blocking
//! twin.
//!
//! A row in which every element is -inf gives 0 everywhere (-inf for log-softmax), lse -inf, entropy 0 and argmax `u32::MAX`. +inf and
//! NaN make their own row unspecified and no other.
//!
//! ```
//! # #[cfg(not(target_arch = "wasm32"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wgpu_attention::{headless, softmax::{self, Inputs, Kind, Problem, RowTemperature, Softmax}};
//!
//! let gpu = headless::open_blocking(&headless::Options::default())?; // or your app's own device
//! let softmax = Softmax::new(&gpu.device);
//! let x = [1.0, 2.0, f32::NEG_INFINITY, 4.0];
//! for kind in [Kind::Softmax, Kind::Sparsemax] {
//!     let problem = Problem::new(1, 4).kind(kind).temperature(RowTemperature::Value(2.0)).with_argmax();
//!     let result = softmax.run_blocking(&gpu.queue, &problem, &Inputs::new(&x))?;
//!     assert_eq!(result.argmax.as_deref(), Some(&[3][..]));
//!     assert!((result.out.iter().sum::<f32>() - 1.0).abs() < 1e-6);
//!     // How right is it? Compare with float64.
//!     assert!(softmax::truth(&problem, &Inputs::new(&x))?.compare(&result).passes());
//! }
//! # Ok(())
//! # }
//! # #[cfg(target_arch = "wasm32")]
//! # fn main() {}
//! ```

mod host;
mod plan;
mod problem;
mod reference;
mod shader;

pub use host::{Gradients, Inputs, Outputs};
pub use plan::{Plan, Stat};
pub use problem::{Kind, Problem, RowLayout, RowTemperature};
pub use reference::{Truth, gradient_truth, truth};

use crate::buffers::{Binding, BufferRef};
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::program::{Engine, Loaded, Recorded};
use plan::Caller;
use shader::Variant;
use std::sync::Arc;

/// The operation on a device of the app's. Cheap to clone, usable from several threads.
///
/// It never submits or waits, with exceptions that say so: [`Softmax::run`] and [`Softmax::run_backward`], with their blocking twins.
#[derive(Debug, Clone)]
pub struct Softmax {
    engine: Arc<Engine<Variant>>,
}

impl Softmax {
    /// For a device of the app's, which may have any limits and no features.
    pub fn new(device: &wgpu::Device) -> Self {
        Self::with_pipeline_cache(device, None)
    }

    /// With the app's own [`wgpu::PipelineCache`], through which compiled variants survive the program.
    pub fn with_pipeline_cache(device: &wgpu::Device, cache: Option<wgpu::PipelineCache>) -> Self {
        Softmax { engine: Arc::new(Engine::new(device, cache)) }
    }

    /// The device that everything is made on.
    pub fn device(&self) -> &wgpu::Device {
        &self.engine.context.device
    }

    /// What the device can do, as planning sees it.
    pub fn caps(&self) -> &Caps {
        &self.engine.context.caps
    }

    /// Number of shaders compiled so far.
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

    /// Plans the gradients of a problem for this device.
    ///
    /// # Errors
    /// As [`Plan::backward`].
    pub fn plan_backward(&self, problem: &Problem, temperature: bool) -> Result<Plan> {
        Plan::backward(problem, temperature, self.caps())
    }

    /// Compiles what a plan needs (or finds it compiled) and makes its params and scratch. After this, binding and encoding neither
    /// compile nor allocate device memory.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] for a plan made for a device that has more than this one; [`Error::Driver`],
    /// [`Error::OutOfMemory`] or [`Error::DeviceLost`].
    pub async fn prepare(&self, plan: &Plan) -> Result<Prepared> {
        plan.program().fits(self.caps(), plan.threads())?;
        let loaded = self.engine.load(&plan.label(), plan.program().clone()).await?;
        Ok(Prepared { plan: plan.clone(), loaded })
    }

    /// [`Softmax::prepare`] for code that is not async.
    ///
    /// # Errors
    /// As [`Softmax::prepare`].
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

/// The buffers of one call, each with `BufferUsages::STORAGE`. What is written needs a buffer that nothing else of the call is in.
#[derive(Debug, Clone, Copy)]
pub struct Buffers<'a> {
    roles: [Option<BufferRef<'a>>; Caller::COUNT],
}

impl<'a> Buffers<'a> {
    fn of(roles: impl IntoIterator<Item = (Caller, BufferRef<'a>)>) -> Self {
        let mut buffers = Buffers { roles: [None; Caller::COUNT] };
        for (role, buffer) in roles {
            buffers.roles[role as usize] = Some(buffer);
        }
        buffers
    }

    /// Of a forward call: what goes in and what comes out.
    pub fn new(x: impl Into<BufferRef<'a>>, out: impl Into<BufferRef<'a>>) -> Self {
        Self::of([(Caller::X, x.into()), (Caller::Out, out.into())])
    }

    /// Of a forward call [in place](Problem::in_place).
    pub fn in_place(x: impl Into<BufferRef<'a>>) -> Self {
        Self::of([(Caller::Out, x.into())])
    }

    /// Of a backward call: the result of the forward call and the gradient that comes in, both in the layout of out, and the gradient
    /// that comes out, in that of x.
    pub fn backward(
        out: impl Into<BufferRef<'a>>,
        d_out: impl Into<BufferRef<'a>>,
        dx: impl Into<BufferRef<'a>>,
    ) -> Self {
        Self::of([(Caller::X, out.into()), (Caller::DOut, d_out.into()), (Caller::Out, dx.into())])
    }

    /// With temperatures, f32, one for each row; for [`RowTemperature::PerRow`].
    pub fn temperature(mut self, temperature: impl Into<BufferRef<'a>>) -> Self {
        self.roles[Caller::Temperature as usize] = Some(temperature.into());
        self
    }

    /// With a buffer for the statistics, [`Plan::stats_bytes`] long: lse, entropy and argmax where asked for; backward, the gradients
    /// of the temperatures.
    pub fn stats(mut self, stats: impl Into<BufferRef<'a>>) -> Self {
        self.roles[Caller::Stats as usize] = Some(stats.into());
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
            let (field, written) = self.plan.field(role);
            let bytes = self.plan.bytes(role);
            match (buffers.roles[role as usize], bytes) {
                (None, 0) => {}
                (None, _) => return Err(Error::Missing { field, why: role.why() }),
                (Some(_), 0) if !self.plan.is_empty() => {
                    return Err(Error::Unused { field, hint: role.hint() });
                }
                (Some(buffer), bytes) => {
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
