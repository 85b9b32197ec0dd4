//! Which gradients of which problem.

use crate::error::{Error, Result};
use crate::layout::{Layout, View};
use crate::normalizer::Normalizer;
use crate::score::Sink;
use crate::sharpness::Temperature;
use crate::tensor::Tensor;

/// Gradients of a [`crate::Problem`]: always those of q, k and v, and others where asked for.
///
/// Masks, lengths, windows, scale, every temperature and length scale, soft cap, bias, ALiBi and sinks are supported, grouped heads, and
/// 16-bit storage of q, k, v and out. Gradients are f32. Packed sequences, adaptive temperature, top_k, normalised q and k, user code, dropout and normalizers other than
/// the softmax are refused.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// The forward problem. Its statistics do not matter here.
    pub forward: crate::Problem,
    /// lse has a gradient that comes in.
    pub dlse: bool,
    /// The gradient of the bias is asked for.
    pub dbias: bool,
    /// The gradient of the sinks is asked for.
    pub dsinks: bool,
    /// The gradient of the temperature is asked for: one number, or one for each head or row.
    pub dtemperature: bool,
    /// Memory orders of dq, dk and dv. Default: those of q, k and v.
    pub layouts: [Layout; 3],
}

impl Problem {
    /// The gradients of q, k and v.
    pub fn new(forward: crate::Problem) -> Self {
        let layouts = [forward.q_layout, forward.k_layout, forward.v_layout];
        Problem { forward, dlse: false, dbias: false, dsinks: false, dtemperature: false, layouts }
    }

    /// lse is used too: its gradient, (batch, q_heads, seq_q), comes in beside that of out.
    pub fn with_lse(mut self) -> Self {
        self.dlse = true;
        self
    }

    /// Asks for the gradient of the additive bias, of its sizes: where it is broadcast, the sum.
    pub fn with_bias(mut self) -> Self {
        self.dbias = true;
        self
    }

    /// Asks for the gradient of the sinks, (q_heads), for [`Sink::PerHead`].
    pub fn with_sinks(mut self) -> Self {
        self.dsinks = true;
        self
    }

    /// Asks for the gradient of the temperature: (1), (q_heads) or (batch, q_heads, seq_q), as the problem has it.
    pub fn with_temperature(mut self) -> Self {
        self.dtemperature = true;
        self
    }

    /// Memory orders of dq, dk and dv: needed where elements of q, k or v share a place.
    pub fn layouts(mut self, dq: Layout, dk: Layout, dv: Layout) -> Self {
        self.layouts = [dq, dk, dv];
        self
    }

    /// Checks everything that can be known without a device.
    ///
    /// # Errors
    /// What [`crate::Problem::check`] finds; [`Error::Incompatible`] for an option that has no gradient here;
    /// [`Error::Unused`] for a gradient of what the problem does not have; [`Error::Value`] for a layout of a gradient in which
    /// elements share a place.
    pub fn check(&self) -> Result<()> {
        let p = &self.forward;
        p.check()?;
        for (on, option) in [
            (p.packed_q.is_some() || p.packed_k.is_some(), "packed sequences"),
            (p.adaptive_temperature.is_some(), "adaptive_temperature"),
            (p.top_k.is_some(), "top_k"),
            (p.qk_norm.is_some(), "qk_norm"),
            (p.score_mod.is_some(), "score_mod"),
            (p.mask_mod.is_some(), "mask_mod"),
            (p.dropout.is_some(), "dropout"),
            (p.normalizer != Normalizer::Softmax, "a normalizer other than the softmax"),
        ] {
            if on {
                let why = "this version does not have its gradient";
                return Err(Error::Incompatible { option, other: "gradients", why });
            }
        }
        if self.dbias && p.bias.is_none() {
            return Err(Error::Unused { field: "dbias", hint: "the problem has no bias" });
        }
        if self.dsinks && p.sink != Sink::PerHead {
            return Err(Error::Unused { field: "dsinks", hint: "the problem has no sinks that are learned" });
        }
        for gradient in 0..3 {
            self.view(gradient)?.check_no_overlap()?;
        }
        Ok(())
    }

    /// Where the elements of dq (0), dk (1) or dv (2) are.
    pub(crate) fn view(&self, gradient: usize) -> Result<View> {
        let tensor = Tensor::MAIN[gradient];
        let name = ["dq", "dk", "dv"][gradient];
        View::new(name, self.forward.view(tensor)?.sizes(), self.layouts[gradient])
    }

    /// How many temperatures there are.
    pub(crate) fn temperatures(&self) -> u64 {
        match self.forward.temperature {
            Temperature::Value(_) => 1,
            Temperature::PerHead => self.forward.shape.q_heads.into(),
            Temperature::PerRow => self.forward.shape.rows(),
        }
    }

    /// Elements of the bias and of its gradient.
    pub(crate) fn bias_elements(&self) -> u64 {
        self.forward.bias.map_or(0, |(_, sizes)| sizes.0.iter().map(|&n| u64::from(n)).product())
    }
}
