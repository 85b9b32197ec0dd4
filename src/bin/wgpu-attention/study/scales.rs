//! The scales that people use, side by side over the head dim.

use super::chapter::Chapter;
use super::estimate::Estimate;
use super::jacobian::Jacobian;
use super::lab::Lab;
use super::normal::normals;
use crate::fail::Result;
use crate::plot::{Axis, Line, Plot, number};
use serde::Serialize;
use wgpu_attention::{Inputs, Problem, Scale, ScoreStage, Shape};

/// Of a head.
const QUERIES: u32 = 64;
const KEYS: u32 = 128;
/// Powers of two, for the plots, and two head dims of the models.
const DIMS: [u32; 13] = [4, 8, 16, 32, 64, 80, 128, 256, 512, 576, 1024, 2048, 4096];
/// Steps of the progress bar.
pub(super) const STEPS: usize = DIMS.len();
/// Where the streams of random numbers begin.
const STREAM: u32 = 1000;

#[derive(Debug, Serialize)]
pub(super) struct Scales {
    heads: u32,
    queries: u32,
    keys: u32,
    rows: Vec<Row>,
}

/// One rule at one head dim: means over all rows, with standard errors from the heads, which are independent (rows of a head share
/// its keys).
#[derive(Debug, Serialize)]
struct Row {
    rule: String,
    head_dim: u32,
    scale: f64,
    entropy: Estimate,
    largest: Estimate,
    trace: Estimate,
    norm: Estimate,
    /// `exp` of the mean entropy.
    effective_keys: f64,
    /// Change of the weights for a change of q, `scale * sqrt(d) * norm`: the mean of all rows and their median.
    sensitivity: [f64; 2],
}

/// The rules, and what they are called.
fn rules(own: Option<f32>) -> Vec<(String, Scale)> {
    let known = [
        ("no scale", Scale::Value(1.0)),
        ("1/√d", Scale::RsqrtHeadDim),
        ("2/d", Scale::PerHeadDim { numerator: 2.0 }),
        ("1/d", Scale::PerHeadDim { numerator: 1.0 }),
    ];
    let known = known.map(|(name, scale)| (name.to_owned(), scale));
    known.into_iter().chain(own.map(|scale| (format!("yours: {scale}"), Scale::Value(scale)))).collect()
}

pub(super) fn measure(lab: &Lab, own: Option<f32>) -> Result<Scales> {
    let heads = if lab.quick { 8 } else { 32 };
    let mut rows = Vec::new();
    for (stream, head_dim) in (STREAM..).step_by(10).zip(DIMS) {
        let shape = Shape { seq_q: QUERIES, ..Shape::self_attention(1, heads, KEYS, head_dim) };
        let shape = Shape { head_dim_v: 1, ..shape };
        let q = normals(lab.seed, stream, (heads * QUERIES * head_dim) as usize);
        let k = normals(lab.seed, stream + 1, (heads * KEYS * head_dim) as usize);
        let v = vec![0.0; (heads * KEYS) as usize];
        let inputs = Inputs::new(&q, &k, &v);
        for (rule, scale) in rules(own) {
            let problem = Problem::new(shape).scale(scale).with_lse().with_entropy().with_row_max();
            rows.push(Row::measure(lab, rule, &problem, &inputs)?);
        }
        lab.bar.inc(1);
    }
    Ok(Scales { heads, queries: QUERIES, keys: KEYS, rows })
}

impl Row {
    /// Entropy and largest weight come out of the fused pass, the Jacobian from the weights of the slow path.
    fn measure(lab: &Lab, rule: String, problem: &Problem, inputs: &Inputs<'_>) -> Result<Row> {
        let Shape { q_heads, head_dim_qk, .. } = problem.shape;
        let fused = lab.run(problem, inputs)?;
        let heads = |row: &dyn Fn(usize) -> f64| {
            let rows = QUERIES as usize;
            let mean = |head: usize| (head * rows..(head + 1) * rows).map(row).sum::<f64>() / rows as f64;
            Estimate::of(&(0..q_heads as usize).map(mean).collect::<Vec<_>>())
        };
        let entropy = heads(&|row| f64::from(fused.entropy[row]));
        let largest = heads(&|row| f64::from(fused.row_max[row] - fused.lse[row]).exp());
        let mut jacobians = Vec::new();
        for head in 0..q_heads {
            let p = lab.scores(problem, inputs, ScoreStage::Probs, [0, head])?;
            let rows = p.chunks(KEYS as usize);
            jacobians.extend(rows.map(|p| Jacobian::of(&p.iter().map(|&p| p.into()).collect::<Vec<_>>())));
        }
        let (trace, norm) = (heads(&|row| jacobians[row].trace), heads(&|row| jacobians[row].norm));
        let scale = problem.scale.value(head_dim_qk);
        let factor = scale.abs() * f64::from(head_dim_qk).sqrt();
        let mut norms: Vec<f64> = jacobians.iter().map(|j| j.norm).collect();
        norms.sort_by(f64::total_cmp);
        Ok(Row {
            rule,
            head_dim: head_dim_qk,
            scale,
            entropy,
            largest,
            trace,
            norm,
            effective_keys: entropy.mean.exp(),
            sensitivity: [factor * norm.mean, factor * norms[norms.len() / 2]],
        })
    }

