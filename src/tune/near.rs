//! What is tried next to a choice.

use crate::plan::{PlanOptions, RowTiles, Tiles};

/// The same kernel with one size doubled or halved, or with two so that the tile keeps its keys or each thread its work. Not all
/// fit together or the device: the planner sorts those out.
pub(super) fn neighbours(options: &PlanOptions) -> Vec<PlanOptions> {
    let tiles = options.tiles.into_iter().flat_map(near_tiles).map(PlanOptions::tiles);
    let rows = options.rows.into_iter().flat_map(near_rows).map(PlanOptions::rows);
    tiles.chain(rows).collect()
}

fn near_rows(r: RowTiles) -> Vec<RowTiles> {
    vec![
        RowTiles { keys: r.keys * 2, keys_at_once: r.keys_at_once * 2, ..r },
        RowTiles { keys: r.keys / 2, keys_at_once: r.keys_at_once.min(r.keys / 2), ..r },
        RowTiles { rows: r.rows + 1, ..r },
        RowTiles { rows: r.rows - 1, ..r },
        RowTiles { keys_at_once: r.keys_at_once / 2, ..r },
        RowTiles { broadcast: !r.broadcast, ..r },
    ]
}

fn near_tiles(t: Tiles) -> Vec<Tiles> {
    let half = |n: u32| n / 2;
    let staged = if t.v_chunk == 0 { t.keys() } else { 0 };
    vec![
        Tiles { keys_per_thread: t.keys_per_thread * 2, ..t },
        Tiles { keys_per_thread: half(t.keys_per_thread), ..t },
        Tiles { row_groups: t.row_groups * 2, ..t },
        Tiles { row_groups: half(t.row_groups), ..t },
        Tiles { threads: t.threads * 2, ..t },
        Tiles { threads: half(t.threads), ..t },
        Tiles { threads: t.threads * 2, keys_per_thread: half(t.keys_per_thread), ..t },
        Tiles { threads: half(t.threads), keys_per_thread: t.keys_per_thread * 2, ..t },
        Tiles { threads: t.threads * 2, row_groups: t.row_groups * 2, ..t },
        Tiles { threads: half(t.threads), row_groups: half(t.row_groups), ..t },
        Tiles { dim_chunk: t.dim_chunk * 2, ..t },
        Tiles { dim_chunk: half(t.dim_chunk), ..t },
        Tiles { v_chunk: staged, ..t },
        Tiles { v_chunk: t.v_chunk * 2, ..t },
        Tiles { v_chunk: half(t.v_chunk), ..t },
    ]
}
