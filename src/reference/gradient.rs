//! Gradients in float64, by their formulas, sharing nothing with the shaders.
//!
//! With `p = exp(s - lse)`, `dp = dout . v` and `D = sum p dp - dlse` (which is `dout . out - dlse`), `ds = p (dp - D)` is the gradient of a score as the softmax sees it, and
//! `dz = ds (1 - tanh^2)` that of one before the soft cap. All else are sums of these: see docs/backward.md.
//!
//! # Error bounds
//!
//! lse is taken to be within the bounds of [`reference::truth`](crate::reference::truth), as that of a forward pass is. With
//! `eps = 2^-24`, `g(n)` as there and `x = |s - lse| log2(e)`,
//!
//! ```text
//! p    relative   e = error of s + error of lse + 3 eps (|s| + |lse|) + 2 eps (3 + 2 x) + 3 eps x
//! dp   absolute   eps g(Dv + 8) sum |dout v|;  D as a sum of products of both
//! ds   absolute   |ds| (e^e - 1) + p (errors of dp and D) + 4 eps |ds|
//! dz   as ds, and relative  2 (error of z) / cap + 2 eps (3 + 6 |z / cap|) + 8 eps  of 1 - tanh^2
//! ```
//!
//! and a sum of n terms is off by the errors of its terms and `eps g(n + 8)` of their magnitudes. The gradient of the temperature is
//! `-q.dq / temperature`, and what the errors of dz do to it is `sum_j (error of dz_j) |z_j|`, whichever numbers q and k are made of.

use super::score::dense_index;
use super::{Bounded, Comparison, Cpu, EPS, Mods, compare, growth, truth as forward_truth};
use crate::backward::{Gradients, Inputs, Problem};
use crate::dtype::DType;
use crate::error::Result;
use crate::scores::ScoreStage;
use crate::sharpness::Temperature;
use crate::tensor::Tensor;

/// Numbers below f32's normal range may be flushed to 0.
const TINY: f64 = 1e-34;

/// The right gradients, each with a bound on the error of an f32 kernel.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Truth {
    /// Of q, in the layout of dq; places that it leaves out are 0.
    pub dq: Vec<Bounded>,
    /// Of k.
    pub dk: Vec<Bounded>,
    /// Of v.
    pub dv: Vec<Bounded>,
    /// Of the bias; empty where it is not asked for.
    pub dbias: Vec<Bounded>,
    /// Of the sinks; empty where they are not asked for.
    pub dsinks: Vec<Bounded>,
    /// Of the temperature; empty where it is not asked for.
    pub dtemperature: Vec<Bounded>,
}

impl Truth {
    /// Compares all gradients that are there. (With strided layouts compare element by element: the places between are the caller's.)
    pub fn compare(&self, got: &Gradients) -> Comparison {
        [
            ("dq", Some(&got.dq), &self.dq),
            ("dk", Some(&got.dk), &self.dk),
            ("dv", Some(&got.dv), &self.dv),
            ("dbias", got.dbias.as_ref(), &self.dbias),
            ("dsinks", got.dsinks.as_ref(), &self.dsinks),
            ("dtemperature", got.dtemperature.as_ref(), &self.dtemperature),
        ]
        .into_iter()
        .filter_map(|(field, got, truth)| Some(compare(got?, truth).of(field)))
        .fold(Comparison::default(), Comparison::merge)
    }
}

/// A sum, the errors of its terms (and their squares) and the terms' magnitudes.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    value: f64,
    error: f64,
    squares: f64,
    size: f64,
}

impl Sum {
    fn add(&mut self, term: f64, error: f64) {
        self.value += term;
        self.error += error;
        self.squares += error * error;
        self.size += term.abs();
    }

    /// Of so many terms.
    fn finish(self, n: f64) -> Bounded {
        Bounded { value: self.value, bound: self.error + EPS * growth(n + 8.0) * self.size + TINY }
    }

