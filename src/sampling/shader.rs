//! The text of a step, and the twin of its params.

use super::chain::Step;
use super::plan::Caller;
use crate::context::Slot;
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
}

/// What a dispatch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    Begin,
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
    Finish { gumbel: bool, log_probs: bool },
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
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sampling {}", self.entry_point())?;
        if let Pass::Finish { gumbel, log_probs } = self.pass {
            f.write_str(if gumbel { " gumbel" } else { " greedy" })?;
            f.write_str(if log_probs { " log_probs" } else { "" })?;
        }
        write!(f, " {}", self.threads)
    }
}

const WORK: &str = include_str!("../../shaders/sampling/work.wgsl");
const FIXED: &str = include_str!("../../shaders/sampling/fixed.wgsl");
const REDUCE: &str = include_str!("../../shaders/sampling/reduce.wgsl");
const ENTROPY: &str = include_str!("../../shaders/sampling/entropy.wgsl");
const SCALE: &str = include_str!("../../shaders/sampling/scale.wgsl");
const SELECT: &str = include_str!("../../shaders/sampling/select.wgsl");
const SHARE: &str = include_str!("../../shaders/sampling/share.wgsl");
const RANDOM: &str = include_str!("../../shaders/random.wgsl");

impl Variant {
    fn modules(&self) -> Vec<&'static str> {
        match self.pass {
            Pass::Begin => vec![include_str!("../../shaders/sampling/begin.wgsl")],
            Pass::Penalties => vec![include_str!("../../shaders/sampling/penalties.wgsl")],
            Pass::LogitBias => vec![include_str!("../../shaders/sampling/bias.wgsl")],
            Pass::Allowed => vec![include_str!("../../shaders/sampling/allowed.wgsl")],
            Pass::Temperature => {
                vec![FIXED, REDUCE, SCALE, include_str!("../../shaders/sampling/temperature.wgsl")]
            }
            Pass::DynamicTemperature => {
                let own = include_str!("../../shaders/sampling/dynamic_temperature.wgsl");
                vec![FIXED, REDUCE, SCALE, ENTROPY, own]
            }
            Pass::TopK => vec![FIXED, REDUCE, SELECT, include_str!("../../shaders/sampling/top_k.wgsl")],
            Pass::TopP => {
                vec![FIXED, REDUCE, SELECT, SHARE, include_str!("../../shaders/sampling/top_p.wgsl")]
            }
            Pass::Typical => {
                vec![
                    FIXED,
                    REDUCE,
                    SELECT,
                    SHARE,
                    ENTROPY,
                    include_str!("../../shaders/sampling/typical.wgsl"),
                ]
            }
            Pass::MinP => vec![FIXED, REDUCE, include_str!("../../shaders/sampling/min_p.wgsl")],
            Pass::TopNSigma => vec![FIXED, REDUCE, include_str!("../../shaders/sampling/top_n_sigma.wgsl")],
            Pass::Finish { .. } => {
                vec![FIXED, REDUCE, ENTROPY, RANDOM, include_str!("../../shaders/sampling/finish.wgsl")]
            }
        }
    }
}

impl Shader for Variant {
    type Params = Params;

    fn source(&self) -> String {
        let numbers: Constants = [("THREADS", self.threads)].into();
        let mut text = format!("// {self}\nconst THREADS = {}u;\n", self.threads);
        if let Pass::Finish { gumbel, log_probs } = self.pass {
            let _ = writeln!(text, "const GUMBEL = {gumbel};\nconst LOG_PROBS = {log_probs};");
        }
        let first = [include_str!("../../shaders/sampling/params.wgsl"), WORK];
        for module in first.into_iter().chain(self.modules()) {
            text.push('\n');
            text.push_str(module);
        }
        unroll::unroll(&text, &numbers)
    }

    fn entry_point(&self) -> &'static str {
        match self.pass {
            Pass::Begin => "begin",
            Pass::Penalties => "penalties",
            Pass::LogitBias => "logit_bias",
            Pass::Allowed => "allowed_tokens",
            Pass::Temperature => "temperature",
            Pass::DynamicTemperature => "dynamic_temperature",
            Pass::TopK => "top_k",
            Pass::TopP => "top_p",
            Pass::MinP => "min_p",
            Pass::Typical => "typical",
            Pass::TopNSigma => "top_n_sigma",
            Pass::Finish { .. } => "finish",
        }
    }

    fn slots(&self) -> Vec<(Slot, Role)> {
        let begin = self.pass == Pass::Begin;
        let finish = matches!(self.pass, Pass::Finish { .. });
        let plain = begin || matches!(self.pass, Pass::LogitBias | Pass::Allowed);
        let caller = |role: Caller| Role::Caller(role as usize);
        [
            (1, caller(Caller::Logits), begin),
            (2, caller(Caller::Settings), !plain),
            (3, Role::Scratch, true),
            (4, caller(Caller::History), self.pass == Pass::Penalties),
            (5, caller(Caller::Bias), self.pass == Pass::LogitBias),
            (6, caller(Caller::Allowed), self.pass == Pass::Allowed),
            (7, caller(Caller::Out), finish),
        ]
        .into_iter()
        .filter(|slot| slot.2)
        .map(|(number, role, _)| (Slot { number, written: matches!(number, 3 | 7) }, role))
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
        let source = Variant { pass: Pass::Begin, threads: 64 }.source();
        assert_eq!(
            layout::of_text(&source),
            layout::of_type!(Params: vocab rows first_row groups_x logits stride settings step history bias total_rows bits)
        );
    }
}
