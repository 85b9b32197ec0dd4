//! Case files: a problem with its right answer, read here and computed on the visitor's GPU.

use crate::context::{AttentionContext, promise};
use crate::fault::Fault;
use crate::fields::Record;
use crate::problem::kernel;
use js_sys::{Array, Float32Array, Promise};
use wasm_bindgen::prelude::*;
use wgpu_attention::case::Case;

#[wasm_bindgen]
impl AttentionContext {
    /// Computes a case file and compares.
    #[wasm_bindgen(js_name = checkCase)]
    pub fn check_case(&self, file: &[u8], options: &JsValue) -> Promise {
        let (inner, case) = (self.inner(), Case::from_bytes(file));
        let options = kernel(options);
        promise(async move {
            let (case, options) = (case?, options?);
            let report = case.check(&inner.attention, &inner.queue, &options).await;
            let missing: Array = case.missing().iter().map(|&part| JsValue::from(part)).collect();
            let record = Record::new()
                .with("name", report.name.as_str())
                .with("passes", report.passes())
                .with("missing", missing)
                .with_some("kernel", report.kernel.map(|kernel| kernel.name()))
                .with("maxAbs", report.max_abs)
                .with("maxRel", report.max_rel)
                .with_some("failure", report.failure.map(|failure| failure.to_string()));
            Ok(record.build())
        })
    }
}

/// What a case file holds, as arguments for `attention`.
#[wasm_bindgen(js_name = readCase, skip_typescript)]
pub fn read_case(file: &[u8]) -> Result<JsValue, JsValue> {
    let case = Case::from_bytes(file).map_err(Fault::from)?;
    let record = Record::new().with("name", case.name());
    let Some(work) = case.work() else {
        return Ok(record.build());
    };
    let (shape, inputs) = (work.problem().shape, work.inputs());
    let sizes = Record::new()
        .with("batch", shape.batch)
        .with("qHeads", shape.q_heads)
        .with("kvHeads", shape.kv_heads)
        .with("seqQ", shape.seq_q)
        .with("seqK", shape.seq_k)
        .with("headDimQk", shape.head_dim_qk)
        .with("headDimV", shape.head_dim_v);
    let tokens = |batch| {
        let texts = case.tokens(batch as usize)?;
        Some(texts.iter().map(JsValue::from).collect::<Array>())
    };
    let tokens: Array =
        (0..shape.batch).map(|batch| tokens(batch).map_or(JsValue::NULL, JsValue::from)).collect();
    let record = record
        .with("shape", sizes.build())
        .with("q", Float32Array::from(inputs.q))
        .with("k", Float32Array::from(inputs.k))
        .with("v", Float32Array::from(inputs.v))
        .with("causal", work.problem().causal)
        .with_some("kvLen", inputs.tables.kv_len.map(js_sys::Uint32Array::from))
        .with("tokens", tokens);
    Ok(record.build())
}
