//! Sizes of the matrix kernel, and which problems it takes.

use super::tiles::Tiles;
use crate::caps::{AdapterClass, Caps};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::qk_norm::NormGains;
use crate::shape::Shape;
use core::cmp::Reverse;
use core::fmt;

/// Sizes of the matrix kernel, see `shaders/matrix.wgsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "measure", derive(serde::Serialize, serde::Deserialize))]
pub struct MatrixTiles {
    /// Rows and columns of a matrix: one of [`Caps::matrix_sizes`].
    pub size: u32,
    /// Threads of a workgroup: a power of two and a multiple of the device's largest subgroup.
    pub threads: u32,
    /// Matrices that the query rows of a workgroup are high: a power of two. A subgroup takes one at a time.
    pub row_blocks: u32,
    /// Matrices that the keys of a tile are wide: a power of two.
    pub key_blocks: u32,
    /// Matrices of v's columns that are multiplied between two barriers.
    pub out_blocks: u32,
    /// Matrices of sums that one subgroup keeps side by side, each with its instructions written out: a power of two. What is on their left is
    /// loaded once for all of them.
    pub abreast: u32,
}

/// The widest head: what a thread holds of the output grows with it, and what is staged.
const WIDEST: u32 = 256;

/// vec4s of output in the registers of a thread.
const MOST_OWNED: u32 = 32;

/// How the arrays of `shaders/matrix.wgsl` are laid out; f16 and f32 numbers are counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixLayout {
    /// Matrices that a row of q and k is wide.
    pub qk_blocks: u32,
    /// Parts of v's columns, `out_blocks` wide.
    pub out_parts: u32,
    /// From one row of staged q or k to the next.
    pub qk_stride: u32,
    /// From one row of staged v to the next.
    pub v_stride: u32,
    /// From one key's weights to the next.
    pub weight_stride: u32,
    /// From one key's scores to the next.
    pub score_stride: u32,
    /// From one row of products with v to the next.
    pub out_stride: u32,
    /// vec4s of output that a thread owns of each part.
    pub owned: u32,
}

/// Saturating throughout, so that sizes that no plan would accept give large numbers and not a panic.
impl MatrixTiles {
    /// Query rows of a workgroup.
    pub fn rows(&self) -> u32 {
        self.size.saturating_mul(self.row_blocks)
    }

    /// Keys of a tile.
    pub fn keys(&self) -> u32 {
        self.size.saturating_mul(self.key_blocks)
    }

    /// Who owns which scores, which is as in the tiled kernel.
    pub(crate) fn tiles(&self) -> Tiles {
        let row_groups = self.rows() / 4;
        let key_lanes = self.threads.checked_div(row_groups).unwrap_or(0);
        Tiles {
            threads: self.threads,
            row_groups,
            keys_per_thread: self.keys().checked_div(key_lanes).unwrap_or(0),
            dim_chunk: 1,
            v_chunk: 0,
        }
    }

    pub(crate) fn layout(&self, head_dim_qk: u32, head_dim_v: u32) -> MatrixLayout {
        // Rows are 16 bytes apart from a power of two, against bank conflicts. Vulkan wants matrices at multiples of 16 bytes.
        let (halves, floats) = (8, 4);
        let size = self.size.max(1);
        let qk_blocks = head_dim_qk.div_ceil(size).max(1);
        let columns = self.out_blocks.saturating_mul(size).max(1);
        let out_parts = head_dim_v.div_ceil(columns).max(1);
        let vec4s = self.rows().saturating_mul(columns / 4);
        MatrixLayout {
            qk_blocks,
            out_parts,
            qk_stride: qk_blocks.saturating_mul(size).saturating_add(halves),
            v_stride: out_parts.saturating_mul(columns).saturating_add(halves),
            weight_stride: self.rows().saturating_add(halves),
            score_stride: self.rows().saturating_add(floats),
            out_stride: columns.saturating_add(floats),
            owned: vec4s.div_ceil(self.threads.max(1)),
        }
    }