    fn cells(&self) -> [String; 10] {
        let with_error = |e: Estimate| format!("{:.3} ± {:.3}", e.mean, e.standard_error);
        [
            self.rule.clone(),
            self.head_dim.to_string(),
            number(self.scale),
            with_error(self.entropy),
            format!("{:.1}", self.effective_keys),
            with_error(self.largest),
            with_error(self.trace),
            number(self.norm.mean),
            number(self.sensitivity[0]),
            number(self.sensitivity[1]),
        ]
    }
}

const HEAD: [&str; 10] = [
    "scale",
    "d",
    "value",
    "entropy, nats",
    "keys that count",
    "largest weight",
    "trace of J",
    "norm of J",
    "norm of ∂p/∂q, mean",
    "median",
];

/// Models, with head dims as they were published.
const MODELS: [(&str, u32, &str); 9] = [
    ("BERT-base, BERT-large", 64, "768 / 12 and 1024 / 16"),
    ("GPT-2, all four sizes", 64, "768 / 12 to 1600 / 25"),
    ("GPT-3 125M and 350M", 64, "768 / 12 and 1024 / 16"),
    ("GPT-3 2.7B", 80, "2560 / 32"),
    ("GPT-3 1.3B, 6.7B to 175B", 128, "4096 / 32 to 12288 / 96"),
    ("Llama 2 and 3, most sizes", 128, "4096 / 32 and more"),
    ("outside estimates for larger ones", 256, "nothing published"),
    ("DeepSeek-V3's latent form", 576, "512 + 64; its scale is that of 192"),
    ("“1024 and more”", 1024, "a model width, not a head dim"),
];

/// `ln n - (scale √d)² / 2`: the entropy of a softmax over many normal scores of small deviation.
fn many_keys(scale: f64, head_dim: u32) -> f64 {
    f64::from(KEYS).ln() - scale * scale * f64::from(head_dim) / 2.0
}

