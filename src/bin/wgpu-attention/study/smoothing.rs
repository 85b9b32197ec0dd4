//! What each method does to the same scores: those of a real head, and those of a context that grows to 64k keys.

use super::chapter::Chapter;
use super::jacobian::Jacobian;
use super::lab::Lab;
use super::methods::Method;
use super::normal::normals;
use super::split;
use crate::captures::CAPTURES;
use crate::fail::{Fail, Result};
use crate::plot::{Axis, Line, Plot, number};
use serde::Serialize;
use wgpu_attention::{Problem, ScoreStage, Shape, Stats};

/// On the real head.
const ON_A_HEAD: [Method; 15] = [
    Method::Softmax,
    Method::Temperature(0.5),
    Method::Temperature(2.0),
    Method::Softcap(50.0),
    Method::Softcap(2.0),
    Method::Ssmax(0.43),
    Method::LogN(32),
    Method::Cosine(10.0),
    Method::Adaptive,
    Method::OffByOne,
    Method::Sink(2.0),
    Method::TopK(8),
    Method::Entmax15,
    Method::Sparsemax,
    Method::Sigmoid,
];
/// As the context grows: what stays a softmax of other scores, and what divides otherwise.
const OTHER_SCORES: [Method; 6] = [
    Method::Softmax,
    Method::Softcap(5.0),
    Method::Ssmax(0.43),
    Method::LogN(512),
    Method::Cosine(10.0),
    Method::Adaptive,
];
const OTHER_SUMS: [Method; 5] =
    [Method::OffByOne, Method::Sink(8.0), Method::Entmax15, Method::Sparsemax, Method::Sigmoid];
/// Queries of the growing context, each with a key of its own that is meant for it.
const QUERIES: u32 = 8;
const HEAD_DIM: u32 = 64;
/// Score of that key; those of the others have deviation 1.
const NEEDLE: f64 = 6.0;
const SIZES: [u32; 10] = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
const STREAM: u32 = 2000;

/// Steps of the progress bar.
pub(super) const STEPS: usize = 1 + SIZES.len();

#[derive(Debug, Serialize)]
pub(super) struct Smoothing {
    head: String,
    /// Keys that the row sees whose weights are drawn.
    keys: usize,
    on_head: Vec<OnHead>,
    needle: f64,
    growth: Vec<Grown>,
}

/// One method on the real head: means over its rows.
#[derive(Debug, Serialize)]
struct OnHead {
    method: String,
    formula: &'static str,
    source: &'static str,
    /// None where weights are no distribution, and so for the trace.
    entropy: Option<f64>,
    largest: f64,
    /// Sum of the weights: below 1 with a sink.
    mass: f64,
    trace: Option<f64>,
    /// Weights of the last row, the largest first.
    last_row: Vec<f64>,
}

/// One method at one length of the context: means over the queries.
#[derive(Debug, Serialize)]
struct Grown {
    method: String,
    keys: u32,
    /// None where weights are no distribution.
    entropy: Option<f64>,
    /// `exp` of the mean entropy.
    effective_keys: Option<f64>,
    /// Weight of the key that is meant for the query.
    needle: f64,
    mass: f64,
    /// For the plain softmax: what a sum over normal scores comes to, and its standard error.
    needle_theory: Option<[f64; 2]>,
    /// Into how many parts the device took the keys.
    parts: u32,
}

pub(super) fn measure(lab: &Lab) -> Result<Smoothing> {
    let (head, on_head) = on_a_head(lab)?;
    lab.bar.inc(1);
    let keys = on_head.first().map_or(0, |m| m.last_row.len());
    Ok(Smoothing { head, keys, on_head, needle: NEEDLE, growth: growth(lab)? })
}

fn on_a_head(lab: &Lab) -> Result<(String, Vec<OnHead>)> {
    /// The flattest of this capture's, with the most to see.
    const HEAD: u32 = 1;
    let capture = &CAPTURES[0];
    let case = capture.case()?;
    let Some(work) = case.work() else {
        return Err(Fail::Wrong(format!("{}: needs {}", capture.title(), case.missing().join(", "))));
    };
    // Not every method has statistics, and the weights tell all.
    let mut plain = work.problem().clone();
    plain.stats = Stats::default();
    let shape = plain.shape;
    let mut methods = Vec::new();
    for method in ON_A_HEAD {
        let given = work.inputs();
        let head = method.head(plain.clone(), [given.q, given.k, given.v]);
        let (sinks, ssmax) = (head.sink.map(|s| vec![s; shape.q_heads as usize]), head.ssmax);
        let ssmax = ssmax.map(|s| vec![s; shape.q_heads as usize]);
        let mut inputs = given;
        inputs.tables.sinks = sinks.as_deref();
        inputs.tables.ssmax = ssmax.as_deref();
        let weights = lab.scores(&head.problem, &inputs, ScoreStage::Probs, [capture.batch, HEAD])?;
        let rows: Vec<Vec<f64>> = weights
            .chunks(shape.seq_k as usize)
            .map(|row| row.iter().map(|&p| f64::from(p)).collect())
            .collect();
        let mean = |f: &dyn Fn(&[f64]) -> f64| rows.iter().map(|row| f(row)).sum::<f64>() / rows.len() as f64;
        let mut last_row = rows.last().cloned().unwrap_or_default();
        last_row.sort_by(|a, b| b.total_cmp(a));
        methods.push(OnHead {
            method: method.name(),
            formula: method.formula(),
            source: method.source(),
            entropy: method
                .has_entropy()
                .then(|| mean(&|p| p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum())),
            largest: mean(&|p| p.iter().copied().fold(0.0, f64::max)),
            mass: mean(&|p| p.iter().sum()),
            trace: method.is_softmax().then(|| mean(&|p| Jacobian::of(p).trace)),
            last_row,
        });
    }
    Ok((format!("{}, head {HEAD}", capture.title()), methods))
}

