//! The operations beside attention: its gradients, softmax over rows, and drawing tokens. Each with what it should give.

use crate::context::{AttentionContext, bounded, promise};
use crate::fault::{Fault, Result};
use crate::fields::{Fields, Record};
use crate::problem::Work;
use js_sys::{Array, Float32Array, Promise, Uint32Array};
use wasm_bindgen::prelude::*;
use wgpu_attention::backward;
use wgpu_attention::sampling::{self, Chain, Draws, Seed};
use wgpu_attention::softmax::{self, Kind, RowTemperature};

#[wasm_bindgen]
impl AttentionContext {
    /// Gradients of attention.
    pub fn gradients(&self, arguments: &JsValue) -> Promise {
        let (inner, work) = (self.inner(), Gradients::new(arguments));
        promise(async move {
            let work = work?;
            let found = inner.backward.run(&inner.queue, &work.problem, &work.inputs()).await?;
            let array = |x: &[f32]| Float32Array::from(x);
            let record = Record::new()
                .with("dq", array(&found.dq))
                .with("dk", array(&found.dk))
                .with("dv", array(&found.dv))
                .with_some("dBias", found.dbias.as_deref().map(array))
                .with_some("dSinks", found.dsinks.as_deref().map(array))
                .with_some("dTemperature", found.dtemperature.as_deref().map(array));
            Ok(record.build())
        })
    }

    /// Softmax over rows.
    pub fn softmax(&self, arguments: &JsValue) -> Promise {
        let (inner, work) = (self.inner(), Rows::new(arguments));
        promise(async move {
            let work = work?;
            let found = inner.softmax.run(&inner.queue, &work.problem, &work.inputs()).await?;
            let array = |x: &[f32]| Float32Array::from(x);
            let record = Record::new()
                .with("out", array(&found.out))
                .with_some("lse", found.lse.as_deref().map(array))
                .with_some("entropy", found.entropy.as_deref().map(array))
                .with_some("argmax", found.argmax.as_deref().map(Uint32Array::from));
            Ok(record.build())
        })
    }

    /// Draws tokens.
    pub fn sample(&self, arguments: &JsValue) -> Promise {
        let (inner, work) = (self.inner(), Draw::new(arguments));
        promise(async move {
            let work = work?;
            Ok(drawn(&inner.sampler.run(&inner.queue, &work.problem, &work.inputs()).await?))
        })
    }
}

/// The right gradients, in float64.
#[wasm_bindgen(js_name = referenceGradients, skip_typescript)]
pub fn true_gradients(arguments: &JsValue) -> Result<JsValue, JsValue> {
    let work = Gradients::new(arguments)?;
    let truth = backward::truth(&work.problem, &work.inputs()).map_err(Fault::from)?;
    let asked = &work.problem;
    let record = Record::new()
        .with("dq", bounded(&truth.dq))
        .with("dk", bounded(&truth.dk))
        .with("dv", bounded(&truth.dv))
        .with_some("dBias", asked.dbias.then(|| bounded(&truth.dbias)))
        .with_some("dSinks", asked.dsinks.then(|| bounded(&truth.dsinks)))
        .with_some("dTemperature", asked.dtemperature.then(|| bounded(&truth.dtemperature)));
    Ok(record.build())
}

/// The right softmax, in float64.
#[wasm_bindgen(js_name = referenceSoftmax, skip_typescript)]
pub fn true_softmax(arguments: &JsValue) -> Result<JsValue, JsValue> {
    let work = Rows::new(arguments)?;
    let truth = softmax::truth(&work.problem, &work.inputs()).map_err(Fault::from)?;
    let record = Record::new()
        .with("out", bounded(&truth.out))
        .with("lse", bounded(&truth.lse))
        .with("entropy", bounded(&truth.entropy))
        .with("argmax", Uint32Array::from(truth.argmax.as_slice()));
    Ok(record.build())
}

/// The tokens that a device has to draw, from the CPU.
#[wasm_bindgen(js_name = referenceSample, skip_typescript)]
pub fn true_sample(arguments: &JsValue) -> Result<JsValue, JsValue> {
    let work = Draw::new(arguments)?;
    Ok(drawn(&sampling::twin(&work.problem, &work.inputs()).map_err(Fault::from)?))
}

fn drawn(draws: &Draws) -> JsValue {
    let tokens: Array = draws.tokens.iter().map(|token| token.map_or(JsValue::NULL, JsValue::from)).collect();
    let log_probs = draws.log_probs.as_deref().map(Float32Array::from);
    Record::new().with("tokens", tokens).with_some("logProbs", log_probs).build()
}

