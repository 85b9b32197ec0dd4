//! The gradient with respect to the temperature, and a temperature that is learned.

use super::chapter::Chapter;
use super::cumulants::{Scores, third_derivative};
use super::lab::Lab;
use super::logits;
use crate::captures::CAPTURES;
use crate::fail::{Fail, Result};
use crate::plot::{Axis, Line, Plot, number};
use serde::Serialize;
use wgpu_attention::case::Case;
use wgpu_attention::softmax::{self, RowTemperature};
use wgpu_attention::{Inputs, Problem, ScoreStage, Temperature, reference};

/// Temperatures at which the gradient is checked.
const AT: [f32; 7] = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0];
/// Half the distance of a finite difference, in ln temperature.
const H: f64 = 1.0 / 16.0;
/// Mean entropies that the heads are to learn, in keys that count.
const TARGETS: [f64; 2] = [4.0, 16.0];
const NEWTON_STEPS: usize = 8;
const DESCENT_STEPS: usize = 40;
/// Of gradient descent.
const RATE: f64 = 0.15;

/// Steps of the progress bar.
pub(super) const STEPS: usize = 1 + 2 * TARGETS.len();

#[derive(Debug, Serialize)]
pub(super) struct Gradient {
    capture: String,
    head: u32,
    half_step: f64,
    checks: Vec<Check>,
    /// Text whose next token the backward pass is about, and the best such token.
    text: [String; 2],
    backward: Vec<Backward>,
    fits: Vec<Fit>,
}

/// Derivatives with respect to ln(temperature) at one temperature, means over the rows of a head.
#[derive(Debug, Serialize)]
struct Check {
    temperature: f64,
    /// `Var_p(s)`, from the scores.
    entropy: f64,
    /// Central difference of the entropies of two fused passes.
    entropy_difference: f64,
    /// What the two may differ by: f32 in the two passes, and the difference's own error `h² / 6 · |H‴|`, both bounded.
    allowed: f64,
    /// `-E_p(s) = entropy - lse`, both from the fused pass.
    lse: f64,
    lse_difference: f64,
}

/// Derivative of the best token's probability with respect to ln(temperature).
#[derive(Debug, Serialize)]
struct Backward {
    temperature: f64,
    probability: f64,
    /// `p E(s)`, from the statistics of the forward pass: the token's own score is 0, that of the largest logit.
    formula: f64,
    /// By the backward pass of the softmax operation.
    kernel: f64,
    /// Central difference of two forward passes.
    difference: f64,
    /// Of the backward pass in float64, and what f32 may be off.
    truth: f64,
    bound: f64,
}

/// Temperatures of all heads, learned until each head has the entropy that is asked for.
#[derive(Debug, Serialize)]
struct Fit {
    method: &'static str,
    /// In nats.
    target: f64,
    heads: Vec<Learned>,
    /// Shaders compiled during the fit: none, if temperatures are data.
    compiled: usize,
}

#[derive(Debug, Serialize)]
struct Learned {
    head: u32,
    /// Before the first step and after each.
    temperature: Vec<f64>,
    entropy: Vec<f64>,
    /// At the last temperature, in float64, and what f32 may be off.
    truth: f64,
    bound: f64,
}

/// A capture with its heads' scores at temperature 1.
struct Heads<'a> {
    problem: Problem,
    inputs: Inputs<'a>,
    scores: Vec<Scores>,
}

pub(super) fn measure(lab: &Lab) -> Result<Gradient> {
    /// The flattest of the capture.
    const HEAD: u32 = 1;
    let capture = &CAPTURES[0];
    let case = capture.case()?;
    let heads = Heads::new(lab, &case)?;
    let checks = AT.iter().map(|&t| heads.check(lab, HEAD, t.into())).collect::<Result<_>>()?;
    let (text, backward) = backward(lab)?;
    lab.bar.inc(1);
    let mut fits = Vec::new();
    for keys in TARGETS {
        fits.push(heads.fit(lab, "Newton", keys.ln(), NEWTON_STEPS, newton)?);
        lab.bar.inc(1);
        fits.push(heads.fit(lab, "gradient descent", keys.ln(), DESCENT_STEPS, descent)?);
        lab.bar.inc(1);
    }
    Ok(Gradient { capture: capture.title(), head: HEAD, half_step: H, checks, text, backward, fits })
}

