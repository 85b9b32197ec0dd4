//! Ways through the row kernel that every device has: keys staged and loaded by all lanes, sums scaled always and where a maximum grew.

use wgpu_attention::{KeyMovement, PlanOptions, RowTiles};

pub fn row_paths() -> [PlanOptions; 3] {
    let uniform = RowTiles {
        lanes: 8,
        rows: 2,
        keys: 1,
        keys_at_once: 1,
        movement: KeyMovement::Uniform,
        grouped: false,
        lazy: false,
        fenced: false,
    };
    let staged =
        RowTiles { lanes: 64, rows: 4, keys: 4, keys_at_once: 2, movement: KeyMovement::Staged, ..uniform };
    let staged = RowTiles { fenced: true, ..staged };
    let lazy = RowTiles { rows: 4, keys: 4, keys_at_once: 2, lazy: true, ..uniform };
    [staged, uniform, lazy].map(PlanOptions::rows)
}
