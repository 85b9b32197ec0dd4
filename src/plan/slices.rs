//! Cutting a problem into dispatches that the device can bind, count and finish in time.
//!
//! Most problems are one slice. A slice is a box of batches, heads and rows. Boxes are halved, in that order, until every
//! tensor's part fits a binding, the workgroups fit a dispatch and the work is short enough not to trip a watchdog.

use super::classes::TileClasses;
use super::rows::RowTiles;
use super::tiles::Tiles;
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, PipelineKey};
use crate::layout::View;
use crate::mask::Alignment;
use crate::problem::Problem;
use crate::shader::params::{self, Params};
use crate::tensor::Tensor;

/// More dispatches than this are refused: a plan would not be small any more.
const MAX_SLICES: u64 = 1 << 16;

/// Workgroups in one dimension that are made use of: what WebGPU promises. Devices that have more gain nothing, and so the
/// number of a workgroup, folding included, stays within 32 bits.
const MAX_WORKGROUPS: u32 = 65535;

/// The part of a tensor that a slice binds, in elements of its buffer (bits, for a mask of bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// First element.
    pub start: u64,
    /// Number of elements; 0 where the slice touches none.
    pub len: u64,
}

/// One set of dispatches: a part of the problem, with what its shader is told.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Slice {
    /// What the shader is told.
    pub(crate) params: Params,
    /// What is bound of each of [`Tensor::ALL`].
    pub spans: [Span; 6],
    /// Workgroups in x and y of each entry point.
    pub workgroups: Vec<[u32; 2]>,
}

/// A box of the problem: how many batches, query heads and rows.
#[derive(Debug, Clone, Copy)]
struct Extent {
    batches: u32,
    heads: u32,
    rows: u32,
}

pub(super) struct Slicer<'a> {
    pub problem: &'a Problem,
    pub caps: &'a Caps,
    pub key: &'a PipelineKey,
    views: [View; 6],
    classes: Option<TileClasses>,
}

impl<'a> Slicer<'a> {
    pub(super) fn new(
        problem: &'a Problem,
        caps: &'a Caps,
        key: &'a PipelineKey,
        classes: Option<TileClasses>,
    ) -> Result<Self> {
        let mut views = [problem.view(Tensor::Q)?; 6];
        for tensor in Tensor::ALL {
            views[tensor as usize] = problem.view(tensor)?;
        }
        Ok(Slicer { problem, caps, key, views, classes })
    }

    /// The slices, and the elements of scratch that the largest of them needs.
    pub(super) fn slices(&self, base: Params) -> Result<(Vec<Slice>, u64)> {
        let shape = &self.problem.shape;
        if self.problem.is_empty() {
            return Ok((Vec::new(), 0));
        }
        let size = self.size()?;
        let number = self.number(size);
        if number > MAX_SLICES {
            let what = format!("this problem, which would otherwise be cut into {number} dispatches,");
            let advice = "ask for a device with larger limits (helpful_limits), or call once for each batch";
            return Err(self.refusal(self.all(), what, advice));
        }

        let whole = self.fits_whole();
        let mut slices = Vec::with_capacity(number as usize);
        let mut scratch = 0;
        for first_batch in steps(shape.batch, size.batches) {
            for first_head in steps(shape.q_heads, size.heads) {
                for first_row in steps(shape.seq_q, size.rows) {
                    let extent = Extent {
                        batches: size.batches.min(shape.batch - first_batch),
                        heads: size.heads.min(shape.q_heads - first_head),
                        rows: size.rows.min(shape.seq_q - first_row),
                    };
                    scratch = scratch.max(self.scratch(extent));
                    slices.push(self.slice(base, [first_batch, first_head, first_row], extent, whole));
                }
            }
        }
        Ok((slices, scratch))
    }

    /// The box that is the whole problem.
    fn all(&self) -> Extent {
        let shape = &self.problem.shape;
        Extent { batches: shape.batch, heads: shape.q_heads, rows: shape.seq_q }
    }