/// The best next token of a text, at all temperatures.
fn backward(lab: &Lab) -> Result<([String; 2], Vec<Backward>)> {
    let (_, texts) = logits::read()?;
    let Some(logits) = texts.into_iter().next() else {
        return Err(Fail::Wrong("there are no logits".into()));
    };
    let largest = logits.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let x: Vec<f32> = logits.values.iter().map(|x| x - largest).collect();
    let Some((best, token)) = logits.top.first() else {
        return Err(Fail::Wrong(format!("no token of {:?} has a name", logits.text)));
    };
    let mut d_out = vec![0.0; x.len()];
    d_out[*best] = 1.0;
    let queue = &lab.gpu.queue;
    let rows = AT.iter().map(|&temperature| {
        let forward = |temperature: f32| -> Result<_> {
            let problem = softmax::Problem::new(1, x.len() as u32).with_lse().with_entropy();
            let problem = problem.temperature(RowTemperature::Value(temperature));
            let result = lab.softmax.run_blocking(queue, &problem, &softmax::Inputs::new(&x))?;
            Ok((problem, result))
        };
        let (problem, here) = forward(temperature)?;
        let probability = |x: f64| -> Result<f64> { Ok(forward(x as f32)?.1.out[*best].into()) };
        let t = f64::from(temperature);
        let [below, above] = [probability(t * (-H).exp())?, probability(t * H.exp())?];
        let gradients =
            lab.softmax.run_backward_blocking(queue, &problem, [&here.out, &d_out], None, true)?;
        let [_, truth] = softmax::gradient_truth(&problem, [&here.out, &d_out], None)?;
        let first =
            |numbers: Option<Vec<f32>>| numbers.and_then(|n| n.first().copied()).map_or(f64::NAN, f64::from);
        let p = f64::from(here.out[*best]);
        let truth = truth.first().copied().unwrap_or_default();
        Ok(Backward {
            temperature: t,
            probability: p,
            formula: p * (first(here.lse) - first(here.entropy)),
            kernel: t * first(gradients.d_temperature),
            difference: (above - below) / (2.0 * H),
            truth: t * truth.value,
            bound: t * truth.bound,
        })
    });
    Ok(([logits.text.clone(), token.clone()], rows.collect::<Result<_>>()?))
}

/// What to add to ln(temperature), from `entropy - target` and the entropy's slope.
type Step = fn(f64, f64) -> f64;

/// The root of entropy = target, by the tangent. At most a factor of e at a time.
fn newton(excess: f64, slope: f64) -> f64 {
    (-excess / slope.max(1e-6)).clamp(-1.0, 1.0)
}

/// Down the gradient of (entropy - target)² / 2.
fn descent(excess: f64, slope: f64) -> f64 {
    -RATE * excess * slope
}

impl<'a> Heads<'a> {
    fn new(lab: &Lab, case: &'a Case) -> Result<Self> {
        let Some(work) = case.work() else {
            return Err(Fail::Wrong(format!("{}: needs {}", case.name(), case.missing().join(", "))));
        };
        let problem = work.problem().clone().with_lse().with_entropy();
        let inputs = work.inputs();
        let scores = |head| {
            let matrix = lab.scores(&problem, &inputs, ScoreStage::Biased, [0, head])?;
            Ok(Scores::new(&matrix, problem.shape.seq_k as usize))
        };
        let scores = (0..problem.shape.q_heads).map(scores).collect::<Result<_>>()?;
        Ok(Heads { problem, inputs, scores })
    }

    fn mean(&self, rows: &[f32], head: u32) -> f64 {
        let n = self.problem.shape.seq_q as usize;
        rows.iter().skip(head as usize * n).take(n).map(|&x| f64::from(x)).sum::<f64>() / n as f64
    }