    /// Of so many terms whose errors come from different rows, and add up as those of additions do: to 6 times the root of
    /// their squares. (An error that all rows share, as of an exp2 that is always a little low, is relative to the sum.)
    fn finish_rows(self, n: f64) -> Bounded {
        Sum { error: self.error.min(6.0 * self.squares.sqrt() + 16.0 * EPS * self.value.abs()), ..self }
            .finish(n)
    }
}

/// A number of float64 and how far f32 may be off.
#[derive(Debug, Clone, Copy, Default)]
struct Off {
    value: f64,
    error: f64,
}

/// A pair that a row sees.
struct Pair {
    j: u32,
    p: Off,
    ds: Off,
    dz: Off,
    /// The score before the soft cap.
    z: f64,
}

/// Computes the gradients of a problem in float64. `lse` of the inputs does not matter: it is computed here.
///
/// # Errors
/// What [`Inputs::check`] finds.
pub fn truth(problem: &Problem, inputs: &Inputs<'_>) -> Result<Truth> {
    inputs.check(problem)?;
    let cpu = Cpu::new(&problem.forward, &inputs.forward, &Mods::default())?;
    let mut gradient = Gradient::new(problem, inputs, cpu)?;
    let s = problem.forward.shape;
    for b in 0..s.batch {
        for h in 0..s.q_heads {
            for i in 0..s.seq_q {
                gradient.row([b, h, i])?;
            }
        }
    }
    Ok(gradient.finish())
}

struct Gradient<'a> {
    problem: &'a Problem,
    inputs: &'a Inputs<'a>,
    cpu: Cpu<'a>,
    forward: super::Truth,
    truth: Truth,
    dk: Vec<Sum>,
    dv: Vec<Sum>,
    dbias: Vec<Sum>,
    dsinks: Vec<Sum>,
    dtemperature: Vec<Sum>,
}

impl<'a> Gradient<'a> {
    fn new(problem: &'a Problem, inputs: &'a Inputs<'a>, cpu: Cpu<'a>) -> Result<Self> {
        let forward = forward_truth(&problem.forward, &inputs.forward)?;
        let extent = |which| problem.view(which).map(|view| view.extent() as usize);
        let heads = problem.forward.shape.q_heads as usize;
        let asked = |on: bool, n: usize| vec![Sum::default(); if on { n } else { 0 }];
        Ok(Gradient {
            problem,
            inputs,
            cpu,
            forward,
            truth: Truth { dq: vec![Bounded::default(); extent(0)?], ..Truth::default() },
            dk: vec![Sum::default(); extent(1)?],
            dv: vec![Sum::default(); extent(2)?],
            dbias: asked(problem.dbias, problem.bias_elements() as usize),
            dsinks: asked(problem.dsinks, heads),
            dtemperature: asked(problem.dtemperature, problem.temperatures() as usize),
        })
    }

    fn finish(mut self) -> Truth {
        let s = &self.problem.forward.shape;
        let of_key = f64::from(s.seq_q) * f64::from(s.group());
        let all = f64::from(s.batch) * f64::from(s.q_heads) * f64::from(s.seq_q);
        let finish = |sums: Vec<Sum>, n: f64| sums.into_iter().map(|sum| sum.finish(n)).collect();
        self.truth.dk = finish(self.dk, of_key);
        self.truth.dv = finish(self.dv, of_key);
        let finish_rows = |sums: Vec<Sum>| sums.into_iter().map(|sum| sum.finish_rows(all)).collect();
        self.truth.dbias = finish_rows(self.dbias);
        self.truth.dsinks = finish_rows(self.dsinks);
        self.truth.dtemperature = finish_rows(self.dtemperature);
        self.truth
    }

