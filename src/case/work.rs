//! From a case to what the library computes: the place where options of the format become options of [`Problem`].

use super::array::Array;
use super::error::CaseError;
use super::gradients::GradientWork;
use super::header::Header;
use crate::dtype::DType;
use crate::host::{Inputs, Outputs};
use crate::layout::Layout;
use crate::mask::{Alignment, MaskFormat};
use crate::problem::Problem;
use crate::qk_norm::NormGains;
use crate::score::{Broadcast, Sink};
use crate::scores::ScoreStage;
use crate::shape::Shape;
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
    bias: Option<Vec<f32>>,
    mask: Option<Vec<u8>>,
    cu_seqlens_q: Option<Vec<u32>>,
    cu_seqlens_k: Option<Vec<u32>>,
    documents_q: Option<Vec<i32>>,
    documents_k: Option<Vec<i32>>,
    q_len: Option<Vec<u32>>,
    kv_len: Option<Vec<u32>>,
    causal_offset: Option<Vec<i32>>,
    temperature: Option<Vec<f32>>,
    alibi_slopes: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    gains: Option<[Vec<f32>; 2]>,
    dropout: Option<[u32; 2]>,
    expected: Outputs,
    scores: Option<(ScoreStage, Vec<f32>)>,
    positions: (Alignment, Option<Vec<i32>>),
    gradients: Option<GradientWork>,
}

