//! Case files: reading, writing, every error, and the shipped cases on a real adapter.

use std::path::PathBuf;
use wgpu_attention::case::{Case, CaseError, Failure, Op, Tolerance};
use wgpu_attention::softmax::{Kind, RowTemperature};
use wgpu_attention::{
    AdaptiveTemperature, Alignment, Attention, Broadcast, DType, Inputs, Kernel, Layout, MaskFormat,
    NormGains, Normalizer, Outputs, OwnedInputs, PlanOptions, Problem, QkNorm, Scale, ScoreStage, Shape,
    SigmoidBias, Sink, Strides, Temperature, Tensor as Which, Window, headless, reference, validate,
};

/// Tensors of zeros, in a file of which every part can be wrong.
struct File {
    case: String,
    metadata: String,
    tensors: Vec<Tensor>,
}

/// Name, dtype, shape, and data where it is not all zeros.
type Tensor = (&'static str, &'static str, Vec<usize>, Option<Vec<u8>>);

const PLAIN: &str = r#""name": "n", "op": "attention", "tolerance": {"rtol": 1e-5, "atol": 1e-6}"#;

impl File {
    /// Batch 2, 4 query heads, 2 key/value heads, 3 queries, 5 keys, head dims 8 and 6.
    fn attention(more: &str) -> Self {
        let comma = if more.is_empty() { "" } else { ", " };
        File {
            case: format!("{{{PLAIN}{comma}{more}}}"),
            metadata: String::new(),
            tensors: vec![
                ("q", "F32", vec![2, 4, 3, 8], None),
                ("k", "F32", vec![2, 2, 5, 8], None),
                ("v", "F32", vec![2, 2, 5, 6], None),
                ("out", "F32", vec![2, 4, 3, 6], None),
            ],
        }
    }

    fn json(case: &str) -> Self {
        File { case: case.to_owned(), ..Self::attention("") }
    }

    fn softmax(more: &str) -> Self {
        File {
            case: format!(r#"{{"name": "n", "op": "softmax", "tolerance": {{"rtol": 0, "atol": 0}}{more}}}"#),
            metadata: String::new(),
            tensors: vec![("x", "F32", vec![2, 3], None), ("out", "F32", vec![2, 3], None)],
        }
    }

    fn with(mut self, name: &'static str, dtype: &'static str, shape: &[usize]) -> Self {
        self.tensors.retain(|t| t.0 != name);
        self.tensors.push((name, dtype, shape.to_vec(), None));
        self
    }

    fn data(mut self, bytes: Vec<u8>) -> Self {
        self.tensors.last_mut().unwrap().3 = Some(bytes);
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|t| t.0 != name);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let quoted = self.case.replace('"', "\\\"");
        let mut header = format!("{{\"__metadata__\":{{\"case\":\"{quoted}\"{}}}", self.metadata);
        let mut data = Vec::new();
        for (name, dtype, shape, bytes) in &self.tensors {
            let size = match *dtype {
                "U8" => 1,
                "F16" | "BF16" => 2,
                "F64" => 8,
                _ => 4,
            };
            let zeros = vec![0; shape.iter().product::<usize>() * size];
            let start = data.len();
            data.extend(bytes.as_ref().unwrap_or(&zeros));
            header += &format!(
                ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{}]}}",
                data.len()
            );
        }
        header.push('}');
        container(&header, &data)
    }

    fn error(&self) -> String {
        Case::from_bytes(&self.bytes()).expect_err("should be refused").to_string()
    }
}

