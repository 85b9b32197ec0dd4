//! What a run found: the one structure that all outputs are made from, and that `--json` writes.

use serde::{Deserialize, Serialize};
use wgpu_attention::Problem;
use wgpu_attention::measure::{Clock, Limit, Roofs};

/// The first words of the file.
pub(crate) const FORMAT: &str = "wgpu-attention bench";
/// Files of another version are not compared with.
pub(crate) const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub format: String,
    pub version: u32,
    pub command: String,
    pub machine: Machine,
    pub roofs: Roofs,
    pub rows: Vec<Row>,
    /// Of the preset operations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationRow>,
    pub scaling: Vec<Scaling>,
    pub left_out: Vec<LeftOut>,
    /// How long all of it took.
    pub seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub adapter: String,
    pub driver: String,
    pub kind: String,
    pub crate_version: String,
    pub system: String,
    pub clock: Clock,
    pub clock_because: String,
}

/// One kernel on one problem. The names up to `kv_gb_s` are those of the peer script.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Who measured it, where that was another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Whose problem it is.
    #[serde(default)]
    pub name: String,
    /// batch, q heads, kv heads, queries, keys, head dim.
    pub shape: [u32; 6],
    pub causal: bool,
    #[serde(default)]
    pub kernel: String,
    /// Median time of a call.
    pub ms: f64,
    pub gflops: f64,
    /// Of the rows of k and v that some query sees.
    pub kv_gb_s: f64,
    /// Of all bytes that must be moved.
    #[serde(default)]
    pub gb_s: f64,
    #[serde(default)]
    pub window: Option<u32>,
    #[serde(default)]
    pub softcap: Option<f32>,
    #[serde(default = "f32_name")]
    pub dtype: String,
    /// The compiled variant.
    #[serde(default)]
    pub variant: String,
    /// Whether the planner would take this kernel.
    #[serde(default)]
    pub planned: bool,
    /// Share of the lowest roof.
    #[serde(default)]
    pub share: f64,
    #[serde(default = "compute")]
    pub limit: Limit,
    /// Operations a byte.
    #[serde(default)]
    pub intensity: f64,
    #[serde(default)]
    pub spread: Option<Spread>,
    /// Time from asking for the variant until one call was done, where the variant was not known before.
    #[serde(default)]
    pub first_call_ms: Option<f64>,
    /// Host time for recording a call, and its part in finishing the encoder.
    #[serde(default)]
    pub encode_us: Option<f64>,
    #[serde(default)]
    pub finish_us: Option<f64>,
    /// Dispatches that the problem was cut into.
    #[serde(default)]
    pub slices: usize,
    #[serde(default)]
    pub checked: Option<CheckedRows>,
}

fn f32_name() -> String {
    "f32".to_owned()
}

fn compute() -> Limit {
    Limit::Compute
}

/// Of the times of one call, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub min_ms: f64,
    pub q1_ms: f64,
    pub q3_ms: f64,
    pub samples: usize,
    pub calls: u32,
}

/// How right the answer was, before it was timed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct CheckedRows {
    /// Rows compared with float64.
    pub rows: usize,
    /// Of how many.
    pub of: u64,
    /// The largest error as a share of its bound.
    pub worst: f64,
}

/// Softmax or sampling on a number of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OperationRow {
    pub operation: String,
    pub rows: u32,
    /// Elements of a row, or the vocabulary.
    pub len: u32,
    /// Median time of a call on the device.
    pub ms: f64,
    /// Each element read once and, by softmax, written once.
    pub gb_s: f64,
    /// The time that the lower roof allows, as a share of the time taken.
    pub share: f64,
    pub limit: Limit,
    pub spread: Spread,
    /// Sampling, by the wall clock: until the tokens are on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with_token_ms: Option<f64>,
    /// In its place: reading the logits back, and drawing on the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_processor_ms: Option<f64>,
}

impl OperationRow {
    pub(crate) fn problem(&self) -> String {
        format!("{} x {}", self.rows, self.len)
    }
}

/// How time grows with the length: `time ~ length ^ exponent`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scaling {
    pub kernel: String,
    /// What stays: batch, heads, head dim, mask.
    pub problem: String,
    pub lengths: Vec<u32>,
    pub exponent: f64,
}

/// What has no figure, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeftOut {
    pub problem: String,
    pub kernel: String,
    pub because: String,
    /// Whether its answer was not right.
    pub wrong: bool,
}

impl Row {
    /// The problem, with nothing measured yet.
    pub(crate) fn of(name: &str, problem: &Problem) -> Self {
        let s = problem.shape;
        Row {
            peer: None,
            name: name.to_owned(),
            shape: [s.batch, s.q_heads, s.kv_heads, s.seq_q, s.seq_k, s.head_dim_qk],
            causal: problem.causal,
            kernel: String::new(),
            ms: 0.0,
            gflops: 0.0,
            kv_gb_s: 0.0,
            gb_s: 0.0,
            window: problem.window.and_then(|w| w.left).map(|left| left.saturating_add(1)),
            softcap: problem.softcap,
            dtype: problem.dtypes[0].name().to_owned(),
            variant: String::new(),
            planned: false,
            share: 0.0,
            limit: Limit::Compute,
            intensity: 0.0,
            spread: None,
            first_call_ms: None,
            encode_us: None,
            finish_us: None,
            slices: 0,
            checked: None,
        }
    }

