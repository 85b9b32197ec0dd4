//! A problem with its inputs, in owned memory.

use crate::fail::Result;
use wgpu_attention::case::Case;
use wgpu_attention::reference::{Bounded, Truth};
use wgpu_attention::{Inputs, OwnedInputs, Problem};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    pub problem: Problem,
    pub own: OwnedInputs,
}

impl Work {
    pub(crate) fn inputs(&self) -> Inputs<'_> {
        self.own.as_inputs()
    }

    /// A case whose tolerance is at least what float64 says the device may be off.
    pub(crate) fn case(&self, name: &str, truth: &Truth, scores: &[Bounded]) -> Result<Case> {
        Ok(Case::of_truth(name, &self.problem, &self.inputs(), truth, scores)?)
    }
}