    /// Bytes of workgroup memory: one line for each array of `shaders/matrix.wgsl`.
    pub fn workgroup_bytes(&self, head_dim_qk: u32, head_dim_v: u32) -> u32 {
        let at = self.layout(head_dim_qk, head_dim_v);
        let (rows, keys) = (self.rows(), self.keys());
        let q_halves = rows.saturating_mul(at.qk_stride).saturating_mul(2);
        let kv_halves = keys.saturating_mul(at.qk_stride.max(at.v_stride)).saturating_mul(2);
        let weights = keys.saturating_mul(at.weight_stride).saturating_mul(2);
        let products = self.products(&at).saturating_mul(4);
        let partial = self.threads.saturating_mul(16);
        let row_scale = rows.saturating_mul(4);
        let key_norms = keys.saturating_mul(4);
        let spoilt_keys = keys.saturating_mul(4);
        [q_halves, kv_halves, weights, products, partial, row_scale, key_norms, spoilt_keys]
            .into_iter()
            .fold(0, u32::saturating_add)
    }

    /// Numbers of the array that scores and products with v take turns in.
    pub(crate) fn products(&self, at: &MatrixLayout) -> u32 {
        self.keys().saturating_mul(at.score_stride).max(self.rows().saturating_mul(at.out_stride))
    }

