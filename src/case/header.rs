//! The JSON object of a case file: every key read, none skipped.

use super::error::CaseError;
use super::keys::{Keys, Object, wrong};
use crate::dropout::Dropout;
use crate::layout::Strides;
use crate::mask::{Alignment, Window};
use crate::normalizer::{Normalizer, SigmoidBias};
use crate::qk_norm::{NormGains, NormKind, QkNorm};
use crate::scores::ScoreStage;
use crate::sharpness::{AdaptiveTemperature, LengthScale};
use crate::tensor::Tensor;
use serde_json::{Map, Value, json};

/// The operation that a case is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Attention.
    Attention,
    /// Softmax over the last axis.
    Softmax,
    /// Logarithm of softmax over the last axis.
    LogSoftmax,
}

impl Op {
    const ALL: [Op; 3] = [Op::Attention, Op::Softmax, Op::LogSoftmax];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Op::Attention => "attention",
            Op::Softmax => "softmax",
            Op::LogSoftmax => "log_softmax",
        }
    }

    fn keys(self) -> &'static [&'static str] {
        match self {
            Op::Attention => &[
                "name",
                "op",
                "tolerance",
                "layout",
                "strides",
                "mask_bits",
                "scale",
                "temperature",
                "length_scale",
                "qk_norm",
                "softcap",
                "causal",
                "causal_offset",
                "window",
                "adaptive_temperature",
                "top_k",
                "normalizer",
                "sigmoid_bias",
                "dropout",
                "score_mod",
                "mask_mod",
                "scores",
                "tokens",
            ],
            Op::Softmax | Op::LogSoftmax => &["name", "op", "tolerance", "temperature"],
        }
    }
}

/// How far a result may be from what a case expects: `abs(got - want) <= atol + rtol * abs(want)`; infinities and NaN must match
/// exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Share of the expected number.
    pub rtol: f64,
    /// On top of it.
    pub atol: f64,
}

/// The object, with defaults filled in where they are values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Header {
    pub name: String,
    pub op: Op,
    pub tolerance: Tolerance,
    pub bshd: bool,
    /// Of q, k, v and out where they are neither of the two layouts on the device.
    pub strides: [Option<Strides>; 4],
    /// The mask has a bit for each pair on the device.
    pub mask_bits: bool,
    pub scale: Option<f64>,
    pub temperature: Option<f64>,
    pub length_scale: LengthScale,
    pub softcap: Option<f64>,
    /// Without its gains, which are tensors.
    pub qk_norm: Option<QkNorm>,
    pub causal: bool,
    pub causal_offset: Option<Alignment>,
    pub window: Option<Window>,
    pub adaptive_temperature: Option<AdaptiveTemperature>,
    pub top_k: Option<u32>,
    pub normalizer: Normalizer,
    pub dropout: Option<(Dropout, [u32; 2])>,
    /// WGSL.
    pub score_mod: Option<String>,
    pub mask_mod: Option<String>,
    pub scores: Option<ScoreStage>,
    /// One list, or one for each batch.
    pub tokens: Vec<Vec<String>>,
}

