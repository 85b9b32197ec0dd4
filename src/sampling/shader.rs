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
    pub list: u32,
    pub maxima: u32,
    pub counts: u32,
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
    Maxima,
    Narrow,
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
    /// Only listed tokens are left.
    pub listed: bool,
    /// How the logits are stored; f32 for all passes but the one that reads them.
    pub dtype: DType,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sampling {}", self.entry_point())?;
        if let Pass::Finish { gumbel, log_probs } = self.pass {
            f.write_str(if gumbel { " gumbel" } else { " greedy" })?;
            f.write_str(if log_probs { " log_probs" } else { "" })?;
        }
        f.write_str(if self.listed { " listed" } else { "" })?;
        if self.dtype != DType::F32 {
            write!(f, " {}", self.dtype.name())?;
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
            Pass::Maxima => vec![include_str!("../../shaders/sampling/maxima.wgsl")],
            Pass::Narrow => vec![FIXED, REDUCE, include_str!("../../shaders/sampling/narrow.wgsl")],
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
        if let Pass::Finish { gumbel, log_probs } = self.pass {
            let _ = writeln!(text, "const GUMBEL = {gumbel};\nconst LOG_PROBS = {log_probs};");
        }
        let tokens = if self.listed {
            include_str!("../../shaders/sampling/listed_tokens.wgsl")
        } else {
            include_str!("../../shaders/sampling/all_tokens.wgsl")
        };
        let logits = if self.pass == Pass::Begin { logits(self.dtype) } else { String::new() };
        let first = [include_str!("../../shaders/sampling/params.wgsl"), WORK, tokens, logits.as_str()];
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
            Pass::Maxima => "maxima",
            Pass::Narrow => "narrow",
            Pass::Finish { .. } => "finish",
        }
    }

    fn slots(&self) -> Vec<(Slot, Role)> {
        let begin = self.pass == Pass::Begin;
        let finish = matches!(self.pass, Pass::Finish { .. });
        let plain = begin || matches!(self.pass, Pass::LogitBias | Pass::Allowed | Pass::Maxima);
        let caller = |role: Caller| Role::Caller(role as usize);
        [
            (1, caller(Caller::Logits), begin),
            (2, caller(Caller::Settings), !plain),
            (3, Role::Scratch, true),
            (4, caller(Caller::History), self.pass == Pass::Penalties),
            (5, caller(Caller::Bias), self.pass == Pass::LogitBias),
            (6, caller(Caller::Allowed), self.pass == Pass::Allowed),
            (7, caller(Caller::Out), finish),
            (COUNTS, Role::Scratch, self.pass == Pass::Narrow),
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
        let source = Variant { pass: Pass::Begin, threads: 64, listed: false, dtype: DType::F32 }.source();
        assert_eq!(
            layout::of_text(&source),
            layout::of_type!(Params: vocab rows first_row groups_x logits stride settings step history bias total_rows bits groups list maxima counts)
        );
    }
}