    /// Refuses sizes that do not fit together or that the device does not have.
    pub(crate) fn check(&self, shape: &Shape, caps: &Caps) -> Result<()> {
        let powers: [(&'static str, u32, u32); 5] = [
            ("matrix.threads", self.threads, 1024),
            ("matrix.row_blocks", self.row_blocks, 32),
            ("matrix.key_blocks", self.key_blocks, 16),
            ("matrix.out_blocks", self.out_blocks, 32),
            ("matrix.abreast", self.abreast, 16),
        ];
        for (field, value, most) in powers {
            if !value.is_power_of_two() || value > most {
                return Err(Error::value(field, value, "a small power of two"));
            }
        }
        if !caps.matrix_sizes.contains(&self.size) {
            return Err(Error::value(
                "matrix.size",
                self.size,
                "one of the device's, see Caps::matrix_sizes",
            ));
        }
        if !self.threads.is_multiple_of(caps.max_subgroup_size.max(1)) {
            let rule = "a multiple of the device's largest subgroup, see Caps::max_subgroup_size";
            return Err(Error::value("matrix.threads", self.threads, rule));
        }
        let row_groups = self.rows() / 4;
        if self.threads < row_groups || self.threads / row_groups > self.keys() {
            let rule = "at least a quarter of the rows, and at most a thread for each four rows and key";
            return Err(Error::value("matrix.threads", self.threads, rule));
        }
        let at = self.layout(shape.head_dim_qk, shape.head_dim_v);
        if at.owned.saturating_mul(at.out_parts) > MOST_OWNED {
            let rule = "enough threads for the output: at most 32 vec4s each";
            return Err(Error::value("matrix.threads", self.threads, rule));
        }
        let needs = [
            (
                "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
                self.threads,
                caps.threads(),
            ),
            (
                "max_compute_workgroup_storage_size",
                self.workgroup_bytes(shape.head_dim_qk, shape.head_dim_v),
                caps.max_compute_workgroup_storage_size,
            ),
        ];
        for (limit, needed, available) in needs {
            if needed > available {
                return Err(Error::LimitExceeded {
                    what: format!("the matrix kernel with {self}"),
                    limit,
                    needed: needed.into(),
                    available: available.into(),
                    advice: "take fewer blocks, or leave the choice to the planner",
                });
            }
        }
        Ok(())
    }

    /// The sizes for a problem: the first that the device can hold, from large tiles to small.
    ///
    /// # Errors
    /// Why the kernel cannot take it.
    pub(crate) fn choose(problem: &Problem, caps: &Caps) -> core::result::Result<MatrixTiles, String> {
        Self::supports(problem)?;
        if caps.matrix_sizes.is_empty() {
            return Err(
                "no cooperative matrices of f16 with f32 sums are known of the device: it needs MATRIX_FEATURES, \
                 and Attention::with_matrices has to be told of its adapter"
                    .to_owned(),
            );
        }
        let shape = &problem.shape;
        let descending = |most: u32| core::iter::successors(Some(most), |&n| (n > 1).then_some(n / 2));
        let mut sizes = caps.matrix_sizes.clone();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        for size in sizes {
            // No more rows than there are; 64 of them otherwise, and keys and columns to match. (Keys as they come: a growing cache is not to
            // compile anything.) On a processor a product of two matrices is hundreds of instructions: one at a time, or compiling takes
            // seconds.
            let (most, abreast) = if caps.class == AdapterClass::Cpu { (32, 1) } else { (64, 4) };
            let blocks = |numbers: u32| numbers.clamp(1, most).div_ceil(size).next_power_of_two();
            let wide = |numbers: u32| numbers.clamp(1, 64).div_ceil(size).next_power_of_two();
            let mut areas: Vec<(u32, u32)> = descending(blocks(shape.seq_q))
                .flat_map(|rows| descending(most / size).map(move |keys| (rows, keys)))
                .collect();
            // The most scores; of equals squares first, whose rows and keys are loaded least often, and then those with more rows.
            areas.sort_by_key(|&(rows, keys)| Reverse((rows * keys, Reverse(rows.max(keys)), rows)));
            for (row_blocks, key_blocks) in areas {
                for out_blocks in descending(wide(shape.head_dim_v)) {
                    // A subgroup for each block of rows, and more where a thread would hold too much output.
                    for factor in [1, 2, 4, 8] {
                        let threads =
                            caps.max_subgroup_size.max(1).saturating_mul(row_blocks).saturating_mul(factor);
                        let tiles =
                            MatrixTiles { size, threads, row_blocks, key_blocks, out_blocks, abreast };
                        if tiles.check(shape, caps).is_ok() {
                            return Ok(tiles);
                        }
                    }
                }
            }
        }
        Err(format!(
            "no tile fits {} bytes of workgroup memory and {} threads",
            caps.max_compute_workgroup_storage_size,
            caps.threads()
        ))
    }

    /// Whether the kernel knows all options of a problem, or why not. Named one by one, so that a new one cannot be forgotten.
    pub(crate) fn supports(problem: &Problem) -> core::result::Result<(), String> {
        let Problem {
            shape,
            // Memory order is the accessors' business.
            q_layout: _,
            k_layout: _,
            v_layout: _,
            out_layout: _,
            dtypes: [q, k, v, _],
            // Factors of a row, in sharpness.wgsl.
            scale: _,
            temperature: _,
            length_scale: _,
            // Several passes over the keys, as in the tiled kernel.
            adaptive_temperature: _,
            top_k: _,
            normalizer: _,
            qk_norm,
            // What a row sees, in mask.wgsl.
            causal: _,
            packed_q: _,
            packed_k: _,
            window: _,
            alignment: _,
            kv_len: _,
            q_len: _,
            mask: _,
            mask_mod: _,
            documents: _,
            // Scores, in score.wgsl.
            softcap: _,
            bias: _,
            alibi: _,
            score_mod: _,
            user_params: _,
            dropout: _,
            // The end of a row, in softmax.wgsl and stats.wgsl.
            sink: _,
            stats: _,
        } = problem;
        for (name, dtype) in [("q", q), ("k", k), ("v", v)] {
            match dtype {
                DType::F16 => {}
                DType::Bf16 => {
                    return Err(format!(
                        "{name} is bf16, of whose range f16 holds little: beyond 65504 it would overflow, below 6e-8 vanish"
                    ));
                }
                DType::F32 => return Err(format!("it multiplies f16 only, and {name} is {}", dtype.name())),
            }
        }
        if qk_norm.is_some_and(|norm| norm.gains != NormGains::None) {
            return Err("gains of normalised q and k would have to be rounded to f16".to_owned());
        }
        let widest = shape.head_dim_qk.max(shape.head_dim_v);
        if widest > WIDEST {
            return Err(format!("head dim {widest} is beyond the {WIDEST} that it was made for"));
        }
        Ok(())
    }

    /// Why [`MatrixTiles::choose`] came to these.
    pub(crate) fn reason(&self) -> String {
        format!("{0} x {0} matrices of f16 with sums in f32, weights rounded to f16", self.size)
    }

    /// Why the planner does not take this kernel unasked, where it could be had.
    pub(crate) fn not_unasked(problem: &Problem, caps: &Caps) -> Option<&'static str> {
        let could = !caps.matrix_sizes.is_empty() && Self::supports(problem).is_ok();
        could.then_some("not matrices: measured on no GPU so far, and weights in f16 are less precise; ask for it, or tune")
    }
}

impl fmt::Display for MatrixTiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}x{} tiles of {size}x{size}, {} abreast, {} threads, {} columns",
            self.rows(),
            self.keys(),
            self.abreast,
            self.threads,
            self.out_blocks.saturating_mul(self.size),
            size = self.size,
        )
    }
}