fn growth(lab: &Lab) -> Result<Vec<Grown>> {
    let (d, rows) = (HEAD_DIM as usize, QUERIES as usize);
    let most = SIZES[SIZES.len() - 1];
    let q = normals(lab.seed, STREAM, rows * d);
    let mut k = normals(lab.seed, STREAM + 1, most as usize * d);
    let rsqrt = 1.0 / (d as f64).sqrt();
    // The first keys are the needles: along their query, and as long as it takes.
    for (query, needle) in q.chunks(d).zip(k.chunks_mut(d)) {
        let factor = NEEDLE / rsqrt / query.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        needle.iter_mut().zip(query).for_each(|(k, &q)| *k = (factor * f64::from(q)) as f32);
    }
    // What a value says: for which query its key is meant, and that it is a key at all.
    let width = rows + 1;
    let mut v = vec![0.0; most as usize * width];
    for (key, value) in v.chunks_mut(width).enumerate() {
        value[rows] = 1.0;
        if key < rows {
            value[key] = 1.0;
        }
    }
    let mut grown = Vec::new();
    for keys in SIZES.into_iter().step_by(if lab.quick { 3 } else { 1 }) {
        let shape = Shape {
            batch: 1,
            q_heads: 1,
            kv_heads: 1,
            seq_q: QUERIES,
            seq_k: keys,
            head_dim_qk: HEAD_DIM,
            head_dim_v: width as u32,
        };
        let tensors = [&q[..], &k[..keys as usize * d], &v[..keys as usize * width]];
        for method in OTHER_SCORES.into_iter().chain(OTHER_SUMS) {
            let whole = split::run(lab, &method.head(Problem::new(shape), tensors))?;
            let mean = |f: &dyn Fn(usize, &split::Row) -> f64| {
                whole.rows.iter().enumerate().map(|(n, row)| f(n, row)).sum::<f64>() / rows as f64
            };
            let entropy = Some(mean(&|_, row| row.entropy)).filter(|h| h.is_finite());
            let theory = (method == Method::Softmax).then(|| needle_theory(&q, &k, keys));
            grown.push(Grown {
                method: method.name(),
                keys,
                entropy,
                effective_keys: entropy.map(f64::exp),
                needle: mean(&|n, row| row.out[n]),
                mass: mean(&|_, row| row.out[rows]),
                needle_theory: theory,
                parts: whole.parts,
            });
        }
        lab.bar.inc(1);
    }
    Ok(grown)
}

/// Weight of a needle among scores that are normal with variance `|q|² / d`: `exp` of such a score has mean `exp(variance / 2)`
/// and variance `exp(2 variance) - exp(variance)`. The error is that of one row: rows share their keys.
fn needle_theory(q: &[f32], k: &[f32], keys: u32) -> [f64; 2] {
    let d = HEAD_DIM as usize;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let random = f64::from(keys - QUERIES);
    let rows = q.chunks(d).map(|query| {
        let variance = dot(query, query) / d as f64;
        let needles: f64 = k
            .chunks(d)
            .take(QUERIES as usize)
            .map(|needle| (dot(query, needle) / (d as f64).sqrt()).exp())
            .sum();
        let sum = needles + random * (variance / 2.0).exp();
        let deviation = (random * ((2.0 * variance).exp() - variance.exp())).sqrt();
        let weight = NEEDLE.exp() / sum;
        [weight, weight * deviation / sum]
    });
    let [weight, error] = rows.fold([0.0; 2], |sum, row| [sum[0] + row[0], sum[1] + row[1]]);
    [weight, error].map(|x| x / f64::from(QUERIES))
}