impl Scales {
    pub(super) fn chapter(&self) -> Chapter {
        let mut names: Vec<&str> = self.rows.iter().map(|row| row.rule.as_str()).collect();
        names.dedup();
        names.truncate(self.rows.len() / DIMS.len());
        let curve = |name: &str, f: &dyn Fn(&Row) -> f64| -> Vec<[f64; 2]> {
            let rows = self.rows.iter().filter(|row| row.rule == name && row.head_dim.is_power_of_two());
            rows.map(|row| [f64::from(row.head_dim), f(row)]).collect()
        };
        let plot = |title: &str, axis: Axis, f: &dyn Fn(&Row) -> f64| {
            let lines = names.iter().map(|name| Line::measured(*name, curve(name, f)));
            Plot::new(title, Axis::log2("head dim d"), axis).lines(lines)
        };
        let most = f64::from(KEYS).ln();
        let theory = names.iter().enumerate().skip(1).take(3).map(|(n, name)| {
            let points = curve(name, &|row| many_keys(row.scale, row.head_dim));
            Line::theory(format!("{name}: ln {KEYS} − (scale √d)²/2"), points).colour(n)
        });
        let plots = [
            plot("Entropy", Axis::linear("entropy, nats").range(0.0, most), &|row| row.entropy.mean)
                .lines(theory),
            plot("Keys that count", Axis::log2("exp(entropy), keys"), &|row| row.effective_keys),
            plot("Largest weight", Axis::log10("mean of the largest weight"), &|row| row.largest.mean),
            plot("Trace of the Jacobian", Axis::linear("trace").range(0.0, 1.0), &|row| row.trace.mean),
            plot("Norm of the Jacobian", Axis::log10("Frobenius norm"), &|row| row.norm.mean),
            plot("What reaches q: mean row", Axis::log10("scale · √d · ‖J‖"), &|row| {
                row.sensitivity[0]
            }),
            plot("What reaches q: median row", Axis::log10("scale · √d · ‖J‖"), &|row| {
                row.sensitivity[1]
            }),
        ];
        Chapter::new("Which scale: 1, 1/√d, 2/d, 1/d")
            .text(
                "Multiplied by 1/√d, the scores of independent q and k have variance 1 at every head dim, and the softmax is the same \
                 everywhere. Without a scale it turns into an argmax as d grows, with 1/d and 2/d into a mean over all keys.",
            )
            .formula(FORMULAS)
            .plots(plots)
            .table(
                format!(
                    "Means over {} heads of {QUERIES} queries on {KEYS} keys (at most ln {KEYS} = {most:.3} nats), standard normal q and k; \
                     ± one standard error, from the heads.",
                    self.heads
                ),
                HEAD,
                names.iter().flat_map(|name| self.rows.iter().filter(|row| row.rule == *name)).map(Row::cells),
            )
            .text(
                "<strong>How to read it.</strong> The trace of J is how much of a gradient a softmax lets through, summed over directions: \
                 near 0 the row has settled on a key. But J alone flatters the small scales. A gradient reaches q through scale · J · k: \
                 with 1/d the Jacobian is that of a uniform row at every d, and what reaches q still dies out like 1/√d. And without a \
                 scale it is not all gradients that vanish, but that of the typical row (the median). A few rows have two keys that nearly \
                 tie, and there a small change of q moves the weights a lot, so that the mean over rows stays large. Most rows learn \
                 nothing and some jump: only 1/√d gives the same to all of them, at every d.",
            )
            .text(
                "<strong>Two warnings.</strong> 2/d and 1/√d are the same number at d = 4, so a test at small head dims cannot tell them \
                 apart. And all of this is about independent q and k, that is, about a model before training; chapter 1 has the other \
                 case.",
            )
            .table(
                "Head dims of models as they were published, and the scales that they would get. Entropies were measured, as above.",
                [
                    "model",
                    "d",
                    "width / heads",
                    "spread of q·k: √d",
                    "1/√d",
                    "2/d",
                    "1/d",
                    "entropy, no scale",
                    "1/√d",
                    "2/d",
                    "1/d",
                ],
                MODELS.map(|(model, d, from)| self.model(model, d, from)),
            )
            .text(
                "What it leaves out: GPT-3's 128 is that of its larger models, not of the family (its 760M has 96). For GPT-4 and others of its time no \
                 head dim was published; 128 to 256 are outside estimates. Numbers of 1024 and more that go round are usually \
                 widths of models. Real head dims above 256 are rare, and DeepSeek's 576 is the length of a shared latent key that is \
                 compared with a query of 192 numbers multiplied through, which is why its scale is 1/√192. Models also learn scales \
                 into their weights: T5 has none, Gemma and Granite have constants of their own.",
            )
    }

    fn model(&self, name: &str, head_dim: u32, from: &str) -> [String; 11] {
        let d = f64::from(head_dim);
        let entropy = |rule: &str| {
            let row = self.rows.iter().find(|row| row.rule == rule && row.head_dim == head_dim);
            row.map_or_else(String::new, |row| format!("{:.3}", row.entropy.mean))
        };
        [
            name.to_owned(),
            head_dim.to_string(),
            from.to_owned(),
            number(d.sqrt()),
            number(1.0 / d.sqrt()),
            number(2.0 / d),
            number(1.0 / d),
            entropy("no scale"),
            entropy("1/√d"),
            entropy("2/d"),
            entropy("1/d"),
        ]
    }
}

const FORMULAS: &str = "\
p = softmax(scale · q·k)                       weights of one row, n keys
H = −Σ p_i ln p_i                              entropy; at most ln n
exp(H)                                         effective number of keys: n for equal weights, 1 for a single one
max p_i = exp(row_max − lse)                   largest weight
J = diag(p) − p pᵀ                             Jacobian ∂p/∂s
tr J = Σ p_i (1 − p_i) = 1 − Σ p_i²            trace: 1 − 1/n for equal weights, 0 for a single one
‖J‖² = Σ p_i² − 2 Σ p_i³ + (Σ p_i²)²           squared Frobenius norm
‖∂p/∂q‖ ≈ scale · √d · ‖J‖                     Frobenius norm, for independent keys of variance 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_its_head_dim_measured() {
        for (model, d, _) in MODELS {
            assert!(DIMS.contains(&d), "{model}");
        }
    }
}
