//! What is done to the logits, in the order that the caller gives.

use crate::error::{Error, Result};
use core::fmt;

/// One step of a chain. Each sees the tokens that those before it have left.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// Penalties on the tokens of the row's history, by how often they are there (arXiv 1909.05858 for the first).
    Penalties {
        /// Negative logits are multiplied by it, others divided; 1 is off. From 0.01 to 100.
        repetition: f32,
        /// Subtracted once for each time.
        frequency: f32,
        /// Subtracted once.
        presence: f32,
    },
    /// Adds the row's biases to their tokens; -inf takes a token out.
    LogitBias,
    /// Leaves only the tokens whose bit is set in the row's mask.
    Allowed,
    /// Divides by a temperature: 0 leaves only the largest logit (the lowest token of equal ones), infinity makes all that are left equal.
    Temperature(f32),
    /// Divides by low + (high - low) (H / ln n)^exponent, H the entropy of the n tokens that are left, and by no less than 2^-16.
    DynamicTemperature {
        /// For a certain distribution. From 0.
        low: f32,
        /// For a uniform one. Up to 1000.
        high: f32,
        /// From 0 to 65535.
        exponent: f32,
    },
    /// The k largest logits, exactly k, the lowest tokens of equal ones; 0 is off.
    TopK(u32),
    /// The largest logits until their probabilities make p, the token that crosses p included (arXiv 1904.09751); 1 is off.
    TopP(f32),
    /// The tokens with at least p times the largest probability (arXiv 2407.01082); 0 is off.
    MinP(f32),
    /// The tokens whose surprise is nearest to the entropy, until their probabilities make p, the one that crosses it included
    /// (arXiv 2202.00666); 1 is off.
    Typical(f32),
    /// The tokens within n deviations of the largest logit, over the tokens that are left (arXiv 2411.07641); 0 is off.
    TopNSigma(f32),
}

impl Step {
    /// The name in plans and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Step::Penalties { .. } => "penalties",
            Step::LogitBias => "logit_bias",
            Step::Allowed => "allowed",
            Step::Temperature(_) => "temperature",
            Step::DynamicTemperature { .. } => "dynamic_temperature",
            Step::TopK(_) => "top_k",
            Step::TopP(_) => "top_p",
            Step::MinP(_) => "min_p",
            Step::Typical(_) => "typical",
            Step::TopNSigma(_) => "top_n_sigma",
        }
    }

    /// Whether what it leaves is larger than what it takes out.
    pub(super) fn keeps_largest(&self) -> bool {
        matches!(self, Step::TopK(_) | Step::TopP(_) | Step::MinP(_) | Step::TopNSigma(_))
    }

    fn check(&self) -> Result<()> {
        let field = self.name();
        let rule = |ok: bool, value: f32, rule| match ok {
            true => Ok(()),
            false => Err(Error::value(field, value, rule)),
        };
        match *self {
            Step::Penalties { repetition: r, frequency, presence } => {
                rule((0.01..=100.0).contains(&r), r, "a repetition from 0.01 to 100")?;
                for x in [frequency, presence] {
                    rule(x.abs() <= 1e6, x, "a frequency and a presence within 1e6")?;
                }
                Ok(())
            }
            Step::LogitBias | Step::Allowed | Step::TopK(_) => Ok(()),
            Step::Temperature(t) => {
                rule(t == 0.0 || (t >= f32::MIN_POSITIVE), t, "0, or a normal number above it")
            }
            Step::DynamicTemperature { low, high, exponent: e } => {
                rule((0.0..=1000.0).contains(&low), low, "a low temperature from 0 to 1000")?;
                rule((low..=1000.0).contains(&high), high, "a high temperature from the low one to 1000")?;
                rule((0.0..=65535.0).contains(&e), e, "an exponent from 0 to 65535")
            }
            Step::TopP(p) | Step::Typical(p) => rule(p > 0.0 && p <= 1.0, p, "above 0 and at most 1"),
            Step::MinP(p) => rule((0.0..=1.0).contains(&p), p, "from 0 to 1"),
            Step::TopNSigma(n) => rule((0.0..=60000.0).contains(&n), n, "from 0 to 60000"),
        }
    }

    /// The step's numbers as its shader reads them.
    pub(super) fn settings(&self) -> [u32; 4] {
        let share = |p: f32| match (f64::from(p) * 2f64.powi(32)).round() {
            whole if whole >= 2f64.powi(32) => 0, // all
            share => (share as u32).max(1),
        };
        match *self {
            Step::Penalties { repetition: r, frequency, presence } => {
                [r, (1.0 / f64::from(r)) as f32, frequency, presence].map(f32::to_bits)
            }
            Step::LogitBias | Step::Allowed => [0; 4],
            Step::Temperature(0.0) => [0; 4],
            Step::Temperature(1.0) => [2, 0, 0, 0],
            Step::Temperature(t) => {
                let inverse = (1.0 / f64::from(t)) as f32;
                let inverse = if inverse.is_normal() { inverse } else { 0.0 };
                [1, inverse.to_bits(), ((1e36 * f64::from(t)).min(1e36) as f32).to_bits(), 0]
            }
            Step::DynamicTemperature { low, high, exponent } => {
                let fixed = |x: f32, bits| (f64::from(x) * 2f64.powi(bits)).round() as u32;
                [fixed(low, 22), fixed(high, 22), fixed(exponent, 16), 0]
            }
            Step::TopK(k) => [k, 0, 0, 0],
            Step::TopP(p) | Step::Typical(p) => [share(p), 0, 0, 0],
            Step::MinP(0.0) => [0; 4],
            Step::MinP(p) => [(f64::from(p).ln() as f32).to_bits(), 1, 0, 0],
            Step::TopNSigma(n) => [(f64::from(n) * 65536.0).round() as u32, 0, 0, 0],
        }
    }
}

