//! Gradients of attention, that of the temperature among them.
//!
//! The way of a call is that of the forward pass: [`Problem`] (what) → [`Plan`] (how; pure Rust) → [`Backward::prepare`] →
//! [`Prepared::bind`] (your buffers) → [`Bound::encode`] (into your encoder). For host slices there is [`Backward::run`] and its blocking
//! twin. The score matrix is never stored: the passes make each weight once more from q, k and the lse that the forward pass
//! left. All sums are f32 in a fixed order, with no atomics, so that the same call gives the same bits.
//!
//! ```
//! # #[cfg(not(target_arch = "wasm32"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wgpu_attention::{Attention, Inputs, Problem, Shape, Temperature, headless};
//! use wgpu_attention::backward::{self, Backward};
//!
//! let gpu = headless::open_blocking(&headless::Options::default())?; // or your app's own device
//! let forward = Problem::new(Shape::self_attention(1, 2, 10, 8)).temperature(Temperature::PerHead).with_lse();
//! let x: Vec<f32> = (0..2 * 10 * 8).map(|n| (n as f32 * 0.37).sin()).collect();
//! let inputs = Inputs::new(&x, &x, &x).temperature(&[0.5, 2.0]);
//! let result = Attention::new(&gpu.device).run_blocking(&gpu.queue, &forward, &inputs)?;
//!
//! // A loss of which out has the gradient x: how do q, k, v and the temperature of each head change it?
//! let lse = result.lse.unwrap_or_default();
//! let problem = backward::Problem::new(forward).with_temperature();
//! let given = backward::Inputs::new(inputs, &lse, &x);
//! let gradients = Backward::new(&gpu.device).run_blocking(&gpu.queue, &problem, &given)?;
//! assert_eq!(gradients.dtemperature.as_ref().map(Vec::len), Some(2));
//! assert!(backward::truth(&problem, &given)?.compare(&gradients).passes());
//! # Ok(())
//! # }
//! # #[cfg(target_arch = "wasm32")]
//! # fn main() {}
//! ```

mod host;
mod plan;
mod problem;
mod shader;

pub use crate::reference::gradient::{Truth, truth};
pub use host::{Gradients, Inputs};
pub use plan::Plan;
pub use problem::Problem;

use crate::buffers::{Binding, BufferRef};
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::program::{Engine, Loaded, Recorded};
use plan::Caller;
use shader::Variant;
use std::sync::Arc;

/// Gradients of attention on a device of the app's. Cheap to clone, usable from several threads.
///
/// It never submits or waits, with exceptions that say so: [`Backward::run`] and its blocking twin.
#[derive(Debug, Clone)]
pub struct Backward {
    engine: Arc<Engine<Variant>>,
}

impl Backward {
    /// For a device of the app's, which may have any limits and no features.
    pub fn new(device: &wgpu::Device) -> Self {
        Self::with_pipeline_cache(device, None)
    }

    /// With the app's own [`wgpu::PipelineCache`], through which compiled variants survive the program.
    pub fn with_pipeline_cache(device: &wgpu::Device, cache: Option<wgpu::PipelineCache>) -> Self {
        Backward { engine: Arc::new(Engine::new(device, cache)) }
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

    /// Compiles what a plan needs (or finds it compiled) and makes its params and scratch. After this, binding and encoding neither
    /// compile nor allocate device memory.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] for a plan made for a device that has more than this one; [`Error::Driver`],
    /// [`Error::OutOfMemory`] or [`Error::DeviceLost`].
    pub async fn prepare(&self, plan: &Plan) -> Result<Prepared> {
        plan.program().fits(self.caps(), plan.threads())?;
        let loaded = self.engine.load("attention backward", plan.program().clone()).await?;
        Ok(Prepared { plan: plan.clone(), loaded })
    }

    /// [`Backward::prepare`] for code that is not async.
    ///
    /// # Errors
    /// As [`Backward::prepare`].
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
    /// What every call has: q, k and v; lse as the forward pass left it (it alone, f32, (batch, q_heads, seq_q): with no
    /// other statistic it is the whole stats buffer, else [`Plan::stats_range`](crate::Plan::stats_range) says where it is); dout, f32 in
    /// the layout of out; and dq, dk and dv, f32, which are written.
    pub fn new(
        [q, k, v]: [BufferRef<'a>; 3],
        [lse, dout]: [BufferRef<'a>; 2],
        [dq, dk, dv]: [BufferRef<'a>; 3],
    ) -> Self {
        let mut buffers = Buffers { roles: [None; Caller::COUNT] };
        for (role, buffer) in [
            (Caller::Q, q),
            (Caller::K, k),
            (Caller::V, v),
            (Caller::Lse, lse),
            (Caller::Dout, dout),
            (Caller::Dq, dq),
            (Caller::Dk, dk),
            (Caller::Dv, dv),
        ] {
            buffers = buffers.with(role, buffer);
        }
        buffers
    }

    fn with(mut self, role: Caller, buffer: impl Into<BufferRef<'a>>) -> Self {
        self.roles[role as usize] = Some(buffer.into());
        self
    }

    /// With the gradient of lse, f32, (batch, q_heads, seq_q); for [`Problem::with_lse`].
    pub fn dlse(self, dlse: impl Into<BufferRef<'a>>) -> Self {
        self.with(Caller::Dlse, dlse)
    }

    /// With the additive bias of the forward pass.
    pub fn bias(self, bias: impl Into<BufferRef<'a>>) -> Self {
        self.with(Caller::Bias, bias)
    }

    /// With the dense mask of the forward pass.
    pub fn mask(self, mask: impl Into<BufferRef<'a>>) -> Self {
        self.with(Caller::Mask, mask)
    }

    /// With the small inputs of the forward pass, as [`Plan::tables`](crate::Plan::tables) lays them out.
    pub fn tables(self, tables: impl Into<BufferRef<'a>>) -> Self {
        self.with(Caller::Tables, tables)
    }

    /// With a buffer for the gradient of the bias, f32, packed in the order of its sizes; for [`Problem::with_bias`].
    pub fn dbias(self, dbias: impl Into<BufferRef<'a>>) -> Self {
        self.with(Caller::Dbias, dbias)
    }

    /// With a buffer for the gradient of the sinks, f32, (q_heads); for [`Problem::with_sinks`].
    pub fn dsinks(self, dsinks: impl Into<BufferRef<'a>>) -> Self {
        self.with(Caller::Dsinks, dsinks)
    }

    /// With a buffer for the gradient of the temperature, f32, as many numbers as there are temperatures; for
    /// [`Problem::with_temperature`].
    pub fn dtemperature(self, dtemperature: impl Into<BufferRef<'a>>) -> Self {
        self.with(Caller::Dtemperature, dtemperature)
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
            let bytes = self.plan.bytes(role);
            let (field, written) = (role.field(), role.is_written());
            match buffers.roles[role as usize] {
                None if bytes > 0 => return Err(Error::Missing { field, why: role.why() }),
                Some(_) if !self.plan.wants(role) => {
                    return Err(Error::Unused { field, hint: role.hint() });
                }
                Some(buffer) => {
                    bindings[role as usize] = Some(Binding { field, buffer, bytes, written });
                }
                None => {}
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
