//! A problem with its inputs, from what JavaScript passes: `{ q, k, v, shape, options }`.
//!
//! An option here has the name and the meaning that it has in [`Problem`]. An input that belongs to an option (a table of
//! temperatures, a mask) is that option's value.

use crate::fault::{Fault, Result};
use crate::fields::{Fields, to_f32s, to_i32, to_i32s};
use wasm_bindgen::JsValue;
use wgpu_attention::{
    AdaptiveTemperature, Alignment, Broadcast, DType, Dropout, Inputs, Kernel, Layout, LengthScale,
    MaskFormat, NormGains, Normalizer, PlanOptions, Problem, QkNorm, Scale, Shape, SigmoidBias, Sink,
    Temperature, UserCode, Window,
};

/// A problem with inputs of its own.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub problem: Problem,
    pub plan: PlanOptions,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    tables: Tables,
}

/// Inputs that belong to options.
#[derive(Debug, Clone, Default)]
struct Tables {
    bias: Option<Vec<f32>>,
    mask: Option<Vec<u8>>,
    cu_seqlens_q: Option<Vec<u32>>,
    cu_seqlens_k: Option<Vec<u32>>,
    q_len: Option<Vec<u32>>,
    kv_len: Option<Vec<u32>>,
    causal_offset: Option<Vec<i32>>,
    documents: Option<[Vec<i32>; 2]>,
    temperature: Option<Vec<f32>>,
    alibi_slopes: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    ssmax: Option<Vec<f32>>,
    q_gain: Option<Vec<f32>>,
    k_gain: Option<Vec<f32>>,
    dropout: Option<[u32; 2]>,
    user: Option<Vec<u32>>,
}

const OPTIONS: &[&str] = &[
    "scale",
    "temperature",
    "adaptiveTemperature",
    "qkNorm",
    "lengthScale",
    "causal",
    "alignment",
    "window",
    "cuSeqlensQ",
    "cuSeqlensK",
    "qLen",
    "kvLen",
    "documents",
    "mask",
    "softcap",
    "bias",
    "alibi",
    "topK",
    "normalizer",
    "sink",
    "dropout",
    "layout",
    "dtype",
    "lse",
    "entropy",
    "rowMax",
    "kernel",
    "scoreMod",
    "maskMod",
    "user",
];

impl Work {
    /// From `{ q, k, v, shape, options }` and what else the caller knows.
    pub(crate) fn new(arguments: &JsValue, more: &[&str]) -> Result<(Self, Fields)> {
        let known: Vec<&str> = ["q", "k", "v", "shape", "options"].iter().chain(more).copied().collect();
        let fields = Fields::new(arguments, "", &known)?;
        let (problem, plan, tables) = problem(&fields)?;
        let tensor = |name| fields.need(name, fields.f32s(name)?, "a Float32Array");
        let (q, k, v) = (tensor("q")?, tensor("k")?, tensor("v")?);
        Ok((Work { problem, plan, q, k, v, tables }, fields))
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(&self.q, &self.k, &self.v);
        let Tables {
            bias,
            mask,
            cu_seqlens_q,
            cu_seqlens_k,
            q_len,
            kv_len,
            causal_offset,
            documents,
            temperature,
            alibi_slopes,
            sinks,
            ssmax,
            q_gain,
            k_gain,
            dropout,
            user,
        } = &self.tables;
        inputs.bias = bias.as_deref();
        inputs.mask = mask.as_deref();
        inputs.tables.cu_seqlens_q = cu_seqlens_q.as_deref();
        inputs.tables.cu_seqlens_k = cu_seqlens_k.as_deref();
        inputs.tables.q_len = q_len.as_deref();
        inputs.tables.kv_len = kv_len.as_deref();
        inputs.tables.causal_offset = causal_offset.as_deref();
        inputs.tables.documents_q = documents.as_ref().map(|[q, _]| q.as_slice());
        inputs.tables.documents_k = documents.as_ref().map(|[_, k]| k.as_slice());
        inputs.tables.temperature = temperature.as_deref();
        inputs.tables.alibi_slopes = alibi_slopes.as_deref();
        inputs.tables.sinks = sinks.as_deref();
        inputs.tables.ssmax = ssmax.as_deref();
        inputs.tables.q_gain = q_gain.as_deref();
        inputs.tables.k_gain = k_gain.as_deref();
        inputs.tables.dropout = *dropout;
        inputs.tables.user = user.as_deref();
        inputs
    }
}

