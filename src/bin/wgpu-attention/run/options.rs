//! The flags, put over what the files said.

use super::Args;
use super::flags::{AlibiArg, AlignArg, DropoutArg, LengthArg, MaskFormatArg, SinksArg};
use super::inputs::{self, Loaded};
use crate::arrays;
use crate::fail::{Fail, Result};
use crate::work::Work;
use std::path::Path;
use wgpu_attention::{
    Alignment, LengthScale, MaskFormat, NormGains, Problem, Scale, Sink, Temperature, UserCode, alibi_slopes,
};

impl Args {
    pub(super) fn apply(&self, loaded: &mut Loaded) -> Result<()> {
        let work = &mut loaded.work;
        self.apply_storage(&mut work.problem);
        self.apply_sharpness(work)?;
        self.apply_masks(work)?;
        self.apply_scores(work)?;
        self.apply_weights(work);
        match self.causal.as_ref().or(self.align.as_ref()) {
            Some(AlignArg::All(alignment)) => {
                (work.problem.alignment, work.own.causal_offset) = (*alignment, None);
            }
            Some(AlignArg::PerBatch(offsets)) => {
                (work.problem.alignment, work.own.causal_offset) =
                    (Alignment::PerBatch, Some(offsets.clone()));
            }
            None if work.problem.uses_positions() => {
                (work.problem.alignment, work.own.causal_offset) = loaded.positions.clone();
            }
            None => {}
        }
        let stats = &mut work.problem.stats;
        (stats.lse, stats.entropy, stats.row_max) = (self.lse, self.entropy, self.row_max);
        Ok(())
    }

    fn apply_storage(&self, problem: &mut Problem) {
        let [q, k, v, out] = &mut problem.dtypes;
        if let Some(dtypes) = self.dtype {
            [*q, *k, *v] = dtypes;
        }
        if let Some(dtype) = self.out_dtype {
            *out = dtype.into();
        }
    }

    fn apply_sharpness(&self, work: &mut Work) -> Result<()> {
        let problem = &mut work.problem;
        if let Some(scale) = self.scale {
            problem.scale = scale;
        }
        if let Some(tau) = self.temperature
            && !(tau.is_finite() && tau > 0.0)
        {
            return Err(Fail::usage(format!("--temperature is {tau}, but expected is a number above 0")));
        }
        let number = match problem.temperature {
            Temperature::Value(tau) => Some(self.temperature.unwrap_or(tau)),
            _ => self.temperature,
        };
        if let Some(list) = &self.temperature_per_head {
            work.own.temperature = Some(list.read()?);
            problem.temperature = Temperature::PerHead;
        }
        if let Some(path) = &self.temperature_per_row {
            work.own.temperature = Some(inputs::per_row(path, problem)?);
            problem.temperature = Temperature::PerRow;
        }
        match (problem.temperature, number) {
            (Temperature::Value(_), Some(tau)) => problem.temperature = Temperature::Value(tau),
            // A problem has one temperature; the number beside a table goes into the scale.
            (_, Some(tau)) => divide_scale(problem, tau),
            (_, None) => {}
        }
        if let Some(norm) = self.qk_norm {
            (problem.qk_norm, work.own.q_gain, work.own.k_gain) = (Some(norm), None, None);
        }
        if let (Some(q), Some(k)) = (&self.q_gain, &self.k_gain) {
            let (q, k) = (q.read()?, k.read()?);
            let Some(norm) = &mut problem.qk_norm else {
                return Err(Fail::usage(
                    "--q-gain and --k-gain multiply normalised rows: give --qk-norm too",
                ));
            };
            let shared = q.len() == problem.shape.head_dim_qk as usize;
            norm.gains = if shared { NormGains::Shared } else { NormGains::PerHead };
            (work.own.q_gain, work.own.k_gain) = (Some(q), Some(k));
        }
        match &self.length_scale {
            None => {}
            Some(LengthArg::Number(scale)) => (problem.length_scale, work.own.ssmax) = (*scale, None),
            Some(LengthArg::Ssmax(list)) => {
                (problem.length_scale, work.own.ssmax) = (LengthScale::Ssmax, Some(list.read()?));
            }
        }
        Ok(())
    }

