//! Problem -> plan, in pure Rust: which kernel, which tiles, how many dispatches, how much memory, and why.
//!
//! Nothing here talks to a device, so every decision can be tested with limits made by hand.

mod classes;
mod matrix;
mod needs;
pub(crate) mod rows;
mod slices;
mod storage;
pub(crate) mod tables;
mod tiles;

pub use classes::TileClasses;
pub(crate) use matrix::MatrixLayout;
pub use matrix::MatrixTiles;
pub use rows::{KeyMovement, RowTiles};
pub use slices::{Slice, Span};
pub use tables::{Table, TableData, Tables};
pub use tiles::{OutShape, Tiles};

use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::kernel::{Access, Kernel, PipelineKey};
use crate::mask::{Alignment, TileMask};
use crate::problem::Problem;
use crate::qk_norm::NormGains;
use crate::shader::{self, params::Params};
use crate::sharpness::LengthScale;
use crate::tensor::Tensor;
use core::fmt;
use core::ops::Range;

/// Choices that are otherwise the planner's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "measure", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PlanOptions {
    /// The kernel.
    pub kernel: Option<Kernel>,
    /// Tile sizes of the tiled kernel.
    pub tiles: Option<Tiles>,
    /// Sizes of the row kernel.
    pub rows: Option<RowTiles>,
    /// Sizes of the matrix kernel.
    #[cfg_attr(feature = "measure", serde(default, skip_serializing_if = "Option::is_none"))]
    pub matrix: Option<MatrixTiles>,
    /// Whether mask tiles are classified first. `Some(TileMask::Classified)` is an error where that cannot be.
    #[cfg_attr(feature = "measure", serde(default, skip_serializing_if = "Option::is_none"))]
    pub tile_mask: Option<TileMask>,
    /// Whether tensors that are stored as f16 are loaded and stored through a type of the shader's own, with the feature
    /// `SHADER_F16`, rather than unpacked. `Some(true)` is an error where that cannot be.
    #[cfg_attr(feature = "measure", serde(default, skip_serializing_if = "Option::is_none"))]
    pub native_f16: Option<bool>,
    /// Whether the row kernel loads and stores words of 64 bits, with the feature `SHADER_INT64`, in rows that are aligned to four numbers;
    /// by itself it does on processors that play a GPU, and on no other adapter. `Some(true)` is an error where that cannot be.
    #[cfg_attr(feature = "measure", serde(default, skip_serializing_if = "Option::is_none"))]
    pub wide_words: Option<bool>,
}

impl PlanOptions {
    /// A kernel of your choice.
    pub fn kernel(kernel: Kernel) -> Self {
        PlanOptions { kernel: Some(kernel), ..PlanOptions::default() }
    }

    /// With a choice about mask tiles.
    pub fn tile_mask(mut self, tile_mask: TileMask) -> Self {
        self.tile_mask = Some(tile_mask);
        self
    }

    /// With a choice about f16 as a type of the shader's own.
    pub fn native_f16(mut self, native: bool) -> Self {
        self.native_f16 = Some(native);
        self
    }

    /// With a choice about words of 64 bits.
    pub fn wide_words(mut self, wide: bool) -> Self {
        self.wide_words = Some(wide);
        self
    }

    /// The tiled kernel with tiles of your choice.
    pub fn tiles(tiles: Tiles) -> Self {
        PlanOptions { tiles: Some(tiles), ..PlanOptions::kernel(Kernel::Tiled) }
    }

    /// The row kernel with sizes of your choice.
    pub fn rows(rows: RowTiles) -> Self {
        PlanOptions { rows: Some(rows), ..PlanOptions::kernel(Kernel::Rows) }
    }

    /// The matrix kernel with sizes of your choice.
    pub fn matrix(matrix: MatrixTiles) -> Self {
        PlanOptions { matrix: Some(matrix), ..PlanOptions::kernel(Kernel::Matrix) }
    }
}