/// The problem of `{ shape, options }` alone.
pub(crate) fn described(arguments: &JsValue) -> Result<(Problem, PlanOptions)> {
    let fields = Fields::new(arguments, "", &["q", "k", "v", "shape", "options"])?;
    let (problem, plan, _) = problem(&fields)?;
    Ok((problem, plan))
}

fn problem(arguments: &Fields) -> Result<(Problem, PlanOptions, Tables)> {
    let shape = arguments.need("shape", arguments.get("shape"), "an object")?;
    let shape = self::shape(&shape)?;
    let options = Fields::new(&arguments.get("options").unwrap_or(JsValue::UNDEFINED), "options", OPTIONS)?;
    let mut tables = Tables::default();
    let mut problem = Problem::new(shape);
    sharpness(&options, &mut problem, &mut tables)?;
    masks(&options, &mut problem, &mut tables)?;
    scores(&options, &mut problem, &mut tables)?;
    storage(&options, &mut problem)?;
    problem.stats.lse = options.bool("lse")?;
    problem.stats.entropy = options.bool("entropy")?;
    problem.stats.row_max = options.bool("rowMax")?;
    user_code(&options, &mut problem, &mut tables)?;
    problem.check()?;
    Ok((problem, plan_options(&options)?, tables))
}

/// `{ kernel }` alone.
pub(crate) fn kernel(options: &JsValue) -> Result<PlanOptions> {
    plan_options(&Fields::new(options, "", &["kernel"])?)
}

fn plan_options(options: &Fields) -> Result<PlanOptions> {
    let Some(name) = options.text("kernel")? else {
        return Ok(PlanOptions::default());
    };
    let names: Vec<_> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
    match Kernel::ALL.into_iter().find(|kernel| kernel.name() == name) {
        Some(kernel) => Ok(PlanOptions::kernel(kernel)),
        None => Err(options.fault("kernel", format!("one of {}", names.join(", ")))),
    }
}

fn shape(value: &JsValue) -> Result<Shape> {
    let known = ["batch", "qHeads", "kvHeads", "seqQ", "seqK", "headDimQk", "headDimV"];
    let fields = Fields::new(value, "shape", &known)?;
    let need = |key| fields.need(key, fields.u32(key)?, "a whole number");
    let (q_heads, seq_q, head_dim_qk) = (need("qHeads")?, need("seqQ")?, need("headDimQk")?);
    Ok(Shape {
        batch: fields.u32("batch")?.unwrap_or(1),
        q_heads,
        kv_heads: fields.u32("kvHeads")?.unwrap_or(q_heads),
        seq_q,
        seq_k: fields.u32("seqK")?.unwrap_or(seq_q),
        head_dim_qk,
        head_dim_v: fields.u32("headDimV")?.unwrap_or(head_dim_qk),
    })
}