/// A forward pass and what comes in from behind it.
struct Gradients {
    forward: Work,
    problem: backward::Problem,
    lse: Vec<f32>,
    d_out: Vec<f32>,
    d_lse: Option<Vec<f32>>,
}

impl Gradients {
    fn new(arguments: &JsValue) -> Result<Self> {
        let (forward, fields) =
            Work::new(arguments, &["lse", "dOut", "dLse", "ofBias", "ofSinks", "ofTemperature"])?;
        let lse = fields.need("lse", fields.f32s("lse")?, "a Float32Array")?;
        let d_out = fields.need("dOut", fields.f32s("dOut")?, "a Float32Array")?;
        let d_lse = fields.f32s("dLse")?;
        let mut problem = backward::Problem::new(forward.problem.clone());
        problem.dlse = d_lse.is_some();
        problem.dbias = fields.bool("ofBias")?;
        problem.dsinks = fields.bool("ofSinks")?;
        problem.dtemperature = fields.bool("ofTemperature")?;
        problem.check()?;
        Ok(Gradients { forward, problem, lse, d_out, d_lse })
    }

    fn inputs(&self) -> backward::Inputs<'_> {
        let mut inputs = backward::Inputs::new(self.forward.inputs(), &self.lse, &self.d_out);
        inputs.dlse = self.d_lse.as_deref();
        inputs
    }
}

/// Rows for a softmax.
struct Rows {
    problem: softmax::Problem,
    x: Vec<f32>,
    temperature: Option<Vec<f32>>,
}

impl Rows {
    fn new(arguments: &JsValue) -> Result<Self> {
        let known = ["x", "rowLength", "kind", "temperature", "lse", "entropy", "argmax"];
        let fields = Fields::new(arguments, "", &known)?;
        let x = fields.need("x", fields.f32s("x")?, "a Float32Array")?;
        let (rows, len) = rows(&fields, "rowLength", x.len())?;
        let name = fields.text("kind")?;
        let kind = match name.as_deref() {
            None => Some(Kind::Softmax),
            Some(name) => Kind::ALL.into_iter().find(|kind| crate::fault::camel(kind.name()) == name),
        };
        let kind = kind.ok_or_else(|| {
            fields.fault("kind", "\"softmax\", \"logSoftmax\", \"sparsemax\" or \"entmax15\"")
        })?;
        let mut problem = softmax::Problem::new(rows, len).kind(kind);
        let mut temperature = None;
        if let Some(value) = fields.get("temperature") {
            problem = problem.temperature(match value.as_f64() {
                Some(one) => RowTemperature::Value(one as f32),
                None => {
                    temperature = fields.f32s("temperature")?;
                    RowTemperature::PerRow
                }
            });
        }
        problem.lse = fields.bool("lse")?;
        problem.entropy = fields.bool("entropy")?;
        problem.argmax = fields.bool("argmax")?;
        problem.check()?;
        Ok(Rows { problem, x, temperature })
    }

    fn inputs(&self) -> softmax::Inputs<'_> {
        let inputs = softmax::Inputs::new(&self.x);
        match &self.temperature {
            Some(temperature) => inputs.temperature(temperature),
            None => inputs,
        }
    }
}

/// How many rows of a length there are in an array.
fn rows(fields: &Fields, name: &str, numbers: usize) -> Result<(u32, u32)> {
    let len = fields.need(name, fields.u32(name)?, "a whole number")?;
    let rows = numbers.checked_div(len as usize).filter(|rows| rows * len as usize == numbers);
    let rows = rows.and_then(|rows| u32::try_from(rows).ok());
    match rows {
        Some(rows) => Ok((rows, len)),
        None => Err(fields.fault(name, format!("a divisor of the array's length, {numbers}"))),
    }
}

/// Tokens to draw.
struct Draw {
    problem: sampling::Problem,
    logits: Vec<f32>,
    seeds: Vec<Seed>,
    history: Option<Vec<u32>>,
    bias: Option<Vec<(u32, f32)>>,
    allowed: Option<Vec<u32>>,
}