impl Smoothing {
    pub(super) fn chapter(&self) -> Chapter {
        // Two plots, as this is too much for one.
        let ranks = [
            (&self.on_head[..ON_A_HEAD.len() / 2], "with other scores"),
            (&self.on_head[ON_A_HEAD.len() / 2..], "with other sums and more"),
        ]
        .map(|(methods, which)| {
            let lines = methods.iter().map(|m| {
                let points = (1..).zip(&m.last_row).map(|(rank, &p)| [f64::from(rank), p]).collect();
                Line::plain(m.method.clone(), points)
            });
            Plot::new(
                format!("Weights of the last row, the largest first, {which}"),
                Axis::log2("rank of the key"),
                Axis::log10("weight").range(1e-5, 1.0),
            )
            .lines(lines)
        });
        let on_head = self.on_head.iter().map(|m| {
            [
                m.method.clone(),
                m.formula.to_owned(),
                m.source.to_owned(),
                m.entropy.map_or_else(String::new, |h| format!("{h:.3}")),
                m.entropy.map_or_else(String::new, |h| format!("{:.1}", h.exp())),
                format!("{:.3}", m.largest),
                format!("{:.3}", m.mass),
                m.trace.map_or_else(String::new, |trace| format!("{trace:.3}")),
            ]
        });
        let curve = |name: &str, f: fn(&Grown) -> f64| -> Vec<[f64; 2]> {
            let rows = self.growth.iter().filter(|g| g.method == name);
            rows.map(|g| [f64::from(g.keys), f(g)]).collect()
        };
        let plot = |title: &str, axis: Axis, methods: &[Method], f: fn(&Grown) -> f64| {
            let lines = methods.iter().map(|method| Line::measured(method.name(), curve(&method.name(), f)));
            Plot::new(title, Axis::log2("keys n"), axis).lines(lines)
        };
        let theory =
            self.growth.iter().filter_map(|g| Some([f64::from(g.keys), g.needle_theory?[0]])).collect();
        let weight = || Axis::log10("weight").range(2e-4, 1.2);
        let keys = || Axis::log2("exp(entropy), keys");
        let effective = |g: &Grown| g.effective_keys.unwrap_or(f64::NAN);
        let mass = Axis::linear("sum of weights").range(0.0, 2.5);
        let plots = [
            plot("Weight of the key that is meant: other scores", weight(), &OTHER_SCORES, |g| g.needle)
                .line(Line::theory("softmax, in theory", theory).colour(0)),
            plot("Weight of the key that is meant: other sums", weight(), &OTHER_SUMS, |g| g.needle),
            plot("Keys that count: other scores", keys(), &OTHER_SCORES, effective),
            plot("Keys that count: other sums", keys(), &OTHER_SUMS[..4], effective),
            plot("Weight of all keys together", mass, &OTHER_SUMS, |g| g.mass),
        ];
        let most_parts = self.growth.iter().map(|g| g.parts).max().unwrap_or(1);
        let growth = self.growth.iter().map(|g| {
            let theory = g
                .needle_theory
                .map_or_else(String::new, |[x, error]| format!("{} ± {}", number(x), number(error)));
            [
                g.method.clone(),
                g.keys.to_string(),
                g.entropy.map_or_else(String::new, |h| format!("{:.3}", h.max(0.0))),
                g.effective_keys.map_or_else(String::new, number),
                number(g.needle),
                theory,
                format!("{:.3}", g.mass),
                g.parts.to_string(),
            ]
        });
        let chapter = Chapter::new("What each method does to the same scores")
            .text(format!(
                "The same scores, by turns: {}, {} queries on up to as many keys. A soft cap far above the scores, such as Gemma's 50, \
                 changes nothing; one of 2 takes the edge off the best keys. A sink takes weight from all keys alike and leaves their order and \
                 their ratios: the mass column is what is left for the keys.",
                self.head, self.keys
            ))
            .plots(ranks)
            .table(
                "Means over the rows. The entropy is that of the keys' weights, which with a sink sum to less than 1. Sigmoid weights are no \
                 distribution and sum to anything: they have neither entropy nor this Jacobian.",
                ["method", "weight of key j", "source", "entropy, nats", "keys that count", "largest", "mass", "trace of J"],
                on_head,
            )
            .text(format!(
                "<strong>As the context grows.</strong> {QUERIES} queries on n standard normal keys of head dim {HEAD_DIM}, scale 1/√d; \
                 for each query one key is meant, with a score of {NEEDLE} where the others have deviation 1. In a plain softmax the others \
                 win by their number: e<sup>s</sup> of a normal score has mean e<sup>1/2</sup>, so the weight of the key that is meant is \
                 e<sup>{NEEDLE}</sup> / (e<sup>{NEEDLE}</sup> + n e<sup>1/2</sup>) and falls like 1/n. SSMax and log-n multiply scores by something \
                 that grows like ln n, which turns the e<sup>{NEEDLE}</sup> into a power of n. A sink or an off-by-one is one more competitor \
                 and matters less and less. Sparse weights ignore all keys that are far below the best. An adaptive temperature sharpens as \
                 far as its polynomial was fitted (to 5.94 nats) and does nothing beyond."
            ))
            .plots(plots)
            .table(
                "Means over the queries. Parts: into how many batches of keys the row was cut for this device.",
                ["method", "keys", "entropy, nats", "keys that count", "the key that is meant", "in theory", "all keys", "parts"],
                growth,
            );
        if most_parts == 1 {
            return chapter;
        }
        chapter.text(format!(
            "This device's driver is one on which the planner refuses the longest rows (older releases of llvmpipe leave loops after 65535 \
             rounds). There the keys were cut into up to {most_parts} parts, each computed by the fused kernel, and their states merged in \
             float64 on the host; in those rows the length scale went into the scale and the sink was merged last."
        ))
    }
}