fn sharpness(options: &Fields, problem: &mut Problem, tables: &mut Tables) -> Result<()> {
    if let Some(value) = options.get("scale") {
        problem.scale = match value.as_f64() {
            Some(x) => Scale::Value(x as f32),
            None => {
                let fields = Fields::new(&value, "options.scale", &["perHeadDim"])?;
                let numerator = fields.need("perHeadDim", fields.number("perHeadDim")?, "a number")?;
                Scale::PerHeadDim { numerator }
            }
        };
    }
    if let Some(value) = options.get("temperature") {
        (problem.temperature, tables.temperature) = match (value.as_f64(), to_f32s(&value)) {
            (Some(x), _) => (Temperature::Value(x as f32), None),
            (_, Some(heads)) => (Temperature::PerHead, Some(heads)),
            _ => {
                let fields = Fields::new(&value, "options.temperature", &["perRow"])?;
                let rows = fields.need("perRow", fields.f32s("perRow")?, "a Float32Array")?;
                (Temperature::PerRow, Some(rows))
            }
        };
    }
    if let Some(value) = options.get("adaptiveTemperature") {
        let mut adaptive = AdaptiveTemperature::default();
        if value.as_bool() != Some(true) {
            let fields = Fields::new(&value, "options.adaptiveTemperature", &["coefficients", "above"])?;
            if let Some(coefficients) = fields.f32s("coefficients")? {
                adaptive.coefficients = coefficients
                    .try_into()
                    .map_err(|_| fields.fault("coefficients", "a Float32Array of five numbers"))?;
            }
            adaptive.above = fields.number("above")?.unwrap_or(adaptive.above);
        }
        problem.adaptive_temperature = Some(adaptive);
    }
    if let Some(value) = options.get("qkNorm") {
        let fields = Fields::new(&value, "options.qkNorm", &["kind", "eps", "qGain", "kGain"])?;
        let eps = fields.number("eps")?;
        let mut norm = match fields.text("kind")?.as_deref() {
            Some("l2") => QkNorm::l2(),
            Some("rms") => QkNorm::rms(1e-6),
            _ => return Err(fields.fault("kind", "\"l2\" or \"rms\"")),
        };
        norm.eps = eps.unwrap_or(norm.eps);
        (tables.q_gain, tables.k_gain) = (fields.f32s("qGain")?, fields.f32s("kGain")?);
        if let Some(gain) = tables.q_gain.as_ref().or(tables.k_gain.as_ref()) {
            let shared = gain.len() == problem.shape.head_dim_qk as usize;
            norm = norm.gains(if shared { NormGains::Shared } else { NormGains::PerHead });
        }
        problem.qk_norm = Some(norm);
    }
    if let Some(value) = options.get("lengthScale") {
        let known = ["ssmax", "logTrainLen", "llama4", "yarn"];
        let fields = Fields::new(&value, "options.lengthScale", &known)?;
        let given: Vec<&str> = known.into_iter().filter(|key| fields.get(key).is_some()).collect();
        problem.length_scale = match given.as_slice() {
            ["ssmax"] => {
                tables.ssmax = fields.f32s("ssmax")?;
                LengthScale::Ssmax
            }
            ["logTrainLen"] => LengthScale::LogTrainLen {
                train_len: fields.need("logTrainLen", fields.u32("logTrainLen")?, "a whole number")?,
            },
            ["llama4"] => {
                let value = fields.get("llama4").unwrap_or(JsValue::UNDEFINED);
                let llama4 = Fields::new(&value, "options.lengthScale.llama4", &["coef", "floor"])?;
                LengthScale::Llama4 {
                    coef: llama4.need("coef", llama4.number("coef")?, "a number")?,
                    floor: llama4.need("floor", llama4.u32("floor")?, "a whole number")?,
                }
            }
            ["yarn"] => {
                LengthScale::Yarn { factor: fields.need("yarn", fields.number("yarn")?, "a number")? }
            }
            _ => {
                return Err(
                    options.fault("lengthScale", "an object with one of ssmax, logTrainLen, llama4, yarn")
                );
            }
        };
    }
    Ok(())
}

fn alignment(options: &Fields, key: &str, tables: &mut Tables) -> Result<Option<Alignment>> {
    let Some(value) = options.get(key) else {
        return Ok(None);
    };
    let text = value.as_string();
    let alignment = match (text.as_deref(), to_i32(&value), to_i32s(&value)) {
        (Some("bottomRight"), ..) => Alignment::BottomRight,
        (Some("bottomRightValid"), ..) => Alignment::BottomRightValid,
        (Some("topLeft"), ..) => Alignment::TopLeft,
        (_, Some(offset), _) => Alignment::Offset(offset),
        (.., Some(offsets)) => {
            tables.causal_offset = Some(offsets);
            Alignment::PerBatch
        }
        _ => {
            return Err(options.fault(
                key,
                "\"bottomRight\", \"bottomRightValid\", \"topLeft\", a whole number or an Int32Array (batch)",
            ));
        }
    };
    Ok(Some(alignment))
}