    /// A number of a stored input.
    fn input(&self, tensor: Tensor, at: [u32; 4]) -> Result<f64> {
        let forward = &self.inputs.forward;
        let data = match tensor {
            Tensor::Q => forward.q,
            Tensor::K => forward.k,
            Tensor::V => forward.v,
            _ => self.inputs.dout,
        };
        let dtype =
            if tensor == Tensor::Out { DType::F32 } else { self.problem.forward.dtypes[tensor as usize] };
        let index = self.problem.forward.view(tensor)?.index(at) as usize;
        Ok(f64::from(dtype.round(data[index])))
    }

    fn row(&mut self, row: [u32; 3]) -> Result<()> {
        let [b, h, i] = row;
        let s = self.problem.forward.shape;
        let number = ((b * s.q_heads + h) as usize) * s.seq_q as usize + i as usize;
        let lse = self.forward.lse[number];
        if lse.value == f64::NEG_INFINITY {
            return Ok(());
        }
        let (pairs, d) = self.pairs(row, number, lse)?;
        let factor = self.cpu.row_factor(row);
        let factor = Off { value: factor.value, error: factor.bound + 4.0 * EPS * factor.value.abs() };
        let kv = h / s.group();

        let (dk_view, dv_view) = (self.problem.view(1)?, self.problem.view(2)?);
        for pair in &pairs {
            let weight = times(pair.dz, factor);
            for n in 0..s.head_dim_qk {
                let q = self.input(Tensor::Q, [b, h, i, n])?;
                self.dk[dk_view.index([b, kv, pair.j, n]) as usize]
                    .add(weight.value * q, weight.error * q.abs());
            }
            for n in 0..s.head_dim_v {
                let dout = self.input(Tensor::Out, [b, h, i, n])?;
                self.dv[dv_view.index([b, kv, pair.j, n]) as usize]
                    .add(pair.p.value * dout, pair.p.error * dout.abs());
            }
            if let (true, Some((_, sizes))) = (self.problem.dbias, self.problem.forward.bias) {
                self.dbias[dense_index(sizes.strides(), [b, h, i, pair.j])].add(pair.ds.value, pair.ds.error);
            }
        }

        // q.dq, whose gradient by the temperature is -1/temperature of it.
        let of_pairs = pairs.iter().map(|pair| pair.dz.error * pair.z.abs()).sum();
        let mut product = Sum { error: of_pairs, ..Sum::default() };
        let dq_view = self.problem.view(0)?;
        for n in 0..s.head_dim_qk {
            let mut sum = Sum::default();
            for pair in &pairs {
                let k = self.input(Tensor::K, [b, kv, pair.j, n])?;
                sum.add(pair.dz.value * k, pair.dz.error * k.abs());
            }
            let Bounded { value, bound } = sum.finish(pairs.len() as f64);
            let dq = times(Off { value, error: bound }, factor);
            // Of the sum itself; the errors of its terms are in the product already.
            let own = times(Off { value, error: bound - sum.error }, factor);
            self.truth.dq[dq_view.index([b, h, i, n]) as usize] =
                Bounded { value: dq.value, bound: dq.error + TINY };
            let q = self.input(Tensor::Q, [b, h, i, n])?;
            product.add(q * dq.value, q.abs() * (own.error + TINY));
        }
        if self.problem.dtemperature {
            let table = self.inputs.forward.tables.temperature.unwrap_or_default();
            let (place, tau) = match self.problem.forward.temperature {
                Temperature::Value(tau) => (0, tau),
                Temperature::PerHead => (h as usize, table[h as usize]),
                Temperature::PerRow => (number, table[number]),
            };
            let product = product.finish(f64::from(s.head_dim_qk));
            let value = -product.value / f64::from(tau);
            let error = product.bound / f64::from(tau) + 4.0 * EPS * value.abs();
            self.dtemperature[place].add(value, error);
        }
        if self.problem.dsinks {
            let sink = self.cpu.sink(h).unwrap_or(f64::NEG_INFINITY);
            let p = (sink - lse.value).exp();
            let p = Off { value: p, error: p * weight_error(sink, 0.0, lse) };
            let term = times(p, d);
            self.dsinks[h as usize].add(-term.value, term.error + 2.0 * EPS * term.value.abs());
        }
        Ok(())
    }

