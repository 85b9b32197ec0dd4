//! The lines of the table: each option with the problems that have it.

use serde::Serialize;
use wgpu_attention::{
    Alignment, DType, Layout, LengthScale, MaskFormat, Normalizer, Problem, Scale, Sink, Temperature,
};

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

/// Ways of computing, which are no options of a problem.
const WAYS: [&str; 6] =
    ["kernel tiled", "kernel rows", "kernel matrix", "kernel naive", "mask tiles classified", "block mask"];

/// Operations beside attention, each with problems of its own.
pub(super) const OPERATIONS: [&str; 7] = [
    "operation softmax",
    "operation log-softmax",
    "operation sparsemax",
    "operation entmax 1.5",
    "operation sampling",
    "gradient of softmax",
    "gradient of attention",
];

/// Whether a problem has an option.
type Has = fn(&Problem) -> bool;

/// What is not an option of scores, masks or weights, but a shape or a way to be stored.
const FORMS: [(&str, Has); 10] = [
    ("grouped heads", |p| p.shape.group() > 1),
    ("head dim above 128", |p| p.shape.head_dim_qk > 128),
    ("bshd", |p| p.q_layout == Layout::Bshd),
    ("strided", |p| {
        let layouts = [p.q_layout, p.k_layout, p.v_layout, p.out_layout];
        layouts.iter().any(|layout| matches!(layout, Layout::Strided(_)))
    }),
    ("packed", |p| p.packed_q.is_some() || p.packed_k.is_some()),
    ("f16", |p| p.dtypes.contains(&DType::F16)),
    ("bf16", |p| p.dtypes.contains(&DType::Bf16)),
    ("q, k and v in different types", |p| p.dtypes[..3] != [p.dtypes[0]; 3]),
    ("out in 16 bits", |p| p.dtypes[3] != DType::F32),
    ("statistics", |p| p.stats.count() > 0),
];

/// Options, in the order in which they act.
pub(super) const OPTIONS: [(&str, Has); 35] = [
    ("scale of its own", |p| p.scale != Scale::RsqrtHeadDim),
    ("temperature", |p| matches!(p.temperature, Temperature::Value(tau) if tau != 1.0)),
    ("temperature per head", |p| p.temperature == Temperature::PerHead),
    ("temperature per row", |p| p.temperature == Temperature::PerRow),
    ("ssmax", |p| p.length_scale == LengthScale::Ssmax),
    ("log-n", |p| matches!(p.length_scale, LengthScale::LogTrainLen { .. })),
    ("llama 4", |p| matches!(p.length_scale, LengthScale::Llama4 { .. })),
    ("yarn", |p| matches!(p.length_scale, LengthScale::Yarn { .. })),
    ("qk norm", |p| p.qk_norm.is_some()),
    ("softcap", |p| p.softcap.is_some()),
    ("score_mod", |p| p.score_mod.is_some()),
    ("bias", |p| p.bias.is_some()),
    ("bias in 16 bits", |p| p.bias.is_some_and(|(dtype, _)| dtype != DType::F32)),
    ("alibi", |p| p.alibi),
    ("causal", |p| p.causal),
    ("window", |p| p.window.is_some()),
    ("window, first keys kept", |p| p.window.is_some_and(|w| w.keep_first > 0)),
    ("top-left or any offset", |p| matches!(p.alignment, Alignment::TopLeft | Alignment::Offset(_))),
    ("offset per batch", |p| p.alignment == Alignment::PerBatch),
    ("offset of valid rows", |p| p.alignment == Alignment::BottomRightValid),
    ("documents", |p| p.documents),
    ("q_len", |p| p.q_len),
    ("kv_len", |p| p.kv_len),
    ("mask", |p| p.mask.is_some()),
    ("mask in bits", |p| p.mask.is_some_and(|(format, _)| format == MaskFormat::Bits)),
    ("mask_mod", |p| p.mask_mod.is_some()),
    ("sink", |p| p.sink != Sink::None),
    ("sigmoid", |p| matches!(p.normalizer, Normalizer::Sigmoid { .. })),
    ("sparsemax", |p| p.normalizer == Normalizer::Sparsemax),
    ("entmax", |p| p.normalizer == Normalizer::Entmax15),
    ("adaptive temperature", |p| p.adaptive_temperature.is_some()),
    ("top-k", |p| p.top_k.is_some()),
    ("dropout", |p| p.dropout.is_some()),
    ("strided out", |p| matches!(p.out_layout, Layout::Strided(_))),
    ("packed keys", |p| p.packed_k.is_some()),
];

/// In the order of the lists above.
pub(super) fn sort(families: &mut [Family]) {
    let names = names();
    families.sort_by_key(|family| names.iter().position(|name| *name == family.name));
}

/// Every line that a table can have.
fn names() -> Vec<&'static str> {
    let listed = FORMS.iter().chain(&OPTIONS).map(|(name, _)| *name);
    ["all"].into_iter().chain(WAYS).chain(["no option"]).chain(listed).chain(OPERATIONS).collect()
}

/// The families that a problem belongs to.
pub(super) fn families(p: &Problem) -> Vec<&'static str> {
    let options: Vec<_> = OPTIONS.iter().filter(|(_, has)| has(p)).map(|(name, _)| *name).collect();
    let none = options.is_empty().then_some("no option");
    let forms = FORMS.iter().filter(|(_, has)| has(p)).map(|(name, _)| *name);
    ["all"].into_iter().chain(none).chain(forms).chain(options).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu_attention::validate;

    #[test]
    fn every_family_is_drawn_and_listed() {
        let drawn = (0..2000).flat_map(|seed| families(&validate::problem(seed)));
        let mut seen: Vec<_> = drawn.chain(WAYS).chain(OPERATIONS).collect();
        seen.sort_unstable();
        seen.dedup();
        let mut names = names();
        names.sort_unstable();
        // Each once: what an operation has in common with an option is no reason to count them in one line.
        assert_eq!(seen, names);
    }

    /// `validate` draws every field of `Problem`: one that is added is refused here until it is drawn.
    #[test]
    fn every_field_of_a_problem_is_drawn() {
        let debug = |p: &Problem| format!("{p:#?}");
        let field_names = |text: &str| -> Vec<String> {
            let own =
                text.lines().filter_map(|line| line.strip_prefix("    ")).filter(|l| !l.starts_with(' '));
            own.filter_map(|line| line.split_once(':').map(|(name, _)| name.to_owned())).collect()
        };
        let field = |text: &str, name: &str| -> String {
            let mut lines = text.lines().skip_while(|line| !line.starts_with(&format!("    {name}:")));
            let first = lines.next().unwrap_or_default().to_owned();
            let rest = lines.take_while(|line| line.starts_with("     ") || line.starts_with("    }"));
            first + &rest.collect::<String>()
        };
        let plain = debug(&Problem::new(validate::problem(1).shape));
        let drawn: Vec<String> = (0..2000).map(|seed| debug(&validate::problem(seed))).collect();
        let names = field_names(&plain);
        assert!(names.len() > 25, "{names:?}");
        for name in names {
            let usual = field(&plain, &name);
            assert!(drawn.iter().any(|text| field(text, &name) != usual), "{name} is never drawn");
        }
    }
}
