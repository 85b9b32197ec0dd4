//! Case files: one problem with its right answer in one safetensors file.
//!
//! A case is what tests read, what `wgpu-attention check` runs and what you attach to a bug report. The format is in
//! docs/case-format.md. Reading checks everything, supported or not: unknown keys and tensors are errors, and what the
//! library cannot compute yet is listed in [`Case::missing`], so that a case can never pass by being half read.
//!
//! ```no_run
//! use wgpu_attention::{Attention, PlanOptions, case::Case, headless};
//! let gpu = headless::open_blocking(&headless::Options::default())?;
//! let case = Case::read("tests/cases/causal_len_16.safetensors")?;
//! let report = case.check_blocking(&Attention::new(&gpu.device), &gpu.queue, &PlanOptions::default());
//! assert!(report.passes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod array;
mod check;
mod error;
mod gradients;
mod header;
mod keys;
mod rules;
mod softmax;
mod work;

pub use check::{Failure, Report};
pub use error::CaseError;
pub use gradients::GradientWork;
pub use header::{Op, Tolerance};
pub use softmax::SoftmaxWork;
pub use work::Work;

use crate::dtype::DType;
use crate::host::{Inputs, Outputs};
use crate::layout::Layout;
use crate::mask::{Alignment, MaskFormat};
use crate::problem::Problem;
use crate::qk_norm::NormGains;
use crate::reference::{Bounded, Truth};
use crate::score::Sink;
use crate::scores::ScoreStage;
use crate::sequences::Sequences;
use crate::shape::Shape;
use crate::sharpness::{Scale, Temperature};
use crate::tensor::Tensor;
use array::Array;
use header::Header;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A case: everything that its file holds. Equal cases have equal bits, NaN included.
#[derive(Debug, Clone)]
pub struct Case {
    header: Header,
    arrays: BTreeMap<String, Array>,
    shape: Option<Shape>,
    missing: Vec<&'static str>,
    work: Option<Work>,
    softmax: Option<SoftmaxWork>,
}

impl PartialEq for Case {
    fn eq(&self, other: &Self) -> bool {
        // Everything else follows from these two.
        self.header == other.header && self.arrays == other.arrays
    }
}