impl Header {
    pub(crate) fn new(name: String, op: Op, tolerance: Tolerance) -> Self {
        Header {
            name,
            op,
            tolerance,
            bshd: false,
            strides: [None; 4],
            mask_bits: false,
            scale: None,
            temperature: None,
            length_scale: LengthScale::None,
            softcap: None,
            qk_norm: None,
            causal: false,
            causal_offset: None,
            window: None,
            adaptive_temperature: None,
            top_k: None,
            normalizer: Normalizer::Softmax,
            dropout: None,
            score_mod: None,
            mask_mod: None,
            scores: None,
            tokens: Vec::new(),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, CaseError> {
        let Object(object) = serde_json::from_str(text).map_err(|e| CaseError::Json(e.to_string()))?;
        let mut keys = Keys(object);
        let name = keys.text("name", "text")?.ok_or(CaseError::MissingKey("name"))?;
        const OPS: &str = "\"attention\", \"softmax\" or \"log_softmax\"";
        let op = keys.text("op", OPS)?.ok_or(CaseError::MissingKey("op"))?;
        let Some(op) = Op::ALL.into_iter().find(|known| known.name() == op) else {
            return Err(wrong("op", op, OPS));
        };
        if let Some(key) = keys.0.keys().find(|key| !op.keys().contains(&key.as_str())) {
            return Err(CaseError::UnknownKey {
                key: key.clone(),
                op: op.name(),
                known: op.keys().join(", "),
            });
        }
        let tolerance = tolerance(keys.take("tolerance").ok_or(CaseError::MissingKey("tolerance"))?)?;
        let positive = |x: f64| x.is_finite() && x > 0.0;
        Ok(Header {
            bshd: keys.choice("layout", &["bhsd", "bshd"], "\"bhsd\" or \"bshd\"")?.as_deref()
                == Some("bshd"),
            strides: keys.take("strides").map(strides).transpose()?.unwrap_or_default(),
            mask_bits: keys.flag("mask_bits")?,
            scale: keys.number("scale", "a number", f64::is_finite)?,
            temperature: keys.number("temperature", "a number above 0", positive)?,
            length_scale: keys.take("length_scale").map(length_scale).transpose()?.unwrap_or_default(),
            softcap: keys.number("softcap", "a number above 0", positive)?,
            qk_norm: keys.take("qk_norm").map(qk_norm).transpose()?,
            causal: keys.flag("causal")?,
            causal_offset: keys.take("causal_offset").map(causal_offset).transpose()?,
            window: keys.take("window").map(window).transpose()?,
            adaptive_temperature: keys.take("adaptive_temperature").map(adaptive).transpose()?,
            top_k: keys.take("top_k").map(top_k).transpose()?,
            normalizer: normalizer(&mut keys)?,
            dropout: keys.take("dropout").map(dropout).transpose()?,
            score_mod: keys.text("score_mod", "text, in WGSL")?,
            mask_mod: keys.text("mask_mod", "text, in WGSL")?,
            scores: keys
                .choice(
                    "scores",
                    &ScoreStage::ALL.map(ScoreStage::name),
                    "\"raw\", \"capped\", \"biased\" or \"probs\"",
                )?
                .and_then(|name| ScoreStage::ALL.into_iter().find(|stage| stage.name() == name)),
            tokens: keys.take("tokens").map(tokens).transpose()?.unwrap_or_default(),
            ..Header::new(name, op, tolerance)
        })
    }

    pub(crate) fn to_json(&self) -> String {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        put("name", json!(self.name));
        put("op", json!(self.op.name()));
        put("tolerance", json!({"rtol": self.tolerance.rtol, "atol": self.tolerance.atol}));
        if self.bshd {
            put("layout", json!("bshd"));
        }
        let strided: Map<_, _> = Tensor::MAIN
            .into_iter()
            .zip(self.strides)
            .filter_map(|(tensor, strides)| {
                let Strides { offset, batch, head, seq, dim } = strides?;
                Some((tensor.name().to_owned(), json!([offset, batch, head, seq, dim])))
            })
            .collect();
        if !strided.is_empty() {
            put("strides", Value::Object(strided));
        }
        if self.mask_bits {
            put("mask_bits", json!(true));
        }
        match self.length_scale {
            LengthScale::None => {}
            LengthScale::Ssmax => drop(put("length_scale", json!("ssmax"))),
            LengthScale::LogTrainLen { train_len } => {
                drop(put("length_scale", json!({"log_train_len": train_len})));
            }
            LengthScale::Llama4 { coef, floor } => {
                drop(put("length_scale", json!({"llama4": [digits(coef), floor]})));
            }
            LengthScale::Yarn { factor } => drop(put("length_scale", json!({"yarn": digits(factor)}))),
        }
        for (key, code) in [("score_mod", &self.score_mod), ("mask_mod", &self.mask_mod)] {
            if let Some(code) = code {
                put(key, json!(code));
            }
        }
        for (key, number) in
            [("scale", self.scale), ("temperature", self.temperature), ("softcap", self.softcap)]
        {
            if let Some(number) = number {
                put(key, json!(number));
            }
        }
        if let Some(norm) = self.qk_norm {
            put("qk_norm", json!({norm_name(norm.kind): digits(norm.eps)}));
        }
        if self.causal {
            put("causal", json!(true));
        }
        match self.causal_offset {
            Some(Alignment::TopLeft) => drop(put("causal_offset", json!("top_left"))),
            Some(Alignment::BottomRight) => drop(put("causal_offset", json!("bottom_right"))),
            Some(Alignment::BottomRightValid) => {
                drop(put("causal_offset", json!("bottom_right_valid")));
            }
            Some(Alignment::Offset(offset)) => drop(put("causal_offset", json!(offset))),
            Some(Alignment::PerBatch) | None => {}
        }
        if let Some(w) = &self.window {
            put("window", json!({"left": w.left, "right": w.right, "keep_first": w.keep_first}));
        }
        if let Some(AdaptiveTemperature { coefficients, above }) = self.adaptive_temperature {
            put("adaptive_temperature", json!({"coefficients": coefficients, "above": above}));
        }
        if let Some(k) = self.top_k {
            put("top_k", json!(k));
        }
        match self.normalizer {
            Normalizer::Softmax => {}
            Normalizer::Sparsemax => drop(put("normalizer", json!("sparsemax"))),
            Normalizer::Entmax15 => drop(put("normalizer", json!("entmax15"))),
            Normalizer::Sigmoid { bias } => {
                put("normalizer", json!("sigmoid"));
                let bias = match bias {
                    SigmoidBias::Value(b) => json!(b),
                    SigmoidBias::MinusLogSeqK => json!(MINUS_LN_SEQ_K),
                    SigmoidBias::MinusLogVisible => json!(MINUS_LN_VISIBLE),
                };
                put("sigmoid_bias", bias);
            }
        }
        if let Some((dropout, [seed, offset])) = self.dropout {
            put("dropout", json!({"rate": dropout.rate, "seed": seed, "offset": offset}));
        }
        if let Some(scores) = self.scores {
            put("scores", json!(scores.name()));
        }
        match self.tokens.as_slice() {
            [] => {}
            [one] => drop(put("tokens", json!(one))),
            many => drop(put("tokens", json!(many))),
        }
        Value::Object(object).to_string()
    }
}

/// As a text, f32 keeps its digits: 1e-6 and not 9.999999974752427e-7.
fn digits(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_default()
}

fn strides(value: Value) -> Result<[Option<Strides>; 4], CaseError> {
    const RULE: &str = "an object of q, k, v and out, as many as there are, each [offset, batch, head, seq, dim] in numbers of elements from 0";
    let mut all = [None; 4];
    for (name, list) in value.as_object().into_iter().flatten() {
        let tensor = Tensor::MAIN.into_iter().find(|tensor| tensor.name() == name);
        let numbers =
            list.as_array().and_then(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
        match (tensor, numbers.as_deref()) {
            (Some(tensor), Some(&[offset, batch, head, seq, dim])) => {
                all[tensor as usize] = Some(Strides { offset, batch, head, seq, dim });
            }
            _ => return Err(wrong("strides", value, RULE)),
        }
    }
    if value.is_object() { Ok(all) } else { Err(wrong("strides", value, RULE)) }
}

fn length_scale(value: Value) -> Result<LengthScale, CaseError> {
    const RULE: &str =
        "\"ssmax\", {\"log_train_len\": integer}, {\"llama4\": [coef, floor]} or {\"yarn\": factor}";
    let one = value.as_object().filter(|object| object.len() == 1);
    let number = |value: &Value| value.as_f64().map(|x| x as f32);
    let integer = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let of = |key: &str| one.and_then(|object| object.get(key));
    let llama4 = of("llama4").and_then(Value::as_array).map(Vec::as_slice);
    let found = match (value.as_str(), llama4) {
        (Some("ssmax"), _) => Some(LengthScale::Ssmax),
        (_, Some([coef, floor])) => {
            number(coef).zip(integer(floor)).map(|(coef, floor)| LengthScale::Llama4 { coef, floor })
        }
        _ => of("log_train_len")
            .and_then(integer)
            .map(|train_len| LengthScale::LogTrainLen { train_len })
            .or_else(|| of("yarn").and_then(number).map(|factor| LengthScale::Yarn { factor })),
    };
    match found.filter(|scale| scale.check().is_ok()) {
        Some(scale) => Ok(scale),
        None => Err(wrong("length_scale", value, RULE)),
    }
}

fn tolerance(value: Value) -> Result<Tolerance, CaseError> {
    const RULE: &str = "{\"rtol\": number, \"atol\": number}, both at least 0";
    let part = |name: &str| value.get(name).and_then(Value::as_f64).filter(|x| x.is_finite() && *x >= 0.0);
    match (part("rtol"), part("atol"), value.as_object().map(Map::len)) {
        (Some(rtol), Some(atol), Some(2)) => Ok(Tolerance { rtol, atol }),
        _ => Err(wrong("tolerance", value, RULE)),
    }
}

fn causal_offset(value: Value) -> Result<Alignment, CaseError> {
    match (value.as_str(), value.as_i64().map(i32::try_from)) {
        (Some("top_left"), _) => Ok(Alignment::TopLeft),
        (Some("bottom_right"), _) => Ok(Alignment::BottomRight),
        (Some("bottom_right_valid"), _) => Ok(Alignment::BottomRightValid),
        (_, Some(Ok(offset))) => Ok(Alignment::Offset(offset)),
        _ => Err(wrong(
            "causal_offset",
            value,
            "an integer of 32 bits, \"top_left\", \"bottom_right\" or \"bottom_right_valid\"",
        )),
    }
}

fn window(value: Value) -> Result<Window, CaseError> {
    const RULE: &str = "an object of left, right (integers from 0, or null) and keep_first (integer from 0)";
    let Some(object) = value.as_object() else {
        return Err(wrong("window", value, RULE));
    };
    let mut window = Window::default();
    for (key, part) in object {
        let number = part.as_u64().and_then(|n| u32::try_from(n).ok());
        match (key.as_str(), part, number) {
            ("left" | "right", Value::Null, _) => {}
            ("left", _, Some(_)) => window.left = number,
            ("right", _, Some(_)) => window.right = number,
            ("keep_first", _, Some(n)) => window.keep_first = n,
            _ => return Err(wrong("window", value, RULE)),
        }
    }
    Ok(window)
}

fn adaptive(value: Value) -> Result<AdaptiveTemperature, CaseError> {
    const RULE: &str = "{\"coefficients\": [five numbers], \"above\": number from 0}";
    let list = |value: &Value| value.as_array()?.iter().map(|x| Some(x.as_f64()? as f32)).collect();
    let coefficients: Option<Vec<f32>> = value.get("coefficients").and_then(list);
    let above = value.get("above").and_then(Value::as_f64).filter(|x| x.is_finite() && *x >= 0.0);
    match (coefficients.as_deref(), above, value.as_object().map(Map::len)) {
        (Some(&[a, b, c, d, e]), Some(above), Some(2)) => {
            Ok(AdaptiveTemperature { coefficients: [a, b, c, d, e], above: above as f32 })
        }
        _ => Err(wrong("adaptive_temperature", value, RULE)),
    }
}

fn top_k(value: Value) -> Result<u32, CaseError> {
    match value.as_u64().and_then(|k| u32::try_from(k).ok()).filter(|&k| k > 0) {
        Some(k) => Ok(k),
        None => Err(wrong("top_k", value, "an integer of 32 bits, at least 1")),
    }
}

fn norm_name(kind: NormKind) -> &'static str {
    match kind {
        NormKind::L2 => "l2",
        NormKind::Rms => "rms",
    }
}

fn qk_norm(value: Value) -> Result<QkNorm, CaseError> {
    let norm = |kind: NormKind| {
        let eps = value.get(norm_name(kind)).and_then(Value::as_f64)? as f32;
        let norm = QkNorm { kind, eps, gains: NormGains::None };
        norm.check().is_ok().then_some(norm)
    };
    let one = value.as_object().is_some_and(|object| object.len() == 1);
    match norm(NormKind::L2).or_else(|| norm(NormKind::Rms)) {
        Some(norm) if one => Ok(norm),
        _ => Err(wrong(
            "qk_norm",
            value,
            "{\"l2\": eps} (0, or at least 1e-18) or {\"rms\": eps} (at least 0)",
        )),
    }
}

const MINUS_LN_SEQ_K: &str = "-ln(seq_k)";
const MINUS_LN_VISIBLE: &str = "-ln(visible)";

fn normalizer(keys: &mut Keys) -> Result<Normalizer, CaseError> {
    const NAMES: &str = "\"softmax\", \"sigmoid\", \"sparsemax\" or \"entmax15\"";
    let name = keys.choice("normalizer", &["softmax", "sigmoid", "sparsemax", "entmax15"], NAMES)?;
    let bias = keys.take("sigmoid_bias");
    match (name.as_deref(), bias) {
        (Some("sigmoid"), None) => Err(CaseError::MissingKey("sigmoid_bias")),
        (Some("sigmoid"), Some(bias)) => Ok(Normalizer::Sigmoid { bias: sigmoid_bias(bias)? }),
        (_, Some(bias)) => Err(wrong("sigmoid_bias", bias, "left out, where the normalizer is no sigmoid")),
        (Some("sparsemax"), None) => Ok(Normalizer::Sparsemax),
        (Some("entmax15"), None) => Ok(Normalizer::Entmax15),
        (_, None) => Ok(Normalizer::Softmax),
    }
}

fn sigmoid_bias(value: Value) -> Result<SigmoidBias, CaseError> {
    match (value.as_str(), value.as_f64().filter(|b| b.is_finite())) {
        (Some(MINUS_LN_SEQ_K), _) => Ok(SigmoidBias::MinusLogSeqK),
        (Some(MINUS_LN_VISIBLE), _) => Ok(SigmoidBias::MinusLogVisible),
        (_, Some(b)) => Ok(SigmoidBias::Value(b as f32)),
        _ => Err(wrong("sigmoid_bias", value, "a number, \"-ln(seq_k)\" or \"-ln(visible)\"")),
    }
}

fn dropout(value: Value) -> Result<(Dropout, [u32; 2]), CaseError> {
    const RULE: &str = "{\"rate\": number from 0, below 1, \"seed\": integer, \"offset\": integer}, the integers of 32 bits from 0";
    let word = |name: &str| value.get(name).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let rate = value.get("rate").and_then(Value::as_f64).filter(|rate| (0.0..1.0).contains(rate));
    match (rate, word("seed"), word("offset"), value.as_object().map(Map::len)) {
        (Some(rate), Some(seed), Some(offset), Some(3)) => {
            Ok((Dropout { rate: rate as f32 }, [seed, offset]))
        }
        _ => Err(wrong("dropout", value, RULE)),
    }
}

fn tokens(value: Value) -> Result<Vec<Vec<String>>, CaseError> {
    let list = || serde_json::from_value::<Vec<String>>(value.clone()).map(|one| vec![one]);
    let lists = || serde_json::from_value::<Vec<Vec<String>>>(value.clone());
    list().or_else(|_| lists()).map_err(|_| {
        wrong("tokens", value.clone(), "an array of texts, or an array of such arrays, one for each batch")
    })
}
