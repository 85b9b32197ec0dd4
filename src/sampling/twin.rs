//! The sampler on the CPU, with the same whole numbers and another way through them: by sorting. Its tokens are those of every
//! device.

use super::chain::Step;
use super::fixed::{below, exp2_fraction, gumbel, log2_fixed, share_of_sum, to_ln, to_log2, weight_of};
use super::host::{Draws, Inputs};
use super::problem::{Finish, Problem, Seed};
use crate::error::Result;
use crate::random::threefry2x32;

const LARGEST: f32 = 1e36;

/// A row of logits; `None` where a token is out.
type Row = Vec<Option<f32>>;

/// Draws what a device draws, on the CPU.
///
/// # Errors
/// What [`Inputs::check`] and [`Plan::settings`](super::Plan::settings) find.
pub fn twin(problem: &Problem, inputs: &Inputs<'_>) -> Result<Draws> {
    let rows = left(problem, inputs)?;
    let mut draws = Draws { tokens: Vec::new(), log_probs: problem.log_probs.then(Vec::new) };
    for (row, seed) in rows.iter().zip(inputs.seeds) {
        let token = finish(row, problem.finish, *seed);
        draws.tokens.push(token);
        if let Some(all) = &mut draws.log_probs {
            all.push(token.map_or(f32::NEG_INFINITY, |token| log_prob(row, token)));
        }
    }
    Ok(draws)
}

/// The logits that the chain leaves of each row, as the device has them before it draws: `None` for tokens that are out.
///
/// # Errors
/// As [`twin`].
pub fn left(problem: &Problem, inputs: &Inputs<'_>) -> Result<Vec<Vec<Option<f32>>>> {
    inputs.check(problem)?;
    // For its checks.
    super::Plan::new(problem, &crate::Caps::webgpu_default())?.settings(inputs.seeds, inputs.chains)?;
    let rows = (0..problem.rows as usize).map(|r| {
        let start = r * problem.stride as usize;
        let mut row: Row = inputs.logits[start..start + problem.vocab as usize]
            .iter()
            .map(|&l| clean(problem.stored(l)))
            .collect();
        let chain = inputs.chains.map_or(&problem.chain, |chains| &chains[r]);
        for step in chain.steps() {
            apply(step, &mut row, problem, inputs, r);
        }
        row
    });
    Ok(rows.collect())
}

/// A logit as the device has it: NaN and -inf are out, others within bounds, subnormal numbers 0.
fn clean(l: f32) -> Option<f32> {
    if l.is_nan() || l == f32::NEG_INFINITY {
        None
    } else if l.is_normal() || l.is_infinite() {
        Some(l.clamp(-LARGEST, LARGEST))
    } else {
        Some(0.0)
    }
}

/// The largest logit and its token, the lowest of equal ones.
fn largest(row: &Row) -> Option<(f32, u32)> {
    let mut best = None;
    for (token, l) in (0..).zip(row) {
        if let Some(l) = *l
            && best.is_none_or(|(most, _)| l > most)
        {
            best = Some((l, token));
        }
    }
    best
}

