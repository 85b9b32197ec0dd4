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

use crate::buffers::BufferRef;
use crate::operation;
use plan::Caller;

/// Gradients of attention on a device of the app's. Cheap to clone, usable from several threads.
///
/// It never submits or waits, with an exception that says so: [`Backward::run`], with its kin.
pub type Backward = operation::Operation<Plan>;

/// A plan whose shaders are compiled. Cheap to clone.
pub type Prepared = operation::Prepared<Plan>;

/// A plan with its buffers: ready to be recorded, any number of times, into any encoder of the device.
pub type Bound = operation::Bound<Plan>;

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