fn container(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[track_caller]
fn refused(file: &File, words: &[&str]) {
    let message = file.error();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

#[test]
fn a_plain_file_is_read() {
    let case = Case::from_bytes(&File::attention("").bytes()).unwrap();
    assert_eq!((case.name(), case.op()), ("n", Op::Attention));
    assert_eq!(case.tolerance(), Tolerance { rtol: 1e-5, atol: 1e-6 });
    assert!(case.missing().is_empty());
    let problem = case.work().unwrap().problem();
    let shape =
        Shape { batch: 2, q_heads: 4, kv_heads: 2, seq_q: 3, seq_k: 5, head_dim_qk: 8, head_dim_v: 6 };
    assert_eq!(*problem, Problem::new(shape));
}

#[test]
fn options_reach_the_problem() {
    let problem = |file: File| {
        let case = Case::from_bytes(&file.bytes()).unwrap();
        case.work().unwrap().problem().clone()
    };
    let with = |keys: &str| problem(File::attention(keys));
    let causal = |p: &Problem| p.causal.then_some(p.alignment);
    assert_eq!(with(r#""scale": 0.25"#).scale, Scale::Value(0.25));
    assert_eq!(with(r#""temperature": 2"#).temperature, Temperature::Value(2.0));
    assert_eq!(causal(&with(r#""causal": true"#)), Some(Alignment::BottomRight));
    assert_eq!(causal(&with(r#""causal": false, "causal_offset": 3"#)), None);
    assert_eq!(causal(&with(r#""causal": true, "causal_offset": -2"#)), Some(Alignment::Offset(-2)));
    let named = |name: &str| causal(&with(&format!(r#""causal": true, "causal_offset": "{name}""#)));
    assert_eq!(named("top_left"), Some(Alignment::TopLeft));
    assert_eq!(named("bottom_right"), Some(Alignment::BottomRight));
    assert_eq!(with(r#""softcap": 30"#).softcap, Some(30.0));
    assert_eq!(with(r#""qk_norm": {"l2": 0}"#).qk_norm, Some(QkNorm { eps: 0.0, ..QkNorm::l2() }));
    assert_eq!(with(r#""qk_norm": {"rms": 1e-6}"#).qk_norm, Some(QkNorm::rms(1e-6)));
    let window = with(r#""window": {"left": 3, "right": null, "keep_first": 1}, "causal_offset": 2"#);
    assert_eq!(window.window, Some(Window { left: Some(3), right: None, keep_first: 1 }));
    assert_eq!((window.causal, window.alignment), (false, Alignment::Offset(2)));

    // A dense input broadcasts from the last axis.
    let bias = |shape: &[usize]| problem(File::attention("").with("bias", "F32", shape)).bias;
    assert_eq!(bias(&[1, 1, 1, 5]), Some((DType::F32, Broadcast([1, 1, 1, 5]))));
    assert_eq!(bias(&[4, 3, 5]), Some((DType::F32, Broadcast([1, 4, 3, 5]))));
    assert_eq!(bias(&[]), Some((DType::F32, Broadcast([1, 1, 1, 1]))));
    let mask = problem(File::attention("").with("mask", "U8", &[2, 1, 3, 5])).mask;
    assert_eq!(mask, Some((MaskFormat::Bytes, Broadcast([2, 1, 3, 5]))));
    let alibi = problem(File::attention(r#""causal_offset": 1"#).with("alibi_slopes", "F32", &[4]));
    assert_eq!((alibi.alibi, alibi.alignment), (true, Alignment::Offset(1)));
    assert_eq!(problem(File::attention("").with("sinks", "F32", &[4])).sink, Sink::PerHead);
    for (name, dtype) in [("F16", DType::F16), ("BF16", DType::Bf16)] {
        let stored = File::attention("")
            .with("q", name, &[2, 4, 3, 8])
            .with("k", name, &[2, 2, 5, 8])
            .with("v", name, &[2, 2, 5, 6])
            .with("bias", name, &[5]);
        let stored = problem(stored);
        assert_eq!(stored.dtypes, [dtype, dtype, dtype, DType::F32]);
        assert_eq!(stored.bias, Some((dtype, Broadcast([1, 1, 1, 5]))));
    }

    let tables = File::attention(r#""causal": true"#)
        .with("kv_len", "I32", &[2])
        .with("causal_offset", "I32", &[2])
        .with("lse", "F32", &[2, 4, 3])
        .with("entropy", "F32", &[2, 4, 3]);
    let tables = problem(tables);
    assert_eq!(causal(&tables), Some(Alignment::PerBatch));
    assert!(tables.kv_len && tables.stats.lse && tables.stats.entropy && !tables.stats.row_max);

    let bshd = File::attention(r#""layout": "bshd""#)
        .with("q", "F32", &[2, 3, 4, 8])
        .with("k", "F32", &[2, 5, 2, 8])
        .with("v", "F32", &[2, 5, 2, 6])
        .with("out", "F32", &[2, 3, 4, 6]);
    let bshd = problem(bshd);
    assert_eq!((bshd.q_layout, bshd.shape.seq_q, bshd.shape.kv_heads), (Layout::Bshd, 3, 2));
}

/// The number and the table of temperatures both divide the score.
#[test]
fn temperature_and_temperature_per_head_multiply() {
    let ones: Vec<u8> = [1.0f32; 4].iter().flat_map(|x| x.to_le_bytes()).collect();
    let read = |keys: &str| {
        let file = File::attention(keys).with("temperature_per_head", "F32", &[4]).data(ones.clone());
        Case::from_bytes(&file.bytes()).unwrap().work().unwrap().problem().clone()
    };
    let both = read(r#""scale": 3, "temperature": 2"#);
    assert_eq!((both.scale, both.temperature), (Scale::Value(1.5), Temperature::PerHead));
    assert_eq!(read("").scale, Scale::RsqrtHeadDim);
}

#[test]
fn what_is_missing_is_named() {
    let gradients = File::attention("")
        .with("sinks", "F32", &[4])
        .with("bias", "F32", &[3, 5])
        .with("dout", "F32", &[2, 4, 3, 6])
        .with("dq", "F32", &[2, 4, 3, 8])
        .with("dk", "F32", &[2, 2, 5, 8])
        .with("dv", "F32", &[2, 2, 5, 6])
        .with("dbias", "F32", &[3, 5])
        .with("dsinks", "F32", &[4])
        .with("dtemperature", "F32", &[1]);
    let case = Case::from_bytes(&gradients.bytes()).unwrap();
    let wanted = case.work().expect("all of it is known").gradients().expect("gradients").problem();
    assert!(case.missing().is_empty() && wanted.dbias && wanted.dsinks && wanted.dtemperature);
    // Two temperatures, of which only that of each head has a gradient.
    let case = Case::from_bytes(&gradients.with("temperature_per_head", "F32", &[4]).bytes()).unwrap();
    assert_eq!(case.missing().len(), 1);
    assert!(case.missing()[0].contains("(dtemperature)"), "{:?}", case.missing());
    assert!(case.work().is_none());
}

#[test]
fn a_softmax_is_read_as_one() {
    let log = File { case: File::softmax("").case.replace("softmax", "log_softmax"), ..File::softmax("") };
    for (file, kind, tau) in
        [(log, Kind::LogSoftmax, 1.0), (File::softmax(r#", "temperature": 0.5"#), Kind::Softmax, 0.5)]
    {
        let case = Case::from_bytes(&file.bytes()).unwrap();
        assert!(case.missing().is_empty() && case.work().is_none());
        let problem = case.softmax().expect("a softmax").problem();
        assert_eq!((problem.kind, problem.rows, problem.len), (kind, [1, 2], 3));
        assert_eq!(problem.temperature, RowTemperature::Value(tau));
    }
    refused(&File::softmax(r#", "temperature": 1e-42"#), &["temperature", "normal number"]);
}

#[test]
fn wrong_keys_are_refused() {
    let with = File::attention;
    refused(&with(r#""softcapp": 3"#), &["softcapp", "unknown", "softcap, causal"]);
    refused(&with(r#""layout": "sbhd""#), &["layout", "sbhd", "bhsd"]);
    refused(&with(r#""layout": 3"#), &["layout", "3", "bhsd"]);
    refused(&with(r#""scale": "big""#), &["scale", "big", "a number"]);
    refused(&with(r#""scale": 1e39"#), &["scale", "finite"]);
    refused(&with(r#""temperature": 0"#), &["temperature", "0", "above 0"]);
    refused(&with(r#""temperature": -1"#), &["temperature", "-1", "above 0"]);
    refused(&with(r#""softcap": 0"#), &["softcap", "above 0"]);
    refused(&with(r#""normalizer": "hardmax""#), &["normalizer", "hardmax", "entmax15"]);
    refused(&with(r#""normalizer": "sigmoid""#), &["sigmoid_bias"]);
    refused(&with(r#""normalizer": "sigmoid", "sigmoid_bias": "-ln""#), &["sigmoid_bias", "-ln(seq_k)"]);
    refused(&with(r#""sigmoid_bias": 1"#), &["sigmoid_bias", "left out"]);
    refused(&with(r#""dropout": {"rate": 1, "seed": 0, "offset": 0}"#), &["dropout", "below 1"]);
    refused(&with(r#""dropout": {"rate": 0.5, "seed": 0}"#), &["dropout", "offset"]);
    refused(&with(r#""top_k": 0"#), &["top_k", "at least 1"]);
    refused(&with(r#""adaptive_temperature": {"coefficients": [1, 2], "above": 0}"#), &["five numbers"]);
    for norm in [
        r#"{"l2": 1e-19}"#,
        r#"{"l2": -1}"#,
        r#"{"rms": "x"}"#,
        r#"{"max": 1}"#,
        r#"{"l2": 1, "rms": 1}"#,
        "1",
    ] {
        refused(&with(&format!(r#""qk_norm": {norm}"#)), &["qk_norm", "at least 1e-18"]);
    }
    refused(&with(r#""causal": 1"#), &["causal", "1", "true or false"]);
    refused(&with(r#""causal_offset": "middle""#), &["causal_offset", "middle", "top_left"]);
    refused(&with(r#""causal_offset": 1.5"#), &["causal_offset", "1.5", "integer"]);
    refused(&with(r#""causal_offset": 3000000000"#), &["causal_offset", "3000000000", "32 bits"]);
    refused(&with(r#""window": {"left": -1}"#), &["window", "-1", "from 0"]);
    refused(&with(r#""window": {"middle": 1}"#), &["window", "middle"]);
    refused(&with(r#""window": 3"#), &["window", "3"]);
    refused(&with(r#""scores": "all""#), &["scores", "all", "probs"]);
    refused(&with(r#""scores": "raw""#), &["no tensor \"scores\""]);
    refused(&with(r#""tokens": ["a"]"#), &["tokens", "[1]", "one text for each key"]);
    refused(&with(r#""tokens": [1, 2]"#), &["tokens", "[1,2]", "array of texts"]);
    refused(&with(r#""causal": true, "causal": false"#), &["causal", "twice"]);
    refused(&File::json(r#"{"op": "attention"}"#), &["no key \"name\""]);
    refused(&File::json(r#"{"name": "n"}"#), &["no key \"op\""]);
    refused(&File::json(r#"{"name": "n", "op": "attention"}"#), &["no key \"tolerance\""]);
    refused(&File::json(r#"{"name": "n", "op": "convolution"}"#), &["op", "convolution", "softmax"]);
    refused(&File::json(r#"{"name": 1, "op": "attention"}"#), &["name", "1", "text"]);
    let tolerance = r#"{"name": "n", "op": "attention", "tolerance": {"rtol": -1, "atol": 0}}"#;
    refused(&File::json(tolerance), &["tolerance", "-1", "at least 0"]);
    refused(&File::json("[]"), &["not a JSON object"]);
    refused(&File::json("{"), &["not a JSON object"]);
    refused(&File::softmax(r#", "causal": true"#), &["causal", "unknown for op softmax", "temperature"]);
    let entry = File { metadata: r#","author":"me""#.to_owned(), ..File::attention("") };
    refused(&entry, &["author", "only \"case\""]);
}

#[test]
fn wrong_tensors_are_refused() {
    let file = || File::attention("");
    refused(&file().with("biass", "F32", &[1]), &["biass", "unknown", "bias"]);
    for tensor in ["q", "k", "v", "out"] {
        refused(&file().without(tensor), &["no tensor", tensor]);
    }
    refused(&file().with("q", "F64", &[1, 1, 1, 1]), &["\"q\"", "F64", "F32"]);
    refused(&file().with("q", "F32", &[4, 3, 8]), &["\"q\"", "[4, 3, 8]", "(batch, heads, seq, head_dim)"]);
    refused(&file().with("k", "F32", &[2, 2, 5, 7]), &["\"k\"", "head dim 8"]);
    refused(&file().with("k", "F32", &[1, 2, 5, 8]), &["\"k\"", "batch 2"]);
    refused(&file().with("k", "F64", &[2, 2, 5, 8]), &["\"k\"", "F64", "F32"]);
    refused(&file().with("v", "F32", &[2, 2, 4, 6]), &["\"v\"", "[2, 2, 4, 6]", "[2, 2, 5, 6]"]);
    refused(&file().with("out", "F32", &[2, 4, 3, 8]), &["\"out\"", "[2, 4, 3, 6]"]);
    refused(&file().with("lse", "F32", &[2, 3, 4]), &["\"lse\"", "[2, 4, 3]"]);
    refused(&file().with("bias", "F32", &[3, 3, 5]), &["\"bias\"", "broadcasts to [2, 4, 3, 5]"]);
    refused(&file().with("mask", "F32", &[1]), &["\"mask\"", "F32", "U8"]);
    refused(&file().with("mask", "U8", &[5]).data(vec![0, 1, 2, 1, 0]), &["\"mask\"", "2 at 2", "0 or 1"]);
    refused(&file().with("kv_len", "F32", &[2]), &["\"kv_len\"", "F32", "I32"]);
    refused(&file().with("kv_len", "I32", &[3]), &["\"kv_len\"", "[3]", "[2]"]);
    let lens = |n: i32| [0, n].iter().flat_map(|n| n.to_le_bytes()).collect();
    refused(&file().with("kv_len", "I32", &[2]).data(lens(-1)), &["\"kv_len\"", "-1 at 1"]);
    refused(&file().with("kv_len", "I32", &[2]).data(lens(6)), &["\"kv_len\"", "6 at 1"]);
    refused(&file().with("documents_q", "I32", &[2, 3]), &["no tensor \"documents_k\""]);
    refused(&file().with("documents_q", "I32", &[3]), &["\"documents_q\"", "[3]", "[2, 3]"]);
    let starts = |n: [i32; 3]| n.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    refused(&file().with("cu_seqlens_q", "I32", &[3]), &["\"q\"", "batch of 1", "cu_seqlens_q"]);
    let packed = || file().with("k", "F32", &[1, 2, 5, 8]).with("v", "F32", &[1, 2, 5, 6]);
    refused(&packed().with("cu_seqlens_k", "F32", &[3]), &["\"cu_seqlens_k\"", "F32", "I32"]);
    refused(&packed().with("cu_seqlens_k", "I32", &[0]), &["\"cu_seqlens_k\"", "(batch + 1)"]);
    for (numbers, wrong) in
        [([1, 2, 5], "1 at 0"), ([0, 6, 5], "5 at 2"), ([0, 2, 4], "4 at 2"), ([0, -1, 5], "-1 at 1")]
    {
        refused(
            &packed().with("cu_seqlens_k", "I32", &[3]).data(starts(numbers)),
            &["\"cu_seqlens_k\"", wrong, "prefix sums"],
        );
    }
    refused(&file().with("q_len", "I32", &[2]).data(lens(9)), &["\"q_len\"", "9 at 1"]);
    refused(&file().with("temperature_per_head", "F32", &[4]), &["temperature", "above 0"]);
    refused(&file().with("sinks", "F32", &[2]), &["\"sinks\"", "[2]", "[4]"]);
    refused(&file().with("scores", "F32", &[2, 4, 3, 5]), &["no key \"scores\""]);
    refused(&file().with("dout", "F32", &[2, 4, 3, 6]), &["no tensor \"dq\"", "dout"]);
    refused(&file().with("dtemperature", "F32", &[1]), &["no tensor \"dout\""]);
    let offsets = File::attention(r#""causal_offset": 1"#).with("causal_offset", "I32", &[2]);
    refused(&offsets, &["key \"causal_offset\"", "tensor \"causal_offset\""]);
    let heads = file().with("k", "F32", &[2, 3, 5, 8]).with("v", "F32", &[2, 3, 5, 6]);
    refused(&heads, &["q_heads is 4", "kv_heads is 3"]);
    refused(&File::softmax("").with("out", "F32", &[3, 2]), &["\"out\"", "[2, 3]"]);
    refused(&File::softmax("").with("x", "F16", &[2, 3]), &["\"x\"", "F16", "F32"]);
    refused(&File::softmax("").with("q", "F32", &[1]), &["\"q\"", "unknown for op softmax"]);
}

#[test]
fn malformed_files_are_errors() {
    let good = File::attention(r#""causal": true"#).with("kv_len", "I32", &[2]).bytes();
    for length in 0..good.len() {
        assert!(Case::from_bytes(&good[..length]).is_err(), "cut to {length} bytes");
    }
    let mut longer = good.clone();
    longer.push(0);
    assert!(Case::from_bytes(&longer).is_err());
    // Any byte of the header may be anything: an error or another case, never a panic.
    let header = good.len() - 4 * (2 * 4 * 3 * 8 + 2 * 2 * 5 * 8 + 2 * 2 * 5 * 6 + 2 * 4 * 3 * 6 + 2);
    for at in 0..header {
        for byte in [0, b'"', b'9', 0xff] {
            let mut bad = good.clone();
            bad[at] = byte;
            let _ = Case::from_bytes(&bad);
        }
    }
    for bytes in [
        u64::MAX.to_le_bytes().to_vec(),
        container("{}", &[]),
        container("null", &[]),
        container("\u{0}", &[]),
        // Lengths whose sum leaves 64 bits.
        container(
            &format!(
                r#"{{"a":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}},"b":{{"dtype":"U8","shape":[{0}],"data_offsets":[{0},{1}]}}}}"#,
                (u64::MAX >> 3),
                (u64::MAX >> 3) * 2
            ),
            &[],
        ),
        container(&"[".repeat(100_000), &[]),
    ] {
        assert!(matches!(Case::from_bytes(&bytes), Err(CaseError::NotSafetensors(_) | CaseError::NoCase)));
    }
    let missing = Case::read("nowhere/there.safetensors").unwrap_err().to_string();
    assert!(missing.starts_with("nowhere/there.safetensors: cannot be read"), "{missing}");
}

#[test]
fn a_problem_survives_the_round_trip() {
    let shape =
        Shape { batch: 2, q_heads: 4, kv_heads: 2, seq_q: 3, seq_k: 5, head_dim_qk: 8, head_dim_v: 6 };
    let numbers = |n: u32| (0..n).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>();
    let (q, k, v) = (numbers(2 * 4 * 3 * 8), numbers(2 * 2 * 5 * 8), numbers(2 * 2 * 5 * 6));
    let (bias, quarters) = (
        numbers(4 * 3 * 5),
        [&q, &k, &v].map(|x| x.iter().map(|x| (x * 4.0).round() / 4.0).collect::<Vec<_>>()),
    );
    let plain = Problem::new(shape).with_lse().with_entropy();
    let inputs = Inputs::new(&q, &k, &v);
    let sigmoid = |bias| Problem::new(shape).normalizer(Normalizer::Sigmoid { bias });
    let problems = [
        (plain.clone(), inputs),
        (plain.clone().scale(Scale::Value(-0.1)).temperature(Temperature::Value(0.3)), inputs),
        (plain.clone().layout(Layout::Bshd).causal(Alignment::TopLeft), inputs),
        (plain.clone().causal(Alignment::Offset(-1)), inputs),
        (plain.clone().causal(Alignment::BottomRightValid).with_q_len(), inputs.q_len(&[2, 0])),
        (
            plain.clone().with_documents(),
            inputs.documents(&[1, 1, 2, 0, 0, 0], &[1, 2, 2, 3, 1, 0, -1, 0, 0, 5]),
        ),
        // The same numbers as sequences of 3, 3 and 0 queries on 4, 5 and 1 keys.
        (
            Problem::new(Shape { batch: 3, ..shape })
                .with_lse()
                .with_entropy()
                .packed(6, 10)
                .with_documents()
                .causal(Alignment::BottomRight)
                .layout(Layout::Bshd),
            inputs
                .cu_seqlens(&[0, 3, 6, 6], &[0, 4, 9, 10])
                .documents(&[1, 1, 2, 0, 0, 0], &[1, 2, 2, 3, 1, 0, -1, 0, 0, 5]),
        ),
        (
            plain.clone().causal(Alignment::PerBatch).with_kv_len().temperature(Temperature::PerHead),
            inputs.causal_offset(&[1, -1]).kv_len(&[5, 0]).temperature(&[0.5, 1.0, 2.0, 4.0]),
        ),
        (
            plain
                .clone()
                .softcap(5.0)
                .window(Window { left: Some(2), right: None, keep_first: 1 })
                .align(Alignment::Offset(1))
                .bias(DType::F32, Broadcast([1, 4, 3, 5]))
                .mask(MaskFormat::Bytes, Broadcast([2, 1, 1, 5]))
                .with_alibi()
                .sink(Sink::PerHead),
            inputs
                .bias(&bias)
                .mask(&[1, 1, 0, 1, 1, 0, 0, 0, 0, 0])
                .alibi_slopes(&[0.5, 0.25, 0.125, 0.1])
                .sinks(&[-1.0, 0.0, 1.0, 2.0]),
        ),
        (
            plain.clone().qk_norm(QkNorm::rms(1e-6).gains(NormGains::PerHead)),
            inputs.gains(&q[..4 * 8], &k[..2 * 8]),
        ),
        (plain.clone().qk_norm(QkNorm { eps: 0.5, ..QkNorm::l2() }), inputs),
        (sigmoid(SigmoidBias::Value(-1.5)).dropout(0.25), inputs.dropout(7, u32::MAX)),
        (sigmoid(SigmoidBias::MinusLogSeqK), inputs),
        (plain.clone().adaptive_temperature(AdaptiveTemperature::default()), inputs),
        (plain.clone().top_k(3), inputs),
        (Problem::new(shape).with_entropy().normalizer(Normalizer::Sparsemax), inputs),
        (Problem::new(shape).with_entropy().normalizer(Normalizer::Entmax15), inputs),
        (sigmoid(SigmoidBias::MinusLogVisible), inputs),
        // Numbers that 16 bits hold.
        (
            plain
                .clone()
                .dtypes(DType::F16, DType::F16, DType::F16, DType::F32)
                .bias(DType::F16, Broadcast([1, 1, 1, 5])),
            Inputs::new(&quarters[0], &quarters[1], &quarters[2]).bias(&[
                0.5,
                -0.5,
                f32::NEG_INFINITY,
                1.0,
                0.0,
            ]),
        ),
    ];
    let tolerance = Tolerance { rtol: 2e-5, atol: 2e-6 };
    for (problem, inputs) in problems {
        let truth = reference::truth(&problem, &inputs).unwrap().outputs(&problem);
        let case = Case::new("saved", &problem, &inputs, &truth, tolerance).unwrap();
        let again = Case::from_bytes(&case.to_bytes().unwrap()).unwrap();
        assert_eq!(again, case);
        let work = again.work().unwrap();
        assert_eq!(*work.problem(), problem);
        assert_eq!(work.inputs(), inputs);
        assert_eq!(*work.expected(), truth);
    }

    // What is said in other words: a sink of 0 is one logit of 0 for each head.
    let problem = plain.clone().sink(Sink::Zero).mask(MaskFormat::Bits, Broadcast([1, 1, 1, 5]));
    let inputs = inputs.mask(&[0b01101]);
    let truth = reference::truth(&problem, &inputs).unwrap().outputs(&problem);
    let case = Case::new("saved", &problem, &inputs, &truth, tolerance).unwrap();
    let work = case.work().unwrap();
    assert_eq!((work.problem().sink, work.inputs().tables.sinks), (Sink::PerHead, Some(&[0.0f32; 4][..])));
    assert_eq!((work.problem().mask, work.inputs().mask), (problem.mask, inputs.mask));
    assert_eq!(reference::truth(work.problem(), &work.inputs()).unwrap().outputs(&problem), truth);

    // Packed sequences that are all shorter than what was planned for.
    let problem = Problem::new(shape).packed(2, 10);
    let inputs = Inputs::new(&q[..4 * 2 * 8], &k, &v).cu_seqlens(&[0, 1, 2], &[0, 5, 10]);
    let zeros = Outputs { out: vec![0.0; 4 * 2 * 8], lse: None, entropy: None, row_max: None };
    let error = Case::new("saved", &problem, &inputs, &zeros, tolerance).unwrap_err();
    assert!(matches!(error, CaseError::Unsayable { field: "seq_q", .. }), "{error}");
}

/// Every option that there is: what `validate` draws comes back from a file as it was.
#[test]
fn whatever_is_drawn_can_be_said() {
    let tolerance = Tolerance { rtol: 0.0, atol: 0.0 };
    for seed in 0..400 {
        let problem = validate::problem_of(seed, seed);
        let own = validate::inputs(&problem, seed).unwrap();
        let zeros = |n: u64| vec![0.0; n as usize];
        let stat = |on: bool| on.then(|| zeros(problem.rows()));
        let stats = problem.stats;
        let outputs = Outputs {
            out: zeros(problem.view(Which::Out).unwrap().extent()),
            lse: stat(stats.lse),
            entropy: stat(stats.entropy),
            row_max: None,
        };
        let case = Case::new("drawn", &problem, &own.as_inputs(), &outputs, tolerance);
        let case = case.unwrap_or_else(|e| panic!("seed {seed}: {e}: {problem:?}"));
        let again = Case::from_bytes(&case.to_bytes().unwrap()).unwrap();
        assert!(again == case, "seed {seed}");
        if !again.missing().is_empty() {
            assert!(problem.user_params > 0 && !cfg!(feature = "user-code"), "{:?}", again.missing());
            continue;
        }
        let work = again.work().unwrap();

        // The same in the format's words.
        let mut want = problem.clone();
        want.stats.row_max = false;
        if want.sink == Sink::Zero {
            want.sink = Sink::PerHead;
        }
        want.scale = match want.scale {
            Scale::RsqrtHeadDim => Scale::RsqrtHeadDim,
            scale => Scale::Value(scale.value(want.shape.head_dim_qk) as f32),
        };
        let mut got = work.problem().clone();
        for tensor in Which::MAIN {
            let [got, want] = [&got, &want].map(|p| p.view(tensor).unwrap());
            assert_eq!(got, want, "seed {seed}: {tensor:?}");
        }
        let layouts = [want.q_layout, want.k_layout, want.v_layout, want.out_layout];
        [got.q_layout, got.k_layout, got.v_layout, got.out_layout] = layouts;
        assert_eq!(got, want, "seed {seed}");

        let inputs = work.owned_inputs();
        let [q, k, v, _] = problem.dtypes;
        for (name, dtype, got, want) in [
            ("q", q, Some(&inputs.q), Some(&own.q)),
            ("k", k, Some(&inputs.k), Some(&own.k)),
            ("v", v, Some(&inputs.v), Some(&own.v)),
            ("bias", problem.bias.map_or(DType::F32, |b| b.0), inputs.bias.as_ref(), own.bias.as_ref()),
        ] {
            let rounded = want.map(|list| list.iter().map(|&x| dtype.round(x)).collect::<Vec<_>>());
            let same = |a: &[f32], b: &[f32]| {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()))
            };
            let same = match (got, &rounded) {
                (Some(got), Some(want)) => same(got, want),
                (got, want) => got.is_none() && want.is_none(),
            };
            assert!(same, "seed {seed}: {name}");
        }
        let yes = |mask: &Option<Vec<u8>>| match problem.mask {
            Some((MaskFormat::Bytes, _)) => {
                mask.clone().map(|m| m.iter().map(|&x| u8::from(x != 0)).collect())
            }
            _ => mask.clone(),
        };
        assert_eq!(yes(&inputs.mask), yes(&own.mask), "seed {seed}");
        let small = |own: &OwnedInputs| OwnedInputs {
            sinks: own.sinks.clone().filter(|_| problem.sink == Sink::PerHead),
            bias: None,
            mask: None,
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            ..own.clone()
        };
        assert_eq!(small(inputs), small(&own), "seed {seed}");
    }
}

/// Strides, tables and user code that do not fit. q is (2, 4, 3, 8), out (2, 4, 3, 6).
#[test]
fn strides_tables_and_user_code_that_do_not_fit() {
    let wide = r#""strides": {"q": [0, 96, 24, 8, 1], "out": [3, 100, 25, 8, 1]}"#;
    let case = Case::from_bytes(&File::attention(wide).bytes()).unwrap();
    let strides = Strides { offset: 3, batch: 100, head: 25, seq: 8, dim: 1 };
    assert_eq!(case.work().unwrap().problem().out_layout, Layout::Strided(strides));
    for (more, words) in [
        (r#""strides": [1]"#, "strides"),
        (r#""strides": {"x": [0, 96, 24, 8, 1]}"#, "strides"),
        (r#""strides": {"q": [0, 96, 24, 8]}"#, "strides"),
        (r#""strides": {"q": [0, 96, 24, 8, -1]}"#, "strides"),
        (r#""strides": {"q": [0, 96, 24, 4000000000, 1]}"#, "apart"),
        (r#""strides": {"q": [18446744073709551615, 96, 24, 8, 1]}"#, "2^62"),
        (r#""strides": {"out": [0, 72, 18, 0, 1]}"#, "share a place"),
        (r#""strides": {"q": [0, 96, 24, 8, 1]}, "layout": "bshd""#, "strides"),
        (r#""mask_bits": true"#, "mask"),
        (r#""mask_bits": 1"#, "true or false"),
        (r#""length_scale": "ssmax""#, "ssmax"),
        (r#""length_scale": "log""#, "length_scale"),
        (r#""length_scale": {"log_train_len": 1}"#, "length_scale"),
        (r#""length_scale": {"yarn": 1, "llama4": [1, 2]}"#, "length_scale"),
        (r#""score_mod": 7"#, "score_mod"),
    ] {
        refused(&File::attention(more), &[words]);
    }
    let plain = || File::attention("");
    refused(&plain().with("ssmax", "F32", &[4]), &["length_scale"]);
    refused(&plain().with("user", "U32", &[4]), &["score_mod"]);
    refused(&File::attention(r#""score_mod": "x""#).with("user", "I32", &[4]), &["user", "I32"]);
    refused(&plain().with("temperature_per_row", "F32", &[2, 4, 2]), &["temperature_per_row"]);
    let both =
        plain().with("temperature_per_row", "F32", &[2, 4, 3]).with("temperature_per_head", "F32", &[4]);
    refused(&both, &["temperature_per_row", "temperature_per_head"]);
    #[cfg(feature = "user-code")]
    refused(&File::attention(r#""mask_mod": "fn mask_mod() -> bool { return true; }""#), &["mask_mod"]);
}

fn shipped() -> Vec<(PathBuf, Case)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    assert!(paths.len() > 100, "the cases are not all there: {}", paths.len());
    paths.into_iter().map(|p| (p.clone(), Case::read(p).unwrap())).collect()
}

#[test]
fn shipped_cases_survive_the_round_trip() {
    for (path, case) in shipped() {
        assert!(Case::from_bytes(&case.to_bytes().unwrap()).unwrap() == case, "{}", case.name());
        assert_eq!(path.file_stem().unwrap().to_str().unwrap(), case.name());
    }
}

/// The adapter; `None` only where the environment says that there need be none.
fn adapter(test: &str) -> Option<headless::Gpu> {
    let mut options = headless::Options::default();
    // Safety: what wgpu's cooperative matrices do is what these tests are there to see.
    options.experimental = unsafe { wgpu_attention::wgpu::ExperimentalFeatures::enabled() };
    match headless::open_blocking(&options) {
        Ok(gpu) => Some(gpu),
        Err(error) if std::env::var_os("WGPU_ATTENTION_ALLOW_NO_ADAPTER").is_some_and(|v| v == "1") => {
            eprintln!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{error}. Set WGPU_ATTENTION_ALLOW_NO_ADAPTER=1 to skip what needs one."),
    }
}

#[test]
fn shipped_cases_pass_or_say_what_is_missing() {
    let Some(gpu) = adapter("shipped_cases_pass_or_say_what_is_missing") else { return };
    let attention = gpu.attention();
    let has = |kernel: &Kernel| *kernel != Kernel::Matrix || !attention.caps().matrix_sizes.is_empty();
    // Past libtest's capture.
    let kernels: Vec<Kernel> = Kernel::ALL.into_iter().filter(has).collect();
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("cases by {kernels:?}\n"));
    let mut passed = 0;
    for (path, case) in shipped() {
        let knows = |kernel: &Kernel| case.work().is_none_or(|work| kernel.supports(work.problem()));
        for kernel in Kernel::ALL.into_iter().filter(has).filter(knows) {
            let report = case.check_blocking(&attention, &gpu.queue, &PlanOptions::kernel(kernel));
            match (&report.failure, case.missing()) {
                (None, []) => {
                    assert_eq!(report.kernel, case.work().map(|_| kernel));
                    assert!(report.computed);
                    passed += 1;
                }
                (Some(Failure::Missing(parts)), missing) if !missing.is_empty() => {
                    assert_eq!(parts, missing);
                    assert!(report.kernel.is_none());
                }
                (failure, _) => panic!("{} with {kernel}: {failure:?}", path.display()),
            }
        }
    }
    // More as the library learns more, never fewer.
    assert!(passed >= 2 * 105, "only {passed} passed");
}

#[test]
fn a_wrong_expectation_fails_with_the_first_index() {
    let Some(gpu) = adapter("a_wrong_expectation_fails_with_the_first_index") else { return };
    let attention = Attention::new(&gpu.device);
    let problem = Problem::new(Shape::self_attention(1, 2, 3, 4)).with_lse();
    let x: Vec<f32> = (0..24).map(|n| (n as f32).sin()).collect();
    let inputs = Inputs::new(&x, &x, &x);
    let mut truth = reference::truth(&problem, &inputs).unwrap().outputs(&problem);
    let tolerance = Tolerance { rtol: 2e-5, atol: 2e-6 };
    let check = |truth: &Outputs| {
        let case = Case::new("wrong", &problem, &inputs, truth, tolerance).unwrap();
        case.check_blocking(&attention, &gpu.queue, &PlanOptions::default())
    };
    assert!(check(&truth).passes());
    truth.out[12 + 4 + 2] += 0.5;
    truth.out[20] = f32::NAN;
    let report = check(&truth);
    let Some(Failure::Off { output: "out", index, .. }) = &report.failure else { panic!("{report:?}") };
    assert_eq!(*index, [0, 1, 1, 2]);
    assert!(!report.passes());
    assert_eq!(report.max_abs, f64::INFINITY);

    truth.out = reference::truth(&problem, &inputs).unwrap().outputs(&problem).out;
    truth.lse.as_mut().unwrap()[4] = f32::NEG_INFINITY;
    let report = check(&truth);
    let Some(Failure::Off { output: "lse", index, .. }) = &report.failure else { panic!("{report:?}") };
    assert_eq!(*index, [0, 1, 1]);
}

/// All stages, with all options, on both sides: the float64 scores are those that the device computes.
#[test]
fn scores_are_compared_at_each_stage() {
    let Some(gpu) = adapter("scores_are_compared_at_each_stage") else { return };
    let attention = Attention::new(&gpu.device);
    let shape =
        Shape { batch: 2, q_heads: 4, kv_heads: 2, seq_q: 3, seq_k: 5, head_dim_qk: 8, head_dim_v: 6 };
    let numbers = |n: u32| (0..n).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>();
    let (q, k, v) = (numbers(2 * 4 * 3 * 8), numbers(2 * 2 * 5 * 8), numbers(2 * 2 * 5 * 6));
    let problem = Problem::new(shape)
        .causal(Alignment::Offset(1))
        .softcap(0.5)
        .bias(DType::F32, Broadcast([1, 1, 3, 5]))
        .sink(Sink::PerHead);
    let bias = numbers(15);
    let inputs = Inputs::new(&q, &k, &v).bias(&bias).sinks(&[-1.0, 0.0, 1.0, 2.0]);
    let truth = reference::truth(&problem, &inputs).unwrap().outputs(&problem);
    let tolerance = Tolerance { rtol: 2e-5, atol: 2e-6 };
    let mut seen = Vec::new();
    for stage in ScoreStage::ALL {
        let rows = (0..2).flat_map(|b| (0..4).flat_map(move |h| (0..3).map(move |i| [b, h, i])));
        let mut scores: Vec<f32> = rows
            .flat_map(|row| reference::scores_at(&problem, &inputs, stage, row).unwrap())
            .map(|x| x.value as f32)
            .collect();
        let check = |scores: &[f32]| {
            let case = Case::new("scores", &problem, &inputs, &truth, tolerance).unwrap();
            let case = case.with_scores(stage, scores).unwrap();
            let case = Case::from_bytes(&case.to_bytes().unwrap()).unwrap();
            assert_eq!(case.work().unwrap().scores(), Some((stage, scores)));
            case.check_blocking(&attention, &gpu.queue, &PlanOptions::default())
        };
        let report = check(&scores);
        assert!(report.passes(), "{}: {:?}", stage.name(), report.failure);
        assert!(!seen.contains(&scores), "{} is another stage", stage.name());
        seen.push(scores.clone());
        scores[5] += 0.1;
        let report = check(&scores);
        let Some(Failure::Off { output: "scores", index, .. }) = &report.failure else {
            panic!("{report:?}")
        };
        assert_eq!(*index, [0, 0, 1, 0]);
    }
    let case = Case::new("scores", &problem, &inputs, &truth, tolerance).unwrap();
    let error = case.with_scores(ScoreStage::Raw, &[0.0]).unwrap_err().to_string();
    assert!(error.contains("scores has 1") && error.contains("120"), "{error}");
}
