//! The text of a step, and the twin of its params.

use super::chain::Step;
use super::plan::Caller;
use crate::context::Slot;
use crate::dtype::DType;
use crate::program::{Role, Shader};
use crate::shader::unroll::{self, Constants};
use bytemuck::{Pod, Zeroable};
use core::fmt;
use core::fmt::Write;

/// Field by field as in `shaders/sampling/params.wgsl`; see there for what each means.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Params {
    pub vocab: u32,
    pub rows: u32,
    pub first_row: u32,
    pub groups_x: u32,
    pub logits: u32,
    pub stride: u32,
    pub settings: u32,
    pub step: u32,
    pub history: u32,
    pub bias: u32,
    pub total_rows: u32,
    pub bits: u32,
    pub groups: u32,
    pub part: u32,
    pub shares: u32,
    pub list: u32,
    pub maxima: u32,
    pub chosen: u32,
    pub thresholds: u32,
    pub counts: u32,
    pub notes: u32,
    pub next_notes: u32,
    pub round: u32,
    /// Up to a multiple of 16 bytes, in which uniform bindings are counted.
    pub unused: u32,
}

/// What a dispatch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Copies the logits, and may leave what a first top-k, or a next step by parts, asks for.
    Begin {
        maxima: bool,
        facts: bool,
    },
    Penalties,
    LogitBias,
    Allowed,
    Temperature,
    DynamicTemperature,
    TopK,
    TopP,
    MinP,
    Typical,
    TopNSigma,
    Maxima,
    Threshold,
    Narrow,
    Finish {
        gumbel: bool,
        log_probs: bool,
    },
    /// From here on by parts: several workgroups share a row.
    Facts,
    TemperatureParts,
    MinPParts,
    KeepParts {
        typical: bool,
        phase: Phase,
    },
    Draw {
        gumbel: bool,
        log_probs: bool,
    },
    /// Of the parts of a draw, by one workgroup for each row.
    Merge {
        gumbel: bool,
        log_probs: bool,
    },
}

/// Of a step that keeps a share of the probability, by parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Target,
    Round,
    List,
    /// By one workgroup for each row.
    Search,
    Keep,
}

impl Pass {
    /// Whether it counts what it lists.
    pub(super) fn counts(self) -> bool {
        matches!(
            self,
            Pass::Threshold | Pass::Narrow | Pass::KeepParts { phase: Phase::Round | Phase::List, .. }
        )
    }

    /// Whether the threads of a workgroup have something to add up.
    fn adds_up(self) -> bool {
        !matches!(
            self,
            Pass::Begin { facts: false, .. }
                | Pass::Penalties
                | Pass::LogitBias
                | Pass::Allowed
                | Pass::Maxima
                | Pass::Narrow
        )
    }

    /// Whether several workgroups share a row.
    pub(super) fn shares(self) -> bool {
        let search = matches!(self, Pass::KeepParts { phase: Phase::Search, .. });
        matches!(self, Pass::Begin { .. } | Pass::Maxima | Pass::Narrow) || (self.leaves_notes() && !search)
    }

    /// Whether it leaves notes for the next pass.
    pub(super) fn leaves_notes(self) -> bool {
        matches!(
            self,
            Pass::Begin { facts: true, .. }
                | Pass::Facts
                | Pass::TemperatureParts
                | Pass::MinPParts
                | Pass::KeepParts { .. }
                | Pass::Draw { .. }
        )
    }
}

