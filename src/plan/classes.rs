//! Whether mask tiles are classified before the attention, and where their classes are.

use super::PlanOptions;
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, PipelineKey};
use crate::mask::TileMask;
use crate::problem::Problem;

/// Key tiles whose classes lie in one word.
const TILES_PER_WORD: u32 = 16;

/// Classes of mask tiles: what they are of, and how they lie in their buffer.
///
/// Words of 32 bits, (batch, head, row tile, word), where batch and head are left out if all of them have the same. A word is of 16
/// key tiles: bit t says that some row of the tile sees some key of it, bit 16 + t that some row does not see some key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TileClasses {
    /// Batches that have classes of their own; 1 where all have the same.
    pub batches: u32,
    /// Query heads that have classes of their own; 1 where all have the same.
    pub heads: u32,
    /// Tiles of rows.
    pub row_tiles: u32,
    /// Tiles of keys.
    pub key_tiles: u32,
    /// Rows of a tile.
    pub rows: u32,
    /// Keys of a tile.
    pub keys: u32,
    per_batch: bool,
    per_head: bool,
}

impl TileClasses {
    fn new(problem: &Problem, key: &PipelineKey) -> Self {
        let s = &problem.shape;
        let dense = [problem.mask.map(|m| m.1.0), problem.bias.map(|b| b.1.0)];
        let differ = |axis: usize| dense.iter().flatten().any(|sizes| sizes[axis] > 1);
        let [mod_batch, mod_head] = problem.mask_mod.as_ref().map_or([false; 2], |code| code.mask_uses());
        let per_batch = problem.documents || differ(0) || mod_batch;
        let per_head = differ(1) || mod_head;
        let (rows, keys) = (key.tiles.rows(), key.tiles.keys());
        TileClasses {
            batches: if per_batch { s.batch } else { 1 },
            heads: if per_head { s.q_heads } else { 1 },
            row_tiles: s.seq_q.div_ceil(rows.max(1)),
            key_tiles: s.seq_k.div_ceil(keys.max(1)),
            rows,
            keys,
            per_batch,
            per_head,
        }
    }

    /// Words of one row tile.
    pub(crate) fn words(&self) -> u32 {
        self.key_tiles.div_ceil(TILES_PER_WORD)
    }

    fn row(&self) -> u64 {
        u64::from(self.row_tiles) * u64::from(self.words())
    }

    /// Size of the buffer.
    pub fn bytes(&self) -> u64 {
        let words =
            [self.batches, self.heads].iter().fold(self.row(), |n, &size| n.saturating_mul(size.into()));
        words.saturating_mul(4)
    }

    /// Words from one batch to the next, and from one head to the next: 0 where they are the same.
    pub(super) fn strides(&self) -> [u32; 2] {
        // Below the binding limit, which was checked.
        let batch = self.row() * u64::from(self.heads);
        [if self.per_batch { batch as u32 } else { 0 }, if self.per_head { self.row() as u32 } else { 0 }]
    }

    /// Workgroups that classify a box: one for each word.
    pub(super) fn workgroups(&self, batches: u32, heads: u32, row_tiles: u32) -> u64 {
        let own = |on: bool, n: u32| if on { u64::from(n) } else { 1 };
        (u64::from(row_tiles) * u64::from(self.words()))
            .saturating_mul(own(self.per_batch, batches))
            .saturating_mul(own(self.per_head, heads))
    }

    /// Whether a slice that starts at this batch and head has classes that no slice before it has.
    pub(crate) fn is_first(&self, batch: u32, head: u32) -> bool {
        (self.per_batch || batch == 0) && (self.per_head || head == 0)
    }
}

/// Fewer key tiles than these are not worth a pass of their own.
const MIN_KEY_TILES: u32 = 4;

/// Head dims of q and v, times the heads that a class serves, from which on classes are planned. At 64 + 64 and one head, finding them took
/// about a twentieth of the attention's time (lavapipe 22.3, 8 heads of 512 x 64, a mask of bits for each head: 220 ms with
/// and 193 ms without finding them, 564 ms with neither, where the mask showed a quarter of the tiles).
const MIN_WORK: u64 = 128;

/// The classes of a variant, if it has them, and why, if it could. The variant is the one without.
pub(super) fn choose(
    problem: &Problem,
    caps: &Caps,
    key: &PipelineKey,
    options: &PlanOptions,
) -> Result<(Option<TileClasses>, Option<String>)> {
    let contents = problem.mask.is_some() || problem.documents || problem.mask_mod.is_some();
    let classes = TileClasses::new(problem, key);
    let hopeless = if !matches!(key.kernel, Kernel::Tiled | Kernel::Matrix) {
        Some(format!("the {} kernel has no tiles", key.kernel))
    } else if !contents && problem.bias.is_none() {
        Some("there is no mask but lengths and positions".to_owned())
    } else if with_classes(key).binding_count() > caps.max_storage_buffers_per_shader_stage as usize {
        Some(format!("all {} storage buffers are taken", caps.max_storage_buffers_per_shader_stage))
    } else if classes.bytes() > caps.max_storage_buffer_binding_size.min(4 * u64::from(u32::MAX)) {
        Some(format!("{} bytes of classes are more than one binding", classes.bytes()))
    } else {
        None
    };
    // What serves more heads than one is asked for less often than it is used.
    let dims = u64::from(problem.shape.head_dim_qk) + u64::from(problem.shape.head_dim_v);
    let s = &problem.shape;
    let heads = u64::from(s.batch) * u64::from(s.q_heads);
    let sharing = heads / (u64::from(classes.batches) * u64::from(classes.heads)).max(1);
    let (asked, wanted, why) = match options.tile_mask {
        Some(TileMask::Classified) => (true, true, "they were asked for".to_owned()),
        Some(TileMask::Each) => (true, false, "they were not wanted".to_owned()),
        None if !contents => {
            (false, false, "a bias seldom hides whole tiles: ask for them where it does".to_owned())
        }
        None if classes.key_tiles < MIN_KEY_TILES => {
            (false, false, format!("{} key tiles are too few to leave some out", classes.key_tiles))
        }
        None if sharing.saturating_mul(dims) < MIN_WORK => (
            false,
            false,
            format!(
                "with head dims as small as {} and {} they would cost as much as they may save",
                s.head_dim_qk, s.head_dim_v
            ),
        ),
        None => (
            false,
            true,
            format!("each serves {sharing} heads of dims {} and {}", s.head_dim_qk, s.head_dim_v),
        ),
    };
    match (hopeless, wanted) {
        (Some(reason), true) if asked => Err(Error::KernelUnavailable {
            kernel: key.kernel.name(),
            reason: format!("it cannot classify mask tiles: {reason}"),
        }),
        (Some(reason), _) => {
            Ok((None, (contents || problem.bias.is_some()).then(|| format!("none: {reason}"))))
        }
        (None, false) => Ok((None, Some(format!("none: {why}")))),
        (None, true) => Ok((
            Some(classes),
            Some(format!(
                "{} x {} tiles of {} x {}: {why}",
                classes.row_tiles, classes.key_tiles, classes.rows, classes.keys
            )),
        )),
    }
}

fn with_classes(key: &PipelineKey) -> PipelineKey {
    PipelineKey { tile_classes: true, ..key.clone() }
}