    /// The pairs that a row sees, and its D.
    fn pairs(&self, row: [u32; 3], number: usize, lse: Bounded) -> Result<(Vec<Pair>, Off)> {
        let [b, h, i] = row;
        let forward = &self.problem.forward;
        let s = &forward.shape;
        let (q, k) = (forward.view(Tensor::Q)?, forward.view(Tensor::K)?);
        let scores = self.cpu.scores(&q, &k, row);
        let raw = self.cpu.scores_at(ScoreStage::Raw, &q, &k, row);
        let mut pairs = Vec::new();
        let mut d = Sum::default();
        for (j, (score, raw)) in (0..).zip(scores.into_iter().zip(raw)) {
            let (Some(score), Some(raw)) = (score, raw) else { continue };
            let p = (score.score - lse.value).exp();
            let p = Off { value: p, error: p * weight_error(score.score, score.error, lse) + TINY };
            let mut dp = Sum::default();
            for n in 0..s.head_dim_v {
                let dout = self.input(Tensor::Out, [b, h, i, n])?;
                dp.add(dout * self.input(Tensor::V, [b, h / s.group(), j, n])?, 0.0);
            }
            let Bounded { value, bound } = dp.finish(f64::from(s.head_dim_v));
            let dp = Off { value, error: bound };
            let share = times(p, dp);
            d.add(share.value, share.error);
            let slope = match forward.softcap {
                Some(cap) => slope(raw.score, raw.error, f64::from(cap)),
                None => Off { value: 1.0, error: 0.0 },
            };
            pairs.push((j, p, dp, slope, raw.score));
        }
        let n = pairs.len() as f64;
        let Bounded { value, bound } = d.finish(n);
        // Divided by the sum of the weights.
        let weights = pairs.iter().map(|(_, p, ..)| p.error).sum::<f64>() + EPS * (growth(n + 8.0) + 8.0);
        let bound =
            bound + value.abs() * (weights + weight_error(self.cpu.sink(h).unwrap_or(lse.value), 0.0, lse));
        let dlse = self.inputs.dlse.map_or(0.0, |dlse| f64::from(dlse[number]));
        let d = Off { value: value - dlse, error: bound + EPS * (value - dlse).abs() };
        let pair = |(j, p, dp, slope, z): (u32, Off, Off, Off, f64)| {
            let rest = dp.value - d.value;
            let ds = times(p, Off { value: rest, error: dp.error + d.error + EPS * rest.abs() });
            Pair { j, p, ds, dz: times(ds, slope), z }
        };
        Ok((pairs.into_iter().map(pair).collect(), d))
    }
}

/// 1 - tanh^2 of a score that is off, over the cap.
fn slope(score: f64, error: f64, cap: f64) -> Off {
    let x = (score / cap).abs();
    let e = (-2.0 * x).exp();
    let value = 4.0 * e / ((1.0 + e) * (1.0 + e));
    let relative = 2.0 * error / cap + 2.0 * EPS * (3.0 + 6.0 * x) + 8.0 * EPS;
    Off { value, error: value * (relative.exp() - 1.0) + TINY }
}

/// A product in f32 of numbers that are off.
fn times(a: Off, b: Off) -> Off {
    let value = a.value * b.value;
    let error = a.error * b.value.abs() + a.value.abs() * b.error + a.error * b.error + EPS * value.abs();
    Off { value, error }
}

/// Relative error of exp(score - lse).
fn weight_error(score: f64, error: f64, lse: Bounded) -> f64 {
    let x = (score - lse.value).abs() * core::f64::consts::LOG2_E;
    let relative = error
        + lse.bound
        + 3.0 * EPS * (score.abs() + lse.value.abs())
        + 2.0 * EPS * (3.0 + 2.0 * x)
        + 3.0 * EPS * x;
    relative.exp() - 1.0
}
