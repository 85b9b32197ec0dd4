//! The program, as a user meets it.

#[path = "../common/program.rs"]
mod program;

mod check;
mod demo;
mod info;
mod options;
mod refusals;
mod run;
mod softmax;
mod validate;

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

const USER_SCORE: &str =
    "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 {
    return score - param_f32(head) * abs(f32(q_index) - f32(k_index));
}";

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
