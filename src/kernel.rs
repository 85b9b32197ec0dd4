//! Kernels and their variants. Everything that changes generated code is in a [`PipelineKey`], and nothing else.

use crate::plan::Tiles;
use crate::problem::Stats;
pub use crate::shader::tensor::Access;
use core::fmt;

/// The members of the kernel family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Tiled online softmax at WebGPU's default limits (`shaders/tiled.wgsl`). The score matrix is never stored.
    Tiled,
    /// Three passes with the score matrix in memory (`shaders/naive.wgsl`): the readable baseline, and what runs
    /// where the device is too small for any tile.
    Naive,
}

impl Kernel {
    /// All members.
    pub const ALL: [Kernel; 2] = [Kernel::Tiled, Kernel::Naive];

    /// The name in reports, labels and options.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Tiled => "tiled",
            Kernel::Naive => "naive",
        }
    }

    /// Entry points, in the order in which they are dispatched.
    pub(crate) fn entry_points(self) -> &'static [&'static str] {
        match self {
            Kernel::Tiled => &["attention"],
            Kernel::Naive => &["scores_pass", "softmax_pass", "output_pass"],
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a row's temperature comes from, as far as generated code differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TemperatureSource {
    /// Folded into the one factor.
    Number,
    /// Table of (q_heads).
    PerHead,
    /// Table of (batch, q_heads, seq_q).
    PerRow,
}

/// One compiled variant: equal keys have equal shaders. Lengths, strides, scales and offsets are not in it, so a
/// growing cache or a moving temperature never compiles anything.
///
/// Its `Display` is the readable name that labels, reports and benches use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PipelineKey {
    /// The kernel.
    pub kernel: Kernel,
    /// Numbers in a row of q and k.
    pub head_dim_qk: u32,
    /// Numbers in a row of v and out.
    pub head_dim_v: u32,
    /// Tile sizes; for the naive kernel only `threads` counts.
    pub tiles: Tiles,
    /// How q, k, v and out are fetched.
    pub access: [Access; 4],
    /// A causal mask.
    pub causal: bool,
    /// Its offset comes from a table.
    pub causal_per_batch: bool,
    /// Valid keys come from a table.
    pub kv_len: bool,
    /// Where temperatures come from.
    pub temperature: TemperatureSource,
    /// Statistics that are written.
    pub stats: Stats,
}

impl PipelineKey {
    /// Whether the shader reads the tables binding.
    pub fn has_tables(&self) -> bool {
        self.kv_len || self.causal_per_batch || self.temperature != TemperatureSource::Number
    }
}

impl fmt::Display for PipelineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attention/{} d{}x{}", self.kernel, self.head_dim_qk, self.head_dim_v)?;
        match self.kernel {
            Kernel::Tiled => write!(f, " {}", self.tiles)?,
            Kernel::Naive => write!(f, " {} threads", self.tiles.threads)?,
        }
        let options = [
            (self.access.contains(&Access::Scalar), "scalar"),
            (self.causal, "causal"),
            (self.causal_per_batch, "causal_offset"),
            (self.kv_len, "kv_len"),
            (self.temperature == TemperatureSource::PerHead, "temperature/head"),
            (self.temperature == TemperatureSource::PerRow, "temperature/row"),
            (self.stats.lse, "lse"),
            (self.stats.entropy, "entropy"),
            (self.stats.row_max, "row_max"),
        ];
        for (on, name) in options {
            if on {
                write!(f, " +{name}")?;
            }
        }
        Ok(())
    }
}