fn masks(options: &Fields, problem: &mut Problem, tables: &mut Tables) -> Result<()> {
    let causal = alignment(options, "causal", tables)?;
    let other = alignment(options, "alignment", tables)?;
    if causal.is_some() && other.is_some() {
        return Err(options.fault("alignment", "left out beside causal, which says the alignment itself"));
    }
    problem.causal = causal.is_some();
    problem.alignment = causal.or(other).unwrap_or_default();
    if let Some(value) = options.get("window") {
        let fields = Fields::new(&value, "options.window", &["left", "right", "keepFirst"])?;
        problem.window = Some(Window {
            left: fields.u32("left")?,
            right: fields.u32("right")?,
            keep_first: fields.u32("keepFirst")?.unwrap_or(0),
        });
    }
    // A packed sequence ends where the last of them does.
    let total = |starts: &Option<Vec<u32>>| starts.as_ref().map(|s| s.last().copied().unwrap_or(0));
    tables.cu_seqlens_q = options.u32s("cuSeqlensQ")?;
    problem.packed_q = total(&tables.cu_seqlens_q);
    tables.cu_seqlens_k = options.u32s("cuSeqlensK")?;
    problem.packed_k = total(&tables.cu_seqlens_k);
    tables.q_len = options.u32s("qLen")?;
    problem.q_len = tables.q_len.is_some();
    tables.kv_len = options.u32s("kvLen")?;
    problem.kv_len = tables.kv_len.is_some();
    if let Some(value) = options.get("documents") {
        let fields = Fields::new(&value, "options.documents", &["q", "k"])?;
        let side = |key| fields.need(key, fields.i32s(key)?, "an Int32Array");
        tables.documents = Some([side("q")?, side("k")?]);
        problem.documents = true;
    }
    if let Some(value) = options.get("mask") {
        let fields = Fields::new(&value, "options.mask", &["data", "sizes", "format"])?;
        let sizes = fields.need("sizes", fields.sizes("sizes")?, "an array of four whole numbers")?;
        let format = match fields.text("format")?.as_deref() {
            None | Some("bytes") => MaskFormat::Bytes,
            Some("bits") => MaskFormat::Bits,
            _ => return Err(fields.fault("format", "\"bytes\" or \"bits\"")),
        };
        tables.mask = Some(fields.need("data", fields.bytes("data")?, "a Uint8Array")?);
        problem.mask = Some((format, Broadcast(sizes)));
    }
    Ok(())
}

fn scores(options: &Fields, problem: &mut Problem, tables: &mut Tables) -> Result<()> {
    problem.softcap = options.number("softcap")?;
    if let Some(value) = options.get("bias") {
        let fields = Fields::new(&value, "options.bias", &["data", "sizes", "dtype"])?;
        let sizes = fields.need("sizes", fields.sizes("sizes")?, "an array of four whole numbers")?;
        tables.bias = Some(fields.need("data", fields.f32s("data")?, "a Float32Array")?);
        problem.bias = Some((dtype(&fields, "dtype")?, Broadcast(sizes)));
    }
    if let Some(value) = options.get("alibi") {
        problem.alibi = value.as_bool() != Some(false);
        tables.alibi_slopes = match (value.as_bool(), to_f32s(&value)) {
            (Some(false), _) => None,
            (Some(true), _) => Some(wgpu_attention::alibi_slopes(problem.shape.q_heads)),
            (_, Some(slopes)) => Some(slopes),
            _ => return Err(options.fault("alibi", "true or a Float32Array (qHeads) of slopes")),
        };
    }
    problem.top_k = options.u32("topK")?;
    if let Some(value) = options.get("normalizer") {
        problem.normalizer = match value.as_string().as_deref() {
            Some("softmax") => Normalizer::Softmax,
            Some("sparsemax") => Normalizer::Sparsemax,
            Some("entmax15") => Normalizer::Entmax15,
            _ => sigmoid(&value)?,
        };
    }
    if let Some(value) = options.get("dropout") {
        let fields = Fields::new(&value, "options.dropout", &["rate", "seed", "offset"])?;
        let rate = fields.need("rate", fields.number("rate")?, "a number")?;
        problem.dropout = Some(Dropout { rate });
        let seed = fields.need("seed", fields.u32("seed")?, "a whole number")?;
        tables.dropout = Some([seed, fields.u32("offset")?.unwrap_or(0)]);
    }
    if let Some(value) = options.get("sink") {
        (problem.sink, tables.sinks) = match (value.as_string().as_deref(), to_f32s(&value)) {
            (Some("zero"), _) => (Sink::Zero, None),
            (_, Some(logits)) => (Sink::PerHead, Some(logits)),
            _ => return Err(options.fault("sink", "\"zero\" or a Float32Array (qHeads) of logits")),
        };
    }
    Ok(())
}

