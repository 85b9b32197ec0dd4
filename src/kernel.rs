//! Kernels and their variants. Everything that changes generated code is in a [`PipelineKey`], and nothing else.

use crate::dtype::DType;
use crate::mask::MaskFormat;
use crate::plan::{MatrixTiles, RowTiles, Tiles};
use crate::problem::Problem;
use crate::qk_norm::{NormGains, NormKind};
use crate::score::Sink;
pub use crate::shader::tensor::Access;
use crate::shape::Stats;
use crate::tensor::Tensor;
use crate::user_code::UserCode;
use core::fmt;

/// The members of the kernel family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "measure",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum Kernel {
    /// Tiled online softmax at WebGPU's default limits (`shaders/tiled.wgsl`). The score matrix is never stored.
    Tiled,
    /// Whole rows in the lanes of a workgroup (`shaders/rows.wgsl`): what processors that play a GPU like.
    Rows,
    /// Cooperative matrices of f16 (`shaders/matrix.wgsl`): where the app has asked for them, see
    /// [`Attention::with_matrices`](crate::Attention::with_matrices). Never the planner's own choice.
    Matrix,
    /// Three passes with the score matrix in memory (`shaders/naive.wgsl`): the readable baseline, and what runs
    /// where the device is too small for any tile.
    Naive,
}

impl Kernel {
    /// All members.
    pub const ALL: [Kernel; 4] = [Kernel::Tiled, Kernel::Rows, Kernel::Matrix, Kernel::Naive];

    /// The name in reports, labels and options.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Tiled => "tiled",
            Kernel::Rows => "rows",
            Kernel::Matrix => "matrix",
            Kernel::Naive => "naive",
        }
    }

    /// Whether it knows all that a problem asks for. Where it does not, a plan that asks for it is refused
    /// ([`Error::KernelUnavailable`](crate::Error::KernelUnavailable)) with the reason. The tiled kernel knows everything. (What it needs
    /// of a device is another question, which a plan answers.)
    pub fn supports(self, problem: &Problem) -> bool {
        match self {
            Kernel::Tiled | Kernel::Naive => true,
            Kernel::Rows => RowTiles::supports(problem).is_ok(),
            Kernel::Matrix => MatrixTiles::supports(problem).is_ok(),
        }
    }
}

const CLASSIFY: Pass = Pass {
    entry_point: "classify",
    bindings: &[
        Binding::Tensor(Tensor::Bias),
        Binding::Tensor(Tensor::Mask),
        Binding::Tables,
        Binding::NewClasses,
    ],
};

const TILED: Pass = Pass {
    entry_point: "attention",
    bindings: &[
        Binding::Tensor(Tensor::Q),
        Binding::Tensor(Tensor::K),
        Binding::Tensor(Tensor::V),
        Binding::Tensor(Tensor::Out),
        Binding::Tensor(Tensor::Bias),
        Binding::Tensor(Tensor::Mask),
        Binding::Stats,
        Binding::Tables,
        Binding::Classes,
    ],
};

const NAIVE: [Pass; 3] = [
    Pass {
        entry_point: "scores_pass",
        bindings: &[
            Binding::Tensor(Tensor::Q),
            Binding::Tensor(Tensor::K),
            Binding::Tensor(Tensor::Bias),
            Binding::Tensor(Tensor::Mask),
            Binding::Tables,
            Binding::Scores,
        ],
    },
    Pass { entry_point: "softmax_pass", bindings: &[Binding::Stats, Binding::Tables, Binding::Scores] },
    Pass {
        entry_point: "output_pass",
        bindings: &[
            Binding::Tensor(Tensor::V),
            Binding::Tensor(Tensor::Out),
            Binding::Tables,
            Binding::Scores,
        ],
    },
];

/// A storage binding of a pass, beside the params at binding 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binding {
    Tensor(Tensor),
    Stats,
    Tables,
    Scores,
    /// Classes of mask tiles, as they are read.
    Classes,
    /// Classes of mask tiles, as they are written.
    NewClasses,
}

