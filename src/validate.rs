//! Is a device right? Random problems over all options together, each from a number, with inputs and the answer in float64; and the way from
//! one that fails to the smallest that still does.
//!
//! The program's `validate` and the tests of this crate draw from here, so that a seed of one is a seed of the other. An app can do the
//! same on the devices of its users:
//!
//! ```
//! # #[cfg(not(target_arch = "wasm32"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wgpu_attention::{Attention, headless, validate};
//! let gpu = headless::open_blocking(&headless::Options::default())?;
//! let attention = Attention::new(&gpu.device);
//! let seed = 7;
//! let problem = validate::problem(seed);
//! let inputs = validate::inputs(&problem, seed)?;
//! let result = attention.run_blocking(&gpu.queue, &problem, &inputs.as_inputs())?;
//! assert!(validate::truth(&problem, &inputs.as_inputs())?.compare(&result).passes());
//! # Ok(())
//! # }
//! # #[cfg(target_arch = "wasm32")]
//! # fn main() {}
//! ```

mod inputs;
mod random;
mod shrink;
mod user_code;

pub use inputs::inputs;
pub use random::{problem, problem_of};
pub use shrink::shrink;

use crate::attention::Attention;
use crate::error::Result;
use crate::host::{Inputs, Outputs};
use crate::plan::Plan;
use crate::problem::Problem;
use crate::reference::{self, Truth};

/// The right answer to a problem of [`problem`], or to any without user code: [`reference::truth`], with the twins of the user code that is drawn
/// here.
///
/// # Errors
/// As [`reference::truth_with`]; [`Error::Missing`](crate::Error::Missing) for user code of your own.
pub fn truth(problem: &Problem, inputs: &Inputs<'_>) -> Result<Truth> {
    user_code::with_twins(problem, inputs, |mods| reference::truth_with(problem, inputs, mods))
}

/// Runs a plan that classifies mask tiles with classes that were found before, in a [`BlockMask`](crate::BlockMask).
///
/// # Errors
/// As [`Attention::run_plan`], and [`Prepared::block_mask`](crate::Prepared::block_mask) for a plan without classes.
pub async fn run_block_mask(
    attention: &Attention,
    queue: &wgpu::Queue,
    plan: &Plan,
    inputs: &Inputs<'_>,
) -> Result<Outputs> {
    attention.run_plan_block_mask(queue, plan, inputs).await
}

/// A problem that fails, made as small as it gets, and as a case file where the format has words for it.
#[cfg(feature = "case")]
#[derive(Debug)]
pub struct Reduced {
    /// The problem; its inputs are those of [`inputs`] and the same seed.
    pub problem: Problem,
    /// With its inputs and what float64 says of them.
    pub case: core::result::Result<crate::case::Case, crate::case::CaseError>,
}

/// Makes a problem that fails smaller while it fails, and a case of what is left.
#[cfg(feature = "case")]
pub fn reduce(problem: &Problem, seed: u64, name: &str, fails: impl FnMut(&Problem) -> bool) -> Reduced {
    let problem = shrink(problem, fails);
    let case = inputs(&problem, seed).map_err(Into::into).and_then(|owned| {
        let truth = truth(&problem, &owned.as_inputs())?;
        crate::case::Case::of_truth(name, &problem, &owned.as_inputs(), &truth, &[])
    });
    Reduced { problem, case }
}

/// SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"): small, seeded, the same on every platform.
#[derive(Debug, Clone)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Any in a range, both ends included.
    fn range(&mut self, low: i64, high: i64) -> i64 {
        let size = (high - low + 1).max(1) as f64;
        low + (self.unit() * size) as i64
    }

    fn pick<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[(self.unit() * N as f64) as usize]
    }

    fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Near enough to a standard normal: variance 1, tails to 4.2.
    fn normal(&mut self) -> f32 {
        ((0..6).map(|_| self.unit()).sum::<f64>() - 3.0) as f32 * core::f32::consts::SQRT_2
    }

    fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}
