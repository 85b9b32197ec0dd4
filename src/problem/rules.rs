//! What makes no sense, said before anything is planned.

use super::Problem;
use crate::error::{Error, Result};
use crate::mask::Alignment;
use crate::normalizer::Normalizer;
use crate::score::Sink;
use crate::shape::MAX_SEQ;
use crate::tensor::Tensor;

impl Problem {
    /// Checks everything that can be known without a device.
    ///
    /// # Errors
    /// [`Error::Value`] or [`Error::HeadsNotMultiple`], naming the field and the rule; [`Error::Unused`] for an alignment that
    /// nothing counts from and for user parameters without user code; [`Error::Incompatible`] for options that make no sense together.
    pub fn check(&self) -> Result<()> {
        self.shape.check()?;
        self.scale.check()?;
        self.temperature.check()?;
        self.length_scale.check()?;
        self.qk_norm.map_or(Ok(()), |norm| norm.check())?;
        if let Some(cap) = self.softcap
            && !(cap > 0.0 && (cap * core::f32::consts::LOG2_E).is_finite())
        {
            return Err(Error::value("softcap", cap, "above 0 and finite when multiplied by log2(e)"));
        }
        if !self.kernel_factor().is_finite() {
            return Err(Error::value(
                "scale / temperature",
                self.factor(),
                "finite in f32 when multiplied by log2(e), or divided by the soft cap",
            ));
        }
        self.check_weights()?;
        if self.user_params > 0 && self.score_mod.is_none() && self.mask_mod.is_none() {
            return Err(Error::Unused { field: "user_params", hint: "there is no score_mod or mask_mod" });
        }
        let s = &self.shape;
        for (field, total, most) in
            [("packed_q", self.packed_q, s.seq_q), ("packed_k", self.packed_k, s.seq_k)]
        {
            let Some(total) = total else { continue };
            if total > MAX_SEQ || u64::from(total) > u64::from(s.batch) * u64::from(most) {
                return Err(Error::value(
                    field,
                    total,
                    "at most 2^30, and at most batch times the longest length",
                ));
            }
        }
        let full = [s.batch, s.q_heads, s.seq_q, s.seq_k];
        if let Some((_, sizes)) = &self.bias {
            sizes.check("bias sizes", full)?;
        }
        if let Some((_, sizes)) = &self.mask {
            sizes.check("mask sizes", full)?;
        }
        if self.alignment != Alignment::default() && !self.uses_positions() {
            return Err(Error::Unused {
                field: "alignment",
                hint: "only causal masks, windows, ALiBi and length scales count from a row's position",
            });
        }
        for tensor in Tensor::ALL {
            let view = self.view(tensor)?;
            if tensor == Tensor::Out {
                view.check_no_overlap()?;
            }
        }
        Ok(())
    }

    /// The rules of what comes after the scores.
    fn check_weights(&self) -> Result<()> {
        self.normalizer.check()?;
        if let Some(dropout) = &self.dropout {
            dropout.check(&self.shape)?;
        }
        if let Some(adaptive) = &self.adaptive_temperature {
            adaptive.check()?;
        }
        if self.top_k == Some(0) {
            return Err(Error::value("top_k", 0, "at least 1"));
        }
        if self.top_k.is_some() && self.shape.seq_k > 1 << 24 {
            return Err(Error::value(
                "seq_k",
                self.shape.seq_k,
                "at most 2^24 with top_k, which counts that far",
            ));
        }
        let softmax_only = "it is defined for the weights of a softmax";
        for (asked, option, other, why) in self.refused_by_normalizer().into_iter().chain([
            (
                self.sink != Sink::None && self.adaptive_temperature.is_some(),
                "adaptive_temperature",
                "a sink",
                "it follows from the entropy of weights that sum to 1, and a sink has a share of them",
            ),
            (
                self.top_k.is_some() && self.adaptive_temperature.is_some(),
                "adaptive_temperature",
                "top_k",
                "it follows from the entropy over all keys, and those outside the k are not to count",
            ),
            (
                !self.normalizer.is_softmax() && self.adaptive_temperature.is_some(),
                "adaptive_temperature",
                "a normalizer other than the softmax",
                softmax_only,
            ),
            (
                !self.normalizer.is_softmax() && self.top_k.is_some(),
                "top_k",
                "a normalizer other than the softmax",
                softmax_only,
            ),
        ]) {
            if asked {
                return Err(Error::Incompatible { option, other, why });
            }
        }
        Ok(())
    }

    /// What a normalizer does not have, and whether it is asked for.
    fn refused_by_normalizer(&self) -> Vec<(bool, &'static str, &'static str, &'static str)> {
        let sink = self.sink != Sink::None;
        match self.normalizer {
            Normalizer::Softmax => Vec::new(),
            Normalizer::Sigmoid { .. } => vec![
                (
                    sink,
                    "sigmoid attention",
                    "a sink",
                    "a sink is a term of the sum by which a softmax divides",
                ),
                (self.stats.lse, "sigmoid attention", "lse", "its weights are not divided by a sum"),
                (
                    self.stats.entropy,
                    "sigmoid attention",
                    "entropy",
                    "its weights do not sum to 1, and are no distribution",
                ),
            ],
            Normalizer::Sparsemax | Normalizer::Entmax15 => {
                let asked = if self.normalizer == Normalizer::Sparsemax { "sparsemax" } else { "entmax15" };
                vec![
                    (sink, asked, "a sink", "a sink is a term of the sum by which a softmax divides"),
                    (
                        self.stats.lse,
                        asked,
                        "lse",
                        "its weights come of a threshold, not of a sum of exponentials",
                    ),
                ]
            }
        }
    }
}
