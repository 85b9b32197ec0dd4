//! What the words on the command line mean.

use crate::arrays;
use crate::fail::{Fail, Result};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use wgpu_attention::{
    AdaptiveTemperature, Alignment, DType, Dropout, Layout, LengthScale, Normalizer, QkNorm, Scale,
    ScoreStage, SigmoidBias, Window,
};

pub(crate) fn layouts(text: &str) -> Result<[Layout; 4], String> {
    let one = |text: &str| match text.trim() {
        "bhsd" => Some(Layout::Bhsd),
        "bshd" => Some(Layout::Bshd),
        _ => None,
    };
    match text.split(',').map(one).collect::<Option<Vec<_>>>().as_deref() {
        Some(&[all]) => Ok([all; 4]),
        Some(&[q, k, v, out]) => Ok([q, k, v, out]),
        _ => Err("expected is bhsd or bshd, or four of them for q, k, v and out".to_owned()),
    }
}

pub(crate) fn dtypes(text: &str) -> Result<[DType; 3], String> {
    let one = |text: &str| DTypeArg::from_str(text.trim(), false).map(DType::from).ok();
    match text.split(',').map(one).collect::<Option<Vec<_>>>().as_deref() {
        Some(&[all]) => Ok([all; 3]),
        Some(&[q, k, v]) => Ok([q, k, v]),
        _ => Err("expected is f32, f16 or bf16, or three of them for q, k and v".to_owned()),
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum MaskFormatArg {
    /// A byte for each pair
    Bytes,
    /// A bit for each pair
    Bits,
}

/// Numbers for user code: 32-bit words.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum User {
    List(Vec<u32>),
    File(PathBuf),
}

impl User {
    pub(crate) fn read(&self) -> Result<Vec<u32>> {
        match self {
            User::List(list) => Ok(list.clone()),
            User::File(path) => arrays::read_npy_words(path),
        }
    }
}

pub(crate) fn user(text: &str) -> Result<User, String> {
    if text.ends_with(".npy") {
        return Ok(User::File(text.into()));
    }
    let word = |text: &str| match parse::<u32>(text) {
        Some(n) => Some(n),
        None if text.contains('.') => parse::<f32>(text).map(f32::to_bits),
        None => None,
    };
    text.split(',').map(word).collect::<Option<_>>().map(User::List).ok_or_else(|| {
        "expected are numbers with commas between, floats with a point (1.0) and integers from 0, or a .npy file".to_owned()
    })
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum DTypeArg {
    /// 32-bit floats
    F32,
    /// 16-bit floats, IEEE
    F16,
    /// The upper half of a 32-bit float
    Bf16,
}

impl From<DTypeArg> for DType {
    fn from(arg: DTypeArg) -> Self {
        match arg {
            DTypeArg::F32 => DType::F32,
            DTypeArg::F16 => DType::F16,
            DTypeArg::Bf16 => DType::Bf16,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum StageArg {
    /// q.k times scale over temperature
    Raw,
    /// After the soft cap
    Capped,
    /// After bias, ALiBi and masks, -inf where masked
    Biased,
    /// After the softmax: the attention weights
    Probs,
}

impl From<StageArg> for ScoreStage {
    fn from(arg: StageArg) -> Self {
        match arg {
            StageArg::Raw => ScoreStage::Raw,
            StageArg::Capped => ScoreStage::Capped,
            StageArg::Biased => ScoreStage::Biased,
            StageArg::Probs => ScoreStage::Probs,
        }
    }
}

/// Where positions are: for all, or for each batch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AlignArg {
    All(Alignment),
    PerBatch(Vec<i32>),
}

/// Numbers on the command line, or in a .npy file with one axis.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Numbers {
    List(Vec<f32>),
    File(PathBuf),
}

impl Numbers {
    pub(crate) fn read(&self) -> Result<Vec<f32>> {
        match self {
            Numbers::List(list) => Ok(list.clone()),
            Numbers::File(path) => one_axis(path),
        }
    }
}

/// Whole numbers on the command line, or in a .npy file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Integers {
    List(Vec<i32>),
    File(PathBuf),
}

impl Integers {
    pub(crate) fn read(&self) -> Result<Vec<i32>> {
        match self {
            Integers::List(list) => Ok(list.clone()),
            Integers::File(path) => arrays::read_npy_integers(path),
        }
    }
}

pub(crate) fn integers(text: &str) -> Result<Integers, String> {
    if text.ends_with(".npy") {
        return Ok(Integers::File(text.into()));
    }
    list(text)
        .map(Integers::List)
        .ok_or_else(|| "expected are whole numbers with commas between, or a .npy file".to_owned())
}

fn one_axis(path: &Path) -> Result<Vec<f32>> {
    let array = arrays::read_npy(path)?;
    if array.shape.len() != 1 {
        return Err(Fail::file(path, format_args!("has shape {:?}, but expected is (q_heads)", array.shape)));
    }
    Ok(array.numbers)
}

pub(crate) fn numbers(text: &str) -> Result<Numbers, String> {
    if text.ends_with(".npy") {
        return Ok(Numbers::File(text.into()));
    }
    list(text)
        .map(Numbers::List)
        .ok_or_else(|| "expected are numbers with commas between, or a .npy file".to_owned())
}

/// `--alibi` with a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AlibiArg {
    Standard,
    Slopes(Numbers),
}

pub(crate) fn alibi(text: &str) -> Result<AlibiArg, String> {
    if text == "standard" { Ok(AlibiArg::Standard) } else { numbers(text).map(AlibiArg::Slopes) }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SinksArg {
    Zero,
    Logits(Numbers),
}

pub(crate) fn sinks(text: &str) -> Result<SinksArg, String> {
    match text {
        "zero" => Ok(SinksArg::Zero),
        _ => numbers(text).map(SinksArg::Logits).map_err(|e| format!("{e}, or `zero`")),
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LengthArg {
    Ssmax(Numbers),
    Number(LengthScale),
}

pub(crate) fn length_scale(text: &str) -> Result<LengthArg, String> {
    let known = "expected is ssmax=LIST, ssmax=FILE.npy, logn=TRAIN_LEN, llama4=COEF,FLOOR or yarn=FACTOR";
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let number = match name {
        "ssmax" => return numbers(value).map(LengthArg::Ssmax).map_err(|e| format!("ssmax: {e}")),
        "logn" => parse(value).map(|train_len| LengthScale::LogTrainLen { train_len }),
        "llama4" => value
            .split_once(',')
            .and_then(|(coef, floor)| Some(LengthScale::Llama4 { coef: parse(coef)?, floor: parse(floor)? })),
        "yarn" => parse(value).map(|factor| LengthScale::Yarn { factor }),
        _ => None,
    };
    number.map(LengthArg::Number).ok_or_else(|| known.to_owned())
}

pub(crate) fn normalizer(text: &str) -> Result<Normalizer, String> {
    let sigmoid = |bias| Some(Normalizer::Sigmoid { bias });
    match text.split_once('=').unwrap_or((text, "")) {
        ("softmax", "") => Some(Normalizer::Softmax),
        ("sparsemax", "") => Some(Normalizer::Sparsemax),
        ("entmax15", "") => Some(Normalizer::Entmax15),
        ("sigmoid", "seq-k") => sigmoid(SigmoidBias::MinusLogSeqK),
        ("sigmoid", "visible") => sigmoid(SigmoidBias::MinusLogVisible),
        ("sigmoid", bias) => parse(bias).map(SigmoidBias::Value).and_then(sigmoid),
        _ => None,
    }
    .ok_or_else(|| {
        "expected is softmax, sparsemax, entmax15, sigmoid=NUMBER, sigmoid=seq-k or sigmoid=visible"
            .to_owned()
    })
}

pub(crate) fn adaptive(text: &str) -> Result<AdaptiveTemperature, String> {
    match list(text).as_deref() {
        _ if text == "paper" => Ok(AdaptiveTemperature::default()),
        Some(&[a, b, c, d, e, above]) => Ok(AdaptiveTemperature { coefficients: [a, b, c, d, e], above }),
        _ => Err("expected are six numbers with commas between, or nothing".to_owned()),
    }
}

/// `--dropout` with its seed and offset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DropoutArg {
    pub dropout: Dropout,
    pub seed: [u32; 2],
}

pub(crate) fn dropout(text: &str) -> Result<DropoutArg, String> {
    let parts: Vec<_> = text.split(',').collect();
    let (rate, seed, offset) = match *parts {
        [rate, seed] => (parse(rate), parse(seed), Some(0)),
        [rate, seed, offset] => (parse(rate), parse(seed), parse(offset)),
        _ => (None, None, None),
    };
    match (rate, seed, offset) {
        (Some(rate), Some(seed), Some(offset)) => {
            Ok(DropoutArg { dropout: Dropout { rate }, seed: [seed, offset] })
        }
        _ => {
            Err("expected is RATE,SEED or RATE,SEED,OFFSET: a number, and integers from 0 to 2^32 - 1"
                .to_owned())
        }
    }
}

pub(crate) fn window(text: &str) -> Result<Window, String> {
    let side = |text: &str| match text.trim() {
        "-" | "none" => Some(None),
        number => parse(number).map(Some),
    };
    let parts: Vec<_> = text.split(',').collect();
    let window = match *parts {
        [left, right] => side(left).zip(side(right)).map(|(left, right)| (left, right, Some(0))),
        [left, right, keep] => side(left).zip(side(right)).map(|(left, right)| (left, right, parse(keep))),
        _ => None,
    };
    match window {
        Some((left, right, Some(keep_first))) => Ok(Window { left, right, keep_first }),
        _ => {
            Err("expected is LEFT,RIGHT or LEFT,RIGHT,KEEP_FIRST: numbers from 0; `-` or `none` for no limit"
                .to_owned())
        }
    }
}

pub(crate) fn scale(text: &str) -> Result<Scale, String> {
    let number = |text: &str| parse::<f32>(text).filter(|x| x.is_finite());
    match text.strip_suffix("/d") {
        _ if text == "rsqrt" => Some(Scale::RsqrtHeadDim),
        Some(numerator) => number(numerator).map(|numerator| Scale::PerHeadDim { numerator }),
        None => number(text).map(Scale::Value),
    }
    .ok_or_else(|| "expected is a number, `rsqrt`, or a number and `/d`".to_owned())
}

pub(crate) fn qk_norm(text: &str) -> Result<QkNorm, String> {
    let (kind, eps) = text.split_once('=').map_or((text, None), |(kind, eps)| (kind, Some(eps)));
    let norm = match kind {
        "l2" => Some(QkNorm::l2()),
        "rms" => Some(QkNorm::rms(1e-6)),
        _ => None,
    };
    match (norm, eps.map(parse::<f32>)) {
        (Some(norm), None) => Ok(norm),
        (Some(norm), Some(Some(eps))) => Ok(QkNorm { eps, ..norm }),
        _ => Err("expected is `l2` or `rms`, or one of them and `=` and a number".to_owned()),
    }
}

pub(crate) fn align(text: &str) -> Result<AlignArg, String> {
    match (text, list(text).as_deref()) {
        ("bottom-right", _) => Ok(AlignArg::All(Alignment::BottomRight)),
        ("bottom-right-valid", _) => Ok(AlignArg::All(Alignment::BottomRightValid)),
        ("top-left", _) => Ok(AlignArg::All(Alignment::TopLeft)),
        (_, Some(&[one])) => Ok(AlignArg::All(Alignment::Offset(one))),
        (_, Some(many)) => Ok(AlignArg::PerBatch(many.to_vec())),
        _ => Err(
            "expected is `bottom-right`, `bottom-right-valid`, `top-left`, an integer, or one for each batch"
                .to_owned(),
        ),
    }
}

fn list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(parse).collect()
}

fn parse<T: FromStr>(text: &str) -> Option<T> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows() {
        assert_eq!(window("3,0"), Ok(Window { left: Some(3), right: Some(0), keep_first: 0 }));
        assert_eq!(window("-,none,4"), Ok(Window { left: None, right: None, keep_first: 4 }));
        for bad in ["", "3", "-1,0", "1,2,-", "1,2,3,4", "a,b"] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn storage_of_each_tensor() {
        assert_eq!(layouts("bshd"), Ok([Layout::Bshd; 4]));
        let mixed = [Layout::Bhsd, Layout::Bshd, Layout::Bshd, Layout::Bhsd];
        assert_eq!(layouts("bhsd,bshd,bshd,bhsd"), Ok(mixed));
        assert_eq!(dtypes("bf16"), Ok([DType::Bf16; 3]));
        assert_eq!(dtypes("f32,f16,bf16"), Ok([DType::F32, DType::F16, DType::Bf16]));
        assert_eq!(user("7,1.5,-0.5"), Ok(User::List(vec![7, 1.5f32.to_bits(), (-0.5f32).to_bits()])));
        assert_eq!(user("a.npy"), Ok(User::File("a.npy".into())));
        for bad in ["", "bhsd,bshd", "sbhd"] {
            assert!(layouts(bad).is_err(), "{bad}");
        }
        for bad in ["", "f64", "f16,f16"] {
            assert!(dtypes(bad).is_err(), "{bad}");
        }
        for bad in ["", "-3", "1.0,x"] {
            assert!(user(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn normalizers() {
        let sigmoid = |bias| Ok(Normalizer::Sigmoid { bias });
        assert_eq!(normalizer("softmax"), Ok(Normalizer::Softmax));
        assert_eq!(normalizer("sigmoid=-1.5"), sigmoid(SigmoidBias::Value(-1.5)));
        assert_eq!(normalizer("sigmoid=seq-k"), sigmoid(SigmoidBias::MinusLogSeqK));
        assert_eq!(normalizer("sigmoid=visible"), sigmoid(SigmoidBias::MinusLogVisible));
        assert_eq!(normalizer("sparsemax"), Ok(Normalizer::Sparsemax));
        assert_eq!(normalizer("entmax15"), Ok(Normalizer::Entmax15));
        for bad in ["", "softmax=1", "sigmoid", "sigmoid=x", "hardmax", "entmax15=2"] {
            assert!(normalizer(bad).is_err(), "{bad}");
        }
        let own = AdaptiveTemperature { coefficients: [0.0, 0.0, 0.0, 1.0, -2.0], above: 3.0 };
        assert_eq!(adaptive("0,0,0,1,-2,3"), Ok(own));
        assert_eq!(adaptive("paper"), Ok(AdaptiveTemperature::default()));
        for bad in ["", "1", "1,2,3,4,5", "1,2,3,4,5,x"] {
            assert!(adaptive(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dropouts() {
        let arg = |rate, seed| Ok(DropoutArg { dropout: Dropout { rate }, seed });
        assert_eq!(dropout("0.1,7"), arg(0.1, [7, 0]));
        assert_eq!(dropout("0.1,7,4294967295"), arg(0.1, [7, u32::MAX]));
        for bad in ["", "0.1", "0.1,-1", "0.1,7,x", "a,1", "0.1,1,2,3"] {
            assert!(dropout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn length_scales() {
        let number = |text| length_scale(text);
        assert_eq!(number("logn=512"), Ok(LengthArg::Number(LengthScale::LogTrainLen { train_len: 512 })));
        let llama = LengthScale::Llama4 { coef: 0.1, floor: 8192 };
        assert_eq!(number("llama4=0.1,8192"), Ok(LengthArg::Number(llama)));
        assert_eq!(number("ssmax=0.4,1"), Ok(LengthArg::Ssmax(Numbers::List(vec![0.4, 1.0]))));
        for bad in ["", "logn", "logn=x", "llama4=1", "ssmax=", "linear=3"] {
            assert!(length_scale(bad).is_err(), "{bad}");
        }
    }
}
