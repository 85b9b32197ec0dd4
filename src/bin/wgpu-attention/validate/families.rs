//! The lines of the table: each option with the problems that have it.

use serde::Serialize;
use wgpu_attention::{DType, Layout, LengthScale, Normalizer, Problem, Sink, Temperature};

#[derive(Debug, Serialize)]
pub(super) struct Family {
    pub name: &'static str,
    pub problems: u64,
    /// The largest error as a share of its bound; null in JSON where it is not finite.
    pub worst: f64,
    pub failures: u64,
}

impl Family {
    pub(super) fn new(name: &'static str) -> Self {
        Family { name, problems: 0, worst: 0.0, failures: 0 }
    }

    pub(super) fn count(&mut self, worst: f64, wrong: bool) {
        self.problems += 1;
        self.worst = self.worst.max(worst);
        self.failures += u64::from(wrong);
    }
}

const NAMES: [&str; 31] = [
    "all",
    "no score option",
    "grouped heads",
    "bshd",
    "head dim above 128",
    "temperature per head",
    "temperature per row",
    "length scale",
    "qk norm",
    "causal",
    "window",
    "window, first keys kept",
    "offset per batch",
    "packed",
    "documents",
    "q_len",
    "kv_len",
    "mask",
    "bias",
    "softcap",
    "alibi",
    "sink",
    "sigmoid",
    "entmax",
    "adaptive temperature",
    "top-k",
    "dropout",
    "f16",
    "bf16",
    "out in 16 bits",
    "statistics",
];

/// In the order of the list above.
pub(super) fn sort(families: &mut [Family]) {
    families.sort_by_key(|family| NAMES.iter().position(|name| *name == family.name));
}

/// The families that a problem belongs to.
pub(super) fn families(p: &Problem) -> Vec<&'static str> {
    let [q, _, _, out] = p.dtypes;
    let kept = p.window.is_some_and(|w| w.keep_first > 0);
    let options = [
        ("length scale", p.length_scale != LengthScale::None),
        ("qk norm", p.qk_norm.is_some()),
        ("causal", p.causal),
        ("window", p.window.is_some()),
        ("packed", p.packed_q.is_some() || p.packed_k.is_some()),
        ("documents", p.documents),
        ("q_len", p.q_len),
        ("kv_len", p.kv_len),
        ("mask", p.mask.is_some()),
        ("bias", p.bias.is_some()),
        ("softcap", p.softcap.is_some()),
        ("alibi", p.alibi),
        ("sink", p.sink != Sink::None),
        ("sigmoid", matches!(p.normalizer, Normalizer::Sigmoid { .. })),
        ("entmax", matches!(p.normalizer, Normalizer::Sparsemax | Normalizer::Entmax15)),
        ("adaptive temperature", p.adaptive_temperature.is_some()),
        ("top-k", p.top_k.is_some()),
        ("dropout", p.dropout.is_some()),
    ];
    let rest = [
        ("all", true),
        ("no score option", options.iter().all(|(_, has)| !has)),
        ("grouped heads", p.shape.group() > 1),
        ("bshd", p.q_layout == Layout::Bshd),
        ("head dim above 128", p.shape.head_dim_qk > 128),
        ("temperature per head", p.temperature == Temperature::PerHead),
        ("temperature per row", p.temperature == Temperature::PerRow),
        ("window, first keys kept", kept),
        ("offset per batch", p.alignment == wgpu_attention::Alignment::PerBatch),
        ("f16", q == DType::F16),
        ("bf16", q == DType::Bf16),
        ("out in 16 bits", out != DType::F32),
        ("statistics", p.stats.count() > 0),
    ];
    options.into_iter().chain(rest).filter_map(|(name, has)| has.then_some(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::random;
    use super::*;

    #[test]
    fn every_family_is_drawn_and_listed() {
        let mut seen: Vec<_> = (0..2000).flat_map(|seed| families(&random::problem(seed))).collect();
        seen.sort_unstable();
        seen.dedup();
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        assert_eq!(seen, names);
    }
}