impl From<&Step> for Pass {
    fn from(step: &Step) -> Self {
        match step {
            Step::Penalties { .. } => Pass::Penalties,
            Step::LogitBias => Pass::LogitBias,
            Step::Allowed => Pass::Allowed,
            Step::Temperature(_) => Pass::Temperature,
            Step::DynamicTemperature { .. } => Pass::DynamicTemperature,
            Step::TopK(_) => Pass::TopK,
            Step::TopP(_) => Pass::TopP,
            Step::MinP(_) => Pass::MinP,
            Step::Typical(_) => Pass::Typical,
            Step::TopNSigma(_) => Pass::TopNSigma,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Variant {
    pub pass: Pass,
    pub threads: u32,
    /// A workgroup is one subgroup.
    pub subgroup: bool,
    /// Only listed tokens are left.
    pub listed: bool,
    /// How the logits are stored; f32 for all passes but the one that reads them.
    pub dtype: DType,
}

impl Variant {
    /// As a plan has it: what adds up does so in one subgroup, where that is a workgroup.
    pub(super) fn new(pass: Pass, listed: bool, dtype: DType, threads: u32, subgroup: Option<u32>) -> Self {
        let dtype = if matches!(pass, Pass::Begin { .. }) { dtype } else { DType::F32 };
        Variant { pass, threads, subgroup: subgroup == Some(threads) && pass.adds_up(), listed, dtype }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.pass {
            Pass::TopP => "top_p",
            Pass::Typical => "typical",
            _ => self.entry_point(),
        };
        write!(f, "sampling {name}")?;
        match self.pass {
            Pass::Finish { gumbel, log_probs }
            | Pass::Draw { gumbel, log_probs }
            | Pass::Merge { gumbel, log_probs } => {
                f.write_str(if gumbel { " gumbel" } else { " greedy" })?;
                f.write_str(if log_probs { " log_probs" } else { "" })?;
            }
            Pass::Begin { maxima, facts } => {
                f.write_str(if maxima { " maxima" } else { "" })?;
                f.write_str(if facts { " facts" } else { "" })?;
            }
            Pass::KeepParts { typical, .. } => f.write_str(if typical { " typical" } else { " top_p" })?,
            Pass::TemperatureParts | Pass::MinPParts => f.write_str(" parts")?,
            _ => {}
        }
        f.write_str(if self.listed { " listed" } else { "" })?;
        f.write_str(if self.subgroup { " subgroup" } else { "" })?;
        if self.dtype != DType::F32 {
            write!(f, " {}", self.dtype.name())?;
        }
        write!(f, " {}", self.threads)
    }
}

const WORK: &str = include_str!("../../shaders/sampling/work.wgsl");
const FIXED: &str = include_str!("../../shaders/sampling/fixed.wgsl");
const REDUCE: &str = include_str!("../../shaders/sampling/reduce.wgsl");
const SHARES: &str = include_str!("../../shaders/sampling/shares.wgsl");
const NOTES: &str = include_str!("../../shaders/sampling/notes.wgsl");
const FACTS: &str = include_str!("../../shaders/sampling/facts.wgsl");
const ENTROPY: &str = include_str!("../../shaders/sampling/entropy.wgsl");
const SCALE: &str = include_str!("../../shaders/sampling/scale.wgsl");
const SELECT: &str = include_str!("../../shaders/sampling/select.wgsl");
const SELECT_ROW: &str = include_str!("../../shaders/sampling/select_row.wgsl");
const SHARE: &str = include_str!("../../shaders/sampling/share.wgsl");
const PROBABILITIES: &str = include_str!("../../shaders/sampling/probabilities.wgsl");
const RANDOM: &str = include_str!("../../shaders/random.wgsl");
const DRAW: &str = include_str!("../../shaders/sampling/draw.wgsl");

impl Variant {
    fn modules(&self) -> Vec<&'static str> {
        let mut all = Vec::new();
        if self.pass.adds_up() {
            all.extend([FIXED, REDUCE]);
            all.push(match self.subgroup {
                true => include_str!("../../shaders/sampling/reduce_subgroup.wgsl"),
                false => include_str!("../../shaders/sampling/reduce_workgroup.wgsl"),
            });
        }
        if self.pass.leaves_notes() || matches!(self.pass, Pass::Merge { .. }) {
            all.extend([NOTES, FACTS]);
        }
        all.extend(self.own_modules());
        all
    }

    /// What a step that keeps a share of the probability goes by.
    fn probabilities(typical: bool) -> Vec<&'static str> {
        let own = match typical {
            true => include_str!("../../shaders/sampling/typical.wgsl"),
            false => include_str!("../../shaders/sampling/top_p.wgsl"),
        };
        let mut all = vec![SELECT, SHARE, PROBABILITIES, own];
        all.extend(typical.then_some(ENTROPY));
        all
    }

    fn own_modules(&self) -> Vec<&'static str> {
        let probabilities = |typical, by: &[&'static str]| {
            let mut all = Self::probabilities(typical);
            all.extend(by);
            all
        };
        let row = [SELECT_ROW, include_str!("../../shaders/sampling/probabilities_row.wgsl")];
        match self.pass {
            Pass::Begin { facts, .. } => {
                let mut all = vec![SHARES, include_str!("../../shaders/sampling/begin.wgsl")];
                all.extend((!facts).then_some(include_str!("../../shaders/sampling/no_facts.wgsl")));
                all
            }
            Pass::Maxima => vec![SHARES, include_str!("../../shaders/sampling/maxima.wgsl")],
            Pass::Threshold => vec![include_str!("../../shaders/sampling/threshold.wgsl")],
            Pass::Narrow => vec![include_str!("../../shaders/sampling/narrow.wgsl")],
            Pass::Penalties => vec![include_str!("../../shaders/sampling/penalties.wgsl")],
            Pass::LogitBias => vec![include_str!("../../shaders/sampling/bias.wgsl")],
            Pass::Allowed => vec![include_str!("../../shaders/sampling/allowed.wgsl")],
            Pass::Temperature => vec![SCALE, include_str!("../../shaders/sampling/temperature.wgsl")],
            Pass::TemperatureParts => {
                vec![SCALE, include_str!("../../shaders/sampling/temperature_parts.wgsl")]
            }
            Pass::DynamicTemperature => {
                vec![SCALE, ENTROPY, include_str!("../../shaders/sampling/dynamic_temperature.wgsl")]
            }
            Pass::TopK => vec![SELECT, SELECT_ROW, include_str!("../../shaders/sampling/top_k.wgsl")],
            Pass::TopP => probabilities(false, &row),
            Pass::Typical => probabilities(true, &row),
            Pass::KeepParts { typical, .. } => {
                probabilities(typical, &[include_str!("../../shaders/sampling/select_parts.wgsl")])
            }
            Pass::MinP => vec![include_str!("../../shaders/sampling/min_p.wgsl")],
            Pass::MinPParts => vec![include_str!("../../shaders/sampling/min_p_parts.wgsl")],
            Pass::TopNSigma => vec![include_str!("../../shaders/sampling/top_n_sigma.wgsl")],
            Pass::Facts => vec![include_str!("../../shaders/sampling/facts_pass.wgsl")],
            Pass::Finish { .. } => {
                vec![ENTROPY, RANDOM, DRAW, include_str!("../../shaders/sampling/finish.wgsl")]
            }
            Pass::Draw { .. } | Pass::Merge { .. } => {
                vec![ENTROPY, RANDOM, DRAW, include_str!("../../shaders/sampling/finish_parts.wgsl")]
            }
        }
    }
}