fn apply(step: &Step, row: &mut Row, problem: &Problem, inputs: &Inputs<'_>, r: usize) {
    let settings = step.settings();
    let float = |n: usize| f32::from_bits(settings[n]);
    match *step {
        Step::Penalties { .. } => {
            let n = problem.history as usize;
            let mut history: Vec<u32> = inputs.history.unwrap_or_default()[r * n..][..n].to_vec();
            history.sort_unstable();
            for same in history.chunk_by(|a, b| a == b).filter(|same| same[0] < problem.vocab) {
                let l = &mut row[same[0] as usize];
                *l = l
                    .and_then(|l| clean(l * if l < 0.0 { float(0) } else { float(1) }))
                    .and_then(|l| clean(l - clean(same.len() as f32 * float(2)).unwrap_or(0.0)))
                    .and_then(|l| clean(l - float(3)));
            }
        }
        Step::LogitBias => {
            let n = problem.bias as usize;
            for &(token, bias) in &inputs.bias.unwrap_or_default()[r * n..][..n] {
                if let Some(l) = row.get_mut(token as usize) {
                    *l = l.zip(clean(bias)).and_then(|(l, bias)| clean(l + bias));
                }
            }
        }
        Step::Allowed => {
            let n = problem.allowed_words() as usize;
            let mask = &inputs.allowed.unwrap_or_default()[r * n..][..n];
            for (token, l) in row.iter_mut().enumerate() {
                if (mask[token / 32] >> (token % 32)) & 1 == 0 {
                    *l = None;
                }
            }
        }
        Step::Temperature(_) => match settings[0] {
            0 => {
                let best = largest(row).map(|best| best.1 as usize);
                keep(row, |token, _| Some(token) == best);
            }
            1 => scale(row, float(1), float(2)),
            _ => {}
        },
        Step::DynamicTemperature { .. } => dynamic(row, settings),
        Step::TopK(0) => {}
        Step::TopK(k) => select(row, k.into(), order, |_| 1),
        Step::TopP(_) | Step::Typical(_) if settings[0] == 0 => {}
        Step::TopP(_) => {
            if let Some((most, _)) = largest(row) {
                let target = share_of_sum(total(row, most), settings[0]);
                select(row, target, order, |l| weight_of(below(most, l)));
            }
        }
        Step::Typical(_) => {
            if let Some((most, _)) = largest(row) {
                let target = share_of_sum(total(row, most), settings[0]);
                let mean = spread(row, most).mean;
                select(row, target, |l| !below(most, l).abs_diff(mean), |l| weight_of(below(most, l)));
            }
        }
        Step::MinP(_) => {
            if let (Some((most, _)), 1) = (largest(row), settings[1]) {
                let lowest = clean(most + float(0)).unwrap_or(0.0);
                keep(row, |_, l| l >= lowest);
            }
        }
        Step::TopNSigma(_) => top_n_sigma(row, settings[0]),
    }
}

fn keep(row: &mut Row, stays: impl Fn(usize, f32) -> bool) {
    for (token, l) in row.iter_mut().enumerate() {
        *l = l.filter(|&l| stays(token, l));
    }
}

fn scale(row: &mut Row, inverse: f32, limit: f32) {
    let Some((highest, _)) = largest(row) else { return };
    let lowest = row.iter().flatten().fold(f32::INFINITY, |m, &l| m.min(l));
    let shifted = highest.abs().max(lowest.abs()) > limit;
    for l in row.iter_mut() {
        *l = l.and_then(|l| {
            let l = if shifted { clean(l - highest)?.max(-limit) } else { l };
            clean(l * inverse)
        });
    }
}

