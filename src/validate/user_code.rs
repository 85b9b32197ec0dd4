//! User code that is drawn, each function with its twin: those of FlexAttention's examples that say most about indices.

use crate::error::Result;
use crate::host::Inputs;
use crate::problem::Problem;
use crate::reference::Mods;
use crate::user_code::UserCode;

/// How many numbers the functions read: two floats for the scores, then two counts for the masks.
pub(super) const PARAMS: u32 = 4;

type ScoreTwin = fn(f64, [u32; 4], &[u32]) -> f64;
type MaskTwin = fn([u32; 4], &[u32]) -> bool;

/// Those of the two lists, in order; none without the feature `user-code`.
#[derive(Debug, Default)]
pub(super) struct Ready {
    pub scores: Vec<(UserCode, ScoreTwin)>,
    pub masks: Vec<(UserCode, MaskTwin)>,
}

#[cfg(not(feature = "user-code"))]
pub(super) fn ready() -> &'static Ready {
    const NONE: &Ready = &Ready { scores: Vec::new(), masks: Vec::new() };
    NONE
}

#[cfg(feature = "user-code")]
pub(super) fn ready() -> &'static Ready {
    use std::sync::OnceLock;
    static READY: OnceLock<Ready> = OnceLock::new();
    let score = |body: &str, twin: ScoreTwin| {
        let head = "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32";
        Some((UserCode::score_mod(&format!("{head} {{ {body} }}")).ok()?, twin))
    };
    let mask = |body: &str, twin: MaskTwin| {
        let head = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool";
        Some((UserCode::mask_mod(&format!("{head} {{ {body} }}")).ok()?, twin))
    };
    READY.get_or_init(|| Ready {
        scores: [
            // Relative position, a slope for each of two heads.
            score(
                "return score - param_f32(head % 2u) * abs(f32(q_index) - f32(k_index));",
                |score, [_, h, i, j], user| {
                    let slope = f64::from(f32::from_bits(user[h as usize % 2]));
                    score - slope * f64::from(i.abs_diff(j))
                },
            ),
            // A soft cap without tanh.
            score("return score / (1.0 + 0.0625 * abs(score));", |score, _, _| {
                score / (1.0 + 0.0625 * score.abs())
            }),
        ]
        .into_iter()
        .flatten()
        .collect(),
        masks: [
            // Prefix-LM, a prefix for each of two batches.
            mask(
                "return k_index <= q_index || k_index < param_u32(2u + batch % 2u);",
                |[b, _, i, j], user| j <= i || j < user[2 + b as usize % 2],
            ),
            // A dilated window.
            mask(
                "let distance = max(q_index, k_index) - min(q_index, k_index); return distance % 3u != 1u;",
                |[_, _, i, j], _| i.abs_diff(j) % 3 != 1,
            ),
        ]
        .into_iter()
        .flatten()
        .collect(),
    })
}

/// Calls with the twins of a problem's user code, as far as it is of the lists.
pub(super) fn with_twins<T>(
    problem: &Problem,
    inputs: &Inputs<'_>,
    call: impl FnOnce(&Mods<'_>) -> Result<T>,
) -> Result<T> {
    let user = inputs.tables.user.unwrap_or_default();
    let whole = user.len() >= PARAMS as usize;
    let score_twin = ready().scores.iter().find(|(code, _)| problem.score_mod.as_ref() == Some(code));
    let mask_twin = ready().masks.iter().find(|(code, _)| problem.mask_mod.as_ref() == Some(code));
    let score = score_twin.filter(|_| whole).map(|&(_, twin)| move |s: f64, at: [u32; 4]| twin(s, at, user));
    let mask = mask_twin.filter(|_| whole).map(|&(_, twin)| move |at: [u32; 4]| twin(at, user));
    call(&Mods {
        score: score.as_ref().map(|f| f as &dyn Fn(f64, [u32; 4]) -> f64),
        mask: mask.as_ref().map(|f| f as &dyn Fn([u32; 4]) -> bool),
    })
}
