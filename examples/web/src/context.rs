//! `AttentionContext`: a device with compiled shaders, kept between calls.
//!
//! Methods return promises that own a clone of what they need, so that any number of calls may be on their way at once, and
//! `destroy` or a garbage collector may come at any time.

use crate::fault::{Fault, Result};
use crate::fields::{Fields, Record};
use crate::problem::{Work, described, rows};
use core::future::Future;
use core::ops::Range;
use futures::channel::oneshot;
use futures::future::{FutureExt, Shared};
use js_sys::{Array, Float32Array, Float64Array, Promise};
use std::rc::Rc;
use std::sync::Mutex;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use wgpu_attention::backward::Backward;
use wgpu_attention::reference::{self, Bounded};
use wgpu_attention::sampling::Sampler;
use wgpu_attention::softmax::Softmax;
use wgpu_attention::{Attention, Outputs, ScoreStage, headless, wgpu};

/// Why a device is gone.
#[derive(Debug, Clone)]
struct Loss {
    reason: &'static str,
    message: String,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub adapter: wgpu::Adapter,
    pub attention: Attention,
    pub backward: Backward,
    pub softmax: Softmax,
    pub sampler: Sampler,
    pub queue: wgpu::Queue,
    lost: Shared<oneshot::Receiver<Loss>>,
}

/// A GPU device with the shaders compiled so far.
#[wasm_bindgen(skip_typescript)]
#[derive(Debug, Clone)]
pub struct AttentionContext {
    inner: Rc<Inner>,
}

/// A promise of what a future makes.
pub(crate) fn promise(future: impl Future<Output = Result<JsValue>> + 'static) -> Promise {
    future_to_promise(future.map(|result| result.map_err(JsValue::from)))
}

#[wasm_bindgen]
impl AttentionContext {
    /// Asks the browser for a device.
    pub fn create(options: &JsValue) -> Promise {
        let options = options.clone();
        promise(async move {
            let fields = Fields::new(&options, "", &["defaultLimits"])?;
            let mut options = headless::Options::default();
            options.default_limits = fields.bool("defaultLimits")?;
            let gpu = headless::open(&options).await?;
            let (sender, lost) = oneshot::channel();
            let sender = Mutex::new(Some(sender));
            gpu.device.set_device_lost_callback(move |reason, message| {
                let reason = match reason {
                    wgpu::DeviceLostReason::Destroyed => "destroyed",
                    _ => "unknown",
                };
                let sender = sender.lock().ok().and_then(|mut sender| sender.take());
                if let Some(sender) = sender {
                    // Nobody may be waiting any more.
                    let _ = sender.send(Loss { reason, message });
                }
            });
            let inner = Inner {
                adapter: gpu.adapter,
                attention: Attention::new(&gpu.device),
                backward: Backward::new(&gpu.device),
                softmax: Softmax::new(&gpu.device),
                sampler: Sampler::new(&gpu.device),
                queue: gpu.queue,
                lost: lost.shared(),
            };
            Ok(AttentionContext { inner: Rc::new(inner) }.into())
        })
    }

    /// Resolves when the device is gone.
    #[wasm_bindgen(getter)]
    pub fn lost(&self) -> Promise {
        let lost = self.inner.lost.clone();
        promise(async move {
            let loss = lost.await.unwrap_or(Loss {
                reason: "unknown",
                message: "the browser let go of the device".to_owned(),
            });
            Ok(Record::new().with("reason", loss.reason).with("message", loss.message).build())
        })
    }

    /// Gives the device back.
    pub fn destroy(&self) {
        self.inner.attention.device().destroy();
    }

    /// What the browser tells of the adapter, and the limits in force.
    pub fn info(&self) -> JsValue {
        self.inner.info()
    }

    /// Attention on arrays.
    pub fn attention(&self, arguments: &JsValue) -> Promise {
        let (inner, work) = (self.inner.clone(), Work::new(arguments, &[]));
        promise(async move {
            let (work, _) = work?;
            let plan = inner.attention.plan_with(&work.problem, &work.plan)?;
            let outputs = inner.attention.run_plan(&inner.queue, &plan, &work.inputs()).await?;
            Ok(results(&outputs).with("kernel", plan.key().to_string()).with("reason", plan.reason()).build())
        })
    }

    /// Scores or weights of one head.
    pub fn scores(&self, arguments: &JsValue) -> Promise {
        let (inner, wanted) = (self.inner.clone(), Wanted::new(arguments));
        promise(async move {
            let Wanted { work, stage, at, rows } = wanted?;
            let (problem, inputs) = (&work.problem, work.inputs());
            let scores = inner.attention.scores(&inner.queue, problem, &inputs, stage, at, rows).await?;
            Ok(Float32Array::from(scores.as_slice()).into())
        })
    }