impl Binding {
    pub(crate) fn number(self) -> u32 {
        match self {
            Binding::Tensor(tensor) => tensor.binding(),
            Binding::Stats => 5,
            Binding::Tables => 6,
            Binding::Scores => 9,
            Binding::Classes => 10,
            Binding::NewClasses => 11,
        }
    }

    pub(crate) fn is_written(self) -> bool {
        matches!(self, Binding::Tensor(Tensor::Out) | Binding::Stats | Binding::Scores | Binding::NewClasses)
    }
}

/// An entry point and what it may bind; a variant binds of it what its problem has.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) entry_point: &'static str,
    bindings: &'static [Binding],
}

impl Pass {
    /// What a variant binds for this pass: never more than the eight that every WebGPU device has.
    pub(crate) fn bindings(&self, key: &PipelineKey) -> impl Iterator<Item = Binding> {
        self.bindings.iter().copied().filter(|binding| match binding {
            Binding::Tensor(Tensor::Bias) => key.bias.is_some(),
            Binding::Tensor(Tensor::Mask) => key.mask.is_some(),
            Binding::Tensor(_) | Binding::Scores => true,
            Binding::Stats => key.stats.count() > 0,
            Binding::Tables => key.has_tables(),
            Binding::Classes | Binding::NewClasses => key.tile_classes,
        })
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a row's temperature comes from, as far as generated code differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TemperatureSource {
    /// Folded into the one factor.
    Number,
    /// Table of (q_heads).
    PerHead,
    /// Table of (batch, q_heads, seq_q).
    PerRow,
}

/// Where the offset of positions comes from, as far as generated code differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OffsetSource {
    /// One number, or nothing counts from positions.
    Number,
    /// Table of (batch).
    PerBatch,
    /// Keys less queries of a packed sequence.
    Lengths,
    /// Valid keys less valid queries.
    Valid,
}

/// Which multiplier of the score depends on the row, as far as generated code differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LengthSource {
    /// None that does.
    None,
    /// `s ln(n)`.
    Ssmax,
    /// `max(1, ln(n) / ln(train_len))`.
    LogTrainLen,
    /// `1 + coef ln(floor((position + 1) / floor) + 1)`.
    Llama4,
}

/// What makes weights of scores, as far as generated code differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NormalizerSource {
    /// Softmax.
    Softmax,
    /// Sigmoid with a number as its bias.
    Sigmoid,
    /// Sigmoid whose bias depends on how many keys a row sees.
    SigmoidVisible,
    /// Sparsemax.
    Sparsemax,
    /// 1.5-entmax.
    Entmax15,
}

/// What is looked for in passes over the keys before the last one. Each is a file `shaders/search_*.wgsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Search {
    /// Nothing: one pass.
    None,
    /// The entropy of each row, for an adaptive temperature.
    Entropy,
    /// The threshold of sparsemax or entmax.
    Threshold,
    /// Which keys are the k largest.
    TopK,
}

impl Search {
    /// Passes before the last one, at most, for a number of keys: the bounds that `shaders/search_*.wgsl` argue.
    pub(crate) fn most_passes(self, seq_k: u32) -> u32 {
        let bits = u32::BITS - seq_k.leading_zeros(); // log2 of seq_k, rounded up
        match self {
            Search::None => 0,
            Search::Entropy => 1,
            // The largest score; then the bracket goes from 1 to 2^-22 of the threshold, which is at least 1 / seq_k, by quarters.
            // One more, because a quarter of what f32 cannot halve is rounded.
            Search::Threshold => 1 + (22 + bits).div_ceil(2) + 1,
            // Smallest and largest; 2^32 integers by fifths; key numbers by ninths, which are more than 3 bits.
            Search::TopK => 1 + 15 + bits.div_ceil(3) + 1,
        }
    }

