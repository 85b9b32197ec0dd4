//! The ways to make attention flatter or sharper, each as the library has it.

use super::split::Head;
use wgpu_attention::{
    AdaptiveTemperature, LengthScale, Normalizer, Problem, QkNorm, Scale, SigmoidBias, Sink, Temperature,
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Method {
    Softmax,
    Temperature(f32),
    Softcap(f32),
    OffByOne,
    Sink(f32),
    Ssmax(f32),
    LogN(u32),
    Sigmoid,
    /// Cosines of q and k, times this.
    Cosine(f32),
    Adaptive,
    TopK(u32),
    Sparsemax,
    Entmax15,
}

impl Method {
    pub(super) fn name(self) -> String {
        match self {
            Method::Softmax => "softmax".into(),
            Method::Temperature(t) => format!("temperature {t}"),
            Method::Softcap(c) => format!("soft cap {c}"),
            Method::OffByOne => "off by one".into(),
            Method::Sink(s) => format!("sink {s}"),
            Method::Ssmax(s) => format!("SSMax, s = {s}"),
            Method::LogN(train) => format!("log-n, trained at {train}"),
            Method::Sigmoid => "sigmoid".into(),
            Method::Cosine(scale) => format!("QK-norm, scale {scale}"),
            Method::Adaptive => "adaptive temperature".into(),
            Method::TopK(k) => format!("top {k}"),
            Method::Sparsemax => "sparsemax".into(),
            Method::Entmax15 => "1.5-entmax".into(),
        }
    }

    /// Of the weight of key j; sums are over the n keys that the row sees, and s is its score.
    pub(super) fn formula(self) -> &'static str {
        match self {
            Method::Softmax => "exp(s_j) / Σ exp(s_i)",
            Method::Temperature(_) => "softmax(s / temperature)",
            Method::Softcap(_) => "softmax(c tanh(s / c))",
            Method::OffByOne => "exp(s_j) / (1 + Σ exp(s_i))",
            Method::Sink(_) => "exp(s_j) / (exp(sink) + Σ exp(s_i))",
            Method::Ssmax(_) => "softmax(a ln n · s), a here s",
            Method::LogN(_) => "softmax(max(1, ln n / ln n_train) · s)",
            Method::Sigmoid => "1 / (1 + exp(ln n − s_j))",
            Method::Cosine(_) => "softmax(scale · q·k / (‖q‖ ‖k‖))",
            Method::Adaptive => "softmax(max(1, poly(H)) · s)",
            Method::TopK(_) => "softmax over the k largest",
            Method::Sparsemax => "max(s_j − t, 0), Σ = 1",
            Method::Entmax15 => "max(s_j / 2 − t, 0)², Σ = 1",
        }
    }

    pub(super) fn source(self) -> &'static str {
        match self {
            Method::Softmax => "Vaswani et al. 2017",
            Method::Temperature(_) => "Hinton et al. 2015",
            Method::Softcap(_) => "Gemma 2, 2024",
            Method::OffByOne => "Miller 2023",
            Method::Sink(_) => "gpt-oss, 2025",
            Method::Ssmax(_) => "Nakanishi 2025",
            Method::LogN(_) => "Chiang and Cholak 2022",
            Method::Sigmoid => "Ramapuram et al. 2024",
            Method::Cosine(_) => "Henry et al. 2020",
            Method::Adaptive => "Veličković et al. 2024",
            Method::TopK(_) => "Gupta et al. 2021",
            Method::Sparsemax => "Martins and Astudillo 2016",
            Method::Entmax15 => "Peters et al. 2019",
        }
    }

    /// Whether its weights are a distribution (with a sink: one of which the sink has a part).
    pub(super) fn has_entropy(self) -> bool {
        self != Method::Sigmoid
    }

    /// Whether its Jacobian is that of a softmax.
    pub(super) fn is_softmax(self) -> bool {
        !matches!(self, Method::Sigmoid | Method::Sparsemax | Method::Entmax15)
    }

    /// A head's problem with it.
    pub(super) fn head<'a>(self, problem: Problem, tensors: [&'a [f32]; 3]) -> Head<'a> {
        let mut head = Head::new(problem.clone(), tensors);
        head.problem = match self {
            Method::Softmax => problem,
            Method::Temperature(t) => problem.temperature(Temperature::Value(t)),
            Method::Softcap(c) => problem.softcap(c),
            Method::OffByOne => problem.sink(Sink::Zero),
            Method::Sink(sink) => {
                head.sink = Some(sink);
                problem.sink(Sink::PerHead)
            }
            Method::Ssmax(s) => {
                head.ssmax = Some(s);
                problem.length_scale(LengthScale::Ssmax)
            }
            Method::LogN(train_len) => problem.length_scale(LengthScale::LogTrainLen { train_len }),
            Method::Cosine(scale) => problem.qk_norm(QkNorm::l2()).scale(Scale::Value(scale)),
            Method::Adaptive => problem.adaptive_temperature(AdaptiveTemperature::default()),
            Method::TopK(k) => problem.top_k(k),
            Method::Sparsemax => problem.normalizer(Normalizer::Sparsemax),
            Method::Entmax15 => problem.normalizer(Normalizer::Entmax15),
            Method::Sigmoid => problem.normalizer(Normalizer::Sigmoid { bias: SigmoidBias::MinusLogVisible }),
        };
        head
    }
}
