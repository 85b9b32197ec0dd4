//! The distribution that a chain leaves, in float64, by the formulas of its steps, sharing nothing with the shaders or the twin.

use super::chain::Step;
use super::host::Inputs;
use super::problem::Problem;
use crate::error::Result;

/// The probability of each token of each row, (rows, vocab), by which a token is drawn. All 0 in a row where every token is out.
///
/// # Errors
/// As [`twin`](super::twin).
pub fn distribution(problem: &Problem, inputs: &Inputs<'_>) -> Result<Vec<Vec<f64>>> {
    inputs.check(problem)?;
    super::Plan::new(problem, &crate::Caps::webgpu_default())?.settings(inputs.seeds, inputs.chains)?;
    let rows = (0..problem.rows as usize).map(|r| {
        let start = r * problem.stride as usize;
        let mut row: Vec<f64> = inputs.logits[start..start + problem.vocab as usize]
            .iter()
            .map(|&l| problem.stored(l))
            .map(|l| if l.is_nan() { f64::NEG_INFINITY } else { f64::from(l).clamp(f64::NEG_INFINITY, 1e36) })
            .collect();
        let chain = inputs.chains.map_or(&problem.chain, |chains| &chains[r]);
        for step in chain.steps() {
            apply(step, &mut row, problem, inputs, r);
        }
        softmax(&row)
    });
    Ok(rows.collect())
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return vec![0.0; row.len()];
    }
    let sum: f64 = row.iter().map(|l| (l - most).exp()).sum();
    row.iter().map(|l| (l - most).exp() / sum).collect()
}

/// Tokens that are not out, by falling key, the lowest of equal ones first.
fn sorted(row: &[f64], key: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..row.len()).filter(|&t| row[t] > f64::NEG_INFINITY).collect();
    all.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
    all
}

fn keep_until(row: &mut [f64], order: &[usize], p: f64) {
    let probabilities = softmax(row);
    let mut sum = 0.0;
    for &token in order {
        if sum >= p {
            row[token] = f64::NEG_INFINITY;
        }
        sum += probabilities[token];
    }
}

fn entropy(row: &[f64]) -> f64 {
    softmax(row).iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
}

fn apply(step: &Step, row: &mut [f64], problem: &Problem, inputs: &Inputs<'_>, r: usize) {
    let out = f64::NEG_INFINITY;
    match *step {
        Step::Penalties { repetition, frequency, presence } => {
            let n = problem.history as usize;
            let history = &inputs.history.unwrap_or_default()[r * n..][..n];
            for (token, l) in row.iter_mut().enumerate() {
                let count = history.iter().filter(|&&t| t as usize == token).count() as f64;
                if count > 0.0 {
                    let repetition = f64::from(repetition);
                    *l = if *l < 0.0 { *l * repetition } else { *l / repetition };
                    *l -= count * f64::from(frequency) + f64::from(presence);
                }
            }
        }
        Step::LogitBias => {
            let n = problem.bias as usize;
            for &(token, bias) in &inputs.bias.unwrap_or_default()[r * n..][..n] {
                if let Some(l) = row.get_mut(token as usize) {
                    *l += f64::from(bias);
                }
            }
        }
        Step::Allowed => {
            let n = problem.allowed_words() as usize;
            let mask = &inputs.allowed.unwrap_or_default()[r * n..][..n];
            for (token, l) in row.iter_mut().enumerate() {
                if (mask[token / 32] >> (token % 32)) & 1 == 0 {
                    *l = out;
                }
            }
        }
        Step::Temperature(0.0) => {
            let best = sorted(row, |t| row[t]).first().copied();
            for (token, l) in row.iter_mut().enumerate() {
                if Some(token) != best {
                    *l = out;
                }
            }
        }
        Step::Temperature(t) => scale(row, f64::from(t)),
        Step::DynamicTemperature { low, high, exponent } => {
            let (low, high) = (f64::from(low), f64::from(high));
            let n = row.iter().filter(|l| **l > out).count() as f64;
            let share = if n > 1.0 { entropy(row) / n.ln() } else { 0.0 };
            scale(row, (low + (high - low) * share.powf(exponent.into())).max(2f64.powi(-16)));
        }
        Step::TopK(k) => {
            if k > 0 {
                for token in sorted(row, |t| row[t]).into_iter().skip(k as usize) {
                    row[token] = out;
                }
            }
        }
        Step::TopP(1.0) | Step::Typical(1.0) => {}
        Step::TopP(p) => {
            let order = sorted(row, |t| row[t]);
            keep_until(row, &order, p.into());
        }
        Step::Typical(p) => {
            let (probabilities, h) = (softmax(row), entropy(row));
            let order = sorted(row, |t| -(-probabilities[t].ln() - h).abs());
            keep_until(row, &order, p.into());
        }
        Step::MinP(p) => {
            let most = row.iter().copied().fold(out, f64::max);
            for l in row.iter_mut().filter(|l| **l < most + f64::from(p).ln()) {
                *l = out;
            }
        }
        Step::TopNSigma(0.0) => {}
        Step::TopNSigma(n) => {
            let seen: Vec<f64> = row.iter().copied().filter(|l| *l > out).collect();
            let count = seen.len() as f64;
            let mean = seen.iter().sum::<f64>() / count;
            let sigma = (seen.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / count).sqrt();
            let most = seen.iter().copied().fold(out, f64::max);
            for l in row.iter_mut().filter(|l| **l < most - f64::from(n) * sigma) {
                *l = out;
            }
        }
    }
}

/// Shifted first: that changes no probability, and nothing overflows.
fn scale(row: &mut [f64], t: f64) {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for l in row.iter_mut().filter(|l| **l > f64::NEG_INFINITY) {
        let shift = if t < 1e-6 { most } else { 0.0 };
        *l = (*l - shift) / t;
    }
}