    /// Whether it is about the same problem.
    pub(crate) fn is_like(&self, other: &Row) -> bool {
        self.shape == other.shape
            && self.causal == other.causal
            && self.window == other.window
            && self.softcap == other.softcap
            && self.dtype == other.dtype
    }

    /// The problem in words.
    pub(crate) fn problem(&self) -> String {
        let [b, hq, hkv, sq, sk, d] = self.shape;
        let heads = if hq == hkv { hq.to_string() } else { format!("{hq}/{hkv}") };
        let words = [
            Some(format!("{b}x{heads}x{sq}x{sk}x{d}")),
            self.causal.then(|| "causal".to_owned()),
            self.window.map(|w| format!("window {w}")),
            self.softcap.map(|c| format!("cap {c}")),
            (self.dtype != "f32").then(|| self.dtype.clone()),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// The problem without its lengths, where they are one.
    pub(crate) fn family(&self) -> Option<String> {
        let [b, hq, hkv, sq, sk, d] = self.shape;
        (sq == sk).then(|| {
            let all = Row { shape: [b, hq, hkv, 0, 0, d], ..self.clone() };
            all.problem().replace("x0x0x", "xSxSx")
        })
    }
}

/// The slope of log time over log length by least squares, for each kernel and kind of problem with three lengths or more.
pub(crate) fn scaling(rows: &[Row]) -> Vec<Scaling> {
    let mut found: Vec<(Scaling, Vec<f64>)> = Vec::new();
    for row in rows {
        let Some(problem) = row.family() else { continue };
        let known = found.iter().position(|(f, _)| f.kernel == row.kernel && f.problem == problem);
        let at = known.unwrap_or_else(|| {
            let scaling = Scaling { kernel: row.kernel.clone(), problem, lengths: Vec::new(), exponent: 0.0 };
            found.push((scaling, Vec::new()));
            found.len() - 1
        });
        let (scaling, times) = &mut found[at];
        // A problem that was asked for twice counts once.
        if !scaling.lengths.contains(&row.shape[3]) {
            scaling.lengths.push(row.shape[3]);
            times.push(row.ms);
        }
    }
    found
        .into_iter()
        .filter(|(scaling, _)| scaling.lengths.len() >= 3)
        .filter_map(|(scaling, times)| {
            let points = scaling.lengths.iter().zip(&times).map(|(&s, ms)| (f64::from(s).ln(), ms.ln()));
            let exponent = slope(points)?;
            Some(Scaling { exponent, ..scaling })
        })
        .collect()
}

/// Of the line of least squares; `None` where all x are one.
fn slope(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<f64> {
    let n = points.clone().count() as f64;
    let mean_x = points.clone().map(|p| p.0).sum::<f64>() / n;
    let mean_y = points.clone().map(|p| p.1).sum::<f64>() / n;
    let xx: f64 = points.clone().map(|p| (p.0 - mean_x).powi(2)).sum();
    let xy: f64 = points.map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
    (xx > 0.0).then_some(xy / xx)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(kernel: &str, seq: u32, ms: f64) -> Row {
        let problem = Problem::new(wgpu_attention::Shape::self_attention(1, 4, seq, 64));
        let spread = Spread { min_ms: ms, q1_ms: ms * 0.99, q3_ms: ms * 1.01, samples: 9, calls: 1 };
        Row { kernel: kernel.to_owned(), ms, gflops: 1.0, spread: Some(spread), ..Row::of("", &problem) }
    }

    #[test]
    fn exponents_are_slopes_in_the_logarithms() {
        let rows: Vec<Row> = [128, 256, 512, 1024]
            .into_iter()
            .flat_map(|s| {
                [row("tiled", s, 3.0 * f64::from(s).powi(2)), row("naive", s, f64::from(s).powf(1.5))]
            })
            .chain([row("other", 128, 1.0), row("other", 256, 1.0)])
            .collect();
        let found = scaling(&rows);
        assert_eq!(found.len(), 2, "three lengths at least");
        for (scaling, exponent) in found.iter().zip([2.0, 1.5]) {
            assert!((scaling.exponent - exponent).abs() < 1e-9, "{scaling:?}");
            assert_eq!(scaling.lengths, [128, 256, 512, 1024]);
            assert_eq!(scaling.problem, "1x4xSxSx64");
        }
    }

    #[test]
    fn rows_of_the_peer_script_are_rows() {
        let line = r#"{"peer": "onnxruntime-webgpu 1.27.0", "shape": [1, 4, 4, 512, 512, 64], "causal": false, "ms": 13.5, "gflops": 19.9, "kv_gb_s": 0.078}"#;
        let row: Row = serde_json::from_str(line).unwrap();
        assert_eq!((row.ms, row.gflops, row.kernel.as_str()), (13.5, 19.9, ""));
        assert_eq!(row.problem(), "1x4x512x512x64");
    }
}