    fn check(&self, lab: &Lab, head: u32, temperature: f64) -> Result<Check> {
        let scores = &self.scores[head as usize];
        let at = |x: f64| -> Result<[f64; 3]> {
            let problem = self.problem.clone().temperature(Temperature::Value(x as f32));
            let rows = lab.run(&problem, &self.inputs)?;
            let bounds = reference::truth(&problem, &self.inputs)?.entropy;
            let n = self.problem.shape.seq_q as usize;
            let bound =
                bounds.iter().skip(head as usize * n).take(n).map(|b| b.bound).sum::<f64>() / n as f64;
            Ok([self.mean(&rows.lse, head), self.mean(&rows.entropy, head), bound])
        };
        let places = [-H, 0.0, H].map(|h| temperature * h.exp());
        let [below, here, above] = [at(places[0])?, at(places[1])?, at(places[2])?];
        let difference = |n: usize| (above[n] - below[n]) / (2.0 * H);
        // The third derivative at three places of the interval, with half as much again for what lies between.
        let third = |t: f64| scores.mean(t, |k| third_derivative(k).abs());
        let third = 1.5 * places.map(third).into_iter().fold(0.0, f64::max);
        Ok(Check {
            temperature,
            entropy: scores.mean(temperature, |k| k[1]),
            entropy_difference: difference(1),
            allowed: (below[2] + above[2]) / (2.0 * H) + H * H / 6.0 * third,
            lse: here[1] - here[0],
            lse_difference: difference(0),
        })
    }

    /// All heads at once, each with a temperature of its own in the table of temperatures.
    fn fit(&self, lab: &Lab, method: &'static str, target: f64, steps: usize, step: Step) -> Result<Fit> {
        let problem = self.problem.clone().temperature(Temperature::PerHead);
        let heads = 0..self.problem.shape.q_heads;
        let start =
            |head| Learned { head, temperature: vec![1.0], entropy: Vec::new(), truth: 0.0, bound: 0.0 };
        let mut learned: Vec<Learned> = heads.map(start).collect();
        let mut before = lab.gpu.attention.compiled();
        for n in 0..=steps {
            let temperatures: Vec<f32> =
                learned.iter().map(|l| l.temperature.last().copied().unwrap_or(1.0) as f32).collect();
            let inputs = self.inputs.temperature(&temperatures);
            let rows = lab.run(&problem, &inputs)?;
            if n == 0 {
                // The variant with a table of temperatures may be new; after that none is.
                before = lab.gpu.attention.compiled();
            }
            let truth = if n == steps { reference::truth(&problem, &inputs)?.entropy } else { Vec::new() };
            for (l, &t) in learned.iter_mut().zip(&temperatures) {
                let entropy = self.mean(&rows.entropy, l.head);
                l.entropy.push(entropy);
                if n < steps {
                    let slope = self.scores[l.head as usize].mean(t.into(), |k| k[1]);
                    l.temperature.push((f64::from(t).ln() + step(entropy - target, slope)).exp());
                } else {
                    let rows = self.problem.shape.seq_q as usize;
                    let own = || truth.iter().skip(l.head as usize * rows).take(rows);
                    l.truth = own().map(|x| x.value).sum::<f64>() / rows as f64;
                    l.bound = own().map(|x| x.bound).sum::<f64>() / rows as f64;
                }
            }
        }
        Ok(Fit { method, target, heads: learned, compiled: lab.gpu.attention.compiled() - before })
    }
}

