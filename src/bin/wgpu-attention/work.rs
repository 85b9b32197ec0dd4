//! A problem with its inputs, in owned memory.

use crate::fail::Result;
use wgpu_attention::case::{Case, Tolerance};
use wgpu_attention::reference::{Bounded, Truth};
use wgpu_attention::{Inputs, LengthScale, Problem, TableData};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    pub problem: Problem,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    pub mask: Option<Vec<u8>>,
    pub cu_seqlens_q: Option<Vec<u32>>,
    pub cu_seqlens_k: Option<Vec<u32>>,
    pub documents_q: Option<Vec<i32>>,
    pub documents_k: Option<Vec<i32>>,
    pub q_len: Option<Vec<u32>>,
    pub kv_len: Option<Vec<u32>>,
    pub causal_offset: Option<Vec<i32>>,
    pub temperature: Option<Vec<f32>>,
    pub alibi_slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
    pub ssmax: Option<Vec<f32>>,
    pub q_gain: Option<Vec<f32>>,
    pub k_gain: Option<Vec<f32>>,
    pub dropout: Option<[u32; 2]>,
}

impl Work {
    pub(crate) fn new(problem: Problem, [q, k, v]: [Vec<f32>; 3]) -> Self {
        Work {
            problem,
            q,
            k,
            v,
            bias: None,
            mask: None,
            cu_seqlens_q: None,
            cu_seqlens_k: None,
            documents_q: None,
            documents_k: None,
            q_len: None,
            kv_len: None,
            causal_offset: None,
            temperature: None,
            alibi_slopes: None,
            sinks: None,
            ssmax: None,
            q_gain: None,
            k_gain: None,
            dropout: None,
        }
    }

    /// A copy of inputs. Every field is named, so that an input which the library learns cannot be forgotten here.
    pub(crate) fn of(problem: &Problem, inputs: &Inputs<'_>) -> Self {
        let Inputs { q, k, v, bias, mask, tables } = *inputs;
        // Files hold no user code, and so no numbers for it.
        let TableData {
            cu_seqlens_q,
            cu_seqlens_k,
            k_gain,
            q_gain,
            documents_q,
            documents_k,
            q_len,
            kv_len,
            causal_offset,
            temperature,
            alibi_slopes,
            sinks,
            ssmax,
            dropout,
            user: _,
        } = tables;
        Work {
            problem: problem.clone(),
            q: q.to_vec(),
            k: k.to_vec(),
            v: v.to_vec(),
            bias: bias.map(<[_]>::to_vec),
            mask: mask.map(<[_]>::to_vec),
            cu_seqlens_q: cu_seqlens_q.map(<[_]>::to_vec),
            cu_seqlens_k: cu_seqlens_k.map(<[_]>::to_vec),
            documents_q: documents_q.map(<[_]>::to_vec),
            documents_k: documents_k.map(<[_]>::to_vec),
            q_len: q_len.map(<[_]>::to_vec),
            kv_len: kv_len.map(<[_]>::to_vec),
            causal_offset: causal_offset.map(<[_]>::to_vec),
            temperature: temperature.map(<[_]>::to_vec),
            alibi_slopes: alibi_slopes.map(<[_]>::to_vec),
            sinks: sinks.map(<[_]>::to_vec),
            ssmax: ssmax.map(<[_]>::to_vec),
            q_gain: q_gain.map(<[_]>::to_vec),
            k_gain: k_gain.map(<[_]>::to_vec),
            dropout,
        }
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
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
        inputs.tables.ssmax = self.ssmax.as_deref();
        inputs.tables.q_gain = self.q_gain.as_deref();
        inputs.tables.k_gain = self.k_gain.as_deref();
        inputs.tables.dropout = self.dropout;
        inputs
    }

    /// A case whose tolerance is at least what float64 says the device may be off.
    pub(crate) fn case(&self, name: &str, truth: &Truth, scores: &[Bounded]) -> Result<Case> {
        // The statistics that this problem has.
        let mut problem = self.problem.clone();
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
        let tolerance = Tolerance { rtol, atol };
        Ok(Case::new(name, &problem, &self.inputs(), &truth.outputs(&problem), tolerance)?)
    }
}

/// Whether anything counts from a row's position. An alignment that nothing counts from is refused.
pub(crate) fn uses_positions(problem: &Problem) -> bool {
    let counts = !matches!(problem.length_scale, LengthScale::None | LengthScale::Yarn { .. });
    problem.causal || problem.window.is_some() || problem.alibi || counts
}
