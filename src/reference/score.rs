//! Scores in float64: which keys a row sees, and what the softmax sees of them.

use super::{Bounded, EPS, LOG2_NEAR_1, MAX_BIAS, Mods, growth};
use crate::dtype::DType;
use crate::host::Inputs;
use crate::layout::View;
use crate::mask::{Alignment, MaskFormat, clamp_offset};
use crate::problem::Problem;
use crate::qk_norm::{NormGains, NormKind, QkNorm};
use crate::scores::ScoreStage;
use crate::sequences::Sequences;
use crate::sharpness::{LengthScale, Temperature};

/// A problem with its inputs, which were checked.
#[derive(Clone, Copy)]
pub(crate) struct Cpu<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) inputs: &'a Inputs<'a>,
    pub(crate) mods: Mods<'a>,
}

/// A score, and how far rounding may move it.
#[derive(Clone, Copy)]
pub(super) struct Score {
    pub(super) score: f64,
    pub(super) error: f64,
}

impl Cpu<'_> {
    /// Whether row `i` of batch `b` is one: the others are written as 0, and nothing of them is looked at.
    pub(super) fn is_row(&self, b: u32, i: u32) -> bool {
        i < self.valid_rows(b)
    }

    /// Where rows and keys are.
    pub(crate) fn sequences(&self) -> Sequences<'_> {
        Sequences::new(self.problem, &self.inputs.tables)
    }

    fn valid_rows(&self, b: u32) -> u32 {
        let rows = self.sequences().queries(b);
        self.inputs.tables.q_len.map_or(rows, |lens| lens[b as usize].min(rows))
    }

    fn valid_keys(&self, b: u32) -> u32 {
        let keys = self.sequences().keys(b);
        self.inputs.tables.kv_len.map_or(keys, |lens| lens[b as usize].min(keys))
    }

    /// Whether query `i` of head `h` of batch `b` sees key `j`: all masks, and no bias of -inf.
    pub(super) fn visible(&self, at: [u32; 4]) -> bool {
        let [b, _, i, j] = at;
        if !self.is_row(b, i) || !self.near([b, i, j]) {
            return false;
        }
        if let (Some(q), Some(k)) = (self.inputs.tables.documents_q, self.inputs.tables.documents_k) {
            let sequences = self.sequences();
            if q[sequences.query_number(b, i)] != k[sequences.key_number(b, j)] {
                return false;
            }
        }
        if let (Some((format, sizes)), Some(mask)) = (self.problem.mask, self.inputs.mask)
            && !mask_keeps(format, mask, dense_index(sizes.strides(), at))
        {
            return false;
        }
        self.mods.mask.is_none_or(|keeps| keeps(at)) && self.bias(at) != f64::NEG_INFINITY
    }

    /// Whether lengths, causal mask and window let query `i` of batch `b` see key `j`.
    fn near(&self, [b, i, j]: [u32; 3]) -> bool {
        if j >= self.valid_keys(b) {
            return false;
        }
        let distance = i64::from(j) - self.position(b, i);
        if self.problem.causal && distance > 0 {
            return false;
        }
        if let Some(window) = self.problem.window {
            let near = window.left.is_none_or(|left| -distance <= i64::from(left))
                && window.right.is_none_or(|right| distance <= i64::from(right));
            if !near && j >= window.keep_first {
                return false;
            }
        }
        true
    }

    /// How many keys lengths, causal mask and window let query `i` of batch `b` see, at least 1.
    pub(super) fn visible_keys(&self, [b, i]: [u32; 2]) -> f64 {
        let n = (0..self.sequences().keys(b)).filter(|&j| self.near([b, i, j])).count();
        n.max(1) as f64
    }

    /// The additive bias of a pair, as it is stored; 0 where there is none.
    pub(super) fn bias(&self, at: [u32; 4]) -> f64 {
        match (self.problem.bias, self.inputs.bias) {
            (Some((dtype, sizes)), Some(bias)) => {
                f64::from(dtype.round(bias[dense_index(sizes.strides(), at)]))
            }
            _ => 0.0,
        }
    }

    /// Position of a query among the keys.
    pub(crate) fn position(&self, b: u32, i: u32) -> i64 {
        let sequences = self.sequences();
        let offset = match self.problem.alignment {
            Alignment::PerBatch => {
                i64::from(self.inputs.tables.causal_offset.unwrap_or_default()[b as usize])
            }
            Alignment::TopLeft => 0,
            Alignment::Offset(offset) => i64::from(offset),
            Alignment::BottomRight => i64::from(sequences.keys(b)) - i64::from(sequences.queries(b)),
            Alignment::BottomRightValid => i64::from(self.valid_keys(b)) - i64::from(self.valid_rows(b)),
        };
        i64::from(i) + i64::from(clamp_offset(offset))
    }

    /// `scale / temperature` of one row, times its length scale. The bound is that of the length scale alone.
    pub(super) fn row_factor(&self, [b, h, i]: [u32; 3]) -> Bounded {
        let (problem, tables) = (self.problem, &self.inputs.tables);
        let sequences = self.sequences();
        let table = tables.temperature.unwrap_or_default();
        let tau = match problem.temperature {
            Temperature::Value(_) => 1.0, // is in factor()
            Temperature::PerHead => f64::from(table[h as usize]),
            Temperature::PerRow => f64::from(table[sequences.row_number([b, h, i])]),
        };
        let n = || self.visible_keys([b, i]);
        // The multiplier, and what multiplies its logarithm.
        let (length, coef) = match problem.length_scale {
            LengthScale::None | LengthScale::Yarn { .. } => (1.0, 0.0), // is in factor()
            LengthScale::Ssmax => {
                let s = f64::from(tables.ssmax.unwrap_or_default()[h as usize]);
                (s * n().ln(), s)
            }
            LengthScale::LogTrainLen { train_len } => {
                let coef = 1.0 / f64::from(train_len).ln();
                ((n().ln() * coef).max(1.0), coef)
            }
            LengthScale::Llama4 { coef, floor } => {
                let steps = (self.position(b, i).max(0) + 1) / i64::from(floor);
                (1.0 + f64::from(coef) * (steps as f64 + 1.0).ln(), f64::from(coef))
            }
        };
        let base = problem.factor() / tau;
        let value = base * length;
        // WGSL's log is good to 2^-21 near 1 and to 3 ulp elsewhere.
        let bound = if coef == 0.0 {
            0.0
        } else {
            base.abs() * coef.abs() * 2.0 * LOG2_NEAR_1 + 10.0 * EPS * value.abs()
        };
        Bounded { value, bound }
    }

    /// The gain of q times that of k, by dim, for a query head.
    pub(super) fn gains(&self, h: u32) -> impl Fn(u32) -> f64 {
        let s = self.problem.shape;
        let per_head = self.problem.qk_norm.is_some_and(|norm| norm.gains == NormGains::PerHead);
        let (q_head, k_head) = if per_head { (h, h / s.group()) } else { (0, 0) };
        let tables = self.inputs.tables;
        move |d| match (tables.q_gain, tables.k_gain) {
            (Some(q), Some(k)) => {
                let at = |head: u32| (head * s.head_dim_qk + d) as usize;
                f64::from(q[at(q_head)]) * f64::from(k[at(k_head)])
            }
            _ => 1.0,
        }
    }

    /// The scores of one row as the softmax sees them; `None` for keys that the row does not see.
    pub(super) fn scores(&self, q: &View, k: &View, row: [u32; 3]) -> Vec<Option<Score>> {
        self.scores_at(ScoreStage::Biased, q, k, row)
    }

    /// The scores of one row at a stage before the softmax. Before the masks every key is there.
    pub(super) fn scores_at(
        &self,
        stage: ScoreStage,
        q: &View,
        k: &View,
        [b, h, i]: [u32; 3],
    ) -> Vec<Option<Score>> {
        let (problem, inputs) = (self.problem, self.inputs);
        let s = &problem.shape;
        let sequences = self.sequences();
        let factor = self.row_factor([b, h, i]);
        let [q_type, k_type, ..] = problem.dtypes;
        let slope = inputs.tables.alibi_slopes.map_or(0.0, |slopes| f64::from(slopes[h as usize]));
        let position = self.position(b, i);
        let kv = h / s.group();
        let dims = f64::from(s.head_dim_qk.next_multiple_of(4));
        let element = |x: f32, dtype: DType| f64::from(dtype.round(x));
        let q_at = |d| element(inputs.q[sequences.in_q(q, [b, h, i, d])], q_type);
        let k_at = |j, d| element(inputs.k[sequences.in_k(k, [b, kv, j, d])], k_type);
        let q_norm = problem.qk_norm.map(|norm| inverse_norm(norm, (0..s.head_dim_qk).map(q_at)));
        let gain = self.gains(h);
        let score = |j| {
            let at = [b, h, i, j];
            let early = matches!(stage, ScoreStage::Raw | ScoreStage::Capped);
            if !self.is_row(b, i) || (!early && !self.visible(at)) {
                return None;
            }
            let (mut dot, mut size) = (0.0, 0.0);
            for d in 0..s.head_dim_qk {
                let x = q_at(d) * k_at(j, d) * gain(d);
                dot += x;
                size += x.abs();
            }
            let mut score = dot * factor.value;
            let mut error = (EPS * growth(dims + 8.0) * factor.value.abs() + factor.bound) * size;
            if let (Some(norm), Some(q_norm)) = (problem.qk_norm, q_norm) {
                let both = q_norm * inverse_norm(norm, (0..s.head_dim_qk).map(|d| k_at(j, d)));
                // The gains round three times in each product. Each sum of squares is good to growth(dims + 8) eps and its root to
                // half of that, inverseSqrt to 2 ulp; and there are four products and quotients.
                let gains = 3.0 * factor.value.abs() * size;
                error = (error + EPS * (gains + (growth(dims + 8.0) + 16.0) * score.abs())) * both;
                score *= both;
            }
            if let Some(cap) = problem.softcap
                && stage != ScoreStage::Raw
            {
                let cap = f64::from(cap);
                let x = score / cap;
                score = cap * x.tanh();
                // Near 0 a series, good to some eps of itself. Elsewhere an exp2, two sums and a quotient, off by less than
                // 10 eps, and one more for the product.
                error += 12.0 * EPS * if x.abs() < 0.249 { score.abs() } else { cap };
            }
            if early {
                return Some(Score { score, error });
            }
            if let Some(f) = self.mods.score {
                // How fast the user's function grows, and a few operations of its own.
                let step = (error + EPS * score.abs()).max(1e-9);
                let (below, above) = (f(score - step, at), f(score + step, at));
                let before = score.abs();
                score = f(score, at);
                error =
                    (above - score).abs().max((score - below).abs()) + 32.0 * EPS * (before + score.abs());
            }
            let added =
                [self.bias(at).clamp(-MAX_BIAS, MAX_BIAS), -slope * (position - i64::from(j)).abs() as f64];
            for term in added {
                score += term;
                error += EPS * (3.0 * term.abs() + score.abs());
            }
            Some(Score { score, error })
        };
        (0..sequences.keys(b)).map(score).collect()
    }
}

/// 1 over the length of a row; 0 for a row of zeros, which stays one.
fn inverse_norm(norm: QkNorm, row: impl Iterator<Item = f64>) -> f64 {
    let (mut squares, mut count) = (0.0, 0.0);
    for x in row {
        squares += x * x;
        count += 1.0;
    }
    let eps = f64::from(norm.eps);
    let length = match norm.kind {
        NormKind::L2 => squares.sqrt().max(eps),
        NormKind::Rms => (squares / count + eps).sqrt(),
    };
    if length == 0.0 { 0.0 } else { 1.0 / length }
}

/// Element `at` of a dense mask.
pub(crate) fn mask_keeps(format: MaskFormat, mask: &[u8], at: usize) -> bool {
    match format {
        MaskFormat::Bytes => mask[at] != 0,
        MaskFormat::Bits => mask[at / 8] >> (at % 8) & 1 == 1,
    }
}

pub(crate) fn dense_index(strides: [u64; 4], at: [u32; 4]) -> usize {
    strides.iter().zip(at).map(|(&step, n)| step * u64::from(n)).sum::<u64>() as usize
}
