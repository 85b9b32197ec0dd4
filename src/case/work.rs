//! From a case to what the library computes: the place where options of the format become options of [`Problem`].

use super::array::Array;
use super::error::CaseError;
use super::header::{Header, Op};
use crate::host::{Inputs, Outputs};
use crate::layout::Layout;
use crate::mask::Causal;
use crate::problem::{Problem, Shape};
use crate::sharpness::{Scale, Temperature};
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;

/// What a case asks the library to compute, in owned memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    problem: Problem,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    kv_len: Option<Vec<u32>>,
    causal_offset: Option<Vec<i32>>,
    temperature: Option<Vec<f32>>,
    expected: Outputs,
}

/// What a case asks for that [`Problem`] cannot say. An option that the library learns leaves this list, and enters
/// [`Work::new`].
pub(super) fn missing(header: &Header, arrays: &BTreeMap<String, Array>) -> Vec<&'static str> {
    let has = |name: &str| arrays.contains_key(name);
    let dtype = |dtype: Dtype| arrays.get("q").is_some_and(|q| q.dtype == dtype);
    [
        (header.op == Op::Softmax, "op softmax"),
        (header.op == Op::LogSoftmax, "op log_softmax"),
        (dtype(Dtype::F16), "f16 tensors"),
        (dtype(Dtype::BF16), "bf16 tensors"),
        (header.softcap.is_some(), "softcap"),
        (header.window.is_some(), "window"),
        (has("bias"), "bias"),
        (has("mask"), "mask"),
        (has("alibi_slopes"), "alibi_slopes"),
        (has("sinks"), "sinks"),
        (has("scores"), "scores"),
        (has("dout"), "gradients (dout)"),
    ]
    .into_iter()
    .filter_map(|(needed, name)| needed.then_some(name))
    .collect()
}

impl Work {
    /// Only for a case of which nothing is [`missing`].
    pub(super) fn new(
        header: &Header,
        arrays: &BTreeMap<String, Array>,
        shape: Shape,
    ) -> Result<Self, CaseError> {
        let floats = |name: &str| arrays.get(name).map(Array::to_f32);
        let integers = |name: &str| arrays.get(name).map(Array::to_i32);
        let mut problem = Problem::new(shape);
        if header.bshd {
            problem = problem.layout(Layout::Bshd);
        }
        let temperature = floats("temperature_per_head");
        problem = sharpness(problem, header, temperature.is_some());
        let causal_offset = integers("causal_offset").filter(|_| header.causal);
        if header.causal {
            problem = problem.causal(match &causal_offset {
                Some(_) => Causal::PerBatch,
                None => header.causal_offset.unwrap_or(Causal::BottomRight),
            });
        }
        // Checked to be from 0 to seq_k.
        let kv_len = integers("kv_len").map(|lens| lens.into_iter().map(|n| n as u32).collect::<Vec<_>>());
        problem.kv_len = kv_len.is_some();
        let expected = Outputs {
            out: floats("out").unwrap_or_default(),
            lse: floats("lse"),
            entropy: floats("entropy"),
            row_max: None,
        };
        problem.stats.lse = expected.lse.is_some();
        problem.stats.entropy = expected.entropy.is_some();
        let [q, k, v] = ["q", "k", "v"].map(|name| floats(name).unwrap_or_default());
        let work = Work { problem, q, k, v, kv_len, causal_offset, temperature, expected };
        work.inputs().check(&work.problem)?;
        Ok(work)
    }

    /// The problem, which asks for the statistics that the case expects.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Its inputs.
    pub fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(&self.q, &self.k, &self.v);
        inputs.tables.kv_len = self.kv_len.as_deref();
        inputs.tables.causal_offset = self.causal_offset.as_deref();
        inputs.tables.temperature = self.temperature.as_deref();
        inputs
    }

    /// The expected outputs.
    pub fn expected(&self) -> &Outputs {
        &self.expected
    }
}

/// The number `temperature` divides the score beside `temperature_per_head`. A problem has one temperature, so that there
/// the number goes into the scale: the two are one factor.
fn sharpness(problem: Problem, header: &Header, per_head: bool) -> Problem {
    let tau = header.temperature.unwrap_or(1.0);
    let given = header.scale.map_or(Scale::RsqrtHeadDim, |scale| Scale::Value(scale as f32));
    if !per_head {
        return problem.scale(given).temperature(Temperature::Value(tau as f32));
    }
    let scale =
        if tau == 1.0 { given } else { Scale::Value((given.value(problem.shape.head_dim_qk) / tau) as f32) };
    problem.scale(scale).temperature(Temperature::PerHead)
}