    /// Which kernel would run and why, without running it.
    pub fn plan(&self, arguments: &JsValue) -> Result<JsValue, JsValue> {
        let (problem, options) = described(arguments)?;
        let plan = self.inner.attention.plan_with(&problem, &options).map_err(Fault::from)?;
        let record = Record::new()
            .with("kernel", plan.key().to_string())
            .with("reason", plan.reason())
            .with("slices", plan.slices().len() as f64)
            .with("workgroupBytes", plan.workgroup_bytes())
            .with("text", plan.to_string());
        Ok(record.build())
    }
}

impl AttentionContext {
    pub(crate) fn inner(&self) -> Rc<Inner> {
        self.inner.clone()
    }
}

impl Inner {
    pub(crate) fn info(&self) -> JsValue {
        let wgpu::AdapterInfo { name, driver, driver_info, device_type, backend, .. } =
            self.adapter.get_info();
        let caps = self.attention.caps();
        let limits = Record::new()
            .with("maxBufferSize", caps.max_buffer_size as f64)
            .with("maxStorageBufferBindingSize", caps.max_storage_buffer_binding_size as f64)
            .with("maxStorageBuffersPerShaderStage", caps.max_storage_buffers_per_shader_stage)
            .with("maxComputeWorkgroupStorageSize", caps.max_compute_workgroup_storage_size)
            .with("maxComputeInvocationsPerWorkgroup", caps.max_compute_invocations_per_workgroup);
        let features = self.attention.device().features();
        let features: Array = features.iter_names().map(|(name, _)| JsValue::from(name)).collect();
        Record::new()
            .with("name", name)
            .with("driver", format!("{driver} {driver_info}").trim())
            .with("kind", format!("{device_type:?}"))
            .with("backend", backend.to_string())
            .with("features", features)
            .with("limits", limits.build())
            .build()
    }
}

fn results(outputs: &Outputs) -> Record {
    let array = |x: &Vec<f32>| Float32Array::from(x.as_slice());
    Record::new()
        .with("out", array(&outputs.out))
        .with_some("lse", outputs.lse.as_ref().map(array))
        .with_some("entropy", outputs.entropy.as_ref().map(array))
        .with_some("rowMax", outputs.row_max.as_ref().map(array))
}

/// Some rows of the scores of one head.
struct Wanted {
    work: Work,
    stage: ScoreStage,
    at: [u32; 2],
    rows: Range<u32>,
}

impl Wanted {
    fn new(arguments: &JsValue) -> Result<Self> {
        let (work, fields) = Work::new(arguments, &["stage", "batch", "head", "rows"])?;
        let name = fields.text("stage")?;
        let stage = match name.as_deref() {
            None => Some(ScoreStage::Probs),
            Some(name) => ScoreStage::ALL.into_iter().find(|stage| stage.name() == name),
        };
        let stage = stage.ok_or_else(|| fields.fault("stage", "raw, capped, biased or probs"))?;
        let at = [fields.u32("batch")?.unwrap_or(0), fields.u32("head")?.unwrap_or(0)];
        let rows = rows(&fields, work.problem.shape.seq_q)?;
        Ok(Wanted { work, stage, at, rows })
    }
}

/// The right answer, in float64 on the CPU, with a bound on the error of f32 for each number.
#[wasm_bindgen(js_name = reference, skip_typescript)]
pub fn truth(arguments: &JsValue) -> Result<JsValue, JsValue> {
    let (work, _) = Work::new(arguments, &[])?;
    let truth = reference::truth(&work.problem, &work.inputs()).map_err(Fault::from)?;
    let record = Record::new()
        .with("out", bounded(&truth.out))
        .with("lse", bounded(&truth.lse))
        .with("entropy", bounded(&truth.entropy))
        .with("rowMax", bounded(&truth.row_max));
    Ok(record.build())
}

/// The scores in float64.
#[wasm_bindgen(js_name = referenceScores, skip_typescript)]
pub fn true_scores(arguments: &JsValue) -> Result<JsValue, JsValue> {
    let Wanted { work, stage, at: [batch, head], rows } = Wanted::new(arguments)?;
    let mut scores = Vec::new();
    for row in rows {
        let at = [batch, head, row];
        scores.extend(reference::scores_at(&work.problem, &work.inputs(), stage, at).map_err(Fault::from)?);
    }
    Ok(bounded(&scores))
}

pub(crate) fn bounded(numbers: &[Bounded]) -> JsValue {
    let values: Vec<f64> = numbers.iter().map(|x| x.value).collect();
    let bounds: Vec<f64> = numbers.iter().map(|x| x.bound).collect();
    Record::new()
        .with("value", Float64Array::from(values.as_slice()))
        .with("bound", Float64Array::from(bounds.as_slice()))
        .build()
}