impl Gradient {
    pub(super) fn chapter(&self) -> Chapter {
        let temperature = || Axis::log10("temperature");
        let points =
            |f: fn(&Check) -> f64| self.checks.iter().map(|c| [c.temperature, f(c)]).collect::<Vec<_>>();
        let slopes = Plot::new(
            format!("How the entropy of head {} answers to its temperature", self.head),
            temperature(),
            Axis::linear("dH / d ln temperature, nats"),
        )
        .line(Line::theory("variance of the scores", points(|c| c.entropy)))
        .line(Line::dots("difference of two runs", points(|c| c.entropy_difference)));
        let checks = self.checks.iter().map(|c| {
            [
                number(c.temperature),
                format!("{:.5}", c.entropy),
                format!("{:.5}", c.entropy_difference),
                number((c.entropy - c.entropy_difference).abs()),
                number(c.allowed),
                format!("{:.5}", c.lse),
                format!("{:.5}", c.lse_difference),
            ]
        });
        let points =
            |f: fn(&Backward) -> f64| self.backward.iter().map(|c| [c.temperature, f(c)]).collect::<Vec<_>>();
        let backward_plot = Plot::new(
            "How the best token answers to its temperature",
            temperature(),
            Axis::linear("dp / d ln temperature"),
        )
        .line(Line::theory("p E", points(|c| c.formula)))
        .line(Line::dots("backward pass", points(|c| c.kernel)));
        let backward = self.backward.iter().map(|c| {
            [
                number(c.temperature),
                format!("{:.6}", c.probability),
                format!("{:.6}", c.formula),
                format!("{:.6}", c.kernel),
                format!("{:.6}", c.truth),
                number(c.bound),
                format!("{:.6}", c.difference),
            ]
        });
        let curves = |f: fn(&Learned) -> &[f64], head: usize| {
            let line = move |(colour, fit): (usize, &Fit)| {
                let numbers = fit.heads.get(head).map(f).unwrap_or_default();
                let points = (0..).zip(numbers).map(|(n, &x)| [f64::from(n), x]).collect();
                let name = format!("{}, target {:.2} nats", fit.method, fit.target);
                if fit.method == "Newton" { Line::measured(name, points) } else { Line::plain(name, points) }
                    .colour(colour)
            };
            self.fits.iter().enumerate().map(line).collect::<Vec<_>>()
        };
        let head = self.head as usize;
        let fit_plots = [
            Plot::new(
                format!("Learning the temperature of head {head}: entropy"),
                Axis::linear("step"),
                Axis::linear("mean entropy, nats"),
            )
            .lines(curves(|l| &l.entropy, head)),
            Plot::new(
                format!("Learning the temperature of head {head}: temperature"),
                Axis::linear("step"),
                Axis::log10("temperature"),
            )
            .lines(curves(|l| &l.temperature, head)),
        ];
        let fits = self.fits.iter().flat_map(|fit| {
            fit.heads.iter().map(|l| {
                let (first, last) = (l.entropy.first(), l.entropy.last());
                let show = |x: Option<&f64>| x.map_or_else(String::new, |x| format!("{x:.5}"));
                [
                    format!("{}, head {}", fit.method, l.head),
                    (l.entropy.len().saturating_sub(1)).to_string(),
                    show(first),
                    format!("{:.5}", fit.target),
                    show(last),
                    format!("{:.5}", l.truth),
                    format!("{:.4}", l.temperature.last().copied().unwrap_or(f64::NAN)),
                ]
            })
        });
        Chapter::new("The gradient of the temperature, and learning it")
            .text(format!(
                "What a temperature does to a row follows from the row's own scores. {}, head {}; means over its rows; derivatives with \
                 respect to the logarithm of the temperature, so that all temperatures compare.",
                crate::heatmap::escape(&self.capture),
                self.head
            ))
            .formula(FORMULAS)
            .plots([slopes])
            .table(
                format!(
                    "Left: the formula on the scores. Right of it: the central difference of two runs of the fused kernel, {} apart in ln \
                     temperature. Allowed: what f32 may be off in both, by the library's bound, and h²/6 times the largest third \
                     derivative.",
                    number(2.0 * self.half_step)
                ),
                [
                    "temperature",
                    "dH: Var(s)",
                    "difference",
                    "they differ by",
                    "allowed",
                    "dlse: H − lse",
                    "difference",
                ],
                checks,
            )
            .text(format!(
                "The softmax operation has a backward pass of its own, which gives the gradient of the temperature too. Here it is that of \
                 the probability of “{}” after “{}”, among all tokens.",
                crate::heatmap::escape(self.text[1].trim()),
                crate::heatmap::escape(&self.text[0])
            ))
            .plots([backward_plot])
            .table(
                "All with respect to ln(temperature). Formula: p E, as the token's own score is the largest, 0. Kernel: the backward \
                 pass, beside float64 and the bound of f32. Difference: of two forward passes.",
                ["temperature", "probability", "formula", "kernel", "float64", "bound", "difference"],
                backward,
            )
            .text(
                "<strong>Learning it.</strong> Each head gets a temperature of its own (<code>Temperature::PerHead</code>), which is moved \
                 until the head's mean entropy is that of 4 or of 16 equal weights. Each step is one fused pass for all heads; the slope \
                 is the variance of the scores. Temperatures are data: after the first pass nothing is compiled any more.",
            )
            .plots(fit_plots)
            .table(
                "Where each head began and where it came to. float64: the entropy at the learned temperature, computed on the CPU.",
                ["fit", "steps", "entropy at 1", "target", "entropy learned", "float64", "temperature"],
                fits,
            )
    }
}

const FORMULAS: &str = "\
E = Σ p_j s_j = lse − H                       mean score under the weights, from two statistics of the fused pass
d lse / d ln temperature = −E
d H / d ln temperature = Σ p_j (s_j − E)²     the variance of the scores under the weights, never negative
d p_j / d ln temperature = −p_j (s_j − E)
Newton:            ln temperature −= (H − target) / Var(s)
gradient descent:  ln temperature −= 0.15 (H − target) Var(s)";