    /// How many boxes of a size the problem is.
    fn number(&self, size: Extent) -> u64 {
        let all = self.all();
        [(all.batches, size.batches), (all.heads, size.heads), (all.rows, size.rows)]
            .iter()
            .map(|&(all, part)| u64::from(all.div_ceil(part.max(1))))
            .fold(1, u64::saturating_mul)
    }

    /// The largest box, by halving, that the device can take.
    fn size(&self) -> Result<Extent> {
        let group = self.problem.shape.group();
        let step = self.row_step();
        let mut size = self.all();
        while !(self.binds(size) && self.counts(size)) {
            // Where sequences are packed, batches share what is bound: heads are what can be cut off.
            let heads_first = self.is_packed() && !self.tensors_bind(size);
            if !self.halve(&mut size, group, step, heads_first) {
                let what = "the smallest part of this problem, one tile of rows of one head,".to_owned();
                let advice = "ask for a device with larger limits (helpful_limits), or split the keys over several calls";
                return Err(self.refusal(size, what, advice));
            }
        }
        // The time that a dispatch takes is a wish, not a limit: where nothing is left to cut, or the plan would
        // grow too large, it is let be.
        let most = match &self.key.rows {
            Some(rows) => rows.flops_per_dispatch(&self.problem.shape, self.caps),
            None => self.caps.flops_per_dispatch(),
        };
        while self.flops(size) > most {
            let mut smaller = size;
            if !self.halve(&mut smaller, group, step, false) || self.number(smaller) > MAX_SLICES {
                break;
            }
            size = smaller;
        }
        Ok(size)
    }

    /// Makes the box smaller; false where it is one tile of one head.
    fn halve(&self, size: &mut Extent, group: u32, step: u32, heads_first: bool) -> bool {
        if size.batches > 1 && !(heads_first && size.heads > 1) {
            size.batches = size.batches.div_ceil(2);
        } else if size.heads > group {
            // Whole groups, so that the heads of a slice start at a multiple of the group.
            size.heads = (size.heads / group).div_ceil(2) * group;
        } else if size.heads > 1 {
            size.heads = 1;
        } else if size.rows > step {
            size.rows = size.rows.div_ceil(2).next_multiple_of(step);
        } else {
            return false;
        }
        true
    }

    fn row_step(&self) -> u32 {
        match self.key.kernel {
            Kernel::Tiled | Kernel::Matrix => self.key.tiles.rows(),
            Kernel::Rows => self.key.rows.map_or(1, |rows| rows.block()),
            Kernel::Naive => 1,
        }
    }

    /// Workgroups for the rows of a box, of one head or of those whose rows lie side by side.
    fn row_tiles(&self, extent: Extent) -> u32 {
        match self.key.rows {
            // Not more than the workgroups of the slice, which were counted.
            Some(rows) => rows.blocks(extent.rows, extent.heads, self.problem.shape.group()) as u32,
            None => extent.rows.div_ceil(self.row_step()),
        }
    }

    fn is_packed(&self) -> bool {
        self.key.packed_q || self.key.packed_k
    }

    /// How many batches, heads and rows of a tensor a box of this size touches. Where packed sequences are is known to the device
    /// alone, so that each box has all of them.
    fn touches(&self, tensor: Tensor, size: Extent) -> [u32; 3] {
        let shape = &self.problem.shape;
        let (heads, rows) = match tensor.is_kv() {
            true => (size.heads.div_ceil(shape.group()), shape.seq_k),
            false => (size.heads, size.rows),
        };
        match self.problem.total(tensor) {
            Some(total) => [1, heads, total],
            None => [size.batches, heads, rows],
        }
    }

    /// Where a box starts in a tensor.
    fn origin(&self, tensor: Tensor, [batch, head, row]: [u32; 3]) -> u64 {
        let view = &self.views[tensor as usize];
        let (head, row) = match tensor.is_kv() {
            true => (head / self.problem.shape.group(), 0),
            false => (head, row),
        };
        match self.problem.total(tensor) {
            Some(_) => view.index([0, head, 0, 0]),
            None => view.index([batch, head, row, 0]),
        }
    }

