//! Rows of any length on any device: the keys in parts, and the parts' states merged.
//!
//! Older releases of llvmpipe leave loops after 65535 rounds, so that the planner refuses rows of some ten thousand keys on
//! them. Here such a row's keys become several batches of one call. What the kernel says of each part is enough for the whole:
//! with `w_c = exp(lse_c - lse)` the share of part c,
//!
//! ```text
//! lse = ln Σ_c exp(lse_c)        row_max = max_c row_max_c
//! out = Σ_c w_c out_c            H = Σ_c w_c H_c - Σ_c w_c ln w_c
//! ```
//!
//! A sink is a part without keys, which is merged last. A length scale, which a part would take from its own keys, becomes the factor
//! that it comes to for the whole row. Sigmoid weights know nothing of each other:
//! there are no statistics, and the parts' sums add up. A sparse softmax has a threshold for the whole row, which is left to the softmax
//! operation, and an adaptive temperature is found in a run of its own.

use super::lab::Lab;
use crate::fail::{Fail, Result};
use wgpu_attention::softmax::{self, Kind};
use wgpu_attention::{
    AdaptiveTemperature, Error, Inputs, Kernel, LengthScale, Normalizer, Outputs, PlanOptions, Problem,
    Scale, ScoreStage, Shape, SigmoidBias, Sink, Temperature,
};

/// One batch, one head; every row sees every key.
#[derive(Debug, Clone)]
pub(super) struct Head<'a> {
    pub problem: Problem,
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// For each row.
    pub temperature: Option<&'a [f32]>,
    pub sink: Option<f32>,
    pub ssmax: Option<f32>,
}

impl<'a> Head<'a> {
    pub(super) fn new(problem: Problem, [q, k, v]: [&'a [f32]; 3]) -> Self {
        Head { problem, q, k, v, temperature: None, sink: None, ssmax: None }
    }
}

/// A head's rows over all of their keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Whole {
    pub rows: Vec<Row>,
    /// Into how many parts the keys were cut: 1 where the device takes them whole.
    pub parts: u32,
}

/// What the fused pass says of a row. Without a softmax there are no statistics: they are NaN.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Row {
    pub lse: f64,
    pub entropy: f64,
    pub row_max: f64,
    pub out: Vec<f64>,
}

/// With all statistics that the problem can have.
pub(super) fn run(lab: &Lab, head: &Head<'_>) -> Result<Whole> {
    let whole = in_parts(head, 1);
    match lab.gpu.attention.plan_with(&whole, &lab.options) {
        Ok(_) => return run_parts(lab, head, whole),
        Err(Error::LimitExceeded { .. }) => {}
        Err(e) => return Err(Fail::from(e)),
    }
    match (head.problem.normalizer, head.problem.adaptive_temperature) {
        (Normalizer::Sparsemax, _) => by_operation(lab, head, Kind::Sparsemax),
        (Normalizer::Entmax15, _) => by_operation(lab, head, Kind::Entmax15),
        (_, Some(adaptive)) => run_adaptive(lab, head, &adaptive),
        _ => {
            let problem = divided(head, |problem| lab.gpu.attention.plan_with(problem, &lab.options))?;
            run_parts(lab, head, problem)
        }
    }
}

/// In the fewest parts that the device takes.
fn divided<T>(head: &Head<'_>, plan: impl Fn(&Problem) -> wgpu_attention::Result<T>) -> Result<Problem> {
    let mut parts = 1;
    loop {
        let problem = in_parts(head, parts);
        match plan(&problem) {
            Ok(_) => return Ok(problem),
            Err(Error::LimitExceeded { .. }) if head.problem.shape.seq_k.is_multiple_of(2 * parts) => {
                parts *= 2
            }
            Err(e) => return Err(Fail::from(e)),
        }
    }
}

/// An adaptive temperature in two runs: the entropy that it is of, and the softmax at the temperatures that follow.
fn run_adaptive(lab: &Lab, head: &Head<'_>, adaptive: &AdaptiveTemperature) -> Result<Whole> {
    let mut plain = head.clone();
    plain.problem.adaptive_temperature = None;
    let factor = |h: f64| {
        let poly = adaptive.coefficients.iter().fold(0.0, |sum, &c| sum * h + f64::from(c));
        if h > adaptive.above.into() { poly.max(1.0) } else { 1.0 }
    };
    let temperatures: Vec<f32> =
        run(lab, &plain)?.rows.iter().map(|row| (1.0 / factor(row.entropy)) as f32).collect();
    plain.problem = plain.problem.temperature(Temperature::PerRow);
    run(lab, &Head { temperature: Some(&temperatures), ..plain })
}

