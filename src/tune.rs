//! The tuner: times the members of the family and their tile sizes on this device, and remembers what was fastest.
//!
//! The planner decides by adapter class and shape, and needs no device. The tuner has one, and some seconds. Nothing is
//! ever tuned unasked: an app tunes when it likes (or its user runs `wgpu-attention tune`), keeps the [`Tuning`] in a file, and gives it
//! to [`Attention::with_tuning`](crate::Attention::with_tuning).
//!
//! ```
//! # #[cfg(not(target_arch = "wasm32"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use wgpu_attention::tune::{Tuner, Tuning};
//! use wgpu_attention::{Attention, Problem, Shape, headless};
//!
//! let gpu = headless::open_blocking(&headless::Options::default())?;
//! let attention = Attention::new(&gpu.device);
//! let problem = Problem::new(Shape::self_attention(1, 2, 64, 32));
//!
//! let folder = std::env::temp_dir().join(format!("tuning of a doctest {}", std::process::id()));
//! let file = folder.join("tuning.json"); // or Tuning::default_path()?
//! let mut tuning = Tuning::load_or_new(&file)?;
//! let tuner = Tuner::new_blocking(&attention, &gpu.queue)?.time(Duration::from_secs(1));
//! let tuned = tuner.tune_blocking(&problem)?;
//! println!("{tuned}");
//! tuning.insert(&tuned);
//! tuning.save(&file)?;
//!
//! // Next time:
//! let attention = attention.with_tuning(Tuning::load(&file)?);
//! println!("{}", attention.plan(&problem)?);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! # #[cfg(target_arch = "wasm32")]
//! # fn main() {}
//! ```

mod file;
mod near;
mod search;

pub use file::{Entry, Tuning, TuningError};
pub use search::{Candidate, Outcome, Stop, Tuned, Tuner};
