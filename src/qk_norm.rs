//! Normalised queries and keys: `q` and `k` are divided by their length before their product is taken.
//!
//! What is left of q.k is the cosine of their angle (times gains), so scores are bounded whatever training does to the size of q and k, and
//! the temperature alone says how sharp the softmax is. The shaders' twin of this file is `shaders/qk_norm.wgsl`.

use crate::error::{Error, Result};

/// Which length of a row it is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NormKind {
    /// `x / max(|x|, eps)`, with the Euclidean length (QKNorm, Henry et al. 2020, arXiv 2010.04245; cosine attention, Liu et al.
    /// 2021, arXiv 2111.09883). The default scale still multiplies: [`Scale::Value`](crate::Scale::Value)`(1.0)` and a
    /// temperature for each head are cosine attention.
    L2,
    /// `x / sqrt(mean(x^2) + eps)` over the head dim (RMSNorm, Zhang and Sennrich 2019, arXiv 1910.07467, as in Qwen 3 and
    /// Gemma 3).
    Rms,
}

/// Which gains multiply normalised rows, element by element: finite numbers from the tables `q_gain` and `k_gain`, both of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum NormGains {
    /// None.
    #[default]
    None,
    /// (head_dim_qk) for q and for k, the same in all heads.
    Shared,
    /// (q_heads, head_dim_qk) for q and (kv_heads, head_dim_qk) for k.
    PerHead,
}

/// How q and k are normalised before their product.
///
/// A row of zeros stays one. Lengths must lie between 1e-14 and 1e18, or eps decide (a row shorter than that counts as even shorter, as
/// the squares of its numbers leave f32's range), and the product before it is divided, times scale and gains, must fit f32 too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    /// The length.
    pub kind: NormKind,
    /// Keeps short rows from growing: see [`NormKind`] for where it stands. Finite, and 0 or (for L2) at least 1e-18.
    pub eps: f32,
    /// Gains after it.
    pub gains: NormGains,
}

impl QkNorm {
    /// Division by the Euclidean length, at least 1e-12.
    pub fn l2() -> Self {
        QkNorm { kind: NormKind::L2, eps: 1e-12, gains: NormGains::None }
    }

    /// Division by the root of the mean square plus eps.
    pub fn rms(eps: f32) -> Self {
        QkNorm { kind: NormKind::Rms, eps, gains: NormGains::None }
    }

    /// With gains.
    pub fn gains(mut self, gains: NormGains) -> Self {
        self.gains = gains;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let (smallest, rule) = match self.kind {
            NormKind::L2 => (1e-18, "0, or finite and at least 1e-18"),
            NormKind::Rms => (0.0, "finite and at least 0"),
        };
        if self.eps.is_finite() && (self.eps == 0.0 || self.eps >= smallest) {
            return Ok(());
        }
        Err(Error::value("qk_norm eps", self.eps, rule))
    }

    /// What the shader compares or adds: the square of eps for L2, whose length is compared in squares.
    pub(crate) fn kernel_eps(&self) -> f32 {
        match self.kind {
            NormKind::L2 => (f64::from(self.eps) * f64::from(self.eps)) as f32,
            NormKind::Rms => self.eps,
        }
    }

    /// Gains of q and of k for a number of heads.
    pub(crate) fn gain_counts(&self, [q_heads, kv_heads, head_dim]: [u32; 3]) -> Option<[u64; 2]> {
        let dim = u64::from(head_dim);
        match self.gains {
            NormGains::None => None,
            NormGains::Shared => Some([dim, dim]),
            NormGains::PerHead => Some([u64::from(q_heads) * dim, u64::from(kv_heads) * dim]),
        }
    }
}