/// Steps in the order of the calls that add them. A batch may have a chain for each row, with the same steps and other numbers.
///
/// ```
/// use wgpu_attention::sampling::Chain;
/// let chain = Chain::new().temperature(0.8).top_k(40).top_p(0.95);
/// assert_eq!(chain.to_string(), "temperature 0.8, top_k 40, top_p 0.95");
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chain {
    steps: Vec<Step>,
}

/// llama.cpp's settings with its defaults, for [`Chain::llama_cpp`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LlamaCpp {
    /// Off at 1.
    pub repetition: f32,
    /// Off at 0.
    pub frequency: f32,
    /// Off at 0.
    pub presence: f32,
    /// Off at 0.
    pub top_n_sigma: f32,
    /// Off at 0.
    pub top_k: u32,
    /// Off at 1.
    pub typical: f32,
    /// Off at 1.
    pub top_p: f32,
    /// Off at 0.
    pub min_p: f32,
    /// 0 is greedy.
    pub temperature: f32,
}

impl Default for LlamaCpp {
    fn default() -> Self {
        LlamaCpp {
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
            top_n_sigma: 0.0,
            top_k: 40,
            typical: 1.0,
            top_p: 0.95,
            min_p: 0.05,
            temperature: 0.8,
        }
    }
}

/// The settings of transformers' `generate` with its defaults, for [`Chain::transformers`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transformers {
    /// Off at 1. Once for each token of the history, however often it is there.
    pub repetition: f32,
    /// Above 0; transformers refuses 0, here it is greedy.
    pub temperature: f32,
    /// Off at 0.
    pub top_k: u32,
    /// Off at 1.
    pub top_p: f32,
    /// Off at 0.
    pub min_p: f32,
    /// Off at 1.
    pub typical: f32,
}

impl Default for Transformers {
    fn default() -> Self {
        Transformers { repetition: 1.0, temperature: 1.0, top_k: 50, top_p: 1.0, min_p: 0.0, typical: 1.0 }
    }
}