/// Which statistic a range of the stats buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stat {
    /// Natural log of the sum of exp(score), the sink's included.
    Lse,
    /// Entropy over the keys, in nats.
    Entropy,
    /// Largest score of a key.
    RowMax,
}

/// Everything that is decided before a device is involved. Its `Display` explains it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    problem: Problem,
    key: PipelineKey,
    reason: String,
    slices: Vec<Slice>,
    tables: Tables,
    scratch_bytes: u64,
    classes: Option<TileClasses>,
    classes_reason: Option<String>,
    f16_reason: Option<String>,
    words_reason: Option<String>,
    binding_alignment: u64,
    uniform_alignment: u64,
}

impl Plan {
    /// Plans a problem for a device's capabilities.
    ///
    /// # Errors
    /// What [`Problem::check`] finds; [`Error::LimitExceeded`] where the device cannot do it and cutting it up does not help;
    /// [`Error::KernelUnavailable`] where the kernel asked for cannot run it; [`Error::Value`] for tiles that do not fit together.
    ///
    /// ```
    /// use wgpu_attention::{Caps, Plan, PlanOptions, Problem, Shape};
    /// let problem = Problem::new(Shape::self_attention(1, 12, 128, 64));
    /// let plan = Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::default())?;
    /// assert!(plan.workgroup_bytes() <= 16384);
    /// println!("{plan}");
    /// # Ok::<(), wgpu_attention::Error>(())
    /// ```
    pub fn new(problem: &Problem, caps: &Caps, options: &PlanOptions) -> Result<Plan> {
        problem.check()?;
        let Choice { kernel, tiles, rows, matrix, reason } = choose(problem, caps, options)?;
        let mut key = PipelineKey { rows, matrix, ..PipelineKey::new(problem, kernel, tiles)? };
        let (classes, classes_reason) = classes::choose(problem, caps, &key, options)?;
        key.tile_classes = classes.is_some();
        let (native, f16_reason) = storage::native_f16(&key, caps, options)?;
        key.native_f16 = native;
        let (access, words_reason) = storage::wide_words(&key, caps, options)?;
        key.access = access;
        let [class_batch, class_head] = classes.map_or([0; 2], |c| c.strides());
        let tables = Tables::new(problem);
        crate::needs::check(&needs::of_key(&key, problem, &tables), caps)?;

        let class_words = classes.map_or(0, |c| c.words());
        let base = Params { class_batch, class_head, class_words, ..base_params(problem, &tables) };
        let slicer = slices::Slicer::new(problem, caps, &key, classes)?;
        let (slices, scratch) = slicer.slices(base)?;
        Ok(Plan {
            problem: problem.clone(),
            key,
            reason,
            slices,
            tables,
            scratch_bytes: (scratch * 4).max(classes.map_or(0, |c| c.bytes())),
            classes,
            classes_reason,
            f16_reason,
            words_reason,
            binding_alignment: u64::from(caps.min_storage_buffer_offset_alignment.max(16)),
            uniform_alignment: u64::from(caps.min_uniform_buffer_offset_alignment.max(16)),
        })
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The kernel that runs.
    pub fn kernel(&self) -> Kernel {
        self.key.kernel
    }

    /// The classes of mask tiles that this plan finds before the attention, if it does.
    pub fn classes(&self) -> Option<&TileClasses> {
        self.classes.as_ref()
    }

    /// Why mask tiles are classified or not, for a problem that has masks beside lengths and positions.
    pub fn classes_reason(&self) -> Option<&str> {
        self.classes_reason.as_deref()
    }

    /// Why f16 is a type of the shader's own or unpacked, for a problem with a tensor that is stored so in aligned rows.
    pub fn f16_reason(&self) -> Option<&str> {
        self.f16_reason.as_deref()
    }

    /// Why words are of 64 or of 32 bits, where they could be of 64.
    pub fn words_reason(&self) -> Option<&str> {
        self.words_reason.as_deref()
    }

    /// Why this kernel and these tiles.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The same plan for another reason.
    #[cfg(feature = "measure")]
    pub(crate) fn because(mut self, reason: String) -> Self {
        self.reason = reason;
        self
    }

    /// The same plan for a problem that is a part of another, from this (batch, head, row) on: what user code counts from.
    pub(crate) fn part_from(mut self, [batch, head, row]: [u32; 3]) -> Self {
        for Slice { params, .. } in &mut self.slices {
            params.user_batch += batch;
            params.user_head += head;
            params.user_row += row;
        }
        self
    }

    /// The compiled variant that is used.
    pub fn key(&self) -> &PipelineKey {
        &self.key
    }

    /// What asks for this very kernel with these very sizes, so that the planner has nothing left to choose.
    pub fn options(&self) -> PlanOptions {
        PlanOptions {
            kernel: Some(self.kernel()),
            tiles: self.tiles(),
            rows: self.rows(),
            matrix: self.matrix(),
            tile_mask: self.classes.map(|_| TileMask::Classified),
            native_f16: self.f16_reason.as_ref().map(|_| self.key.native_f16),
            wide_words: self.words_reason.as_ref().map(|_| self.key.access.contains(&Access::Wide)),
        }
    }

    /// Tile sizes, where the kernel is tiled.
    pub fn tiles(&self) -> Option<Tiles> {
        (self.key.kernel == Kernel::Tiled).then_some(self.key.tiles)
    }

    /// Sizes of the row kernel, where it is that.
    pub fn rows(&self) -> Option<RowTiles> {
        self.key.rows
    }

    /// Sizes of the matrix kernel, where it is that.
    pub fn matrix(&self) -> Option<MatrixTiles> {
        self.key.matrix
    }

    /// The dispatches. Usually one; none for an empty problem.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Bytes of workgroup memory that the kernel declares.
    pub fn workgroup_bytes(&self) -> u32 {
        let key = &self.key;
        match (key.kernel, key.matrix) {
            (Kernel::Tiled, _) => key.tiles.workgroup_bytes(key.head_dim_v),
            (_, Some(matrix)) => matrix.workgroup_bytes(key.head_dim_qk, key.head_dim_v),
            (Kernel::Rows, _) => key.rows.map_or(0, |rows| rows.workgroup_bytes(&self.problem.shape)),
            _ => 0,
        }
    }

    /// Bytes of device memory beside inputs, outputs and params: the score matrix of the largest slice for the naive kernel, the
    /// classes of mask tiles for the tiled and the matrix kernel, 0 where there are none and for the row kernel.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// The small inputs and where they go.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Bytes that a tensor's buffer must have, counted from the offset it is bound at, in whole 32-bit words. 0 where
    /// the problem does not have it.
    pub fn tensor_bytes(&self, tensor: Tensor) -> u64 {
        // The problem was checked, so its views exist.
        self.problem.bytes(tensor).unwrap_or(0)
    }

    /// Bytes of the stats buffer; 0 where no statistic is asked for.
    pub fn stats_bytes(&self) -> u64 {
        u64::from(self.problem.stats.count()) * self.problem.rows() * 4
    }

    /// Where a statistic is in the stats buffer, in bytes: f32, (batch, q_heads, seq_q), or (q_heads, total_q) of packed
    /// sequences. `None` where it was not
    /// asked for.
    pub fn stats_range(&self, stat: Stat) -> Option<Range<u64>> {
        let on = self.problem.stats;
        let (asked, before) = match stat {
            Stat::Lse => (on.lse, 0),
            Stat::Entropy => (on.entropy, u64::from(on.lse)),
            Stat::RowMax => (on.row_max, u64::from(on.lse) + u64::from(on.entropy)),
        };
        let bytes = self.problem.rows() * 4;
        asked.then_some(before * bytes..(before + 1) * bytes)
    }

    /// The WGSL of the kernel, complete.
    pub fn shader_source(&self) -> String {
        shader::source(&self.key)
    }

    /// Whether a device has what this plan needs: a plan may have been made for another.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] with the limit, the need and what there is.
    pub fn fits(&self, caps: &Caps) -> Result<()> {
        needs::fits(self, caps)
    }

    pub(crate) fn binding_alignment(&self) -> u64 {
        self.binding_alignment
    }

    /// Bytes from one slice's params to the next in their buffer.
    pub(crate) fn params_stride(&self) -> u64 {
        (size_of::<Params>() as u64).next_multiple_of(self.uniform_alignment)
    }
}

impl PipelineKey {
    /// The variant of a kernel that computes a problem.
    pub(crate) fn new(problem: &Problem, kernel: Kernel, tiles: Tiles) -> Result<Self> {
        Ok(PipelineKey {
            kernel,
            head_dim_qk: problem.shape.head_dim_qk,
            head_dim_v: problem.shape.head_dim_v,
            tiles,
            rows: None,
            matrix: None,
            access: access(problem)?,
            dtypes: problem.dtypes,
            native_f16: false,
            causal: problem.causal,
            window: problem.window.is_some(),
            keep_first: problem.window.is_some_and(|w| w.keep_first > 0),
            offset: tables::offset_source(problem),
            packed_q: problem.packed_q.is_some(),
            packed_k: problem.packed_k.is_some(),
            documents: problem.documents,
            q_len: problem.q_len,
            kv_len: problem.kv_len,
            mask: problem.mask.map(|m| m.0),
            tile_classes: false,
            softcap: problem.softcap.is_some(),
            bias: problem.bias.map(|b| b.0),
            alibi: problem.alibi,
            normalizer: tables::normalizer_source(problem.normalizer),
            search: problem.search(),
            sink: problem.sink,
            qk_norm: problem.qk_norm.map(|norm| norm.kind),
            qk_gains: problem.qk_norm.map_or(NormGains::None, |norm| norm.gains),
            dropout: problem.dropout.is_some(),
            score_mod: problem.score_mod.clone(),
            mask_mod: problem.mask_mod.clone(),
            user_params: problem.user_params > 0,
            temperature: tables::source(problem.temperature),
            length: tables::length_source(problem.length_scale),
            stats: problem.stats,
        })
    }
}

/// What every dispatch is told, whichever part of the problem it computes. The tables are within the binding limit.
pub(crate) fn base_params(problem: &Problem, tables: &Tables) -> Params {
    let rows = problem.rows();
    let section = |on: bool, before: u32| if on { (u64::from(before) * rows) as u32 } else { 0 };
    let stats = problem.stats;
    let (min, max) = problem.distances();
    let (length_coef, length_floor) = match problem.length_scale {
        LengthScale::LogTrainLen { train_len } => ((1.0 / f64::from(train_len).ln()) as f32, 1),
        LengthScale::Llama4 { coef, floor } => (coef, floor),
        _ => (0.0, 1),
    };
    let adaptive = problem.adaptive_temperature.unwrap_or_default();
    let [adapt_4, adapt_3, adapt_2, adapt_1, adapt_0] = adaptive.coefficients;
    Params {
        q_heads: problem.shape.q_heads,
        group: problem.shape.group(),
        seq_q: problem.shape.seq_q,
        seq_k: problem.shape.seq_k,
        total_q: problem.packed_q.unwrap_or(0),
        total_k: problem.packed_k.unwrap_or(0),
        offset: match problem.alignment {
            // Where a table says what is valid, the shader finds it.
            Alignment::BottomRightValid => Alignment::BottomRight,
            alignment => alignment,
        }
        .offset(problem.shape.seq_q, problem.shape.seq_k)
        .unwrap_or(0),
        min_distance: min.unwrap_or(i32::MIN),
        max_distance: max.unwrap_or(i32::MAX),
        keep_first: problem.window.map_or(0, |w| w.keep_first),
        factor: problem.kernel_factor(),
        softcap: problem.softcap.unwrap_or(0.0),
        lse: section(stats.lse, 0),
        entropy: section(stats.entropy, stats.lse.into()),
        row_max: section(stats.row_max, u32::from(stats.lse) + u32::from(stats.entropy)),
        cu_seqlens_q: tables.start(Table::CuSeqlensQ),
        cu_seqlens_k: tables.start(Table::CuSeqlensK),
        documents_q: tables.start(Table::DocumentsQ),
        documents_k: tables.start(Table::DocumentsK),
        q_len: tables.start(Table::QLen),
        kv_len: tables.start(Table::KvLen),
        offsets: tables.start(Table::CausalOffset),
        temperature: tables.start(Table::Temperature),
        alibi_slopes: tables.start(Table::AlibiSlopes),
        sinks: tables.start(Table::Sinks),
        ssmax: tables.start(Table::Ssmax),
        user: tables.start(Table::User),
        user_params: problem.user_params,
        q_gain: tables.start(Table::QGain),
        k_gain: tables.start(Table::KGain),
        norm_eps: problem.qk_norm.map_or(0.0, |norm| norm.kernel_eps()),
        dropout: tables.start(Table::Dropout),
        dropout_kept: problem.dropout.map_or(0, |d| d.kept_steps()),
        dropout_scale: problem.dropout.map_or(1.0, |d| (1.0 / d.keep()) as f32),
        passes: problem.search().most_passes(problem.shape.seq_k),
        top_k: problem.top_k.unwrap_or(0),
        adapt_4,
        adapt_3,
        adapt_2,
        adapt_1,
        adapt_0,
        adapt_above: adaptive.above,
        sigmoid_bias: problem.normalizer.constant_bias(problem.shape.seq_k) as f32,
        length_coef,
        length_floor,
        ..Params::default()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workgroups: u64 =
            self.slices.iter().flat_map(|s| &s.workgroups).map(|&[x, y]| u64::from(x) * u64::from(y)).sum();
        writeln!(f, "kernel      {}", self.key)?;
        writeln!(f, "because     {}", self.reason)?;
        if let Some(reason) = &self.classes_reason {
            writeln!(f, "mask tiles  {reason}")?;
        }
        if let Some(reason) = &self.f16_reason {
            writeln!(f, "f16         {reason}")?;
        }
        if let Some(reason) = &self.words_reason {
            writeln!(f, "words       {reason}")?;
        }
        writeln!(
            f,
            "dispatches  {} with {} workgroups of {} threads",
            self.slices.iter().map(|s| s.workgroups.len()).sum::<usize>(),
            workgroups,
            self.key.tiles.threads
        )?;
        write!(
            f,
            "memory      {} bytes of workgroup memory, {} bytes of scratch",
            self.workgroup_bytes(),
            self.scratch_bytes
        )
    }
}

/// What a plan comes to before anything is computed from it.
struct Choice {
    kernel: Kernel,
    tiles: Tiles,
    rows: Option<RowTiles>,
    matrix: Option<MatrixTiles>,
    reason: String,
}

impl Choice {
    fn tiled(tiles: Tiles, reason: String) -> Choice {
        Choice { kernel: Kernel::Tiled, tiles, rows: None, matrix: None, reason }
    }