/// A threshold is one for all keys: the scores in parts, their weights by the softmax operation, which takes rows of any length,
/// and the sum over values here.
fn by_operation(lab: &Lab, head: &Head<'_>, kind: Kind) -> Result<Whole> {
    let mut plain = head.clone();
    plain.problem.normalizer = Normalizer::Softmax;
    let naive = PlanOptions::kernel(Kernel::Naive);
    let problem = divided(&plain, |problem| lab.gpu.attention.plan_with(problem, &naive))?;
    let Shape { batch: parts, seq_q, seq_k, head_dim_v, .. } = problem.shape;
    let q = head.q.repeat(parts as usize);
    let inputs = Inputs::new(&q, head.k, head.v);
    let scores = (0..parts)
        .map(|part| lab.scores(&problem, &inputs, ScoreStage::Raw, [part, 0]))
        .collect::<Result<Vec<_>>>()?;
    let row = |row: usize| {
        let part = |scores: &Vec<f32>| scores.chunks(seq_k as usize).nth(row).unwrap_or_default().to_vec();
        scores.iter().flat_map(part).collect::<Vec<f32>>()
    };
    let rows: Vec<Vec<f32>> = (0..seq_q as usize).map(row).collect();
    let keys = head.problem.shape.seq_k;
    let operation = softmax::Problem::new(seq_q, keys).kind(kind);
    let inputs = rows.concat();
    let weights = lab.softmax.run_blocking(&lab.gpu.queue, &operation, &softmax::Inputs::new(&inputs))?.out;
    let rows = rows.iter().zip(weights.chunks(keys as usize)).map(|(scores, p)| {
        let mut out = vec![0.0; head_dim_v as usize];
        for (&p, v) in p.iter().zip(head.v.chunks(head_dim_v as usize)).filter(|(p, _)| **p > 0.0) {
            out.iter_mut().zip(v).for_each(|(sum, &v)| *sum += f64::from(p) * f64::from(v));
        }
        Row {
            lse: f64::NAN,
            entropy: p.iter().filter(|p| **p > 0.0).map(|&p| -f64::from(p) * f64::from(p).ln()).sum(),
            row_max: scores.iter().copied().fold(f32::NEG_INFINITY, f32::max).into(),
            out,
        }
    });
    Ok(Whole { rows: rows.collect(), parts })
}

/// The problem with its keys as so many batches.
fn in_parts(head: &Head<'_>, parts: u32) -> Problem {
    let mut problem = head.problem.clone();
    problem = match problem.normalizer {
        Normalizer::Softmax => problem.with_lse().with_entropy().with_row_max(),
        Normalizer::Sparsemax | Normalizer::Entmax15 => problem.with_entropy().with_row_max(),
        _ => problem,
    };
    if parts > 1 {
        let shape = problem.shape;
        if let Normalizer::Sigmoid {
            bias: bias @ (SigmoidBias::MinusLogSeqK | SigmoidBias::MinusLogVisible),
        } = &mut problem.normalizer
        {
            *bias = SigmoidBias::Value(-f64::from(shape.seq_k).ln() as f32);
        }
        let factor = factor(problem.length_scale, shape.seq_k, head.ssmax);
        problem.scale = Scale::Value((problem.scale.value(shape.head_dim_qk) * factor) as f32);
        problem.length_scale = LengthScale::None;
        problem.sink = Sink::None;
        problem.shape = Shape { batch: parts, seq_k: shape.seq_k / parts, ..shape };
    }
    problem
}

/// What a length scale comes to for a row that sees n keys.
fn factor(rule: LengthScale, n: u32, ssmax: Option<f32>) -> f64 {
    let log = f64::from(n).ln();
    match rule {
        LengthScale::Ssmax => f64::from(ssmax.unwrap_or(1.0)) * log,
        LengthScale::LogTrainLen { train_len } => (log / f64::from(train_len).ln()).max(1.0),
        // The others depend on positions, which no head of the study has.
        _ => 1.0,
    }
}

