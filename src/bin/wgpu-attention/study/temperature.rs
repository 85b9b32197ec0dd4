//! Temperature from 0.01 to 100, on attention heads and next-token logits of real models; and the scale, which is the same knob.

use super::chapter::Chapter;
use super::lab::Lab;
use super::logits::{self, Logits};
use super::split::{self, Head};
use crate::captures::{CAPTURES, Capture};
use crate::fail::{Fail, Result};
use crate::plot::{Axis, Line, Plot, number};
use serde::Serialize;
use wgpu_attention::reference::{self, Bounded};
use wgpu_attention::softmax::{self, RowLayout, RowTemperature};
use wgpu_attention::{Inputs, Problem, Scale, ScoreStage, Shape, Temperature};

/// From hot to cold in equal ratios: 10^(-2 + 4 n / steps).
fn grid(quick: bool) -> Vec<f32> {
    let steps = if quick { 16 } else { 48 };
    (0..=steps).map(|n| 10f64.powf(-2.0 + 4.0 * f64::from(n) / f64::from(steps)) as f32).collect()
}

/// Temperatures that the tables show: every fourth part of the grid's way.
const SHOWN: usize = 4;
/// Captures with heads to study.
const HEADS_OF: [&Capture; 2] = [&CAPTURES[0], &CAPTURES[2]];

/// Steps of the progress bar.
pub(super) const STEPS: usize = HEADS_OF.len() + 1;

#[derive(Debug, Serialize)]
pub(super) struct Temperatures {
    model: String,
    heads: Vec<Curve>,
    logits: Vec<LogitCurve>,
}

/// One head over all temperatures: means over its rows.
#[derive(Debug, Serialize)]
struct Curve {
    name: String,
    /// The scale at temperature 1.
    scale: f64,
    /// Mean of ln(visible keys): the entropy of equal weights.
    uniform: f64,
    points: Vec<Point>,
}

#[derive(Debug, Serialize)]
struct Point {
    temperature: f64,
    entropy: f64,
    largest: f64,
    /// With the scale divided by the temperature, in place of it.
    entropy_by_scale: f64,
    /// In float64.
    truth: f64,
    /// What f32 may be off, by the library's own bound for each row: the mean over rows.
    bound: f64,
    /// `ln n - Var(s) / (2 temperature²)`, mean over rows: what the entropy tends to at high temperatures.
    high: f64,
    /// The next term of that series: `-skew(s) / (3 temperature³)`, with the third central moment.
    next: f64,
}