/// Rounds of a search, three bits each, before what is left of it is listed.
pub(super) const PART_ROUNDS: u32 = 4;

/// The binding of how many tokens are listed, for who counts them.
pub(super) const COUNTS: u32 = 8;

const HALF: &str = "let half = (logits[at >> 1u] >> (16u * (at & 1u))) & 0xffffu;";

/// The binding of the logits, and its accessor, which gives the bits of an f32.
fn logits(dtype: DType) -> String {
    let load = match dtype {
        DType::F32 => "return logits[at];".to_owned(),
        DType::Bf16 => format!("{HALF}\n    return half << 16u;"),
        // In whole numbers, so that all devices agree: what is subnormal as f16 is 0.
        DType::F16 => format!(
            "{HALF}
    let magnitude = half & 0x7fffu;
    let finite = select((magnitude << 13u) + 0x38000000u, 0u, magnitude < 0x0400u);
    return ((half & 0x8000u) << 16u) | select(finite, 0x7f800000u | (magnitude << 13u), magnitude >= 0x7c00u);"
        ),
    };
    format!(
        "@group(0) @binding(1) var<storage, read> logits: array<u32>;\n\nfn load_logit(at: u32) -> u32 {{\n    {load}\n}}\n"
    )
}

impl Shader for Variant {
    type Params = Params;