impl Case {
    /// Reads a file.
    ///
    /// # Errors
    /// [`CaseError::InFile`] with what is wrong.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, CaseError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| CaseError::Read(e).in_file(path))?;
        Self::from_bytes(&bytes).map_err(|e| e.in_file(path))
    }

    /// Reads the contents of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CaseError> {
        let (mut metadata, arrays) = array::read(bytes)?;
        let text = metadata.remove("case").ok_or(CaseError::NoCase)?;
        if let Some(entry) = metadata.into_keys().min() {
            return Err(CaseError::UnknownEntry(entry));
        }
        Self::from_parts(Header::parse(&text)?, arrays)
    }

    fn from_parts(header: Header, arrays: BTreeMap<String, Array>) -> Result<Self, CaseError> {
        let shape = match header.op {
            Op::Attention => Some(rules::attention(&header, &arrays)?),
            Op::Softmax | Op::LogSoftmax => {
                rules::softmax(&header, &arrays)?;
                None
            }
        };
        let missing = work::missing(&header, &arrays);
        let work = match shape {
            Some(shape) if missing.is_empty() => Some(Work::new(&header, &arrays, shape)?),
            _ => None,
        };
        let softmax = match header.op {
            Op::Softmax | Op::LogSoftmax => Some(SoftmaxWork::new(&header, &arrays)?),
            Op::Attention => None,
        };
        Ok(Case { header, arrays, shape, missing, work, softmax })
    }

    /// Makes a case of a problem and the outputs that it should have (for the right ones see
    /// [`reference::truth`](crate::reference::truth)). `row_max` has no place in the format and is left out.
    ///
    /// # Errors
    /// What [`Inputs::check`] finds; [`CaseError::Unsayable`] for packed sequences that are all shorter than the problem's longest.
    pub fn new(
        name: impl Into<String>,
        problem: &Problem,
        inputs: &Inputs<'_>,
        expected: &Outputs,
        tolerance: Tolerance,
    ) -> Result<Self, CaseError> {
        inputs.check(problem)?;
        let sequences = Sequences::new(problem, &inputs.tables);
        for (field, size, longest) in [
            ("seq_q", problem.shape.seq_q, (0..problem.shape.batch).map(|b| sequences.queries(b)).max()),
            ("seq_k", problem.shape.seq_k, (0..problem.shape.batch).map(|b| sequences.keys(b)).max()),
        ] {
            if longest.is_some_and(|longest| longest != size) {
                let expected = "the length of the longest of the packed sequences";
                return Err(CaseError::Unsayable { field, found: size.to_string(), expected });
            }
        }
        let mut header = Header::new(name.into(), Op::Attention, tolerance);
        let layouts = [problem.q_layout, problem.k_layout, problem.v_layout, problem.out_layout];
        header.bshd = layouts == [Layout::Bshd; 4];
        if !header.bshd {
            for (tensor, layout) in Tensor::MAIN.into_iter().zip(layouts) {
                header.strides[tensor as usize] = match layout {
                    Layout::Bhsd => None,
                    _ => Some(problem.view(tensor)?.strides()),
                };
            }
        }
        header.mask_bits = problem.mask.is_some_and(|(format, _)| format == MaskFormat::Bits);
        header.length_scale = problem.length_scale;
        header.score_mod = problem.score_mod.as_ref().map(|code| code.wgsl().to_owned());
        header.mask_mod = problem.mask_mod.as_ref().map(|code| code.wgsl().to_owned());
        header.scale = match problem.scale {
            Scale::RsqrtHeadDim => None,
            scale => Some(scale.value(problem.shape.head_dim_qk)),
        };
        header.temperature = match problem.temperature {
            Temperature::Value(1.0) | Temperature::PerHead | Temperature::PerRow => None,
            Temperature::Value(tau) => Some(f64::from(tau)),
        };
        header.causal = problem.causal;
        let default_or_tensor = [Alignment::default(), Alignment::PerBatch].contains(&problem.alignment);
        header.causal_offset = (!default_or_tensor).then_some(problem.alignment);
        header.window = problem.window;
        header.normalizer = problem.normalizer;
        header.adaptive_temperature = problem.adaptive_temperature;
        header.top_k = problem.top_k;
        header.dropout = problem.dropout.zip(inputs.tables.dropout);
        header.softcap = problem.softcap.map(f64::from);
        header.qk_norm = problem.qk_norm.map(|norm| norm.gains(NormGains::None));

        let s = &problem.shape;
        let size = |n: u32| n as usize;
        let tensor = |tensor| -> crate::Result<[usize; 4]> {
            let [batch, heads, seq, dim] = problem.view(tensor)?.sizes().map(size);
            Ok(if header.bshd { [batch, seq, heads, dim] } else { [batch, heads, seq, dim] })
        };
        let out_shape = tensor(Tensor::Out)?;
        let [out_batch, _, out_rows, _] = problem.view(Tensor::Out)?.sizes();
        let rows = [size(out_batch), size(s.q_heads), size(out_rows)];
        let mut arrays = BTreeMap::new();
        let mut put = |name: &str, array: Array| arrays.insert(name.to_owned(), array);
        // In the order of the axes, wherever the numbers are on the device.
        let in_order = |of: Tensor, numbers: &[f32]| -> crate::Result<Vec<f32>> {
            Ok(match header.strides[of as usize] {
                None => numbers.to_vec(),
                Some(_) => problem.view(of)?.gather(numbers),
            })
        };
        let [q_type, k_type, v_type, out_dtype] = problem.dtypes;
        put("q", Array::stored(q_type, &tensor(Tensor::Q)?, &in_order(Tensor::Q, inputs.q)?));
        put("k", Array::stored(k_type, &tensor(Tensor::K)?, &in_order(Tensor::K, inputs.k)?));
        put("v", Array::stored(v_type, &tensor(Tensor::V)?, &in_order(Tensor::V, inputs.v)?));
        if let (Some((dtype, sizes)), Some(bias)) = (problem.bias, inputs.bias) {
            put("bias", Array::stored(dtype, &sizes.0.map(size), bias));
        }
        if let (Some((format, sizes)), Some(mask)) = (problem.mask, inputs.mask) {
            let count = sizes.0.iter().map(|&n| size(n)).product::<usize>();
            let keeps = |at| u8::from(crate::reference::mask_keeps(format, mask, at));
            put("mask", Array::u8(&sizes.0.map(size), (0..count).map(keeps).collect()));
        }
        for (name, heads) in [
            ("alibi_slopes", inputs.tables.alibi_slopes),
            ("sinks", inputs.tables.sinks),
            ("ssmax", inputs.tables.ssmax),
        ] {
            if let Some(heads) = heads {
                put(name, Array::f32(&[heads.len()], heads));
            }
        }
        if problem.sink == Sink::Zero {
            put("sinks", Array::f32(&[size(s.q_heads)], &vec![0.0; size(s.q_heads)]));
        }
        for (name, of, numbers) in [
            ("documents_q", Tensor::Q, inputs.tables.documents_q),
            ("documents_k", Tensor::K, inputs.tables.documents_k),
        ] {
            let [batch, _, seq, _] = problem.view(of)?.sizes().map(size);
            if let Some(numbers) = numbers {
                put(name, Array::i32(&[batch, seq], numbers));
            }
        }
        let (q_starts, k_starts) = (inputs.tables.cu_seqlens_q, inputs.tables.cu_seqlens_k);
        for (name, lens) in [
            ("cu_seqlens_q", q_starts),
            ("cu_seqlens_k", k_starts),
            ("q_len", inputs.tables.q_len),
            ("kv_len", inputs.tables.kv_len),
        ] {
            let Some(lens) = lens else { continue };
            // At most 2^30, as lengths are.
            let lens: Vec<i32> = lens.iter().map(|&n| n as i32).collect();
            put(name, Array::i32(&[lens.len()], &lens));
        }
        for (name, gains, heads) in
            [("q_gain", inputs.tables.q_gain, s.q_heads), ("k_gain", inputs.tables.k_gain, s.kv_heads)]
        {
            let Some(gains) = gains else { continue };
            let per_head = problem.qk_norm.is_some_and(|norm| norm.gains == NormGains::PerHead);
            let shape = [size(heads), size(s.head_dim_qk)];
            put(name, Array::f32(&shape[usize::from(!per_head)..], gains));
        }
        if let Some(offsets) = inputs.tables.causal_offset {
            put("causal_offset", Array::i32(&[offsets.len()], offsets));
        }
        if let Some(taus) = inputs.tables.temperature {
            match problem.temperature {
                Temperature::PerRow => put("temperature_per_row", Array::f32(&rows, taus)),
                _ => put("temperature_per_head", Array::f32(&[taus.len()], taus)),
            };
        }
        if let Some(user) = inputs.tables.user {
            put("user", Array::u32(user));
        }
        let view = problem.view(Tensor::Out)?;
        if expected.out.len() as u64 != view.extent() {
            let (got, expected) = (expected.out.len() as u64, view.extent());
            return Err(crate::Error::Length { field: "out", got, expected }.into());
        }
        let out = in_order(Tensor::Out, &expected.out)?;
        let outputs = [
            ("out", out_shape.as_slice(), Some(&out)),
            ("lse", &rows, expected.lse.as_ref()),
            ("entropy", &rows, expected.entropy.as_ref()),
        ];
        for (field, shape, numbers) in outputs {
            let Some(numbers) = numbers else { continue };
            let elements = shape.iter().product::<usize>();
            if numbers.len() != elements {
                let (got, expected) = (numbers.len() as u64, elements as u64);
                return Err(crate::Error::Length { field, got, expected }.into());
            }
            let dtype = if field == "out" { out_dtype } else { DType::F32 };
            put(field, Array::stored(dtype, shape, numbers));
        }
        Self::from_parts(header, arrays)
    }

    /// A case of a problem with the outputs of float64 ([`reference::truth`](crate::reference::truth), and
    /// [`reference::scores_at`](crate::reference::scores_at) where the file is to have scores). Its tolerance is rtol 2e-5 and atol 2e-6, or what
    /// float64 says the device may be off where that is more.
    ///
    /// # Errors
    /// As [`Case::new`].
    pub fn of_truth(
        name: impl Into<String>,
        problem: &Problem,
        inputs: &Inputs<'_>,
        truth: &Truth,
        scores: &[Bounded],
    ) -> Result<Self, CaseError> {
        // The statistics that this problem has.
        let mut problem = problem.clone();
        let rows = problem.rows() as usize;
        (problem.stats.lse, problem.stats.entropy) = (truth.lse.len() == rows, truth.entropy.len() == rows);
        let rtol = 2e-5;
        let beyond = |x: &Bounded| x.bound - rtol * x.value.abs();
        let atol = [truth.out.as_slice(), &truth.lse, &truth.entropy, scores]
            .into_iter()
            .flatten()
            .map(beyond)
            .filter(|x| x.is_finite())
            .fold(2e-6, f64::max);
        Case::new(name, &problem, inputs, &truth.outputs(&problem), Tolerance { rtol, atol })
    }

    /// Adds the scores that it should have, (batch, q_heads, seq_q, seq_k), at a stage (for the right ones see
    /// [`reference::scores_at`](crate::reference::scores_at)).
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) for another number of scores; [`CaseError::UnknownTensor`] for a softmax.
    pub fn with_scores(mut self, stage: ScoreStage, scores: &[f32]) -> Result<Self, CaseError> {
        let sizes = self.shape.map_or([0; 4], |s| [s.batch, s.q_heads, s.seq_q, s.seq_k]);
        let sizes = sizes.map(|n| n as usize);
        let (got, expected) = (scores.len() as u64, sizes.iter().product::<usize>() as u64);
        if got != expected {
            return Err(crate::Error::Length { field: "scores", got, expected }.into());
        }
        self.header.scores = Some(stage);
        self.arrays.insert("scores".to_owned(), Array::f32(&sizes, scores));
        Self::from_parts(self.header, self.arrays)
    }

    /// Adds the texts of the keys: one list for all batches, or one for each.
    ///
    /// # Errors
    /// [`CaseError::Key`] for another number of lists or texts.
    pub fn with_tokens(mut self, tokens: Vec<Vec<String>>) -> Result<Self, CaseError> {
        self.header.tokens = tokens;
        Self::from_parts(self.header, self.arrays)
    }

    /// The contents of its file.
    ///
    /// # Errors
    /// [`CaseError::NotSafetensors`] where the container refuses it, as for a header beyond 100 MB.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CaseError> {
        let metadata = HashMap::from([("case".to_owned(), self.header.to_json())]);
        array::write(metadata, self.arrays.iter().map(|(name, array)| (name.as_str(), array)))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.header.name
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.header.op
    }

    /// The shape of an attention.
    pub fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// How far results may be off.
    pub fn tolerance(&self) -> Tolerance {
        self.header.tolerance
    }

    /// The texts of the keys of a batch, where the file tells them.
    pub fn tokens(&self, batch: usize) -> Option<&[String]> {
        let lists = &self.header.tokens;
        let list = if lists.len() == 1 { lists.first() } else { lists.get(batch) };
        list.map(Vec::as_slice)
    }

    /// What the case asks for that the library cannot compute yet. Empty for one that can be run.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// The attention problem with its inputs and expected outputs. `None` for another operation, and where something is
    /// [missing](Case::missing): a problem without it would be another problem.
    pub fn work(&self) -> Option<&Work> {
        self.work.as_ref()
    }

    /// The softmax or log-softmax with its input and expected result. `None` for an attention.
    pub fn softmax(&self) -> Option<&SoftmaxWork> {
        self.softmax.as_ref()
    }

    fn shape_of(&self, tensor: &str) -> &[usize] {
        self.arrays.get(tensor).map(|a| a.shape.as_slice()).unwrap_or_default()
    }
}
