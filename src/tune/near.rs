//! What is tried next to a choice.

use crate::plan::{KeyMovement, MatrixTiles, PlanOptions, RowTiles, Tiles};

/// The same kernel with one size doubled or halved, or with two so that the tile keeps its keys or each thread its work. Not all
/// fit together or the device: the planner sorts those out.
pub(super) fn neighbours(options: &PlanOptions) -> Vec<PlanOptions> {
    let tiles = options.tiles.map(near_tiles).unwrap_or_default().into_iter().map(PlanOptions::tiles);
    let rows = options.rows.map(near_rows).unwrap_or_default().into_iter().map(PlanOptions::rows);
    let matrix = options.matrix.map(near_matrix).unwrap_or_default().into_iter().map(PlanOptions::matrix);
    tiles.chain(rows).chain(matrix).collect()
}

fn near_matrix(t: MatrixTiles) -> Vec<MatrixTiles> {
    let twice = |n: u32| n.saturating_mul(2);
    vec![
        MatrixTiles { key_blocks: twice(t.key_blocks), ..t },
        MatrixTiles { key_blocks: t.key_blocks / 2, ..t },
        MatrixTiles { row_blocks: twice(t.row_blocks), threads: twice(t.threads), ..t },
        MatrixTiles { row_blocks: t.row_blocks / 2, threads: t.threads / 2, ..t },
        MatrixTiles { row_blocks: twice(t.row_blocks), ..t },
        MatrixTiles { row_blocks: t.row_blocks / 2, ..t },
        MatrixTiles { threads: twice(t.threads), ..t },
        MatrixTiles { threads: t.threads / 2, ..t },
        MatrixTiles { out_blocks: twice(t.out_blocks), ..t },
        MatrixTiles { out_blocks: t.out_blocks / 2, ..t },
        MatrixTiles { abreast: twice(t.abreast), ..t },
        MatrixTiles { abreast: t.abreast / 2, ..t },
        // The other size of matrices, for as many rows and keys.
        MatrixTiles {
            size: 24u32.saturating_sub(t.size),
            row_blocks: t.rows() / 24u32.saturating_sub(t.size).max(1),
            key_blocks: t.keys() / 24u32.saturating_sub(t.size).max(1),
            ..t
        },
    ]
}

fn near_rows(t: RowTiles) -> Vec<RowTiles> {
    let at_once = |keys: u32| t.keys_at_once.min(keys);
    let (more, fewer) = (t.keys.saturating_mul(2), t.keys / 2);
    let movements = KeyMovement::ALL.into_iter().filter(|&movement| movement != t.movement);
    // Handing round takes a subgroup, which is 8 lanes of a processor and up to 64 of a card; staging gains by many lanes.
    let moved = movements.flat_map(|movement| {
        let fenced = movement == KeyMovement::Staged;
        [t.lanes, 8, 32, 64, 128].map(|lanes| RowTiles { movement, lanes, fenced, ..t })
    });
    let sized = [
        RowTiles { keys: more, keys_at_once: t.keys_at_once.saturating_mul(2), ..t },
        RowTiles { keys: fewer, keys_at_once: at_once(fewer), ..t },
        RowTiles { keys: more, ..t },
        RowTiles { keys_at_once: t.keys_at_once.saturating_mul(2), ..t },
        RowTiles { keys_at_once: t.keys_at_once / 2, ..t },
        RowTiles { rows: t.rows.saturating_add(1), ..t },
        RowTiles { rows: t.rows.saturating_sub(1), ..t },
        RowTiles { grouped: !t.grouped, ..t },
        RowTiles { lazy: !t.lazy, ..t },
        RowTiles { fenced: !t.fenced, ..t },
        // What a compiler orders by itself may have more keys.
        RowTiles { fenced: true, keys: more, keys_at_once: t.keys_at_once.saturating_mul(2), ..t },
        RowTiles { lanes: t.lanes.saturating_mul(2), ..t },
        RowTiles { lanes: t.lanes / 2, ..t },
    ];
    sized.into_iter().chain(moved).collect()
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