    fn source(&self) -> String {
        let numbers: Constants = [("THREADS", self.threads)].into();
        let mut text = format!("// {self}\nconst THREADS = {}u;\n", self.threads);
        match self.pass {
            Pass::KeepParts { .. } => {
                let _ = writeln!(text, "const PART_ROUNDS = {PART_ROUNDS}u;");
            }
            Pass::Finish { gumbel, log_probs }
            | Pass::Draw { gumbel, log_probs }
            | Pass::Merge { gumbel, log_probs } => {
                let _ = writeln!(text, "const GUMBEL = {gumbel};\nconst LOG_PROBS = {log_probs};");
            }
            Pass::Begin { maxima, .. } => {
                let _ = writeln!(text, "const MAXIMA = {maxima};");
            }
            _ => {}
        }
        let tokens = if self.listed {
            include_str!("../../shaders/sampling/listed_tokens.wgsl")
        } else if self.pass.shares() {
            include_str!("../../shaders/sampling/part_tokens.wgsl")
        } else {
            include_str!("../../shaders/sampling/all_tokens.wgsl")
        };
        let logits = if matches!(self.pass, Pass::Begin { .. }) { logits(self.dtype) } else { String::new() };
        let first = [include_str!("../../shaders/sampling/params.wgsl"), WORK, tokens, logits.as_str()];
        for module in first.into_iter().chain(self.modules()) {
            text.push('\n');
            text.push_str(module);
        }
        unroll::unroll(&text, &numbers)
    }

    fn entry_point(&self) -> &'static str {
        match self.pass {
            Pass::Begin { .. } => "begin",
            Pass::Penalties => "penalties",
            Pass::LogitBias => "logit_bias",
            Pass::Allowed => "allowed_tokens",
            Pass::Temperature | Pass::TemperatureParts => "temperature",
            Pass::DynamicTemperature => "dynamic_temperature",
            Pass::TopK => "top_k",
            Pass::TopP | Pass::Typical => "keep_share",
            Pass::MinP | Pass::MinPParts => "min_p",
            Pass::KeepParts { phase: Phase::Target, .. } => "target_pass",
            Pass::KeepParts { phase: Phase::Round, .. } => "round_pass",
            Pass::KeepParts { phase: Phase::List, .. } => "list_pass",
            Pass::KeepParts { phase: Phase::Search, .. } => "search_pass",
            Pass::KeepParts { phase: Phase::Keep, .. } => "keep_pass",
            Pass::Facts => "facts",
            Pass::Draw { .. } => "draw_pass",
            Pass::Merge { .. } => "merge_pass",
            Pass::TopNSigma => "top_n_sigma",
            Pass::Maxima => "maxima",
            Pass::Threshold => "threshold",
            Pass::Narrow => "narrow",
            Pass::Finish { .. } => "finish",
        }
    }

    fn slots(&self) -> Vec<(Slot, Role)> {
        let begin = matches!(self.pass, Pass::Begin { .. });
        let finish = matches!(self.pass, Pass::Finish { .. } | Pass::Merge { .. });
        let plain = begin
            || matches!(
                self.pass,
                Pass::LogitBias
                    | Pass::Allowed
                    | Pass::Maxima
                    | Pass::Narrow
                    | Pass::Facts
                    | Pass::Merge { .. }
            );
        let caller = |role: Caller| Role::Caller(role as usize);
        [
            (1, caller(Caller::Logits), begin),
            (2, caller(Caller::Settings), !plain),
            (3, Role::Scratch, true),
            (4, caller(Caller::History), self.pass == Pass::Penalties),
            (5, caller(Caller::Bias), self.pass == Pass::LogitBias),
            (6, caller(Caller::Allowed), self.pass == Pass::Allowed),
            (7, caller(Caller::Out), finish),
            (COUNTS, Role::Scratch, self.pass.counts()),
        ]
        .into_iter()
        .filter(|slot| slot.2)
        .map(|(number, role, _)| (Slot { number, written: matches!(number, 3 | 7 | COUNTS) }, role))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::layout;

    /// The layout that is written twice, in Rust and in WGSL, is one.
    #[test]
    fn params_are_the_same_on_both_sides() {
        let source = Variant {
            pass: Pass::Begin { maxima: false, facts: false },
            threads: 64,
            subgroup: false,
            listed: false,
            dtype: DType::F32,
        }
        .source();
        assert_eq!(
            layout::of_text(&source),
            layout::of_type!(Params: vocab rows first_row groups_x logits stride settings step history bias total_rows bits groups part shares list maxima chosen thresholds counts notes next_notes round unused)
        );
    }
}