/// The logits after one text over all temperatures.
#[derive(Debug, Serialize)]
struct LogitCurve {
    text: String,
    tokens: usize,
    /// Into how many parts attention cut the row.
    parts: u32,
    points: Vec<LogitPoint>,
    /// The best tokens as they read.
    top: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LogitPoint {
    temperature: f64,
    entropy: f64,
    entropy_by_scale: f64,
    /// In float64, and what f32 may be off.
    truth: f64,
    bound: f64,
    /// Of `entropy_by_scale`.
    bound_by_scale: f64,
    /// Of the tokens in `top`.
    probability: Vec<f64>,
}

pub(super) fn measure(lab: &Lab) -> Result<Temperatures> {
    let temperatures = grid(lab.quick);
    let mut heads = Vec::new();
    for capture in HEADS_OF {
        heads.extend(capture_curves(lab, capture, &temperatures)?);
        lab.bar.inc(1);
    }
    let (model, rows) = logits::read()?;
    let logits = rows.iter().map(|row| logit_curve(lab, row, &temperatures)).collect::<Result<_>>()?;
    lab.bar.inc(1);
    Ok(Temperatures { model, heads, logits })
}

/// The sharpest, the middle and the flattest head of a capture.
fn capture_curves(lab: &Lab, capture: &Capture, temperatures: &[f32]) -> Result<Vec<Curve>> {
    let case = capture.case()?;
    let Some(work) = case.work() else {
        return Err(Fail::Wrong(format!("{}: needs {}", capture.title(), case.missing().join(", "))));
    };
    let inputs = work.inputs();
    let plain = work.problem().clone().with_lse().with_entropy().with_row_max();
    let s = plain.shape;
    let rows = |head: u32| {
        let first = ((capture.batch * s.q_heads + head) * s.seq_q) as usize;
        first..first + s.seq_q as usize
    };
    let mean = |numbers: &mut dyn Iterator<Item = f64>| numbers.sum::<f64>() / f64::from(s.seq_q);
    let entropy_of = |entropy: &[f32], head| mean(&mut entropy[rows(head)].iter().map(|&x| f64::from(x)));

    let plain_rows = lab.run(&plain, &inputs)?;
    let mut order: Vec<u32> = (0..s.q_heads).collect();
    order.sort_by(|&a, &b| entropy_of(&plain_rows.entropy, a).total_cmp(&entropy_of(&plain_rows.entropy, b)));
    let chosen = [
        (order.first(), "the sharpest"),
        (order.get(order.len() / 2), "in the middle"),
        (order.last(), "the flattest"),
    ];
    let scale = plain.scale.value(s.head_dim_qk);
    let mut curves = Vec::new();
    let mut spreads = Vec::new();
    for (head, rank) in chosen {
        let Some(&head) = head else { continue };
        let scores = lab.scores(&plain, &inputs, ScoreStage::Biased, [capture.batch, head])?;
        let spread: Vec<[f64; 3]> = scores.chunks(s.seq_k as usize).map(count_and_moments).collect();
        let uniform = mean(&mut spread.iter().map(|[n, ..]| n.ln()));
        let name = format!("{}, head {head} ({rank})", capture.title());
        curves.push((head, Curve { name, scale, uniform, points: Vec::new() }));
        spreads.push([1, 2].map(|n| mean(&mut spread.iter().map(|moments| moments[n]))));
    }
    for &temperature in temperatures {
        let by_temperature = plain.clone().temperature(Temperature::Value(temperature));
        let by_scale = plain.clone().scale(Scale::Value((scale / f64::from(temperature)) as f32));
        let [one, other] = [lab.run(&by_temperature, &inputs)?, lab.run(&by_scale, &inputs)?];
        let truth = reference::truth(&by_temperature, &inputs)?;
        let true_mean = |head, f: fn(&Bounded) -> f64| mean(&mut truth.entropy[rows(head)].iter().map(f));
        for ((head, curve), [variance, third]) in curves.iter_mut().zip(&spreads) {
            let largest = |row: usize| f64::from(one.row_max[row] - one.lse[row]).exp();
            let t = f64::from(temperature);
            curve.points.push(Point {
                temperature: t,
                entropy: entropy_of(&one.entropy, *head),
                largest: mean(&mut rows(*head).map(largest)),
                entropy_by_scale: entropy_of(&other.entropy, *head),
                truth: true_mean(*head, |x| x.value),
                bound: true_mean(*head, |x| x.bound),
                high: curve.uniform - variance / (2.0 * t * t),
                next: -third / (3.0 * t.powi(3)),
            });
        }
    }
    Ok(curves.into_iter().map(|(_, curve)| curve).collect())
}

/// Of the visible scores of a row: how many, and their second and third central moment.
fn count_and_moments(scores: &[f32]) -> [f64; 3] {
    let visible = || scores.iter().filter(|s| s.is_finite()).map(|&s| f64::from(s));
    let n = (visible().count() as f64).max(1.0);
    let mean = visible().sum::<f64>() / n;
    let moment = |power| visible().map(|s| (s - mean).powi(power)).sum::<f64>() / n;
    [n, moment(2), moment(3)]
}

/// A row of logits at all temperatures: by the softmax operation, which divides by them, and by attention to one-number keys, in which q
/// is the other name of the knob.
fn logit_curve(lab: &Lab, logits: &Logits, temperatures: &[f32]) -> Result<LogitCurve> {
    const TOP: usize = 4;
    // A softmax does not change when all logits move alike, and less the largest they leave f32 the most digits.
    let largest = logits.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let x: Vec<f32> = logits.values.iter().map(|x| x - largest).collect();
    let (rows, len) = (temperatures.len() as u32, x.len() as u32);
    // Every row reads the same logits.
    let again = RowLayout { offset: 0, outer: 0, inner: 0, step: 1 };
    let problem = softmax::Problem::new(rows, len);
    let packed = problem.out_layout;
    let problem = problem.layouts(again, packed).temperature(RowTemperature::PerRow).with_entropy();
    let inputs = softmax::Inputs::new(&x).temperature(temperatures);
    let result = lab.softmax.run_blocking(&lab.gpu.queue, &problem, &inputs)?;
    let truth = softmax::truth(&problem, &inputs)?.entropy;

    let factors: Vec<f32> = temperatures.iter().map(|t| 1.0 / t).collect();
    let shape = Shape { seq_q: rows, seq_k: len, ..Shape::self_attention(1, 1, 1, 1) };
    let one_number = Head::new(Problem::new(shape).scale(Scale::Value(1.0)), [&factors, &x, &x]);
    let by_scale = split::run(lab, &one_number)?;
    // Kernels of attention add in another order than the operation, and have a bound of their own.
    let attention = reference::truth(&one_number.problem, &Inputs::new(&factors, &x, &x))?.entropy;
    let truth = truth.into_iter().zip(attention);

    let entropies = result.entropy.iter().flatten().zip(&by_scale.rows).zip(truth);
    let rows = temperatures.iter().zip(entropies).zip(result.out.chunks(x.len()));
    let points = rows.map(|((&temperature, ((&entropy, by_scale), (truth, attention))), p)| LogitPoint {
        temperature: temperature.into(),
        entropy: entropy.into(),
        entropy_by_scale: by_scale.entropy,
        truth: truth.value,
        bound: truth.bound,
        bound_by_scale: attention.bound,
        probability: logits.top.iter().take(TOP).map(|&(n, _)| p[n].into()).collect(),
    });
    Ok(LogitCurve {
        text: logits.text.clone(),
        tokens: x.len(),
        parts: by_scale.parts,
        points: points.collect(),
        top: logits.top.iter().take(TOP).map(|(_, token)| token.clone()).collect(),
    })
}

impl Temperatures {
    pub(super) fn chapter(&self) -> Chapter {
        let temperature = || Axis::log10("temperature");
        let curves = |f: fn(&Curve, &Point) -> [f64; 2]| {
            let line = move |curve: &Curve| {
                Line::plain(curve.name.clone(), curve.points.iter().map(|p| f(curve, p)).collect())
            };
            self.heads.iter().map(line).collect::<Vec<_>>()
        };
        let heads = [
            Plot::new(
                "Entropy of real heads over temperature",
                temperature(),
                Axis::linear("mean entropy, nats"),
            )
            .lines(curves(|_, p| [p.temperature, p.entropy])),
            Plot::new(
                "The same knob: entropy over scale",
                Axis::log10("scale · √d"),
                Axis::linear("mean entropy, nats"),
            )
            .lines(curves(|_, p| [1.0 / p.temperature, p.entropy_by_scale])),
            Plot::new(
                "Largest weight",
                temperature(),
                Axis::linear("mean of the largest weight").range(0.0, 1.0),
            )
            .lines(curves(|_, p| [p.temperature, p.largest])),
        ];
        let logit_lines = |f: fn(&LogitPoint) -> f64| {
            let points = move |c: &LogitCurve| c.points.iter().map(|p| [p.temperature, f(p)]).collect();
            self.logits.iter().map(move |c| Line::plain(format!("“{} …”", c.text), points(c)))
        };
        let most = self.logits.first().map_or(0.0, |c| (c.tokens as f64).ln());
        let entropy = Plot::new(
            "Entropy of next-token logits",
            temperature(),
            Axis::linear("entropy, nats").range(0.0, 1.05 * most),
        )
        .lines(logit_lines(|p| p.entropy))
        .line(Line::theory("ln of the vocabulary", vec![[0.01, most], [100.0, most]]).colour(7));
        let tokens = self.logits.iter().map(|c| {
            let lines = c.top.iter().enumerate().map(|(n, token)| {
                Line::plain(
                    format!("“{token}”"),
                    c.points.iter().map(|p| [p.temperature, p.probability[n]]).collect(),
                )
            });
            Plot::new(
                format!("What comes after “{}”", c.text),
                temperature(),
                Axis::linear("probability").range(0.0, 1.0),
            )
            .lines(lines)
        });
        Chapter::new("Temperature, and why it is the scale")
            .text(
                "Dividing scores by a temperature and multiplying them by a scale is one operation. At low temperatures a row keeps its \
                 best key alone (entropy 0, or the log of the number of ties); at high ones it tends to the mean over the keys that it \
                 sees (entropy ln n). In between the entropy never falls as the temperature rises.",
            )
            .formula(FORMULAS)
            .plots(heads)
            .table(
                "Means over the rows of a head. By scale: with scale / temperature in place of scale and temperature. The bound is what \
                 the library says f32 may be off, mean over rows. At high temperatures: ln n − Var(s) / (2 temperature²), which says \
                 something from 10 on.",
                [
                    "head",
                    "temperature",
                    "entropy, nats",
                    "by scale",
                    "float64",
                    "bound",
                    "at high temperatures",
                    "largest weight",
                ],
                self.heads.iter().flat_map(head_rows),
            )
            .text(format!(
                "The scales and the temperatures of all {} points came to the same entropy within {}: one knob, two names.",
                self.heads.iter().map(|c| c.points.len()).sum::<usize>(),
                number(self.largest_difference())
            ))
            .text(format!(
                "The temperature that most people meet is the one of sampling. These are all {} logits of {} for what comes next.",
                self.logits.first().map_or(0, |c| c.tokens),
                crate::heatmap::escape(&self.model)
            ))
            .plots(std::iter::once(entropy).chain(tokens))
            .table(
                format!(
                    "By temperature: the softmax operation, which divides by it. By scale: attention to {} keys of one number, with 1 / \
                     temperature as q (the keys in {} parts).",
                    self.logits.first().map_or(0, |c| c.tokens),
                    self.logits.first().map_or(1, |c| c.parts)
                ),
                ["text", "temperature", "entropy, nats", "by scale", "float64", "best token", "its probability"],
                self.logits.iter().flat_map(logit_rows),
            )
    }