    /// Elements between the first and the last that a box of this size touches of a tensor.
    fn reach(&self, tensor: Tensor, size: Extent) -> u64 {
        let view = &self.views[tensor as usize];
        if view.extent() == 0 {
            return 0;
        }
        let [batches, heads, rows] = self.touches(tensor, size);
        let t = view.strides();
        // Each term is at most the view's extent, which is below 2^62 (and there are four).
        let far = |n: u32, step: u64| u64::from(n.max(1) - 1).saturating_mul(step);
        far(batches, t.batch)
            .saturating_add(far(heads, t.head))
            .saturating_add(far(rows, t.seq))
            .saturating_add(far(view.sizes()[3], t.dim))
            .saturating_add(1)
    }

    /// Elements of a tensor to the alignment of a binding: what the device asks for and what a vec4 does, whichever
    /// numbers these are.
    fn alignment(&self, tensor: Tensor) -> u64 {
        let device = u64::from(self.caps.min_storage_buffer_offset_alignment.max(1));
        device / gcd(device, 16) * 16 * 8 / u64::from(self.problem.bits(tensor))
    }

    /// How many elements before the first one that it needs a span may have to start, because bindings start at
    /// multiples of the alignment: none where all boxes of this size start at such multiples.
    fn slack(&self, tensor: Tensor, size: Extent) -> u64 {
        let (all, alignment) = (self.all(), self.alignment(tensor));
        let t = self.views[tensor as usize].strides();
        let [batches, heads, rows] = self.touches(tensor, size);
        let packed = self.problem.total(tensor).is_some();
        // From one box to the next; a direction that is not cut moves nothing.
        let moves = [
            (!packed && size.batches < all.batches, batches, t.batch),
            (size.heads < all.heads, heads, t.head),
            (!packed && !tensor.is_kv() && size.rows < all.rows, rows, t.seq),
        ];
        let start = gcd(alignment, t.offset);
        let common = moves.iter().filter(|m| m.0).fold(start, |common, &(_, n, step)| {
            let remainder = u128::from(n) * u128::from(step) % u128::from(common);
            gcd(common, remainder as u64)
        });
        alignment - common
    }

    /// Elements of a tensor in one binding. Indices are 32-bit, so that counts as a limit too.
    fn limit(&self, tensor: Tensor) -> u64 {
        // Whole words, because that is how bindings are read.
        let words = self.caps.max_storage_buffer_binding_size / 4;
        words.saturating_mul(u64::from(32 / self.problem.bits(tensor))).min(u64::from(u32::MAX))
    }

    fn bytes(&self, tensor: Tensor, elements: u64) -> u64 {
        elements.saturating_mul(self.problem.bits(tensor).into()).div_ceil(32).saturating_mul(4)
    }

    /// Elements of the score matrix: its threads are counted in 32 bits, with room for those that are in vain.
    fn scratch_limit(&self) -> u64 {
        (self.caps.max_storage_buffer_binding_size / 4).min(1 << 31)
    }

    fn binds(&self, size: Extent) -> bool {
        self.tensors_bind(size) && self.scratch(size) <= self.scratch_limit()
    }

    fn tensors_bind(&self, size: Extent) -> bool {
        self.fits_whole() || Tensor::ALL.iter().all(|&t| self.reach_aligned(t, size) <= self.limit(t))
    }

    /// The most elements that a span of a box of this size may have.
    fn reach_aligned(&self, tensor: Tensor, size: Extent) -> u64 {
        match self.reach(tensor, size) {
            0 => 0,
            reach => reach.saturating_add(self.slack(tensor, size)),
        }
    }

    fn fits_whole(&self) -> bool {
        Tensor::ALL.iter().all(|&t| self.views[t as usize].extent() <= self.limit(t))
    }