/// The bits of a number in the order of its size.
fn order(l: f32) -> u32 {
    let bits = l.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// Keeps the largest keys until their weights make the target, the lowest tokens of equal ones.
fn select(row: &mut Row, target: u64, key: impl Fn(f32) -> u32, weight: impl Fn(f32) -> u64) {
    let mut sorted: Vec<(u32, usize)> =
        row.iter().enumerate().filter_map(|(token, l)| Some((key((*l)?), token))).collect();
    sorted.sort_unstable_by_key(|&(key, token)| (core::cmp::Reverse(key), token));
    let mut sum = 0u64;
    for (_, token) in sorted {
        if sum >= target {
            row[token] = None;
        } else {
            sum += row[token].map_or(0, &weight);
        }
    }
}

fn total(row: &Row, most: f32) -> u64 {
    row.iter().flatten().map(|&l| weight_of(below(most, l))).sum()
}

struct Spread {
    mean: u32,
    log2_total: u32,
    tokens: u32,
}

fn spread(row: &Row, most: f32) -> Spread {
    let bits = (row.len() as u32).next_power_of_two().ilog2();
    let (mut total, mut weighted, mut tokens) = (0u64, 0u64, 0);
    for &l in row.iter().flatten() {
        let d = below(most, l);
        let w = weight_of(d) >> 9;
        total += w;
        weighted += (w * u64::from(d)) >> bits;
        tokens += 1;
    }
    if tokens == 0 {
        return Spread { mean: 0, log2_total: 0, tokens };
    }
    let shift = (64 - total.leading_zeros()).saturating_sub(31);
    let short = (total >> shift) as u32;
    let weighted = if bits >= shift { weighted << (bits - shift) } else { weighted >> (shift - bits) };
    let log2_all = (log2_fixed(short) >> 3) + (shift << 24);
    Spread {
        mean: (weighted / u64::from(short)) as u32,
        log2_total: log2_all.saturating_sub(31 << 24),
        tokens,
    }
}

fn dynamic(row: &mut Row, [low, high, exponent, _]: [u32; 4]) {
    let Some((most, _)) = largest(row) else { return };
    let spread = spread(row, most);
    let entropy = spread.log2_total + to_log2(spread.mean);
    let uniform = log2_fixed(spread.tokens.max(1)) >> 3;
    let mut t = low;
    if entropy > 0 && uniform > 0 {
        let ratio = log2_fixed(uniform) - log2_fixed(entropy).min(log2_fixed(uniform));
        let x = (u64::from(ratio) * u64::from(exponent)) >> 19;
        if x >> 24 < 31 {
            let share = exp2_fraction((x as u32) << 8) >> (x >> 24);
            t = low + ((((u64::from(high - low) * u64::from(share)) >> 32) as u32) << 1);
        }
    }
    let t = t.max(64);
    let zeros = t.leading_zeros() as i32 - 1;
    let m = if zeros < 0 { t >> 1 } else { t << zeros };
    let quotient = ((1u64 << 61) / u64::from(m)) >> 7;
    let inverse = quotient as f32 * f32::from_bits(((zeros - 32 + 127) as u32) << 23);
    scale(row, inverse, 1e31);
}

fn top_n_sigma(row: &mut Row, n_sigma: u32) {
    let Some((most, _)) = largest(row) else { return };
    if n_sigma == 0 {
        return;
    }
    let widest = row.iter().flatten().map(|&l| clean(most - l).unwrap_or(0.0).to_bits()).max().unwrap_or(0);
    let unit = f32::from_bits((273 - (widest >> 23).clamp(20, 250)).clamp(1, 253) << 23);
    let steps = |l: f32| ((most - l) * unit).min(1_048_575.0) as u64;
    let tokens = row.iter().flatten().count().max(1) as u64;
    let mean = (row.iter().flatten().map(|&l| steps(l)).sum::<u64>() << 4) / tokens;
    let squares: u64 = row
        .iter()
        .flatten()
        .map(|&l| {
            let off = (steps(l) << 4).abs_diff(mean);
            (off * off) >> 7
        })
        .sum();
    let sigma = ((squares / tokens) << 7).isqrt();
    let limit = (sigma * u64::from(n_sigma)) >> 16;
    keep(row, |_, l| steps(l) << 4 <= limit);
}

fn finish(row: &Row, finish: Finish, Seed { seed, offset }: Seed) -> Option<u32> {
    let (most, token) = largest(row)?;
    if finish == Finish::Greedy {
        return Some(token);
    }
    let key = [seed as u32, (seed >> 32) as u32];
    let mut best = None;
    for (token, l) in (0u32..).zip(row) {
        if let Some(l) = *l {
            let score = gumbel(threefry2x32(key, [token, offset])) - (below(most, l) >> 4) as i32;
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, token));
            }
        }
    }
    best.map(|best| best.1)
}

fn log_prob(row: &Row, token: u32) -> f32 {
    let (Some((most, _)), Some(l)) = (largest(row), row[token as usize]) else {
        return f32::NEG_INFINITY;
    };
    let surprise = (below(most, l) >> 7) + (to_ln(spread(row, most).log2_total) >> 7);
    surprise as f32 * -(1.0 / 131_072.0)
}
