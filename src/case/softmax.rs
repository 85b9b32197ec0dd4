//! Cases of the operations softmax and log_softmax.

use super::array::Array;
use super::error::CaseError;
use super::header::{Header, Op};
use crate::error::{Error, Result};
use crate::softmax::{Inputs, Kind, Problem, RowTemperature, Softmax};
use std::collections::BTreeMap;

/// What such a case asks the library to compute, in owned memory.
#[derive(Debug, Clone, PartialEq)]
pub struct SoftmaxWork {
    problem: Problem,
    x: Vec<f32>,
    expected: Vec<f32>,
}

impl SoftmaxWork {
    /// The tensors were checked; the last axis is the one that sums to 1.
    pub(super) fn new(header: &Header, arrays: &BTreeMap<String, Array>) -> Result<Self, CaseError> {
        let floats = |name: &str| arrays.get(name).map(Array::to_f32).unwrap_or_default();
        let shape = arrays.get("x").map(|x| x.shape.clone()).unwrap_or_default();
        let (len, outer) = shape.split_last().map_or((0, &[][..]), |(len, outer)| (*len, outer));
        let rows = outer.iter().try_fold(1usize, |n, &s| n.checked_mul(s)).unwrap_or(usize::MAX);
        let size = |field, n: usize| u32::try_from(n).map_err(|_| Error::value(field, n, "below 2^32"));
        let problem = Problem::new(size("rows", rows)?, size("len", len)?)
            .kind(if header.op == Op::LogSoftmax { Kind::LogSoftmax } else { Kind::Softmax })
            .temperature(RowTemperature::Value(header.temperature.unwrap_or(1.0) as f32));
        let work = SoftmaxWork { problem, x: floats("x"), expected: floats("out") };
        work.inputs().check(&work.problem)?;
        Ok(work)
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Its inputs.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs::new(&self.x)
    }

    /// The expected result.
    pub fn expected(&self) -> &[f32] {
        &self.expected
    }

    pub(super) async fn run(&self, device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Vec<f32>> {
        Ok(Softmax::new(device).run(queue, &self.problem, &self.inputs()).await?.out)
    }
}