    /// How many maxima and sums of a row a pass gathers.
    pub(crate) fn gathered(self) -> [u32; 2] {
        match self {
            Search::None => [0, 0],
            Search::Entropy => [1, 2],
            Search::Threshold => [1, 8],
            Search::TopK => [2, 8],
        }
    }
}

/// One compiled variant: equal keys have equal shaders. Lengths, strides, scales, caps, offsets and the sizes of windows are not in
/// it, so a growing cache or a moving temperature never compiles anything.
///
/// Its `Display` is the readable name that labels, reports and benches use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PipelineKey {
    /// The kernel.
    pub kernel: Kernel,
    /// Numbers in a row of q and k.
    pub head_dim_qk: u32,
    /// Numbers in a row of v and out.
    pub head_dim_v: u32,
    /// Tile sizes of the tiled kernel, and who owns which scores in the matrix kernel; for the others only `threads` counts.
    pub tiles: Tiles,
    /// Sizes of the row kernel, where it is that.
    pub rows: Option<RowTiles>,
    /// Sizes of the matrix kernel, where it is that.
    pub matrix: Option<MatrixTiles>,
    /// How numbers of q, k, v and out are loaded and stored.
    pub access: [Access; 4],
    /// How q, k, v and out are stored.
    pub dtypes: [DType; 4],
    /// What is stored as f16 in aligned rows is loaded and stored as a type of the shader's own.
    pub native_f16: bool,
    /// A causal mask.
    pub causal: bool,
    /// A window.
    pub window: bool,
    /// The window keeps the first keys.
    pub keep_first: bool,
    /// Where the offset of positions comes from.
    pub offset: OffsetSource,
    /// A dense mask.
    pub mask: Option<MaskFormat>,
    /// Mask tiles are classified first.
    pub tile_classes: bool,
    /// A soft cap.
    pub softcap: bool,
    /// An additive bias.
    pub bias: Option<DType>,
    /// ALiBi.
    pub alibi: bool,
    /// What makes weights of scores.
    pub normalizer: NormalizerSource,
    /// What is looked for before the last pass over the keys.
    pub search: Search,
    /// A sink.
    pub sink: Sink,
    /// q and out are packed, with starts from a table.
    pub packed_q: bool,
    /// k and v are packed, with starts from a table.
    pub packed_k: bool,
    /// Dropout.
    pub dropout: bool,
    /// Documents of queries and keys come from tables.
    pub documents: bool,
    /// Valid queries come from a table.
    pub q_len: bool,
    /// Valid keys come from a table.
    pub kv_len: bool,
    /// Where temperatures come from.
    pub temperature: TemperatureSource,
    /// A multiplier that depends on the row.
    pub length: LengthSource,
    /// Normalised q and k.
    pub qk_norm: Option<NormKind>,
    /// Gains of these.
    pub qk_gains: NormGains,
    /// The user's function of the score.
    pub score_mod: Option<UserCode>,
    /// The user's mask.
    pub mask_mod: Option<UserCode>,
    /// The user's functions read numbers.
    pub user_params: bool,
    /// Statistics that are written.
    pub stats: Stats,
}

impl PipelineKey {
    /// Passes, in the order in which they are dispatched.
    pub(crate) fn passes(&self) -> &'static [Pass] {
        const WITH_CLASSES: [Pass; 2] = [CLASSIFY, TILED];
        match self.kernel {
            Kernel::Tiled | Kernel::Matrix if self.tile_classes => &WITH_CLASSES,
            Kernel::Tiled | Kernel::Rows | Kernel::Matrix => &WITH_CLASSES[1..],
            Kernel::Naive => &NAIVE,
        }
    }

    /// Storage buffers of the pass that has most.
    pub(crate) fn binding_count(&self) -> usize {
        self.passes().iter().map(|pass| pass.bindings(self).count()).max().unwrap_or(0)
    }

    /// Whether the shader reads the tables binding.
    pub fn has_tables(&self) -> bool {
        self.packed_q
            || self.packed_k
            || self.documents
            || self.q_len
            || self.kv_len
            || self.offset == OffsetSource::PerBatch
            || self.alibi
            || self.sink == Sink::PerHead
            || self.length == LengthSource::Ssmax
            || self.user_params
            || self.qk_gains != NormGains::None
            || self.dropout
            || self.temperature != TemperatureSource::Number
    }
}

