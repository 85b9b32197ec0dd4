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

mod access;
mod host;
mod plan;
mod problem;
mod reference;
mod shader;
mod share;

pub use host::{Gradients, Inputs, Outputs};
pub use plan::{Plan, Stat};
pub use problem::{Kind, Problem, RowLayout, RowTemperature};
pub use reference::{Truth, gradient_truth, truth};

use crate::buffers::BufferRef;
use crate::error::Result;
use crate::operation;
use plan::Caller;

/// Softmax on a device of the app's. Cheap to clone, usable from several threads.
///
/// It never submits or waits, with exceptions that say so: [`Softmax::run`] and [`Softmax::run_backward`], with their kin.
pub type Softmax = operation::Operation<Plan>;

/// A plan whose shaders are compiled. Cheap to clone.
pub type Prepared = operation::Prepared<Plan>;

/// A plan with its buffers: ready to be recorded, any number of times, into any encoder of the device.
pub type Bound = operation::Bound<Plan>;

impl Softmax {
    /// Plans the gradients of a problem for this device.
    ///
    /// # Errors
    /// As [`Plan::backward`].
    pub fn plan_backward(&self, problem: &Problem, temperature: bool) -> Result<Plan> {
        Plan::backward(problem, temperature, self.caps())
    }
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
