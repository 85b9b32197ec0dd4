//! The program, as a user meets it.

#[path = "common/program.rs"]
mod program;

use program::{adapter, fails, finish, succeeds};
use std::path::{Path, PathBuf};
use wgpu_attention::case::{Case, Tolerance};
use wgpu_attention::{
    Alignment, Broadcast, DType, Inputs, Layout, MaskFormat, Problem, ScoreStage, Shape, Sink, Strides,
    Temperature, UserCode, Window, alibi_slopes, reference,
};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn shipped(name: &str) -> String {
    format!("{}/tests/cases/{name}.safetensors", env!("CARGO_MANIFEST_DIR"))
}

/// A .npy file of version 1.
fn npy(path: &Path, descr: &str, fortran: bool, shape: &[usize], data: &[u8]) -> String {
    let shape: Vec<_> = shape.iter().map(|n| format!("{n},")).collect();
    let order = if fortran { "True" } else { "False" };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({}), }}", shape.concat());
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    std::fs::write(path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn numbers(n: usize, speed: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * speed).sin()).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// q, k, v: 2 heads on 1, 3 queries on 5 keys, head dims 4 and 6.
struct Files {
    folder: tempfile::TempDir,
    q: String,
    k: String,
    v: String,
}

const SHAPE: Shape =
    Shape { batch: 1, q_heads: 2, kv_heads: 1, seq_q: 3, seq_k: 5, head_dim_qk: 4, head_dim_v: 6 };

fn data() -> [Vec<f32>; 3] {
    [numbers(2 * 3 * 4, 0.3), numbers(5 * 4, 0.7), numbers(5 * 6, 1.1)]
}

impl Files {
    fn new() -> Self {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        let [q, k, v] = data();
        Files {
            q: npy(&at("q.npy"), "<f4", false, &[1, 2, 3, 4], &bytes(&q)),
            k: npy(&at("k.npy"), "<f4", false, &[1, 1, 5, 4], &bytes(&k)),
            v: npy(&at("v.npy"), "<f4", false, &[1, 1, 5, 6], &bytes(&v)),
            folder,
        }
    }

    fn path(&self, name: &str) -> (PathBuf, String) {
        let path = self.folder.path().join(name);
        let text = path.to_str().unwrap().to_owned();
        (path, text)
    }

    fn run<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["run", self.q.as_str(), self.k.as_str(), self.v.as_str()], more].concat()
    }

    /// Nothing but the three inputs.
    fn assert_clean(&self) {
        let names: Vec<_> =
            std::fs::read_dir(self.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }
}