impl Chain {
    /// No step: the logits as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// llama.cpp's order: penalties, top-n-sigma, top-k, typical, top-p, min-p, and the temperature last. (Its DRY and XTC are not there.)
    /// Penalties that are off are left out, so that no history is needed.
    pub fn llama_cpp(s: LlamaCpp) -> Self {
        Self::new()
            .penalties_if_on(s.repetition, s.frequency, s.presence)
            .top_n_sigma(s.top_n_sigma)
            .top_k(s.top_k)
            .typical(s.typical)
            .top_p(s.top_p)
            .min_p(s.min_p)
            .temperature(s.temperature)
    }

    /// transformers' order: repetition, the temperature first of the rest, top-k, top-p, min-p, typical. A repetition that is off is left
    /// out, so that no history is needed.
    pub fn transformers(s: Transformers) -> Self {
        Self::new()
            .penalties_if_on(s.repetition, 0.0, 0.0)
            .temperature(s.temperature)
            .top_k(s.top_k)
            .top_p(s.top_p)
            .min_p(s.min_p)
            .typical(s.typical)
    }

    fn penalties_if_on(self, repetition: f32, frequency: f32, presence: f32) -> Self {
        match [repetition, frequency, presence] {
            [1.0, 0.0, 0.0] => self,
            _ => self.penalties(repetition, frequency, presence),
        }
    }

    /// Adds a step.
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Adds [`Step::Penalties`]; needs [`Problem::with_history`](super::Problem::with_history).
    pub fn penalties(self, repetition: f32, frequency: f32, presence: f32) -> Self {
        self.step(Step::Penalties { repetition, frequency, presence })
    }

    /// Adds [`Step::LogitBias`]; needs [`Problem::with_bias`](super::Problem::with_bias).
    pub fn logit_bias(self) -> Self {
        self.step(Step::LogitBias)
    }

    /// Adds [`Step::Allowed`]: masks are an input then.
    pub fn allowed(self) -> Self {
        self.step(Step::Allowed)
    }

    /// Adds [`Step::Temperature`].
    pub fn temperature(self, temperature: f32) -> Self {
        self.step(Step::Temperature(temperature))
    }

    /// Adds [`Step::DynamicTemperature`].
    pub fn dynamic_temperature(self, low: f32, high: f32, exponent: f32) -> Self {
        self.step(Step::DynamicTemperature { low, high, exponent })
    }

    /// Adds [`Step::TopK`].
    pub fn top_k(self, k: u32) -> Self {
        self.step(Step::TopK(k))
    }

    /// Adds [`Step::TopP`].
    pub fn top_p(self, p: f32) -> Self {
        self.step(Step::TopP(p))
    }

    /// Adds [`Step::MinP`].
    pub fn min_p(self, p: f32) -> Self {
        self.step(Step::MinP(p))
    }

    /// Adds [`Step::Typical`].
    pub fn typical(self, p: f32) -> Self {
        self.step(Step::Typical(p))
    }

    /// Adds [`Step::TopNSigma`].
    pub fn top_n_sigma(self, n: f32) -> Self {
        self.step(Step::TopNSigma(n))
    }

    /// The steps, in their order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether another chain has the same steps, whatever their numbers.
    pub fn same_steps(&self, other: &Chain) -> bool {
        let names = |chain: &Chain| chain.steps.iter().map(Step::name).collect::<Vec<_>>();
        names(self) == names(other)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.steps.iter().any(|step| step.name() == name)
    }

    /// Checks every number.
    ///
    /// # Errors
    /// [`Error::Value`] with the step and its rule.
    pub fn check(&self) -> Result<()> {
        self.steps.iter().try_for_each(Step::check)
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, step) in self.steps.iter().enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{}", step.name())?;
            match *step {
                Step::Penalties { repetition, frequency, presence } => {
                    write!(f, " {repetition} {frequency} {presence}")?;
                }
                Step::DynamicTemperature { low, high, exponent } => write!(f, " {low} {high} {exponent}")?,
                Step::TopK(k) => write!(f, " {k}")?,
                Step::Temperature(x)
                | Step::TopP(x)
                | Step::MinP(x)
                | Step::Typical(x)
                | Step::TopNSigma(x) => write!(f, " {x}")?,
                Step::LogitBias | Step::Allowed => {}
            }
        }
        Ok(())
    }
}
