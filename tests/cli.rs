//! The program, as a user meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use wgpu_attention::case::Case;
use wgpu_attention::{Inputs, Problem, Shape, reference};

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wgpu-attention")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The exit code, after stdout and stderr.
fn finish(args: &[&str]) -> (String, String, i32) {
    let output = program(args);
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap())
}

#[track_caller]
fn succeeds(args: &[&str]) -> String {
    let (out, err, code) = finish(args);
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    assert!(!err.contains("error"), "{err}");
    out
}

/// Fails with a code and one line that has all these words.
#[track_caller]
fn fails(args: &[&str], code: i32, words: &[&str]) {
    let (out, err, got) = finish(args);
    assert_eq!(got, code, "{args:?}: {out}{err}");
    assert!(err.starts_with("error: ") && err.lines().count() == 1, "{err}");
    for word in words {
        assert!(err.contains(word), "{word:?} is not in {err:?}");
    }
}

/// Whether there is an adapter; without one the test fails, unless the environment allows it.
fn adapter(test: &str) -> bool {
    let (_, err, code) = finish(&["info"]);
    if code == 0 {
        return true;
    }
    let allowed = std::env::var_os("WGPU_ATTENTION_ALLOW_NO_ADAPTER").is_some_and(|v| v == "1");
    assert!(
        allowed && code == 3,
        "{err}. Set WGPU_ATTENTION_ALLOW_NO_ADAPTER=1 to skip what needs an adapter."
    );
    eprintln!("SKIPPED {test}: {err}");
    false
}

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
    for word in ["info", "run", "check", "demo", "Exit codes"] {
        assert!(help.contains(word), "{help}");
    }
    for command in ["info", "run", "check", "demo"] {
        assert!(succeeds(&[command, "--help"]).contains("Usage: wgpu-attention"));
    }
    assert!(succeeds(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn unknown_options_are_usage_errors() {
    for args in [&["run", "--colour"][..], &["dance"], &["check"], &["check", "--kernel", "magic", "x"]] {
        let (_, err, code) = finish(args);
        assert_eq!(code, 2);
        assert!(err.starts_with("error: "), "{err}");
    }
    let (_, err, _) = finish(&["check", "--kernel", "magic", "x"]);
    assert!(err.contains("magic") && err.contains("tiled, naive"), "{err}");
    let (_, err, code) = finish(&["run", "a.safetensors", "--scale", "wide"]);
    assert!(code == 2 && err.contains("wide") && err.contains("rsqrt"), "{err}");
    let (_, err, code) = finish(&["run", "a.safetensors", "--causal=middle"]);
    assert!(code == 2 && err.contains("middle") && err.contains("top-left"), "{err}");
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
    let problem = Problem::new(SHAPE)
        .causal(wgpu_attention::Alignment::BottomRight)
        .temperature(wgpu_attention::Temperature::Value(0.5));
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
    fails(&["run", "tensors.pt"], 2, &["tensors.pt", ".pt", ".safetensors"]);
    fails(&["run", q, v, v], 2, &["head dim of k: 6", "that of q: 4", "[1, 1, 5, 6]"]);
    fails(&["run", q, k, q], 2, &["heads of v: 2", "those of k: 1"]);
    let doubles = npy(&at("doubles.npy"), "<f8", false, &[1, 1, 5, 6], &[0; 240]);
    fails(&["run", q, k, &doubles], 2, &["doubles.npy", "<f8", "<f4"]);
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
    fails(&["run", q, k, v, "--temperature-per-head", "1,x"], 2, &["x", "numbers"]);
    fails(&["run", q, k, v, "--temperature-per-head", "1,2,3"], 2, &["temperature has 3", "2"]);
    fails(&["run", q, k, v, "--kv-len", "9"], 2, &["kv_len is 9", "seq_k"]);
    fails(&["run", q, k, v, "--kv-len", "1,2"], 2, &["kv_len has 2", "1"]);
    let (_, svg) = files.path("map.svg");
    fails(&["run", q, k, v, "--heatmap", &svg, "--head", "2"], 2, &["--head is 2", "below 2"]);
    let none = npy(&at("none.npy"), "<f4", false, &[1, 1, 0, 4], &[]);
    fails(&["run", q, &none, &none, "--heatmap", &svg], 2, &["3 queries on 0 keys"]);
    fails(&["run", &shipped("softcap_masked_key")], 2, &["softcap", "mask"]);
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

#[test]
fn check_passes_and_fails_by_the_format() {
    if !adapter("check_passes_and_fails_by_the_format") {
        return;
    }
    let (good, missing) = (shipped("causal_top_left_5_12"), shipped("softcap_masked_key"));
    let out = succeeds(&["check", &good, &shipped("gqa_bshd_6_2")]);
    assert!(
        out.contains("causal_top_left_5_12") && out.contains("tiled") && out.contains("2 of 2 passed"),
        "{out}"
    );
    assert!(succeeds(&["check", "--kernel", "naive", &good]).contains("naive"));

    let (out, _, code) = finish(&["check", &good, &missing]);
    assert_eq!(code, 1);
    assert!(out.contains("FAIL  missing in this version: softcap, mask"), "{out}");
    assert!(out.contains("1 of 2 passed, 1 failed"), "{out}");

    let folder = folder();
    let bytes = std::fs::read(&good).unwrap();
    let broken = folder.path().join("broken.safetensors");
    std::fs::write(&broken, &bytes[..bytes.len() - 1]).unwrap();
    let (out, _, code) = finish(&["check", broken.to_str().unwrap(), &good, "nowhere.safetensors", &missing]);
    assert_eq!(code, 2);
    assert!(out.contains("nowhere.safetensors: cannot be read"), "{out}");
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
    let (good, missing) = (shipped("causal_top_left_5_12"), shipped("onnx_softmax_axis_0"));
    let (out, err, code) = finish(&["check", "--json", &good, &missing, "nowhere.safetensors"]);
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
    assert_eq!(lines[1]["reason"], "missing in this version: op softmax");
    assert!(lines[2]["pass"] == false && lines[2]["reason"].as_str().unwrap().contains("cannot be read"));
}

/// What needs no adapter asks for none.
#[test]
fn check_needs_no_adapter_for_what_it_cannot_run() {
    let (out, _, code) = finish(&["check", "--adapter", "no such adapter", &shipped("onnx_softmax_axis_0")]);
    assert!(code == 1 && out.contains("op softmax"), "{out}");
}

#[test]
fn demo_writes_a_page_that_asks_for_nothing() {
    if !adapter("demo_writes_a_page_that_asks_for_nothing") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("page.html");
    let out = succeeds(&["demo", "--html", path.to_str().unwrap()]);
    for word in
        ["adapter", "driver", "kernel", "SmolLM2", "MiniLM", "0.25", "nats", "of bound", "page.html", "next"]
    {
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
