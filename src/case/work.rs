//! From a case to what the library computes: the place where options of the format become options of [`Problem`].

use super::array::Array;
use super::error::CaseError;
use super::gradients::GradientWork;
use super::header::Header;
use crate::dtype::DType;
use crate::host::{Inputs, Outputs};
use crate::layout::Layout;
use crate::mask::{Alignment, MaskFormat};
use crate::owned::OwnedInputs;
use crate::problem::Problem;
use crate::qk_norm::NormGains;
use crate::score::{Broadcast, Sink};
use crate::scores::ScoreStage;
use crate::shape::Shape;
use crate::sharpness::{Scale, Temperature};
use crate::tensor::Tensor;
#[cfg(feature = "user-code")]
use crate::user_code::UserCode;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;

/// What a case asks the library to compute, in owned memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    problem: Problem,
    inputs: OwnedInputs,
    expected: Outputs,
    scores: Option<(ScoreStage, Vec<f32>)>,
    positions: (Alignment, Option<Vec<i32>>),
    gradients: Option<GradientWork>,
}

/// What a case asks for that [`Problem`] cannot say. An option that the library learns leaves this list, and enters
/// [`Work::new`].
pub(super) fn missing(header: &Header, arrays: &BTreeMap<String, Array>) -> Vec<&'static str> {
    let both = arrays.contains_key("dtemperature") && arrays.contains_key("temperature_per_head");
    let code = (header.score_mod.is_some() || header.mask_mod.is_some()) && !cfg!(feature = "user-code");
    [
        (both, "the gradient of the key temperature beside a temperature for each head (dtemperature)"),
        (code, "user code (score_mod, mask_mod), without the cargo feature user-code"),
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
        let dtype = |name: &str| arrays.get(name).map_or(DType::F32, |array| storage(array.dtype));
        let mut problem = Problem::new(shape).dtypes(dtype("q"), dtype("k"), dtype("v"), dtype("out"));
        if header.bshd {
            problem = problem.layout(Layout::Bshd);
        }
        for (tensor, strides) in Tensor::MAIN.into_iter().zip(header.strides) {
            let Some(strides) = strides else { continue };
            let layout = match tensor {
                Tensor::Q => &mut problem.q_layout,
                Tensor::K => &mut problem.k_layout,
                Tensor::V => &mut problem.v_layout,
                _ => &mut problem.out_layout,
            };
            *layout = Layout::Strided(strides);
        }
        let (per_head, per_row) = (floats("temperature_per_head"), floats("temperature_per_row"));
        let table = match (&per_head, &per_row) {
            (Some(_), _) => Some(Temperature::PerHead),
            (_, Some(_)) => Some(Temperature::PerRow),
            _ => None,
        };
        let temperature = per_head.or(per_row);
        problem = sharpness(problem, header, table);
        problem.length_scale = header.length_scale;
        problem.softcap = header.softcap.map(|cap| cap as f32);
        problem.causal = header.causal;
        problem.window = header.window;
        let gains = floats("q_gain").zip(floats("k_gain"));
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
        let format = if header.mask_bits { MaskFormat::Bits } else { MaskFormat::Bytes };
        let mask =
            arrays.get("mask").map(|a| if header.mask_bits { bits(&a.bytes) } else { a.bytes.clone() });
        problem.mask = arrays.get("mask").map(|a| (format, broadcast(a)));
        #[cfg(feature = "user-code")]
        {
            let code = |text: &Option<String>, make: fn(&str) -> crate::Result<UserCode>| {
                text.as_deref().map(make).transpose()
            };
            problem.score_mod = code(&header.score_mod, UserCode::score_mod)?;
            problem.mask_mod = code(&header.mask_mod, UserCode::mask_mod)?;
        }
        let user = arrays.get("user").map(Array::to_u32);
        problem.user_params = user.as_ref().map_or(0, |numbers| numbers.len() as u32);
        // In the order of the axes, to where the numbers are on the device.
        let placed = |tensor: Tensor| -> Result<Vec<f32>, CaseError> {
            let numbers = floats(tensor.name()).unwrap_or_default();
            if header.strides[tensor as usize].is_none() {
                return Ok(numbers);
            }
            let view = problem.view(tensor)?;
            if view.extent() > (1 << 20) + 64 * numbers.len() as u64 {
                let found = format!("{tensor:?} spread over {} places", view.extent());
                let expected = "not much further apart than there are elements";
                return Err(CaseError::Key { key: "strides", found, expected });
            }
            Ok(view.scatter(&numbers))
        };
        let (main, out) =
            ([placed(Tensor::Q)?, placed(Tensor::K)?, placed(Tensor::V)?], placed(Tensor::Out)?);
        let expected = Outputs { out, lse: floats("lse"), entropy: floats("entropy"), row_max: None };
        // Gradients start from lse, whether it is expected or not.
        problem.stats.lse = expected.lse.is_some() || arrays.contains_key("dout");
        problem.stats.entropy = expected.entropy.is_some();
        let scores = header.scores.zip(floats("scores"));
        let gradients = GradientWork::new(&problem, arrays);
        let (q_gain, k_gain) = gains.unzip();
        let inputs = OwnedInputs {
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
            ssmax: floats("ssmax"),
            q_gain,
            k_gain,
            dropout: header.dropout.map(|(_, seed)| seed),
            user,
            ..OwnedInputs::new(main)
        };
        let work = Work { problem, inputs, expected, scores, positions: (alignment, said), gradients };
        work.inputs().check(&work.problem)?;
        Ok(work)
    }

    /// The problem, which asks for the statistics that the case expects.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Its inputs.
    pub fn inputs(&self) -> Inputs<'_> {
        self.inputs.as_inputs()
    }

    /// Its inputs in memory of their own, for whoever wants to change them.
    pub fn owned_inputs(&self) -> &OwnedInputs {
        &self.inputs
    }

    /// The expected outputs, laid out as the problem says.
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

/// A byte for each pair, put together to bits.
fn bits(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(8).map(|eight| eight.iter().rev().fold(0, |byte, &keep| byte << 1 | keep)).collect()
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

/// The number `temperature` divides the score beside a table of temperatures. A problem has one temperature, so that there
/// the number goes into the scale: the two are one factor.
fn sharpness(problem: Problem, header: &Header, table: Option<Temperature>) -> Problem {
    let tau = header.temperature.unwrap_or(1.0);
    let given = header.scale.map_or(Scale::RsqrtHeadDim, |scale| Scale::Value(scale as f32));
    let Some(table) = table else {
        return problem.scale(given).temperature(Temperature::Value(tau as f32));
    };
    let scale =
        if tau == 1.0 { given } else { Scale::Value((given.value(problem.shape.head_dim_qk) / tau) as f32) };
    problem.scale(scale).temperature(table)
}
