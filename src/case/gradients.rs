//! Gradients that a case expects.

use super::array::Array;
use crate::backward::{Gradients, Problem};
use crate::sharpness::Temperature;
use std::collections::BTreeMap;

/// Which gradients a case expects of its problem, and from what they start.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientWork {
    problem: Problem,
    dout: Vec<f32>,
    expected: Gradients,
}

impl GradientWork {
    /// Of a case with `dout`; what belongs together was checked.
    pub(super) fn new(forward: &crate::Problem, arrays: &BTreeMap<String, Array>) -> Option<Self> {
        let floats = |name: &str| arrays.get(name).map(Array::to_f32);
        let of_temperature = match forward.temperature {
            Temperature::PerHead => "dtemperature_per_head",
            _ => "dtemperature",
        };
        let list = |name: &str| floats(name).unwrap_or_default();
        let expected = Gradients {
            dq: list("dq"),
            dk: list("dk"),
            dv: list("dv"),
            dbias: floats("dbias"),
            dsinks: floats("dsinks"),
            dtemperature: floats(of_temperature),
        };
        let mut problem = Problem::new(forward.clone());
        problem.dbias = expected.dbias.is_some();
        problem.dsinks = expected.dsinks.is_some();
        problem.dtemperature = expected.dtemperature.is_some();
        Some(GradientWork { problem, dout: floats("dout")?, expected })
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The gradient of out that comes in.
    pub fn dout(&self) -> &[f32] {
        &self.dout
    }

    /// The expected gradients.
    pub fn expected(&self) -> &Gradients {
        &self.expected
    }
}