#[test]
fn help_names_the_commands() {
    let help = succeeds(&["--help"]);
    for word in
        ["info", "run", "softmax", "check", "validate", "demo", "bench", "tune", "study", "Exit codes"]
    {
        assert!(help.contains(word), "{help}");
    }
    for command in ["info", "run", "softmax", "check", "validate", "demo", "bench", "tune", "study"] {
        assert!(succeeds(&[command, "--help"]).contains("Usage: wgpu-attention"));
    }
    assert!(succeeds(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
}

/// Along any axis, to both kinds of files, against float64.
#[test]
fn softmax_of_a_file() {
    if !adapter("softmax_of_a_file") {
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let x = npy(&folder.path().join("x.npy"), "<f4", false, &[3, 4, 5], &bytes(&numbers(60, 0.7)));
    let taus = npy(&folder.path().join("taus.npy"), "<f4", false, &[15], &bytes(&[0.5; 15]));
    for kind in ["softmax", "log-softmax", "sparsemax", "entmax15"] {
        let out = at("out.npy");
        let text = succeeds(&[
            "softmax",
            &x,
            "--kind",
            kind,
            "--temperature",
            "0.5",
            "--axis",
            "1",
            "--check",
            "-o",
            &out,
        ]);
        assert!(text.contains("% of its bound"), "{text}");
        let per_row = at("per_row.npy");
        succeeds(&[
            "softmax",
            &x,
            "--kind",
            kind,
            "--temperature-per-row",
            &taus,
            "--axis",
            "-2",
            "--check",
            "-o",
            &per_row,
        ]);
        let file = std::fs::read(&out).unwrap();
        assert_eq!(file.len() % 64, 60 * 4 % 64);
        assert_eq!(file.len(), std::fs::read(&per_row).unwrap().len());
    }
    let all = at("all.safetensors");
    let text = succeeds(&["softmax", &x, "--lse", "--entropy", "--argmax", "--check", "-o", &all]);
    assert!(text.contains("nats in the mean"), "{text}");
    let file = std::fs::read(&all).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    for (name, shape) in [("out", &[3, 4, 5][..]), ("lse", &[12]), ("entropy", &[12]), ("argmax", &[12])] {
        assert_eq!(tensors.tensor(name).unwrap().shape(), shape);
    }

    fails(&["softmax", &x, "--temperature", "0"], 2, &["temperature", "above 0"]);
    fails(&["softmax", &x, "--axis", "3"], 2, &["--axis is 3", "[3, 4, 5]"]);
    fails(&["softmax", &x, "--kind", "sparsemax", "--lse"], 2, &["lse", "sparsemax"]);
    fails(&["softmax", &x, "--temperature-per-row", &x], 2, &["temperature", "60", "12"]);
    fails(&["softmax", &x, "--entropy", "-o", &at("one.npy")], 2, &["safetensors"]);
    fails(&["softmax", "nowhere.npy"], 2, &["nowhere.npy", "cannot be read"]);
}

#[test]
fn unknown_options_are_usage_errors() {
    for args in [&["run", "--colour"][..], &["dance"], &["check"], &["check", "--kernel", "magic", "x"]] {
        let (_, err, code) = finish(args);
        assert_eq!(code, 2);
        assert!(err.starts_with("error: "), "{err}");
    }
    let (_, err, _) = finish(&["check", "--kernel", "magic", "x"]);
    assert!(err.contains("magic") && err.contains("tiled, rows, matrix, naive"), "{err}");
    let (_, err, code) = finish(&["run", "a.safetensors", "--scale", "wide"]);
    assert!(code == 2 && err.contains("wide") && err.contains("rsqrt"), "{err}");
    let (_, err, code) = finish(&["run", "a.safetensors", "--causal=middle"]);
    assert!(code == 2 && err.contains("middle") && err.contains("top-left"), "{err}");
    for (flag, value, expected) in [
        ("--window", "3", "LEFT,RIGHT,KEEP_FIRST"),
        ("--window", "-1,0", "LEFT,RIGHT,KEEP_FIRST"),
        ("--align", "left", "top-left"),
        ("--softcap", "soft", "invalid float"),
        ("--sinks", "1,x", "zero"),
        ("--normalizer", "hardmax", "sigmoid=seq-k"),
        ("--dropout", "0.1", "RATE,SEED"),
        ("--length-scale", "linear=2", "ssmax=LIST"),
        ("--length-scale", "llama4=0.1", "llama4=COEF,FLOOR"),
        ("--dtype", "f64", "bf16"),
        ("--scores", "all", "capped"),
        ("--temperature-per-head", "1,x", "a .npy file"),
    ] {
        let (_, err, code) = finish(&["run", "a.safetensors", flag, value]);
        assert!(code == 2 && err.contains(value) && err.contains(expected), "{flag}: {err}");
    }
    let (_, err, code) = finish(&["run", "a.safetensors", "--alibi=steep"]);
    assert!(code == 2 && err.contains("steep") && err.contains(".npy"), "{err}");
    for args in [
        &["run", "a.safetensors", "--causal", "--align", "3"][..],
        &["run", "a.safetensors", "--scores", "raw"],
        &["run", "a.safetensors", "--temperature-per-head", "1", "--temperature-per-row", "x.npy"],
        &["validate", "--full", "--problems", "3"],
        &["validate", "--problems", "0"],
    ] {
        assert_eq!(finish(args).2, 2, "{args:?}");
    }
}

#[test]
fn info_says_which_kernel_and_why() {
    if !adapter("info_says_which_kernel_and_why") {
        return;
    }
    let out = succeeds(&["info"]);
    for word in ["driver", "limits", "because", "attention/"] {
        assert!(out.contains(word), "{out}");
    }
    let adapters: serde_json::Value = serde_json::from_str(&succeeds(&["info", "--json"])).unwrap();
    let adapters = adapters.as_array().unwrap();
    assert!(!adapters.is_empty());
    for adapter in adapters {
        assert!(adapter["name"].is_string() && adapter["driver"].is_string());
        assert!(adapter["limits"]["max_buffer_size"].as_u64().unwrap() > 0);
        assert!(adapter["kernels"].as_array().unwrap().iter().all(|k| k["reason"].is_string()));
    }
    fails(&["info", "--adapter", "no such adapter"], 3, &["no such adapter"]);
    fails(&["run", &shipped("causal_len_2"), "--adapter", "no such adapter"], 3, &["no such adapter"]);
}

#[test]
fn run_on_npy_agrees_with_float64() {
    if !adapter("run_on_npy_agrees_with_float64") {
        return;
    }
    let files = Files::new();
    let (path, out) = files.path("out.npy");
    let report = succeeds(&files.run(&["-o", &out, "--temperature", "0.5", "--causal", "--check"]));
    assert!(report.contains("pass") && report.contains("attention/"), "{report}");

    let file = std::fs::read(&path).unwrap();
    let npy = npyz::NpyFile::new(file.as_slice()).unwrap();
    assert_eq!(npy.shape(), [1, 2, 3, 6]);
    let got: Vec<f32> = npy.into_vec().unwrap();
    let [q, k, v] = data();
    let problem = Problem::new(SHAPE).causal(Alignment::BottomRight).temperature(Temperature::Value(0.5));
    let truth = reference::truth(&problem, &Inputs::new(&q, &k, &v)).unwrap();
    assert!(reference::compare(&got, &truth.out).passes());
}

#[test]
fn run_takes_fewer_axes_and_the_other_layout() {
    if !adapter("run_takes_fewer_axes_and_the_other_layout") {
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let x = bytes(&numbers(2 * 3 * 4, 0.3));
    let (out, shape) = (at("out.npy"), |path: &Path| {
        npyz::NpyFile::new(std::fs::read(path).unwrap().as_slice()).unwrap().shape().to_vec()
    });
    let plain = npy(&at("plain.npy"), "<f4", false, &[6, 4], &x);
    succeeds(&["run", &plain, &plain, &plain, "--check", "-o", out.to_str().unwrap()]);
    assert_eq!(shape(&out), [6, 4]);
    let heads = npy(&at("heads.npy"), "<f4", false, &[3, 2, 4], &x);
    succeeds(&["run", &heads, &heads, &heads, "--layout", "bshd", "--check", "-o", out.to_str().unwrap()]);
    assert_eq!(shape(&out), [3, 2, 4]);
    fails(
        &["run", &plain, &plain, &plain, "--layout", "bshd"],
        2,
        &["[6, 4]", "(batch, seq, heads, head_dim)"],
    );
    fails(&["run", &plain, &heads, &heads], 2, &["k has 3 axes", "q has 2"]);
}

#[test]
fn run_writes_statistics_heatmaps_and_cases() {
    if !adapter("run_writes_statistics_heatmaps_and_cases") {
        return;
    }
    let files = Files::new();
    let (out_path, out) = files.path("out.safetensors");
    let (case_path, case) = files.path("case.safetensors");
    let (svg_path, svg) = files.path("map.svg");
    let (png_path, png) = files.path("map.png");
    let options = [
        "-o",
        &out,
        "--lse",
        "--entropy",
        "--row-max",
        "--save-case",
        &case,
        "--heatmap",
        &svg,
        "--head",
        "1",
        "--scale",
        "8/d",
        "--temperature-per-head",
        "0.5,2",
        "--temperature",
        "1.5",
        "--causal=1",
        "--kv-len",
        "4",
        "--q-len",
        "2",
        "--check",
        "--kernel",
        "naive",
    ];
    let report = succeeds(&files.run(&options));
    for word in ["naive", "nats on average", "row_max", "out.safetensors", "case.safetensors", "float64"] {
        assert!(report.contains(word), "{word}: {report}");
    }
    let file = std::fs::read(&out_path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut names = tensors.names();
    names.sort_unstable();
    assert_eq!(names, ["entropy", "lse", "out", "row_max"]);
    assert_eq!(tensors.tensor("lse").unwrap().shape(), [1, 2, 3]);

    let saved = Case::read(&case_path).unwrap();
    assert!(saved.missing().is_empty() && saved.work().unwrap().problem().kv_len);
    assert!(succeeds(&["check", &case]).contains("1 of 1 passed"));
    // A case can be run again, and flags go before what it says.
    assert!(succeeds(&["run", &case, "--check", "--kv-len", "2", "--heatmap", &png]).contains("pass"));

    let svg = std::fs::read_to_string(svg_path).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("data:image/png;base64,") && svg.ends_with("</svg>\n"));
    assert!(std::fs::read(png_path).unwrap().starts_with(b"\x89PNG"));
}

/// Sequences of 1 and 2 queries on 2 and 3 keys: (heads, rows, head_dim) without an axis for a batch, and with one.
#[test]
fn run_packed_sequences() {
    if !adapter("run_packed_sequences") {
        return;
    }
    let files = Files::new();
    let (case_path, case) = files.path("case.safetensors");
    let (out_path, out) = files.path("out.safetensors");
    let options = ["--cu-seqlens-q", "0,1,3", "--cu-seqlens-k", "0,2,5", "--causal", "--lse", "--check"];
    let (_, png) = files.path("map.png");
    let more = ["-o", &out, "--save-case", &case, "--heatmap", &png, "--batch", "1"];
    let report = succeeds(&files.run(&[options.as_slice(), &more].concat()));
    assert!(report.contains("batch 2") && report.contains("2 queries on 3 keys"), "{report}");
    let file = std::fs::read(out_path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("out").unwrap().shape(), [1, 2, 3, 6]);
    assert_eq!(tensors.tensor("lse").unwrap().shape(), [1, 2, 3]);
    assert_eq!(Case::read(&case_path).unwrap().work().unwrap().problem().packed_k, Some(5));
    assert!(succeeds(&["check", &case]).contains("1 of 1 passed"));
    fails(
        &files.run(&["--cu-seqlens-q", "0,4,3", "--cu-seqlens-k", "0,2,5"]),
        2,
        &["cu_seqlens_q is 3 at 2"],
    );
    fails(&["run", &case, "--cu-seqlens-q", "0,3"], 2, &["case file", "--cu-seqlens-q"]);
    fails(&files.run(&["--cu-seqlens-q", "0,1,3"]), 2, &["the batch of k", "2"]);
    fails(
        &files.run(&["--cu-seqlens-q", "0,1", "--cu-seqlens-k", "0,5"]),
        2,
        &["--cu-seqlens-q ends at 1", "3 rows"],
    );
    let documents = npy(&files.folder.path().join("d.npy"), "<i4", false, &[5], &[1, 0, 0, 0].repeat(5));
    let both = ["--documents-q", "1,1,-2", "--documents-k", &documents, "--check", "--save-case", &case];
    assert!(succeeds(&files.run(&both)).contains("pass"));
    assert!(succeeds(&["check", &case]).contains("1 of 1 passed"));
    fails(
        &files.run(&["--documents-q", "1,2", "--documents-k", "1,1,1,1,1"]),
        2,
        &["documents_q has 2", "3"],
    );
    let scores = ["--cu-seqlens-q", "0,3", "--cu-seqlens-k", "0,5", "-o", &out, "--scores", "raw"];
    fails(&files.run(&scores), 2, &["--scores", "packed"]);
}

/// The dense and per-row inputs of the problem in [`Files`].
struct Dense {
    bias: String,
    mask: String,
    rows: String,
    slopes: String,
}

const MASK: [u8; 5] = [1, 1, 0, 255, 1];
const ROWS: [f32; 6] = [0.5, 1.0, 2.0, 0.7, 3.0, 1.0];

fn biases() -> Vec<f32> {
    let mut bias = numbers(3 * 5, 0.9);
    bias[7] = f32::NEG_INFINITY;
    bias
}

impl Dense {
    fn new(files: &Files) -> Self {
        let at = |name: &str| files.folder.path().join(name);
        Dense {
            bias: npy(&at("bias.npy"), "<f4", false, &[3, 5], &bytes(&biases())),
            mask: npy(&at("mask.npy"), "|u1", false, &[1, 1, 1, 5], &MASK),
            rows: npy(&at("rows.npy"), "<f4", false, &[2, 3], &bytes(&ROWS)),
            slopes: npy(&at("slopes.npy"), "<f4", false, &[2], &bytes(&[0.3, 0.1])),
        }
    }
}

/// All flags that stand between q.k and the softmax: they reach the problem as the library would be asked.
#[test]
fn run_takes_every_score_option() {
    if !adapter("run_takes_every_score_option") {
        return;
    }
    let files = Files::new();
    let dense = Dense::new(&files);
    let (path, out) = files.path("out.safetensors");
    let (case_path, case) = files.path("case.safetensors");
    let (_, svg) = files.path("map.svg");
    let flags = [
        "--window=2,-,1",
        "--align=-1",
        "--softcap",
        "5",
        "--bias",
        &dense.bias,
        "--mask",
        &dense.mask,
        "--alibi",
        "--sinks",
        "-0.5,1",
        "--temperature",
        "0.5",
        "--scores",
        "biased",
        "--lse",
        "-o",
        &out,
        "--save-case",
        &case,
        "--heatmap",
        &svg,
        "--check",
    ];
    let report = succeeds(&files.run(&flags));
    for word in ["window", "softcap", "bias", "alibi", "sink", "slow path", "scores   max error", "map.svg"] {
        assert!(report.contains(word), "{word}: {report}");
    }

    let [q, k, v] = data();
    let problem = Problem::new(SHAPE)
        .window(Window { left: Some(2), right: None, keep_first: 1 })
        .align(Alignment::Offset(-1))
        .softcap(5.0)
        .bias(DType::F32, Broadcast([1, 1, 3, 5]))
        .mask(MaskFormat::Bytes, Broadcast([1, 1, 1, 5]))
        .with_alibi()
        .sink(Sink::PerHead)
        .temperature(Temperature::Value(0.5));
    let (bias, slopes) = (biases(), alibi_slopes(2));
    let inputs = Inputs::new(&q, &k, &v).bias(&bias).mask(&MASK).alibi_slopes(&slopes).sinks(&[-0.5, 1.0]);
    let truth = reference::truth(&problem, &inputs).unwrap();
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let read = |name: &str| DType::F32.decode(tensors.tensor(name).unwrap().data());
    assert!(reference::compare(&read("out"), &truth.out).passes());
    assert!(reference::compare(&read("lse"), &truth.lse).passes());
    assert_eq!(tensors.tensor("scores").unwrap().shape(), [1, 2, 3, 5]);
    let row = reference::scores_at(&problem, &inputs, ScoreStage::Biased, [0, 1, 2]).unwrap();
    assert!(reference::compare(&read("scores")[25..], &row).passes());

    // The case says all of it: it passes, and run on it is the same problem.
    let saved = Case::read(case_path).unwrap();
    let work = saved.work().unwrap();
    assert_eq!(*work.problem(), problem.with_lse().with_entropy());
    let mask = [1, 1, 0, 1, 1]; // as the format writes it
    assert_eq!(work.inputs(), inputs.mask(&mask));
    assert_eq!(work.scores().unwrap().0, ScoreStage::Biased);
    assert!(succeeds(&["check", &case]).contains("1 of 1 passed"));
    let (_, again) = files.path("again.safetensors");
    succeeds(&["run", &case, "--save-case", &again, "--scores", "biased", "-o", &out]);
    assert!(Case::read(again).unwrap() == saved);
}

/// What is not in [`run_takes_every_score_option`], a few flags at a time.
#[test]
fn run_takes_the_other_options() {
    if !adapter("run_takes_the_other_options") {
        return;
    }
    let files = Files::new();
    let dense = Dense::new(&files);
    let at = |name: &str| files.folder.path().join(name);
    let halves: Vec<u8> = DType::F16.encode(&data()[1]);
    let half = npy(&at("half.npy"), "<f2", false, &[1, 1, 5, 4], &halves);
    let (_, out) = files.path("out.safetensors");
    let (_, case) = files.path("case.safetensors");
    let (_, sigmoid) = files.path("sigmoid.safetensors");
    let (_, dropped) = files.path("dropped.safetensors");
    let [sparse, largest, adapted] =
        ["sparse", "largest", "adapted"].map(|name| files.path(&format!("{name}.safetensors")).1);
    let runs: [(&[&str], &[&str]); 14] = [
        (&["--qk-norm", "l2", "--scale", "1", "--scores", "raw", "-o", &out], &["qk_norm/l2", "30 raw"]),
        (
            &["--qk-norm", "rms=0.1", "--q-gain", "1,-2,0.5,1", "--k-gain=-1,1,2,0.5", "--save-case", &case],
            &["qk_norm/rms", "gains/shared"],
        ),
        (&["--temperature-per-row", &dense.rows, "--length-scale", "yarn=4"], &["temperature/row"]),
        (&["--length-scale", "ssmax=0.4,1", "--align", "top-left"], &["ssmax"]),
        (&["--length-scale", "logn=2", "--causal", "--scores", "probs", "-o", &out], &["log-n", "30 probs"]),
        (&["--length-scale", "llama4=0.3,2", "--align=1"], &["llama"]),
        (
            &["--dtype", "f16", "--out-dtype", "f16", "--sinks", "zero", "--save-case", &case],
            &["f16,f16,f16->f16", "sink/zero"],
        ),
        (
            &["--dtype", "bf16", "--alibi=0.3,0.1", "--scores", "capped", "-o", &out],
            &["bf16,bf16,bf16->f32", "30 capped"],
        ),
        (
            &[
                "--normalizer",
                "sigmoid=seq-k",
                "--row-max",
                "--scores",
                "probs",
                "-o",
                &out,
                "--save-case",
                &sigmoid,
            ],
            &["sigmoid", "30 probs"],
        ),
        (&["--dropout", "0.5,7,1", "--save-case", &dropped], &["dropout"]),
        (&["--normalizer", "entmax15", "--entropy", "--save-case", &sparse], &["entmax15"]),
        (&["--top-k", "2", "--lse", "--save-case", &largest], &["top_k"]),
        (&["--adaptive-temperature", "--lse", "--save-case", &adapted], &["adaptive"]),
        (&["--window", "none,1", "--align", "0", "--scores", "raw", "-o", &out], &["window", "30 raw"]),
    ];
    for (flags, words) in runs {
        let report = succeeds(&files.run(&[flags, &["--check"]].concat()));
        assert!(report.contains("pass") && !report.contains("FAIL"), "{report}");
        for word in words {
            assert!(report.contains(word), "{word}: {report}");
        }
    }
    let saved = ["check", &case, &sigmoid, &dropped, &sparse, &largest, &adapted];
    assert!(succeeds(&saved).contains("6 of 6 passed"));
    assert!(succeeds(&["run", &case]).contains("f16,f16,f16->f16"));
    // Slopes from a file are those of the command line, and files of 16 bits are read as they are.
    let alibi = format!("--alibi={}", dense.slopes);
    let report = succeeds(&["run", &files.q, &half, &files.v, &alibi, "--check"]);
    assert!(report.contains("f32,f16,f32->f32"), "{report}");
}

#[test]
fn run_says_what_is_wrong_with_its_options() {
    let files = Files::new();
    let dense = Dense::new(&files);
    let at = |name: &str| files.folder.path().join(name);
    let wrong = |flags: &[&str], words: &[&str]| fails(&files.run(flags), 2, words);
    let Dense { bias, mask, rows, .. } = &dense;
    for flag in ["--bias", "--mask", "--temperature-per-row", "--sinks", "--temperature-per-head"] {
        wrong(&[flag, "nowhere.npy"], &["nowhere.npy", "cannot be read"]);
    }
    wrong(&["--bias", mask], &["mask.npy", "|u1", "<f4"]);
    wrong(&["--mask", bias], &["bias.npy", "<f4", "|b1", "|u1"]);
    let wide = npy(&at("wide.npy"), "<f4", false, &[3, 3, 5], &[0; 180]);
    wrong(&["--bias", &wide], &["wide.npy", "[3, 3, 5]", "broadcasts", "[1, 2, 3, 5]"]);
    let deep = npy(&at("deep.npy"), "|b1", false, &[1, 1, 1, 1, 5], &MASK);
    wrong(&["--mask", &deep], &["deep.npy", "[1, 1, 1, 1, 5]", "[1, 2, 3, 5]"]);
    let short = npy(&at("cut.npy"), "|b1", false, &[3, 5], &MASK);
    wrong(&["--mask", &short], &["cut.npy", "5 bytes of data", "[3, 5]"]);
    wrong(&["--temperature-per-row", bias], &["bias.npy", "[3, 5]", "[1, 2, 3]"]);
    wrong(&["--sinks", rows], &["rows.npy", "[2, 3]", "(q_heads)"]);
    wrong(&["--sinks", "1,2,3"], &["sinks has 3", "2"]);
    wrong(&["--alibi=1"], &["alibi_slopes has 1", "2"]);
    wrong(&["--length-scale", "ssmax=1"], &["ssmax has 1", "2"]);
    wrong(&["--length-scale", "logn=1"], &["train_len is 1", "at least 2"]);
    wrong(&["--qk-norm", "l2=1e-30"], &["qk_norm eps", "1e-18"]);
    wrong(&["--qk-norm", "l2", "--q-gain", "1,2", "--k-gain", "1,2,3,4"], &["q_gain has 2", "8"]);
    wrong(&["--q-gain", "1", "--k-gain", "1"], &["--qk-norm"]);
    wrong(&["--normalizer", "sigmoid=1", "--lse"], &["sigmoid attention", "lse"]);
    wrong(&["--top-k", "0"], &["top_k is 0", "at least 1"]);
    wrong(&["--dropout", "1,7"], &["dropout rate is 1"]);
    wrong(&["--softcap", "-1"], &["softcap is -1", "above 0"]);
    wrong(&["--align", "1"], &["alignment", "does not use it"]);
    wrong(&["--align=1,2", "--window", "1,1"], &["causal_offset has 2", "1"]);
    let (_, out) = files.path("out.npy");
    wrong(&["--scores", "raw", "-o", &out], &["out.npy", "one tensor", ".safetensors"]);
    wrong(&["--mask-format", "bits"], &["--mask-format", "--mask"]);
    wrong(&["--bias-dtype", "f16"], &["--bias-dtype", "--bias"]);
    wrong(&["--user-params", "1"], &["user_params"]);
    wrong(&["--mask-mod", "nowhere.wgsl"], &["nowhere.wgsl", "cannot be read"]);
    let code = at("code.wgsl");
    std::fs::write(&code, "fn score_mod(score: f32) -> f32 { return score; }").unwrap();
    let code = code.to_str().unwrap();
    wrong(&["--score-mod", code], &["score_mod", "q_index"]);
    std::fs::write(code, USER_SCORE).unwrap();
    wrong(&["--score-mod", code, "--check"], &["float64", "--check"]);
    wrong(&["--tile-mask", "classified"], &["mask tiles"]);
    wrong(&["--kernel", "naive", "--tiles", "32,4,2,2,8"], &["naive", "tiles"]);
    wrong(&["--tiles", "33,4,2,2,8"], &["tiles"]);
    wrong(&["--native-f16", "yes"], &["f16", "no tensor"]);
}

const USER_SCORE: &str =
    "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 {
    return score - param_f32(head) * abs(f32(q_index) - f32(k_index));
}";
const USER_MASK: &str = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool {
    return k_index < param_u32(2u);
}";

/// Each tensor in its own storage and order, what is otherwise the planner's choice, and user code.
#[test]
fn run_takes_storage_plans_and_user_code() {
    if !adapter("run_takes_storage_plans_and_user_code") {
        return;
    }
    let files = Files::new();
    let dense = Dense::new(&files);
    let (case_path, case) = files.path("case.safetensors");
    let run = |more: &[&str]| succeeds(&files.run(more));
    assert!(
        run(&["--dtype", "f16,bf16,f32", "--out-dtype", "bf16", "--check"]).contains("f16,bf16,f32->bf16")
    );
    let report =
        run(&["--mask", &dense.mask, "--mask-format", "bits", "--tile-mask", "classified", "--check"]);
    assert!(
        report.contains("+mask/bits +tile_classes") && report.contains("they were asked for"),
        "{report}"
    );
    assert!(
        run(&["--mask", &dense.mask, "--kernel", "tiled", "--tile-mask", "each", "--check"])
            .contains("they were not wanted")
    );
    assert!(run(&["--bias", &dense.bias, "--bias-dtype", "bf16", "--check"]).contains("+bias/bf16"));
    assert!(run(&["--tiles", "32,4,2,2,8", "--check"]).contains("these tiles were asked for"));
    assert!(run(&["--kernel", "rows", "--rows", "8,4,2,2", "--check"]).contains("these rows were asked for"));
    assert!(run(&["--dtype", "f16", "--native-f16", "no", "--check"]).contains("unpacked: "));

    // What a case says of them is what was computed.
    run(&[
        "--temperature-per-row",
        &dense.rows,
        "--length-scale",
        "llama4=0.1,2",
        "--dtype",
        "bf16,f16,f32",
        "--mask",
        &dense.mask,
        "--mask-format",
        "bits",
        "--save-case",
        &case,
    ]);
    assert!(succeeds(&["check", &case, "--kernel", "tiled", "--tile-mask", "classified"]).contains("pass"));
    let saved = Case::read(&case_path).unwrap();
    let problem = saved.work().unwrap().problem();
    assert_eq!(problem.dtypes, [DType::Bf16, DType::F16, DType::F32, DType::F32]);
    assert_eq!(problem.temperature, Temperature::PerRow);

    // Tensors in different orders: v and out as (batch, seq, heads, head_dim).
    let [q, k, v] = data();
    let s = SHAPE;
    let size = |n: u32| n as usize;
    let (heads, keys, dim) = (size(s.kv_heads), size(s.seq_k), size(s.head_dim_v));
    let turned: Vec<f32> = (0..keys * heads * dim)
        .map(|at| v[((at / dim % heads) * keys + at / dim / heads) * dim + at % dim])
        .collect();
    let turned =
        npy(&files.folder.path().join("turned.npy"), "<f4", false, &[1, keys, heads, dim], &bytes(&turned));
    let (out, out_name) = files.path("out.npy");
    succeeds(&[
        "run",
        &files.q,
        &files.k,
        &turned,
        "--layout",
        "bhsd,bhsd,bshd,bshd",
        "--check",
        "-o",
        &out_name,
    ]);
    let file = std::fs::read(out).unwrap();
    let file = npyz::NpyFile::new(file.as_slice()).unwrap();
    assert_eq!(file.shape().to_vec(), [1, s.seq_q, s.q_heads, s.head_dim_v].map(u64::from));
    let got: Vec<f32> = file.into_vec().unwrap();
    let problem = Problem::new(s).layouts(Layout::Bhsd, Layout::Bhsd, Layout::Bhsd, Layout::Bshd);
    let truth = reference::truth(&problem, &Inputs::new(&q, &k, &v)).unwrap();
    assert!(reference::compare(&got, &truth.out).passes());

    // A case whose out lies apart on the device: in files it is in the order of its axes.
    let apart = Layout::Strided(Strides { offset: 4, batch: 100, head: 50, seq: 8, dim: 1 });
    let problem = Problem::new(s).layouts(Layout::Bhsd, Layout::Bhsd, Layout::Bhsd, apart);
    let inputs = Inputs::new(&q, &k, &v);
    let strided = reference::truth(&problem, &inputs).unwrap();
    let saved = Case::of_truth("apart", &problem, &inputs, &strided, &[]).unwrap();
    std::fs::write(&case_path, saved.to_bytes().unwrap()).unwrap();
    assert!(succeeds(&["check", &case]).contains("pass"));
    assert!(succeeds(&["run", &case, "--check", "-o", &out_name]).contains("pass"));
    let got: Vec<f32> =
        npyz::NpyFile::new(std::fs::read(&out_name).unwrap().as_slice()).unwrap().into_vec().unwrap();
    let truth = reference::truth(&Problem::new(s), &inputs).unwrap();
    assert!(reference::compare(&got, &truth.out).passes());

    // User code: the relative distance, and the first two keys.
    let [score, mask] = [("score.wgsl", USER_SCORE), ("mask.wgsl", USER_MASK)].map(|(name, text)| {
        let (path, name) = files.path(name);
        std::fs::write(path, text).unwrap();
        name
    });
    let report =
        run(&["--score-mod", &score, "--mask-mod", &mask, "--user-params", "0.5,-0.25,2", "-o", &out_name]);
    assert!(report.contains("score_mod/") && report.contains("mask_mod/"), "{report}");
    let got: Vec<f32> =
        npyz::NpyFile::new(std::fs::read(&out_name).unwrap().as_slice()).unwrap().into_vec().unwrap();
    let problem = Problem::new(s)
        .score_mod(UserCode::score_mod(USER_SCORE).unwrap())
        .mask_mod(UserCode::mask_mod(USER_MASK).unwrap())
        .user_params(3);
    let user = [0.5f32.to_bits(), (-0.25f32).to_bits(), 2];
    let twin = |x: f64, [_, h, i, j]: [u32; 4]| x - [0.5, -0.25][h as usize] * f64::from(i.abs_diff(j));
    let first_two = |[_, _, _, j]: [u32; 4]| j < 2;
    let mods = reference::Mods { score: Some(&twin), mask: Some(&first_two) };
    let inputs = Inputs::new(&q, &k, &v);
    let truth = reference::truth_with(&problem, &inputs.user(&user), &mods).unwrap();
    assert!(reference::compare(&got, &truth.out).passes());
}

/// Nothing that a case says is lost when it is run.
#[test]
fn run_carries_the_options_of_a_case() {
    if !adapter("run_carries_the_options_of_a_case") {
        return;
    }
    let folder = folder();
    let again = folder.path().join("again.safetensors");
    // Nothing counts from this offset until a window does.
    let problem = Problem::new(SHAPE).causal(Alignment::Offset(1));
    let [q, k, v] = data();
    let inputs = Inputs::new(&q, &k, &v);
    let truth = reference::truth(&problem, &inputs).unwrap().outputs(&problem);
    let tokens = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
    let case = Case::new("offset", &problem, &inputs, &truth, Tolerance { rtol: 1.0, atol: 1.0 })
        .unwrap()
        .with_tokens(vec![tokens.clone()])
        .unwrap();
    let mut file = case.to_bytes().unwrap();
    let at = file.windows(4).position(|w| w == b"true").unwrap();
    file.splice(at..at + 4, *b"false");
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) + 1;
    file.splice(..8, length.to_le_bytes());
    let unused = folder.path().join("unused.safetensors");
    std::fs::write(&unused, file).unwrap();
    let (unused, to) = (unused.to_str().unwrap(), again.to_str().unwrap());
    assert_eq!(Case::read(unused).unwrap().work().unwrap().problem().alignment, Alignment::default());
    succeeds(&["run", unused, "--window", "1,0", "--save-case", to]);
    let saved = Case::read(&again).unwrap();
    assert_eq!(saved.work().unwrap().problem().alignment, Alignment::Offset(1));
    assert_eq!(saved.tokens(0), Some(tokens.as_slice()));
    for name in ["softcap_masked_key", "window_causal_3", "sinks_per_head", "f16_65", "alibi_8_heads"] {
        succeeds(&["run", &shipped(name), "--check", "--save-case", again.to_str().unwrap()]);
        let [old, new] = [Case::read(shipped(name)).unwrap(), Case::read(&again).unwrap()];
        let [old, new] = [old.work().unwrap(), new.work().unwrap()];
        assert_eq!(new.inputs(), old.inputs(), "{name}");
        assert_eq!(*new.problem(), old.problem().clone().with_lse().with_entropy(), "{name}");
    }
}

#[test]
fn validate_counts_each_option() {
    if !adapter("validate_counts_each_option") {
        return;
    }
    let args = ["validate", "--problems", "4", "--seed", "25", "--kernel", "tiled"];
    let out = succeeds(&args);
    for word in ["adapter", "seeds    25 to 28", "worst share of bound", "all 4 problems were within"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let summary: serde_json::Value =
        serde_json::from_str(&succeeds(&[&args[..], &["--json"]].concat())).unwrap();
    assert_eq!((&summary["seed"], &summary["problems"]), (&25.into(), &4.into()));
    assert_eq!(summary["failures"], serde_json::json!([]));
    let all = &summary["families"][0];
    assert_eq!((&all["name"], &all["problems"], &all["failures"]), (&"all".into(), &4.into(), &0.into()));
    assert!(all["worst"].as_f64().unwrap() <= 1.0);
    fails(&["validate", "--seed", "18446744073709551615"], 2, &["--seed", "too large"]);
    let unknown = ["validate", "--adapter", "no such adapter"];
    fails(&unknown, 3, &["\"no such adapter\" in its name; there ", summary["adapter"].as_str().unwrap()]);
    let (_, err, _) = finish(&unknown);
    assert!(err.contains("--adapter") && !err.contains("install"), "{err}");
}

/// No more problems than there is time for, lines that say how far it is where stderr is no terminal, and each operation in the table.
#[test]
fn validate_keeps_to_its_time_and_tells_where_it_is() {
    if !adapter("validate_keeps_to_its_time_and_tells_where_it_is") {
        return;
    }
    let (out, err, code) = finish(&["validate", "--full", "--seconds", "1", "--seed", "9"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.starts_with("validating") && err.contains(": 0 of 2000, 0 s\n"), "{err}");
    assert!(out.contains(" of 2000 problems (--seconds gives more)"), "{out}");
    for word in [
        "kernel tiled",
        "operation sampling",
        "gradient of softmax",
        "gradient of attention",
        "were within the error bound",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let place = |word| out.find(word).unwrap();
    assert!(
        place("kernel tiled") < place("operation ") && place("operation ") < place("gradient of"),
        "{out}"
    );

    let args = ["validate", "--kernel", "naive", "--full", "--seconds", "1", "--json"];
    let summary: serde_json::Value = serde_json::from_str(&finish(&args).0).unwrap();
    assert_eq!(summary["asked"], 2000);
    let computed = summary["problems"].as_u64().unwrap();
    assert!((1..2000).contains(&computed), "{computed}");
    assert_eq!(summary["families"][0]["problems"], computed);
    assert!(summary["seconds"].as_f64().unwrap() >= 1.0);
}

/// What scores cannot be told of, or numbers that are none, are refused before anything is computed: no line says that something was.
#[test]
fn run_refuses_before_it_computes() {
    if !adapter("run_refuses_before_it_computes") {
        return;
    }
    let files = Files::new();
    let (path, out) = files.path("out.safetensors");
    let refused = |args: &[&str], words: &[&str]| {
        fails(args, 2, words);
        assert_eq!(finish(args).0, "", "something was computed");
        assert!(!path.exists());
    };
    let counted = ["--length-scale", "logn=3", "--scores", "raw", "-o", &out];
    refused(&files.run(&counted), &["length_scale does not go with scores before the masks"]);

    let mut q = data()[0].clone();
    q[17] = f32::NAN;
    let bad = npy(&files.folder.path().join("bad.npy"), "<f4", false, &[1, 2, 3, 4], &bytes(&q));
    refused(&["run", &bad, &files.k, &files.v, "--check-finite", "-o", &out], &["q[17] is NaN"]);
    q[17] = 70000.0;
    npy(&files.folder.path().join("bad.npy"), "<f4", false, &[1, 2, 3, 4], &bytes(&q));
    let large = ["run", &bad, &files.k, &files.v, "--check-finite", "-o", &out];
    refused(&[&large[..], &["--dtype", "f16"]].concat(), &["q[17] is 70000, stored as inf"]);
    succeeds(&large);
}

#[test]
fn run_reads_tensors_by_name() {
    if !adapter("run_reads_tensors_by_name") {
        return;
    }
    let files = Files::new();
    let (_, packed) = files.path("packed.safetensors");
    let [q, k, v] = data().map(|x| bytes(&x));
    let view = |shape: &[usize], bytes| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes).unwrap()
    };
    let tensors = [
        ("layer.q", view(&[1, 2, 3, 4], &q)),
        ("layer.k", view(&[1, 1, 5, 4], &k)),
        ("layer.v", view(&[1, 1, 5, 6], &v)),
    ];
    std::fs::write(&packed, safetensors::serialize(tensors, None).unwrap()).unwrap();
    succeeds(&["run", &packed, "--names", "layer.q,layer.k,layer.v", "--check"]);
    fails(&["run", &packed], 2, &["no tensor \"q\"", "layer.q", "--names"]);
    fails(&["run", &packed, "--names", "a,b"], 2, &["2 names", "3"]);
    fails(&["run", &files.q, &files.k, &files.v, "--names", "q,k,v"], 2, &["--names", "three .npy files"]);
}

#[test]
fn run_says_what_is_wrong_with_its_input() {
    let files = Files::new();
    let at = |name: &str| files.folder.path().join(name);
    let missing = at("missing.npy").to_str().unwrap().to_owned();
    let (q, k, v) = (files.q.as_str(), files.k.as_str(), files.v.as_str());
    fails(&["run", q, k, &missing], 2, &["missing.npy", "cannot be read"]);
    fails(&["run", q, k], 2, &["2 files", "three .npy"]);
    fails(&["run", q], 2, &["q.npy", "three (q, k, v)"]);
    fails(&["run", q, k, v, "--causal", "top-left"], 2, &["top-left: is no .npy", "--causal=top-left"]);
    fails(&["run", q, k, v, "--dropout", "-0.1,1"], 2, &["dropout rate is -0.1"]);
    for flag in ["--q-len", "--kv-len", "--top-k", "--head", "--cu-seqlens-q"] {
        let (_, err, code) = finish(&["run", q, k, v, flag, "-1"]);
        assert!(code == 2 && err.contains("invalid value '-1'") && err.contains(flag), "{err}");
    }
    let (_, both) = files.path("both.safetensors");
    fails(
        &["run", q, k, v, "-o", &both, "--save-case", &both],
        2,
        &["both.safetensors: is -o", "--save-case"],
    );
    fails(&["run", q, k, v, "-o", q], 2, &["q.npy: is an input", "-o"]);
    fails(&["study", "--html", &both, "--json", &both], 2, &["both.safetensors: is --html", "--json"]);
    fails(&["softmax", &both], 2, &["both.safetensors", "cannot be read"]);
    std::fs::write(&both, [0u8; 64]).unwrap();
    fails(&["softmax", &both], 2, &["both.safetensors: is not a whole .npy file: it does not begin as one"]);
    for share in ["nan", "-1", "2", "0"] {
        let (_, err, code) = finish(&["tune", "--enough", share]);
        assert!(code == 2 && err.contains("above 0 and at most 1"), "{err}");
    }
    fails(&["tune", "--file", q], 2, &["q.npy: ", "no tuning file"]);
    fails(&["run", "tensors.pt"], 2, &["tensors.pt", ".safetensors"]);
    fails(&["run", q, v, v], 2, &["head dim of k: 6", "that of q: 4", "[1, 1, 5, 6]"]);
    fails(&["run", q, k, q], 2, &["heads of v: 2", "those of k: 1"]);
    let doubles = npy(&at("doubles.npy"), "<f8", false, &[1, 1, 5, 6], &[0; 240]);
    fails(&["run", q, k, &doubles], 2, &["doubles.npy", "<f8", "<f4", "<f2"]);
    let fortran = npy(&at("fortran.npy"), "<f4", true, &[1, 1, 5, 6], &[0; 120]);
    fails(&["run", q, k, &fortran], 2, &["Fortran", "C order"]);
    let short = npy(&at("short.npy"), "<f4", false, &[1, 1, 5, 6], &[0; 12]);
    fails(&["run", q, k, &short], 2, &["12 bytes of data", "[1, 1, 5, 6]"]);
    let huge = npy(&at("huge.npy"), "<f4", false, &[usize::MAX, 3, 5, 6], &[0; 12]);
    fails(&["run", q, k, &huge], 2, &["huge.npy", "beyond 2^64"]);
    let long = npy(&at("long.npy"), "<f4", false, &[1 << 40, 1], &[0; 12]);
    fails(&["run", q, k, &long], 2, &["long.npy", "12 bytes of data", "1099511627776"]);
    std::fs::write(at("text.npy"), "not numbers").unwrap();
    fails(&["run", q, k, at("text.npy").to_str().unwrap()], 2, &["text.npy", "not a whole .npy file"]);
    std::fs::write(at("text.safetensors"), "not tensors").unwrap();
    fails(
        &["run", at("text.safetensors").to_str().unwrap()],
        2,
        &["text.safetensors", "not a safetensors file"],
    );
    fails(&["run", q, k, v, "--temperature", "0"], 2, &["--temperature", "0", "above 0"]);
    fails(&["run", q, k, v, "--temperature-per-head", "1,2,3"], 2, &["temperature has 3", "2"]);
    fails(&["run", q, k, v, "--kv-len", "9"], 2, &["kv_len is 9", "seq_k"]);
    fails(&["run", q, k, v, "--kv-len", "1,2"], 2, &["kv_len has 2", "1"]);
    fails(&["run", q, k, v, "--q-len", "4"], 2, &["q_len is 4", "seq_q"]);
    let (_, svg) = files.path("map.svg");
    fails(&["run", q, k, v, "--heatmap", &svg, "--head", "2"], 2, &["--head is 2", "below 2"]);
    let none = npy(&at("none.npy"), "<f4", false, &[1, 1, 0, 4], &[]);
    fails(&["run", q, &none, &none, "--heatmap", &svg], 2, &["3 queries on 0 keys"]);
    fails(&["run", &shipped("backward_plain")], 2, &["backward_plain", "gradients (dout)"]);
}

#[test]
fn no_output_is_left_half_written() {
    let files = Files::new();
    for (flag, name, words) in [
        ("-o", "nowhere/out.npy", &["nowhere", "does not exist"][..]),
        ("-o", "out.txt", &["out.txt", ".npy or .safetensors"]),
        ("-o", "out", &["no ending"]),
        ("--heatmap", "nowhere/map.svg", &["nowhere", "does not exist"]),
        ("--heatmap", "map.gif", &["map.gif", ".svg or .png"]),
        ("--save-case", "case.npy", &["case.npy", ".safetensors"]),
        ("-o", "", &["is a folder"]),
    ] {
        let (_, path) = files.path(name);
        fails(&files.run(&[flag, &path]), 2, words);
        files.assert_clean();
    }
    let (_, out) = files.path("out.npy");
    fails(&files.run(&["-o", &out, "--lse"]), 2, &["one tensor", ".safetensors"]);
    let (_, page) = files.path("nowhere/page.html");
    fails(&["demo", "--html", &page], 2, &["nowhere", "does not exist"]);
    // A run that fails after its files were named leaves none.
    fails(&files.run(&["-o", &out, "--kv-len", "9"]), 2, &["kv_len"]);
    files.assert_clean();
}

/// A case that the library cannot do all of: gradients of two temperatures of one problem.
fn two_temperatures(folder: &std::path::Path) -> String {
    let bytes = std::fs::read(shipped("backward_plain")).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = file.tensors();
    let taus = DType::F32.encode(&[1.0, 1.0]);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &taus).unwrap();
    tensors.push(("temperature_per_head".to_owned(), view));
    let path = folder.join("two_temperatures.safetensors");
    let contents = safetensors::serialize(tensors, metadata.metadata().clone()).unwrap();
    std::fs::write(&path, contents).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn check_passes_and_fails_by_the_format() {
    if !adapter("check_passes_and_fails_by_the_format") {
        return;
    }
    let files = folder();
    let (good, missing) = (shipped("causal_top_left_5_12"), two_temperatures(files.path()));
    let out = succeeds(&["check", "--kernel", "tiled", &good, &shipped("gqa_bshd_6_2")]);
    assert!(
        out.contains("causal_top_left_5_12") && out.contains("tiled") && out.contains("2 of 2 passed"),
        "{out}"
    );
    assert!(succeeds(&["check", "--kernel", "naive", &good]).contains("naive"));

    let (out, _, code) = finish(&["check", &good, &missing]);
    assert_eq!(code, 1);
    assert!(out.contains("FAIL  missing in this version: the gradient of the key temperature"), "{out}");
    assert!(out.contains("1 of 2 passed, 1 failed"), "{out}");

    let folder = folder();
    let bytes = std::fs::read(&good).unwrap();
    let broken = folder.path().join("broken.safetensors");
    std::fs::write(&broken, &bytes[..bytes.len() - 1]).unwrap();
    let (out, _, code) = finish(&["check", broken.to_str().unwrap(), &good, "nowhere.safetensors", &missing]);
    assert_eq!(code, 2);
    assert!(out.contains("nowhere.safetensors  ") && out.contains("FAIL  cannot be read"), "{out}");
    assert!(out.contains("1 of 4 passed, 1 failed, 2 could not be read"), "{out}");

    // One number of the expected output off.
    let wrong = folder.path().join("wrong.safetensors");
    let mut off = bytes.clone();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let start = 8 + length + header["out"]["data_offsets"][0].as_u64().unwrap() as usize;
    off[start + 4 * 65..][..4].copy_from_slice(&100.0f32.to_le_bytes());
    std::fs::write(&wrong, off).unwrap();
    let (out, _, code) = finish(&["check", wrong.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(out.contains("FAIL  out[0, 0, 4, 1] is") && out.contains("expected 1e2"), "{out}");
}

#[test]
fn check_json_has_the_promised_fields() {
    if !adapter("check_json_has_the_promised_fields") {
        return;
    }
    let files = folder();
    let (good, missing) = (shipped("causal_top_left_5_12"), two_temperatures(files.path()));
    let (out, err, code) =
        finish(&["check", "--kernel", "tiled", "--json", &good, &missing, "nowhere.safetensors"]);
    assert_eq!((code, err.as_str()), (2, ""));
    let lines: serde_json::Value = serde_json::from_str(&out).unwrap();
    let lines = lines.as_array().unwrap();
    assert_eq!(lines.len(), 3);
    for line in lines {
        let keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let mut keys = keys.clone();
        keys.sort_unstable();
        assert_eq!(keys, ["file", "kernel", "max_abs", "max_rel", "name", "pass", "reason"]);
    }
    assert_eq!(lines[0]["file"], good);
    assert_eq!((&lines[0]["name"], &lines[0]["kernel"]), (&"causal_top_left_5_12".into(), &"tiled".into()));
    assert!(lines[0]["pass"] == true && lines[0]["max_abs"].is_f64() && lines[0]["reason"].is_null());
    assert!(lines[1]["pass"] == false && lines[1]["kernel"].is_null());
    assert!(lines[1]["reason"].as_str().unwrap().starts_with("missing in this version: the gradient of"));
    assert!(lines[2]["pass"] == false && lines[2]["reason"].as_str().unwrap().contains("cannot be read"));
}

/// What needs no adapter asks for none.
#[test]
fn check_needs_no_adapter_for_what_it_cannot_run() {
    let files = folder();
    let missing = two_temperatures(files.path());
    let (out, _, code) = finish(&["check", "--adapter", "no such adapter", &missing]);
    assert!(code == 1 && out.contains("missing in this version: the gradient of"), "{out}");
}

#[test]
fn demo_writes_a_page_that_asks_for_nothing() {
    if !adapter("demo_writes_a_page_that_asks_for_nothing") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("page.html");
    let out = succeeds(&["demo", "--html", path.to_str().unwrap()]);
    for word in [
        "adapter",
        "driver",
        "kernel",
        "SmolLM2",
        "MiniLM",
        "0.25",
        "nats",
        "of bound",
        "page.html",
        "study",
        "next",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert_eq!(page.matches("<img class=\"map\"").count(), 3 * 3 * 5);
    for word in ["prefers-color-scheme: dark", "@media print", "wgpu-attention demo --html"] {
        assert!(page.contains(word), "{word}");
    }
    for word in ["http://", "https://", "<link", "@import", "url(", "class=\"wrong\"", "NaN"] {
        assert!(!page.contains(word), "{word}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let quick = succeeds(&["demo", "--quick", "--kernel", "naive", "--html", path.to_str().unwrap()]);
    assert!(quick.contains("naive") && !quick.contains("MiniLM"), "{quick}");
}