    fn largest_difference(&self) -> f64 {
        let points = self.heads.iter().flat_map(|c| &c.points);
        points.map(|p| (p.entropy - p.entropy_by_scale).abs()).fold(0.0, f64::max)
    }
}

/// Every so many of a grid.
fn shown<T>(points: &[T]) -> impl Iterator<Item = &T> {
    points.iter().step_by((points.len() / SHOWN).max(1))
}

fn head_rows(curve: &Curve) -> impl Iterator<Item = [String; 8]> {
    shown(&curve.points).map(|p| {
        [
            curve.name.clone(),
            number(p.temperature),
            format!("{:.5}", p.entropy),
            format!("{:.5}", p.entropy_by_scale),
            format!("{:.5}", p.truth),
            number(p.bound),
            if p.temperature >= 9.9 { format!("{:.5}", p.high) } else { String::new() },
            format!("{:.4}", p.largest),
        ]
    })
}

fn logit_rows(curve: &LogitCurve) -> impl Iterator<Item = [String; 7]> {
    shown(&curve.points).map(|p| {
        [
            format!("{} …", curve.text),
            number(p.temperature),
            format!("{:.5}", p.entropy),
            format!("{:.5}", p.entropy_by_scale),
            format!("{:.5}", p.truth),
            curve.top.first().cloned().unwrap_or_default().trim().to_owned(),
            format!("{:.4}", p.probability.first().copied().unwrap_or_default()),
        ]
    })
}

const FORMULAS: &str = "\
softmax(scale · q·k / temperature) = softmax(beta · q·k),   beta = scale / temperature
d H / d temperature = Var_p(s) / temperature                at least 0; s = beta · q·k, the variance under the weights p
temperature → 0:  H → ln(ties),  max p → 1 / ties
temperature → ∞:  H → ln n − Var(s₁) / (2 temperature²)     s₁: scores at temperature 1, the variance over the n keys";