fn sigmoid(value: &JsValue) -> Result<Normalizer> {
    if value.as_string().is_some() {
        let rule = "\"softmax\", \"sparsemax\", \"entmax15\" or { sigmoid: bias }";
        return Err(Fault::value("options.normalizer", "another text", rule));
    }
    let fields = Fields::new(value, "options.normalizer", &["sigmoid"])?;
    let bias = fields.need("sigmoid", fields.get("sigmoid"), "a number or a text")?;
    let bias = match (bias.as_f64(), bias.as_string().as_deref()) {
        (Some(bias), _) => SigmoidBias::Value(bias as f32),
        (_, Some("minusLogSeqK")) => SigmoidBias::MinusLogSeqK,
        (_, Some("minusLogVisible")) => SigmoidBias::MinusLogVisible,
        _ => return Err(fields.fault("sigmoid", "a number, \"minusLogSeqK\" or \"minusLogVisible\"")),
    };
    Ok(Normalizer::Sigmoid { bias })
}

fn user_code(options: &Fields, problem: &mut Problem, tables: &mut Tables) -> Result<()> {
    problem.score_mod = options.text("scoreMod")?.map(|text| UserCode::score_mod(&text)).transpose()?;
    problem.mask_mod = options.text("maskMod")?.map(|text| UserCode::mask_mod(&text)).transpose()?;
    if let Some(value) = options.get("user") {
        // Floats by their bits.
        let floats = to_f32s(&value).map(|numbers| numbers.into_iter().map(f32::to_bits).collect());
        let numbers: Option<Vec<u32>> = floats.or_else(|| options.u32s("user").ok().flatten());
        let numbers = numbers.ok_or_else(|| options.fault("user", "a Float32Array or a Uint32Array"))?;
        problem.user_params = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        tables.user = Some(numbers);
    }
    Ok(())
}

fn storage(options: &Fields, problem: &mut Problem) -> Result<()> {
    [problem.q_layout, problem.k_layout, problem.v_layout, problem.out_layout] = match options.get("layout") {
        Some(value) if value.is_object() => {
            let fields = Fields::new(&value, "options.layout", &["q", "k", "v", "out"])?;
            [layout(&fields, "q")?, layout(&fields, "k")?, layout(&fields, "v")?, layout(&fields, "out")?]
        }
        _ => [layout(options, "layout")?; 4],
    };
    problem.dtypes = match options.get("dtype") {
        Some(value) if value.is_object() => {
            let fields = Fields::new(&value, "options.dtype", &["q", "k", "v", "out"])?;
            [dtype(&fields, "q")?, dtype(&fields, "k")?, dtype(&fields, "v")?, dtype(&fields, "out")?]
        }
        _ => [dtype(options, "dtype")?; 4],
    };
    Ok(())
}

fn layout(fields: &Fields, key: &str) -> Result<Layout> {
    match fields.text(key)?.as_deref() {
        None | Some("bhsd") => Ok(Layout::Bhsd),
        Some("bshd") => Ok(Layout::Bshd),
        _ => Err(fields.fault(key, "\"bhsd\" or \"bshd\"")),
    }
}

fn dtype(fields: &Fields, key: &str) -> Result<DType> {
    match fields.text(key)?.as_deref() {
        None | Some("f32") => Ok(DType::F32),
        Some("f16") => Ok(DType::F16),
        Some("bf16") => Ok(DType::Bf16),
        _ => Err(fields.fault(key, "\"f32\", \"f16\" or \"bf16\"")),
    }
}

/// The pairs of a row range: `[first, end]`.
pub(crate) fn rows(fields: &Fields, seq_q: u32) -> Result<core::ops::Range<u32>> {
    let Some(value) = fields.get("rows") else {
        return Ok(0..seq_q);
    };
    let ends: Vec<u32> = match value.is_object() {
        true => js_sys::Array::from(&value).iter().filter_map(|n| crate::fields::to_u32(&n)).collect(),
        false => Vec::new(),
    };
    match ends.as_slice() {
        &[first, end] => Ok(first..end),
        _ => Err(Fault::value(
            &fields.name("rows"),
            "something else",
            "an array of two whole numbers, [first, end]",
        )),
    }
}
