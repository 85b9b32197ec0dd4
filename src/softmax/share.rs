//! How rows are shared out: threads for a row, elements for a thread, workgroups for a long row. Pure numbers.

use super::problem::{Problem, RowLayout};
use crate::caps::{AdapterClass, Caps};
use crate::shader::tensor::Access;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub threads: u32,
    /// Threads of a row.
    pub lanes: u32,
    /// Threads that put the chunks of a row together.
    pub merge_threads: u32,
    /// Fours of elements that a thread holds at a time.
    pub vecs: u32,
    /// Elements of a row that a workgroup has, and workgroups that a row has.
    pub chunk: u32,
    pub chunks: u32,
    /// Lots of `threads / lanes` rows that a workgroup of short rows takes, one after the other.
    pub lots: u32,
    /// Every tile is full: then no load or store stands in a branch or a loop.
    pub full: bool,
    /// How elements are loaded and stored.
    pub access: Access,
    /// A workgroup is one subgroup.
    pub subgroup: bool,
}

/// Tiles that a workgroup goes through at most.
pub(super) const MOST_TILES: u32 = 512;

/// Of short rows, on a processor.
const ELEMENTS_OF_WORKGROUP: u64 = 32_768;

impl Share {
    pub(super) fn new(problem: &Problem, backward: bool, caps: &Caps) -> Share {
        let len = problem.len;
        let cpu = caps.class == AdapterClass::Cpu;
        let in_fours =
            len.is_multiple_of(4) && fours(&problem.x_layout, len) && fours(&problem.out_layout, len);
        let access = match in_fours {
            true if cpu && caps.shader_int64 => Access::Wide,
            true => Access::Vec4,
            false => Access::Scalar,
        };
        // On a processor that plays a GPU, a workgroup that is one vector register needs no memory and no barrier, and a thread may
        // hold more.
        let (wanted, most_vecs, most_tiles, groups) =
            if cpu { (8, 8, MOST_TILES, 8) } else { (256, 4, 4, 256) };
        let subgroup = if cpu { caps.subgroup_size.filter(|n| n.is_power_of_two()) } else { None };
        let most_threads = 1 << caps.threads().max(1).ilog2();
        let threads = subgroup.unwrap_or(wanted).min(most_threads);
        let lanes = match len.div_ceil(4 * most_vecs).next_power_of_two() {
            1 => 1,
            // A subgroup adds up all of its threads.
            _ if cpu => threads,
            lanes => lanes.min(threads),
        };
        let subgroup = subgroup == Some(threads) && lanes == threads;
        let merge_threads = threads.max(most_threads.min(64));
        let common = |vecs: u32, chunk: u32, lots: u32, full: bool| {
            let chunks = len.div_ceil(chunk);
            Share { threads, lanes, merge_threads, vecs, chunk, chunks, lots, full, access, subgroup }
        };
        // Starting a workgroup costs a processor as much as some hundred elements.
        let lots = |of_lot: u64, chunk: u32| {
            let most = problem.row_count() / (of_lot * groups);
            match cpu && chunk == len {
                true => (ELEMENTS_OF_WORKGROUP / (of_lot * u64::from(len))).min(most).max(1) as u32,
                false => 1,
            }
        };
        let full = (cpu && lanes == threads && lanes > 1).then(|| {
            let (kept, tile) = match (problem.kind.is_sparse(), backward) {
                (true, false) => (8, 4),
                (_, true) => (16, 4),
                _ => (32, 4),
            };
            full_vecs(len, lanes, kept, tile)
        });
        if let Some(vecs) = full.flatten() {
            let chunk = chunk_of(problem, vecs * 4 * lanes, most_tiles, groups);
            return common(vecs, chunk, lots(1, chunk), true);
        }
        let vecs = len.div_ceil(4 * lanes).min(most_vecs);
        let chunk = chunk_of(problem, vecs * 4 * lanes, most_tiles, groups);
        common(vecs, chunk, lots((threads / lanes).into(), chunk), false)
    }

    pub(super) fn rows_of_workgroup(&self) -> u64 {
        u64::from(self.lots) * u64::from(self.threads / self.lanes)
    }

    pub(super) fn tile(&self) -> u32 {
        4 * self.vecs * self.lanes
    }

    pub(super) fn one_tile(&self) -> bool {
        self.chunk <= self.tile()
    }

    pub(super) fn reason(&self) -> String {
        let Share { threads, lanes, vecs, chunk, chunks, access, .. } = self;
        let held = if self.one_tile() {
            format!("{} elements each, loaded once", 4 * vecs)
        } else {
            format!("{} elements each at a time, loaded once for the sums and once for the result", 4 * vecs)
        };
        let access = match access {
            Access::Vec4 => "in fours",
            Access::Wide => "in fours, in words of 64 bits",
            Access::Scalar => "one by one",
        };
        if *chunks > 1 {
            format!(
                "a row is shared by {chunks} workgroups of {threads} threads, whose partial results are merged: {chunk} elements for each, {held}, {access}"
            )
        } else {
            let rows = self.rows_of_workgroup();
            format!("{lanes} threads for a row, {rows} rows for a workgroup of {threads}: {held}, {access}")
        }
    }
}

/// Elements of a row that one workgroup has.
fn chunk_of(problem: &Problem, tile: u32, most_tiles: u32, groups: u64) -> u32 {
    let tiles = problem.len.div_ceil(tile);
    // Rows that are many keep all workgroups busy by themselves.
    let together = u64::from(tiles).saturating_mul(problem.row_count()) / groups;
    let tiles_of_chunk = together.clamp(1, most_tiles.into()) as u32;
    if tiles_of_chunk >= tiles { problem.len } else { tiles_of_chunk * tile }
}

/// Fours for a thread, so that tiles of them make up rows without a rest: all of a row up to `kept`, else the most up to `tile`. `None`
/// where they would be few.
fn full_vecs(len: u32, lanes: u32, kept: u32, tile: u32) -> Option<u32> {
    let fours = len.is_multiple_of(4 * lanes).then_some(len / (4 * lanes))?;
    if fours <= kept {
        return Some(fours);
    }
    let best = (1..=tile).rev().find(|vecs| fours.is_multiple_of(*vecs))?;
    (best * 2 > tile).then_some(best)
}

/// Whether rows are contiguous, and begin at multiples of four elements.
fn fours(layout: &RowLayout, len: u32) -> bool {
    let starts = [layout.offset, layout.outer, layout.inner].into_iter().all(|n| n.is_multiple_of(4));
    starts && (layout.step == 1 || len == 1)
}
