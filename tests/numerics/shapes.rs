//! Lengths and head dims around every boundary that the kernels have.

use crate::common::{Case, check, check_all, plan, shape};
use crate::gpu;
use wgpu_attention::{Kernel, PlanOptions, Problem, Tiles};

/// Small tiles (16 rows, 32 keys), so that few rows and keys reach all kinds of boundaries.
const SMALL: Tiles = Tiles { threads: 32, row_groups: 4, keys_per_thread: 4, dim_chunk: 2, v_chunk: 8 };

#[test]
fn lengths_around_the_edges_of_a_tile() {
    let gpu = gpu!();
    for sq in [1, 2, 3, 4, 5, 15, 16, 17, 31, 33] {
        for sk in [1, 2, 31, 32, 33, 61, 64, 65, 97] {
            let problem = Problem::new(shape([1, 1, 1, sq, sk, 8, 8]));
            let case = Case::new(problem, u64::from(sq * 1000 + sk));
            check(gpu, &case, &PlanOptions::tiles(SMALL));
        }
    }
}

#[test]
fn lengths_around_the_edges_of_the_planners_own_tiles() {
    let gpu = gpu!();
    let large = Problem::new(shape([1, 1, 1, 256, 256, 64, 64]));
    let tiled = plan(gpu, &large, &PlanOptions::kernel(Kernel::Tiled));
    let tiles = tiled.tiles().unwrap();
    let (rows, keys) = (tiles.rows(), tiles.keys());
    for sq in [rows - 1, rows, rows + 1, 2 * rows + 3] {
        for sk in [1, keys - 1, keys, keys + 1, 3 * keys - 1] {
            let case = Case::new(Problem::new(shape([1, 2, 2, sq, sk, 64, 64])), u64::from(sq * 1000 + sk));
            check(gpu, &case, &PlanOptions::tiles(tiles));
        }
    }
}

#[test]
fn the_naive_kernel_at_odd_lengths() {
    let gpu = gpu!();
    for (sq, sk) in [(1, 1), (1, 63), (1, 64), (1, 65), (7, 13), (64, 1), (65, 129), (127, 127)] {
        let case = Case::new(Problem::new(shape([2, 3, 1, sq, sk, 8, 8])), u64::from(sq * 1000 + sk));
        check(gpu, &case, &PlanOptions::kernel(Kernel::Naive));
    }
}

#[test]
fn prime_lengths_with_several_batches_and_heads() {
    let gpu = gpu!();
    for (sq, sk) in [(13, 101), (67, 7), (61, 61)] {
        check_all(gpu, &Case::new(Problem::new(shape([3, 5, 5, sq, sk, 8, 8])), 7));
    }
}

/// Where the tail of a row of q, k, v or out is not a whole vec4, and where the head is not a whole number of chunks.
#[test]
fn every_head_dim() {
    let gpu = gpu!();
    for d in [1, 2, 3, 4, 5, 6, 7, 12, 33, 63, 65, 80, 96, 127, 128] {
        let case = Case::new(Problem::new(shape([1, 2, 2, 19, 37, d, d])), d.into());
        check(gpu, &case, &PlanOptions::kernel(Kernel::Tiled));
    }
}

#[test]
fn every_head_dim_in_the_naive_kernel() {
    let gpu = gpu!();
    for d in [1, 3, 5, 7, 33, 63, 64, 65, 127, 300] {
        let case = Case::new(Problem::new(shape([1, 2, 2, 19, 37, d, d])), d.into());
        check(gpu, &case, &PlanOptions::kernel(Kernel::Naive));
    }
}

/// Beyond 256 the output of a row no longer fits the registers of one thread row, beyond 1024 not those of a workgroup.
#[test]
fn wide_heads() {
    let gpu = gpu!();
    for d in [192, 256, 320, 512, 576, 1024, 1500, 2053] {
        let case = Case::new(Problem::new(shape([1, 2, 1, 9, 21, d, d])), d.into());
        check(gpu, &case, &PlanOptions::kernel(Kernel::Tiled));
    }
}

#[test]
fn value_rows_of_another_width() {
    let gpu = gpu!();
    for (dqk, dv) in [(1, 64), (64, 1), (8, 13), (13, 8), (64, 128), (192, 128), (576, 512), (3, 1030)] {
        let case = Case::new(Problem::new(shape([1, 2, 1, 17, 35, dqk, dv])), u64::from(dqk * 10000 + dv));
        check(gpu, &case, &PlanOptions::kernel(Kernel::Tiled));
    }
}

#[test]
fn many_keys() {
    let gpu = gpu!();
    check_all(gpu, &Case::new(Problem::new(shape([1, 1, 1, 3, 10_007, 8, 8])), 1));
}
