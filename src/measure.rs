//! Measuring on a device: a stopwatch, the adapter's own ceilings, what a problem costs at least, and kernels against both.
//!
//! This is what `wgpu-attention bench`, the bench targets and the [`Tuner`](crate::tune::Tuner) are made of. How to read the figures
//! is told in docs/benchmarking.md.
//!
//! ```
//! # #[cfg(not(target_arch = "wasm32"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wgpu_attention::measure::{Effort, Stopwatch, Work};
//! use wgpu_attention::{Attention, Problem, Shape, headless};
//!
//! let gpu = headless::open_blocking(&headless::Options::default())?;
//! let attention = Attention::new(&gpu.device);
//! let problem = Problem::new(Shape::self_attention(1, 2, 64, 32));
//! pollster::block_on(async {
//!     let stopwatch = Stopwatch::new(&attention, &gpu.queue).await?;
//!     let work = Work::new(&attention, &problem).await?; // inputs on the device, and the right answer
//!     let plan = attention.plan(&problem)?;
//!     let ready = work.prepare(&plan).await?;
//!     assert!(work.check(&gpu.queue, &ready).await?.passes()); // the answer first
//!     let times = stopwatch.measure(&ready, &Effort::default()).await?;
//!     println!("{}: {} us by {}", plan.key(), times.samples.median() * 1e6, times.clock);
//!     Ok::<_, wgpu_attention::Error>(())
//! })?;
//! # Ok(())
//! # }
//! # #[cfg(target_arch = "wasm32")]
//! # fn main() {}
//! ```

mod cost;
#[cfg(feature = "user-code")]
mod custom;
mod made;
mod roofs;
mod samples;
mod stopwatch;
mod work;

pub use cost::{Cost, Limit};
#[cfg(feature = "user-code")]
pub use custom::CustomKernel;
pub use roofs::Roofs;
pub use samples::{Samples, noise};
pub use stopwatch::{Clock, Effort, Stopwatch, Times};
pub use work::{Checked, Ready, Work};