    fn rows(rows: RowTiles, reason: String) -> Choice {
        let tiles = only_threads(rows.lanes);
        Choice { kernel: Kernel::Rows, tiles, rows: Some(rows), matrix: None, reason }
    }

    fn matrix(matrix: MatrixTiles, reason: String) -> Choice {
        Choice { kernel: Kernel::Matrix, tiles: matrix.tiles(), rows: None, matrix: Some(matrix), reason }
    }

    fn naive(caps: &Caps, reason: String) -> Choice {
        let most = caps.threads().max(1);
        let tiles = only_threads(64.min(1 << most.ilog2()));
        Choice { kernel: Kernel::Naive, tiles, rows: None, matrix: None, reason }
    }
}

fn choose(problem: &Problem, caps: &Caps, options: &PlanOptions) -> Result<Choice> {
    let unavailable = |kernel: Kernel, reason| Error::KernelUnavailable { kernel: kernel.name(), reason };
    let asked = |sizes: &str| format!("{sizes} asked for");
    // Sizes belong to one kernel, and to the one that is asked for.
    let sizes = [
        (Kernel::Tiled, options.tiles.is_some(), "it has no such tiles to choose"),
        (Kernel::Rows, options.rows.is_some(), "it has no rows in lanes to choose"),
        (Kernel::Matrix, options.matrix.is_some(), "it has no matrices to choose"),
    ];
    let mut chosen = options.kernel;
    for (of, given, why_not) in sizes {
        match chosen {
            _ if !given => {}
            Some(kernel) if kernel == of => {}
            Some(kernel) if options.kernel.is_some() => return Err(unavailable(kernel, why_not.to_owned())),
            Some(kernel) => {
                return Err(unavailable(kernel, "sizes of two kernels were asked for".to_owned()));
            }
            None => chosen = Some(of),
        }
    }
    match chosen {
        Some(Kernel::Naive) => Ok(Choice::naive(caps, asked("it was"))),
        Some(Kernel::Tiled) => match options.tiles {
            Some(tiles) => {
                tiles.check(&problem.shape, caps)?;
                Ok(Choice::tiled(tiles, asked("these tiles were")))
            }
            None => tiled(problem, caps, "").map_err(|reason| unavailable(Kernel::Tiled, reason)),
        },
        Some(Kernel::Rows) => {
            let refused = |reason| unavailable(Kernel::Rows, reason);
            match options.rows {
                Some(rows) => {
                    RowTiles::supports(problem).map_err(refused)?;
                    rows.check(problem, caps)?;
                    Ok(Choice::rows(rows, asked("these rows were")))
                }
                None => RowTiles::choose(problem, caps)
                    .map(|rows| Choice::rows(rows, rows.reason()))
                    .map_err(refused),
            }
        }
        Some(Kernel::Matrix) => match options.matrix {
            Some(matrix) => {
                MatrixTiles::supports(problem).map_err(|reason| unavailable(Kernel::Matrix, reason))?;
                matrix.check(&problem.shape, caps)?;
                Ok(Choice::matrix(matrix, asked("these matrices were")))
            }
            None => MatrixTiles::choose(problem, caps)
                .map(|matrix| Choice::matrix(matrix, matrix.reason()))
                .map_err(|reason| unavailable(Kernel::Matrix, reason)),
        },
        None => {
            let rows = match options.tile_mask {
                Some(TileMask::Classified) => Err("classes of mask tiles were asked for".to_owned()),
                _ => RowTiles::is_preferred(&problem.shape, caps)
                    .and_then(|()| RowTiles::choose(problem, caps)),
            };
            let remark =
                MatrixTiles::not_unasked(problem, caps).map(|why| format!("; {why}")).unwrap_or_default();
            match rows {
                Ok(rows) => Ok(Choice::rows(rows, rows.reason() + &remark)),
                Err(why_not) => Ok(tiled(problem, caps, &format!("; not rows in lanes: {why_not}{remark}"))
                    .unwrap_or_else(|reason| Choice::naive(caps, reason))),
            }
        }
    }
}

/// The tiled kernel with tiles of the planner's choice, or why not.
fn tiled(problem: &Problem, caps: &Caps, remark: &str) -> core::result::Result<Choice, String> {
    let shape = &problem.shape;
    match Tiles::choose(problem, caps) {
        Some(tiles) => Ok(Choice::tiled(tiles, tiles.reason(shape, caps) + remark)),
        None => Err(format!(
            "no tile fits {} bytes of workgroup memory and {} threads",
            caps.max_compute_workgroup_storage_size,
            caps.threads(),
        )),
    }
}

/// For kernels that have no tiles, only a workgroup size.
fn only_threads(threads: u32) -> Tiles {
    Tiles { threads, row_groups: 1, keys_per_thread: 1, dim_chunk: 1, v_chunk: 0 }
}

fn access(problem: &Problem) -> Result<[Access; 4]> {
    let mut access = [Access::Vec4; 4];
    for tensor in Tensor::MAIN {
        if !problem.view(tensor)?.is_vec4() {
            access[tensor as usize] = Access::Scalar;
        }
    }
    Ok(access)
}