fn run_parts(lab: &Lab, head: &Head<'_>, problem: Problem) -> Result<Whole> {
    let Shape { batch: parts, seq_q, head_dim_v, .. } = problem.shape;
    let width = head_dim_v as usize;
    let q = head.q.repeat(parts as usize);
    let temperature = head.temperature.map(|t| t.repeat(parts as usize));
    let (sinks, ssmax) = (head.sink.map(|s| [s]), head.ssmax.map(|s| [s]));
    let mut inputs = Inputs::new(&q, head.k, head.v);
    inputs.tables.temperature = temperature.as_deref();
    if problem.sink == Sink::PerHead {
        inputs.tables.sinks = sinks.as_ref().map(<[f32; 1]>::as_slice);
    }
    if problem.length_scale == LengthScale::Ssmax {
        inputs.tables.ssmax = ssmax.as_ref().map(<[f32; 1]>::as_slice);
    }
    let states = lab.outputs(&problem, &inputs)?;
    let sink = match head.problem.sink {
        _ if parts == 1 => None,
        Sink::Zero => Some(0.0),
        Sink::PerHead => head.sink.map(f64::from),
        _ => None,
    };
    let rows = (0..seq_q as usize).map(|row| {
        let states = (0..parts as usize).map(|part| state(&states, width, part * seq_q as usize + row));
        if parts > 1 && head.problem.normalizer != Normalizer::Softmax {
            return states.reduce(add).unwrap_or_default();
        }
        let sink = sink.map(|lse| Row { lse, entropy: 0.0, row_max: f64::NEG_INFINITY, out: Vec::new() });
        merge(&states.collect::<Vec<_>>(), sink.as_ref())
    });
    Ok(Whole { rows: rows.collect(), parts })
}

fn state(outputs: &Outputs, width: usize, row: usize) -> Row {
    let of = |stat: &Option<Vec<f32>>| {
        stat.as_ref().and_then(|numbers| numbers.get(row)).map_or(f64::NAN, |&x| f64::from(x))
    };
    let out = outputs.out.chunks(width.max(1)).nth(row).unwrap_or_default();
    Row {
        lse: of(&outputs.lse),
        entropy: of(&outputs.entropy),
        row_max: of(&outputs.row_max),
        out: out.iter().map(|&x| f64::from(x)).collect(),
    }
}

fn add(mut sum: Row, part: Row) -> Row {
    sum.out.iter_mut().zip(part.out).for_each(|(sum, x)| *sum += x);
    sum
}

/// The state of the union. The sink has a share of the weights, and no part in the entropy of the keys.
fn merge(parts: &[Row], sink: Option<&Row>) -> Row {
    if let ([whole], None) = (parts, sink) {
        return whole.clone();
    }
    let all = || parts.iter().chain(sink);
    let largest = all().map(|part| part.lse).fold(f64::NEG_INFINITY, f64::max);
    let lse = largest + all().map(|part| (part.lse - largest).exp()).sum::<f64>().ln();
    let width = parts.first().map_or(0, |part| part.out.len());
    let mut row = Row { lse, entropy: 0.0, row_max: f64::NEG_INFINITY, out: vec![0.0; width] };
    for part in parts {
        let log_share = part.lse - lse;
        let share = log_share.exp();
        row.entropy += share * (part.entropy - log_share);
        row.row_max = row.row_max.max(part.row_max);
        row.out.iter_mut().zip(&part.out).for_each(|(sum, x)| *sum += share * x);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row of these scores, whose values are their places, with a sink.
    fn row(scores: &[f64], first: usize, sink: Option<f64>) -> Row {
        let sum = scores.iter().chain(&sink).map(|s| s.exp()).sum::<f64>();
        let p = || scores.iter().map(|s| s.exp() / sum);
        Row {
            lse: sum.ln(),
            entropy: p().map(|p| -p * p.ln()).sum(),
            row_max: scores.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            out: vec![p().zip(first..).map(|(p, v)| p * v as f64).sum()],
        }
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let scores = [1.0f64, -2.0, 0.5, 3.0, 0.0, 0.0];
        let parts = [row(&scores[..2], 0, None), row(&scores[2..3], 2, None), row(&scores[3..], 3, None)];
        for sink in [None, Some(1.5)] {
            let state =
                sink.map(|lse| Row { lse, entropy: 0.0, row_max: f64::NEG_INFINITY, out: Vec::new() });
            let (merged, whole) = (merge(&parts, state.as_ref()), row(&scores, 0, sink));
            for (a, b) in [
                (merged.lse, whole.lse),
                (merged.entropy, whole.entropy),
                (merged.row_max, whole.row_max),
                (merged.out[0], whole.out[0]),
            ] {
                assert!((a - b).abs() < 1e-12, "{merged:?} {whole:?}");
            }
        }
    }
}