    /// Whether the workgroups of every entry point can be folded into two dimensions.
    fn counts(&self, size: Extent) -> bool {
        let most = self.per_dimension();
        self.workgroups(size).iter().all(|&n| n <= most * most)
    }

    fn per_dimension(&self) -> u64 {
        self.caps.max_compute_workgroups_per_dimension.min(MAX_WORKGROUPS).into()
    }

    /// Workgroups of each entry point.
    fn workgroups(&self, size: Extent) -> Vec<u64> {
        let tiles: &Tiles = &self.key.tiles;
        let heads = u64::from(size.batches) * u64::from(size.heads);
        match self.key.kernel {
            Kernel::Tiled | Kernel::Matrix => {
                let blocks = match self.key.kernel {
                    Kernel::Tiled => tiles.shape(self.problem.shape.head_dim_v).v_blocks,
                    _ => 1,
                };
                let row_tiles = size.rows.div_ceil(tiles.rows());
                let classify = self.classes.map(|c| c.workgroups(size.batches, size.heads, row_tiles));
                let attention = heads.saturating_mul(u64::from(row_tiles) * u64::from(blocks));
                classify.into_iter().chain([attention]).collect()
            }
            Kernel::Rows => {
                let blocks = |rows: RowTiles| {
                    rows.workgroups(size.rows, size.heads, self.problem.shape.group())
                        .saturating_mul(size.batches.into())
                };
                vec![self.key.rows.map_or(0, blocks)]
            }
            Kernel::Naive => {
                let rows = heads.saturating_mul(size.rows.into());
                let dim4 = u64::from(self.problem.shape.head_dim_v.div_ceil(4));
                let threads = u64::from(tiles.threads);
                [u64::from(self.problem.shape.seq_k), 1, dim4]
                    .map(|width| rows.saturating_mul(width).div_ceil(threads))
                    .to_vec()
            }
        }
    }

    /// Elements of the score matrix, which only the naive kernel stores.
    fn scratch(&self, size: Extent) -> u64 {
        match self.key.kernel {
            Kernel::Tiled | Kernel::Rows | Kernel::Matrix => 0,
            Kernel::Naive => [size.batches, size.heads, size.rows, self.problem.shape.seq_k.max(1)]
                .iter()
                .fold(1u64, |n, &s| n.saturating_mul(s.into())),
        }
    }

    fn flops(&self, size: Extent) -> u64 {
        let shape = &self.problem.shape;
        // A search computes scores again in each pass.
        let passes = 1 + u64::from(self.key.search.most_passes(shape.seq_k));
        let per_pair = 2 * (passes * u64::from(shape.head_dim_qk) + u64::from(shape.head_dim_v));
        [size.batches, size.heads]
            .iter()
            .fold(per_pair, |n, &s| n.saturating_mul(s.into()))
            .saturating_mul(self.pairs_per_head(size.rows))
    }

    /// Pairs of a row and a key that a kernel goes through in a box of so many rows, at most. Tiles that causal mask and window hide are
    /// left out, but not by the naive kernel.
    fn pairs_per_head(&self, rows: u32) -> u64 {
        let all = u64::from(rows).saturating_mul(self.problem.shape.seq_k.into());
        // Offsets of their own are known to the device alone.
        if self.key.kernel == Kernel::Naive || self.problem.alignment == Alignment::PerBatch {
            return all;
        }
        let seq_q = self.problem.shape.seq_q;
        let visible = |first: u32| self.problem.visible_pairs_of(first, rows.min(seq_q - first));
        steps(seq_q, rows).map(visible).max().unwrap_or(all)
    }