    fn apply_masks(&self, work: &mut Work) -> Result<()> {
        let problem = &mut work.problem;
        problem.causal |= self.causal.is_some();
        if let Some(window) = self.window {
            problem.window = Some(window);
        }
        if let (Some(q), Some(k)) = (&self.documents_q, &self.documents_k) {
            problem.documents = true;
            (work.own.documents_q, work.own.documents_k) = (Some(q.read()?), Some(k.read()?));
        }
        if let Some(lens) = &self.q_len {
            problem.q_len = true;
            work.own.q_len = Some(lens.clone());
        }
        if let Some(lens) = &self.kv_len {
            problem.kv_len = true;
            work.own.kv_len = Some(lens.clone());
        }
        if let Some(path) = &self.mask {
            let mask = arrays::read_npy_flags(path)?;
            problem.mask = Some((MaskFormat::Bytes, inputs::broadcast(path, &mask.shape, problem)?));
            work.own.mask = Some(mask.bytes);
        }
        if let Some(format) = self.mask_format {
            let (Some((stored, _)), Some(mask)) = (&mut problem.mask, &mut work.own.mask) else {
                return Err(Fail::usage("--mask-format says how a mask is stored: give --mask too"));
            };
            match (*stored, format) {
                (MaskFormat::Bytes, MaskFormatArg::Bits) => {
                    (*stored, *mask) = (MaskFormat::Bits, bits(mask));
                }
                (MaskFormat::Bits, MaskFormatArg::Bytes) => {
                    return Err(Fail::usage("--mask-format: the case has a mask of bits, which stays one"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn apply_scores(&self, work: &mut Work) -> Result<()> {
        let problem = &mut work.problem;
        if let Some(cap) = self.softcap {
            problem.softcap = Some(cap);
        }
        if let Some(path) = &self.bias {
            let bias = arrays::read_npy(path)?;
            problem.bias = Some((bias.dtype, inputs::broadcast(path, &bias.shape, problem)?));
            work.own.bias = Some(bias.numbers);
        }
        if let Some(dtype) = self.bias_dtype {
            let Some((stored, _)) = &mut problem.bias else {
                return Err(Fail::usage("--bias-dtype says how a bias is stored: give --bias too"));
            };
            *stored = dtype.into();
        }
        if let Some(path) = &self.score_mod {
            problem.score_mod = Some(UserCode::score_mod(&text(path)?)?);
        }
        if let Some(path) = &self.mask_mod {
            problem.mask_mod = Some(UserCode::mask_mod(&text(path)?)?);
        }
        if let Some(user) = &self.user_params {
            let words = user.read()?;
            // Beyond 2^32 the library has refused them by their length.
            problem.user_params = u32::try_from(words.len()).unwrap_or(u32::MAX);
            work.own.user = Some(words);
        }
        if let Some(alibi) = &self.alibi {
            problem.alibi = true;
            work.own.alibi_slopes = Some(match alibi {
                AlibiArg::Standard => alibi_slopes(problem.shape.q_heads),
                AlibiArg::Slopes(list) => list.read()?,
            });
        }
        match &self.sinks {
            None => {}
            Some(SinksArg::Zero) => (problem.sink, work.own.sinks) = (Sink::Zero, None),
            Some(SinksArg::Logits(list)) => {
                (problem.sink, work.own.sinks) = (Sink::PerHead, Some(list.read()?));
            }
        }
        Ok(())
    }

    fn apply_weights(&self, work: &mut Work) {
        if let Some(normalizer) = self.normalizer {
            work.problem.normalizer = normalizer;
        }
        if self.top_k.is_some() {
            work.problem.top_k = self.top_k;
        }
        if self.adaptive_temperature.is_some() {
            work.problem.adaptive_temperature = self.adaptive_temperature;
        }
        if let Some(DropoutArg { dropout, seed }) = self.dropout {
            (work.problem.dropout, work.own.dropout) = (Some(dropout), Some(seed));
        }
    }
}

/// A text that user code is made of.
fn text(path: &Path) -> Result<String> {
    String::from_utf8(arrays::read_bytes(path)?).map_err(|_| Fail::file(path, "is no text in UTF-8"))
}

/// A byte for each pair, put together to bits.
fn bits(bytes: &[u8]) -> Vec<u8> {
    let eight = |eight: &[u8]| eight.iter().rev().fold(0, |bits, &keep| bits << 1 | u8::from(keep != 0));
    bytes.chunks(8).map(eight).collect()
}

fn divide_scale(problem: &mut Problem, tau: f32) {
    if tau != 1.0 {
        let scale = problem.scale.value(problem.shape.head_dim_qk) / f64::from(tau);
        problem.scale = Scale::Value(scale as f32);
    }
}
