//! Host inputs that own their memory: what [`Inputs`] borrows.

use crate::host::Inputs;
use crate::plan::TableData;

/// [`Inputs`] in memory of their own, for what is read from files or made up: tensors as f32, packed as
/// [`Inputs`] and [`TableData`] say, and `None` for what a problem does not have.
///
/// ```
/// use wgpu_attention::OwnedInputs;
/// let owned = OwnedInputs { kv_len: Some(vec![1]), ..OwnedInputs::new([vec![0.0], vec![1.0, 2.0], vec![3.0, 4.0]]) };
/// assert_eq!(owned.as_inputs().tables.kv_len, Some(&[1][..]));
/// assert_eq!(OwnedInputs::from(&owned.as_inputs()), owned);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[allow(missing_docs)] // the fields of Inputs and TableData
pub struct OwnedInputs {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    pub mask: Option<Vec<u8>>,
    pub cu_seqlens_q: Option<Vec<u32>>,
    pub cu_seqlens_k: Option<Vec<u32>>,
    pub q_len: Option<Vec<u32>>,
    pub kv_len: Option<Vec<u32>>,
    pub causal_offset: Option<Vec<i32>>,
    pub documents_q: Option<Vec<i32>>,
    pub documents_k: Option<Vec<i32>>,
    pub temperature: Option<Vec<f32>>,
    pub alibi_slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
    pub ssmax: Option<Vec<f32>>,
    pub q_gain: Option<Vec<f32>>,
    pub k_gain: Option<Vec<f32>>,
    pub dropout: Option<[u32; 2]>,
    pub user: Option<Vec<u32>>,
}

impl OwnedInputs {
    /// Of q, k and v alone.
    pub fn new([q, k, v]: [Vec<f32>; 3]) -> Self {
        OwnedInputs { q, k, v, ..OwnedInputs::default() }
    }

    /// What a call takes.
    pub fn as_inputs(&self) -> Inputs<'_> {
        Inputs {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            bias: self.bias.as_deref(),
            mask: self.mask.as_deref(),
            tables: TableData {
                cu_seqlens_q: self.cu_seqlens_q.as_deref(),
                cu_seqlens_k: self.cu_seqlens_k.as_deref(),
                q_len: self.q_len.as_deref(),
                kv_len: self.kv_len.as_deref(),
                causal_offset: self.causal_offset.as_deref(),
                documents_q: self.documents_q.as_deref(),
                documents_k: self.documents_k.as_deref(),
                temperature: self.temperature.as_deref(),
                alibi_slopes: self.alibi_slopes.as_deref(),
                sinks: self.sinks.as_deref(),
                ssmax: self.ssmax.as_deref(),
                q_gain: self.q_gain.as_deref(),
                k_gain: self.k_gain.as_deref(),
                dropout: self.dropout,
                user: self.user.as_deref(),
            },
        }
    }
}

impl From<&Inputs<'_>> for OwnedInputs {
    /// A copy. Every field is named, so that an input which the library learns cannot be forgotten here.
    fn from(inputs: &Inputs<'_>) -> Self {
        let Inputs { q, k, v, bias, mask, tables } = *inputs;
        let TableData {
            cu_seqlens_q,
            cu_seqlens_k,
            q_len,
            kv_len,
            causal_offset,
            documents_q,
            documents_k,
            temperature,
            alibi_slopes,
            sinks,
            ssmax,
            q_gain,
            k_gain,
            dropout,
            user,
        } = tables;
        OwnedInputs {
            q: q.to_vec(),
            k: k.to_vec(),
            v: v.to_vec(),
            bias: bias.map(<[_]>::to_vec),
            mask: mask.map(<[_]>::to_vec),
            cu_seqlens_q: cu_seqlens_q.map(<[_]>::to_vec),
            cu_seqlens_k: cu_seqlens_k.map(<[_]>::to_vec),
            q_len: q_len.map(<[_]>::to_vec),
            kv_len: kv_len.map(<[_]>::to_vec),
            causal_offset: causal_offset.map(<[_]>::to_vec),
            documents_q: documents_q.map(<[_]>::to_vec),
            documents_k: documents_k.map(<[_]>::to_vec),
            temperature: temperature.map(<[_]>::to_vec),
            alibi_slopes: alibi_slopes.map(<[_]>::to_vec),
            sinks: sinks.map(<[_]>::to_vec),
            ssmax: ssmax.map(<[_]>::to_vec),
            q_gain: q_gain.map(<[_]>::to_vec),
            k_gain: k_gain.map(<[_]>::to_vec),
            dropout,
            user: user.map(<[_]>::to_vec),
        }
    }
}