/// What a case asks for that [`Problem`] cannot say. An option that the library learns leaves this list, and enters
/// [`Work::new`].
pub(super) fn missing(arrays: &BTreeMap<String, Array>) -> Vec<&'static str> {
    let both = arrays.contains_key("dtemperature") && arrays.contains_key("temperature_per_head");
    [(both, "the gradient of the key temperature beside a temperature for each head (dtemperature)")]
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
        let dtype = |name: &str| arrays.get(name).map_or(DType::F32, |array| storage(array.dtype));
        let mut problem = Problem::new(shape).dtypes(dtype("q"), dtype("k"), dtype("v"), dtype("out"));
        if header.bshd {
            problem = problem.layout(Layout::Bshd);
        }
        let temperature = floats("temperature_per_head");
        problem = sharpness(problem, header, temperature.is_some());
        problem.softcap = header.softcap.map(|cap| cap as f32);
        problem.causal = header.causal;
        problem.window = header.window;
        let gains = floats("q_gain").zip(floats("k_gain")).map(<[_; 2]>::from);
        problem.qk_norm = header.qk_norm.map(|norm| {
            norm.gains(match arrays.get("q_gain").map(|array| array.shape.len()) {
                None => NormGains::None,
                Some(1) => NormGains::Shared,
                Some(_) => NormGains::PerHead,
            })
        });
        problem.normalizer = header.normalizer;
        problem.adaptive_temperature = header.adaptive_temperature;
        problem.top_k = header.top_k;
        problem.dropout = header.dropout.map(|(dropout, _)| dropout);
        let alibi_slopes = floats("alibi_slopes");
        problem.alibi = alibi_slopes.is_some();
        // The format may say where positions are although nothing counts from them.
        let counts = problem.uses_positions();
        let said = integers("causal_offset");
        let alignment = match &said {
            Some(_) => Alignment::PerBatch,
            None => header.causal_offset.unwrap_or_default(),
        };
        if counts {
            problem.alignment = alignment;
        }
        let causal_offset = said.clone().filter(|_| counts);
        // None of these is negative: the rules have seen them.
        let counts = |name| integers(name).map(|n| n.into_iter().map(|n| n as u32).collect::<Vec<_>>());
        let (q_len, kv_len) = (counts("q_len"), counts("kv_len"));
        let (cu_seqlens_q, cu_seqlens_k) = (counts("cu_seqlens_q"), counts("cu_seqlens_k"));
        let total = |starts: &Option<Vec<u32>>| starts.as_ref().and_then(|starts| starts.last().copied());
        (problem.packed_q, problem.packed_k) = (total(&cu_seqlens_q), total(&cu_seqlens_k));
        let (documents_q, documents_k) = (integers("documents_q"), integers("documents_k"));
        problem.documents = documents_q.is_some();
        (problem.q_len, problem.kv_len) = (q_len.is_some(), kv_len.is_some());
        let sinks = floats("sinks");
        if sinks.is_some() {
            problem.sink = Sink::PerHead;
        }
        let bias = floats("bias");
        problem.bias = arrays.get("bias").map(|a| (storage(a.dtype), broadcast(a)));
        let mask = arrays.get("mask").map(|a| a.bytes.clone());
        problem.mask = arrays.get("mask").map(|a| (MaskFormat::Bytes, broadcast(a)));
        let expected = Outputs {
            out: floats("out").unwrap_or_default(),
            lse: floats("lse"),
            entropy: floats("entropy"),
            row_max: None,
        };
        // Gradients start from lse, whether it is expected or not.
        problem.stats.lse = expected.lse.is_some() || arrays.contains_key("dout");
        problem.stats.entropy = expected.entropy.is_some();
        let scores = header.scores.zip(floats("scores"));
        let [q, k, v] = ["q", "k", "v"].map(|name| floats(name).unwrap_or_default());
        let gradients = GradientWork::new(&problem, arrays);
        let work = Work {
            problem,
            q,
            k,
            v,
            bias,
            mask,
            cu_seqlens_q,
            cu_seqlens_k,
            documents_q,
            documents_k,
            q_len,
            kv_len,
            causal_offset,
            temperature,
            alibi_slopes,
            sinks,
            gains,
            dropout: header.dropout.map(|(_, seed)| seed),
            expected,
            scores,
            positions: (alignment, said),
            gradients,
        };
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
        inputs.bias = self.bias.as_deref();
        inputs.mask = self.mask.as_deref();
        inputs.tables.cu_seqlens_q = self.cu_seqlens_q.as_deref();
        inputs.tables.cu_seqlens_k = self.cu_seqlens_k.as_deref();
        inputs.tables.documents_q = self.documents_q.as_deref();
        inputs.tables.documents_k = self.documents_k.as_deref();
        inputs.tables.q_len = self.q_len.as_deref();
        inputs.tables.kv_len = self.kv_len.as_deref();
        inputs.tables.causal_offset = self.causal_offset.as_deref();
        inputs.tables.temperature = self.temperature.as_deref();
        inputs.tables.alibi_slopes = self.alibi_slopes.as_deref();
        inputs.tables.sinks = self.sinks.as_deref();
        if let Some([q, k]) = &self.gains {
            inputs = inputs.gains(q, k);
        }
        inputs.tables.dropout = self.dropout;
        inputs
    }

    /// The expected outputs.
    pub fn expected(&self) -> &Outputs {
        &self.expected
    }

    /// The gradients that the case expects, where it does.
    pub fn gradients(&self) -> Option<&GradientWork> {
        self.gradients.as_ref()
    }

    /// Where the case says that rows stand, with the offsets of [`Alignment::PerBatch`]: what the problem has too if anything
    /// counts from there.
    pub fn positions(&self) -> (Alignment, Option<&[i32]>) {
        (self.positions.0, self.positions.1.as_deref())
    }

    /// The expected scores, (batch, q_heads, seq_q, seq_k), and what they are; where the case has them.
    pub fn scores(&self) -> Option<(ScoreStage, &[f32])> {
        self.scores.as_ref().map(|(stage, scores)| (*stage, scores.as_slice()))
    }
}

/// The storage type of a tensor, which was checked to be one of these.
fn storage(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        _ => DType::F32,
    }
}

/// Sizes of a tensor that broadcasts, counted from the last axis as numpy does.
fn broadcast(array: &Array) -> Broadcast {
    let mut sizes = [1; 4];
    // Each is 1 or a size of the shape, which fits 32 bits.
    for (size, &n) in sizes.iter_mut().rev().zip(array.shape.iter().rev()) {
        *size = n as u32;
    }
    Broadcast(sizes)
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