impl Draw {
    fn new(arguments: &JsValue) -> Result<Self> {
        let known = [
            "logits", "vocab", "chain", "seeds", "offset", "greedy", "logProbs", "history", "bias", "allowed",
        ];
        let fields = Fields::new(arguments, "", &known)?;
        let logits = fields.need("logits", fields.f32s("logits")?, "a Float32Array")?;
        let (rows, vocab) = rows(&fields, "vocab", logits.len())?;
        let offset = fields.u32("offset")?.unwrap_or(0);
        let greedy = fields.bool("greedy")?;
        let seeds = match (fields.u32s("seeds")?, greedy) {
            (Some(seeds), _) => seeds,
            // Nothing is random.
            (None, true) => vec![0; rows as usize],
            (None, false) => return Err(Fault::missing("seeds", "a Uint32Array (rows)")),
        };
        let seeds = seeds.into_iter().map(|seed| Seed { seed: seed.into(), offset }).collect();
        let mut problem = sampling::Problem::new(rows, vocab, chain(&fields)?);
        if greedy {
            problem = problem.greedy();
        }
        if fields.bool("logProbs")? {
            problem = problem.with_log_probs();
        }
        // As many for each row.
        let each = |numbers: usize| (numbers / rows.max(1) as usize) as u32;
        let history = fields.u32s("history")?;
        if let Some(history) = &history {
            problem = problem.with_history(each(history.len()));
        }
        let mut bias = None;
        if let Some(value) = fields.get("bias") {
            let fields = Fields::new(&value, "bias", &["tokens", "values"])?;
            let tokens = fields.need("tokens", fields.u32s("tokens")?, "a Uint32Array")?;
            let values = fields.need("values", fields.f32s("values")?, "a Float32Array")?;
            if tokens.len() != values.len() {
                return Err(fields.fault("values", format!("as long as tokens, {}", tokens.len())));
            }
            problem = problem.with_bias(each(tokens.len()));
            bias = Some(tokens.into_iter().zip(values).collect());
        }
        problem.check()?;
        Ok(Draw { problem, logits, seeds, history, bias, allowed: fields.u32s("allowed")? })
    }

    fn inputs(&self) -> sampling::Inputs<'_> {
        let mut inputs = sampling::Inputs::new(&self.logits, &self.seeds);
        inputs.history = self.history.as_deref();
        inputs.bias = self.bias.as_deref();
        inputs.allowed = self.allowed.as_deref();
        inputs
    }
}

/// Steps in their order, each an object with one field.
fn chain(fields: &Fields) -> Result<Chain> {
    let rule = "an array of steps such as { topK: 40 }";
    let steps = match fields.get("chain") {
        None => return Ok(Chain::new()),
        Some(value) => value.dyn_into::<Array>().map_err(|_| fields.fault("chain", rule))?,
    };
    let known = [
        "temperature",
        "topK",
        "topP",
        "minP",
        "typical",
        "topNSigma",
        "dynamicTemperature",
        "penalties",
        "logitBias",
        "allowed",
    ];
    let mut chain = Chain::new();
    for step in steps.iter() {
        let fields = Fields::new(&step, "chain", &known)?;
        let given: Vec<&str> = known.into_iter().filter(|key| fields.get(key).is_some()).collect();
        let [name] = given.as_slice() else {
            return Err(Fault::value("chain", "a step with several fields or none", rule));
        };
        let number = || fields.need(name, fields.number(name)?, "a number");
        chain = match *name {
            "temperature" => chain.temperature(number()?),
            "topK" => chain.top_k(fields.need("topK", fields.u32("topK")?, "a whole number")?),
            "topP" => chain.top_p(number()?),
            "minP" => chain.min_p(number()?),
            "typical" => chain.typical(number()?),
            "topNSigma" => chain.top_n_sigma(number()?),
            "dynamicTemperature" => {
                let value = fields.get("dynamicTemperature").unwrap_or(JsValue::UNDEFINED);
                let range = Fields::new(&value, "chain.dynamicTemperature", &["low", "high", "exponent"])?;
                let need = |name| range.need(name, range.number(name)?, "a number");
                chain.dynamic_temperature(
                    need("low")?,
                    need("high")?,
                    range.number("exponent")?.unwrap_or(1.0),
                )
            }
            "penalties" => {
                let value = fields.get("penalties").unwrap_or(JsValue::UNDEFINED);
                let all = Fields::new(&value, "chain.penalties", &["repetition", "frequency", "presence"])?;
                let number = |name, off| all.number(name).map(|number| number.unwrap_or(off));
                chain.penalties(
                    number("repetition", 1.0)?,
                    number("frequency", 0.0)?,
                    number("presence", 0.0)?,
                )
            }
            "logitBias" if fields.bool("logitBias")? => chain.logit_bias(),
            "allowed" if fields.bool("allowed")? => chain.allowed(),
            name => return Err(fields.fault(name, "true, or left out")),
        };
    }
    Ok(chain)
}