    /// The limit that a box of this size does not fit.
    fn refusal(&self, size: Extent, what: String, advice: &'static str) -> Error {
        if self.binds(size) {
            let groups = self.workgroups(size).into_iter().max().unwrap_or(0);
            return Error::LimitExceeded {
                what,
                limit: "max_compute_workgroups_per_dimension",
                // Two dimensions are in use.
                needed: groups.isqrt() + u64::from(!is_square(groups)),
                available: self.per_dimension(),
                advice,
            };
        }
        let (name, needed, available) = Tensor::ALL
            .iter()
            .map(|&t| {
                let bytes = |elements| self.bytes(t, elements);
                (t.name(), bytes(self.reach_aligned(t, size)), bytes(self.limit(t)))
            })
            .chain([(
                "scores (naive kernel)",
                self.scratch(size).saturating_mul(4),
                self.scratch_limit() * 4,
            )])
            .filter(|&(_, needed, available)| needed > available)
            .max_by_key(|&(_, needed, _)| needed)
            .unwrap_or(("q", 0, self.caps.max_storage_buffer_binding_size));
        Error::LimitExceeded {
            what: format!("{name} of {what}"),
            limit: "max_storage_buffer_binding_size",
            needed,
            available,
            advice,
        }
    }

    fn slice(&self, base: Params, first: [u32; 3], extent: Extent, whole: bool) -> Slice {
        let [first_batch, first_head, first_row] = first;
        let mut spans = [Span { start: 0, len: 0 }; 6];
        let mut placed = [params::View::default(); 6];
        let mut dims = [0; 6];
        for tensor in Tensor::ALL {
            let view = &self.views[tensor as usize];
            if view.extent() == 0 {
                continue;
            }
            let origin = self.origin(tensor, first);
            let span = if whole {
                Span { start: 0, len: view.extent() }
            } else {
                let start = origin / self.alignment(tensor) * self.alignment(tensor);
                Span { start, len: origin + self.reach(tensor, extent) - start }
            };
            let t = view.strides();
            // A stride that is never taken may be anything, beyond 32 bits too.
            let step = |n: u32, step: u64| if n > 1 { step as u32 } else { 0 };
            let [batches, heads, rows] = self.touches(tensor, extent);
            spans[tensor as usize] = span;
            placed[tensor as usize] = params::View {
                base: (origin - span.start) as u32,
                batch: step(batches, t.batch),
                head: step(heads, t.head),
                seq: step(rows, t.seq),
            };
            dims[tensor as usize] = step(view.sizes()[3], t.dim);
        }
        let workgroups: Vec<[u32; 2]> = self.workgroups(extent).into_iter().map(|n| self.fold(n)).collect();
        let groups_x = |pass: usize| workgroups.get(pass).map_or(0, |g| g[0]);
        // Classes are found before the attention.
        let first = usize::from(self.classes.is_some());
        let params = Params {
            q: placed[0],
            k: placed[1],
            v: placed[2],
            out: placed[3],
            bias: placed[4],
            mask: placed[5],
            q_dim: dims[0],
            k_dim: dims[1],
            v_dim: dims[2],
            out_dim: dims[3],
            bias_key: dims[4],
            mask_key: dims[5],
            first_batch,
            first_head,
            first_row,
            user_batch: first_batch,
            user_head: first_head,
            user_row: first_row,
            batches: extent.batches,
            heads: extent.heads,
            rows: extent.rows,
            row_tiles: self.row_tiles(extent),
            groups_x: groups_x(first),
            groups_x_classes: if first == 1 { groups_x(0) } else { 0 },
            groups_x_softmax: groups_x(1),
            groups_x_output: groups_x(2),
            ..base
        };
        Slice { params, spans, workgroups }
    }

    /// Workgroups in x and y, as even as can be so that few are in vain.
    fn fold(&self, number: u64) -> [u32; 2] {
        let most = self.per_dimension().max(1);
        let y = number.div_ceil(most).max(1);
        let x = number.div_ceil(y);
        [x as u32, y as u32]
    }
}

/// Greatest common divisor; gcd(a, 0) = a.
fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn is_square(n: u64) -> bool {
    n.isqrt() * n.isqrt() == n
}

fn steps(all: u32, part: u32) -> impl Iterator<Item = u32> {
    (0..all).step_by(part.max(1) as usize)
}