impl fmt::Display for PipelineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attention/{} d{}x{}", self.kernel, self.head_dim_qk, self.head_dim_v)?;
        match (self.kernel, self.rows, self.matrix) {
            (Kernel::Tiled, ..) => write!(f, " {}", self.tiles)?,
            (Kernel::Rows, Some(rows), _) => write!(f, " {rows}")?,
            (Kernel::Matrix, _, Some(matrix)) => write!(f, " {matrix}")?,
            _ => write!(f, " {} threads", self.tiles.threads)?,
        }
        if self.dtypes != [DType::F32; 4] {
            let [q, k, v, out] = self.dtypes.map(DType::name);
            write!(f, " {q},{k},{v}->{out}")?;
        }
        let options = [
            (self.native_f16, "native_f16"),
            (self.access.contains(&Access::Wide), "wide"),
            (self.access.contains(&Access::Scalar), "scalar"),
            (self.causal, "causal"),
            (self.window, "window"),
            (self.keep_first, "keep_first"),
            (self.offset == OffsetSource::PerBatch, "offsets"),
            (self.offset == OffsetSource::Lengths, "offset/lengths"),
            (self.offset == OffsetSource::Valid, "offset/valid"),
            (self.packed_q, "packed/q"),
            (self.packed_k, "packed/k"),
            (self.mask == Some(MaskFormat::Bytes), "mask/bytes"),
            (self.mask == Some(MaskFormat::Bits), "mask/bits"),
            (self.tile_classes, "tile_classes"),
            (self.softcap, "softcap"),
            (self.bias == Some(DType::F32), "bias/f32"),
            (self.bias == Some(DType::F16), "bias/f16"),
            (self.bias == Some(DType::Bf16), "bias/bf16"),
            (self.alibi, "alibi"),
            (self.normalizer == NormalizerSource::Sigmoid, "sigmoid"),
            (self.normalizer == NormalizerSource::SigmoidVisible, "sigmoid/visible"),
            (self.normalizer == NormalizerSource::Sparsemax, "sparsemax"),
            (self.normalizer == NormalizerSource::Entmax15, "entmax15"),
            (self.search == Search::Entropy, "adaptive"),
            (self.search == Search::TopK, "top_k"),
            (self.sink == Sink::Zero, "sink/zero"),
            (self.sink == Sink::PerHead, "sink/head"),
            (self.dropout, "dropout"),
            (self.documents, "documents"),
            (self.q_len, "q_len"),
            (self.kv_len, "kv_len"),
            (self.temperature == TemperatureSource::PerHead, "temperature/head"),
            (self.temperature == TemperatureSource::PerRow, "temperature/row"),
            (self.length == LengthSource::Ssmax, "ssmax"),
            (self.length == LengthSource::LogTrainLen, "log-n"),
            (self.length == LengthSource::Llama4, "llama4"),
            (self.qk_norm == Some(NormKind::L2), "qk_norm/l2"),
            (self.qk_norm == Some(NormKind::Rms), "qk_norm/rms"),
            (self.qk_gains == NormGains::Shared, "gains/shared"),
            (self.qk_gains == NormGains::PerHead, "gains/head"),
            (self.stats.lse, "lse"),
            (self.stats.entropy, "entropy"),
            (self.stats.row_max, "row_max"),
        ];
        for (name, code) in [("score_mod", &self.score_mod), ("mask_mod", &self.mask_mod)] {
            if let Some(code) = code {
                write!(f, " +{name}/{}", code.tag())?;
            }
        }
        for (on, name) in options {
            if on {
                write!(f, " +{name}")?;
            }
        }
        Ok(())
    }
}
