//! Scores that are hard on an online softmax.

use crate::common::{Case, assert_right, check, plan, row_paths::row_paths, run, run_plan, shape};
use crate::gpu;
use wgpu_attention::{Kernel, PlanOptions, Problem, Scale, Sink, Stats, Tensor, Tiles};

const SK: u32 = 150;

/// Small key tiles, so that the maximum moves often; v staged and direct; the naive kernel; rows of which keys are staged or loaded by all.
fn all_paths() -> Vec<PlanOptions> {
    let tiles = Tiles { threads: 16, row_groups: 2, keys_per_thread: 1, dim_chunk: 1, v_chunk: 8 };
    let mut all = vec![
        PlanOptions::tiles(tiles),
        PlanOptions::tiles(Tiles { v_chunk: 0, ..tiles }),
        PlanOptions::kernel(Kernel::Naive),
    ];
    all.extend(row_paths());
    all
}

/// Head dim 1 and q = 1, so that the score of key j is f(j) exactly.
fn with_scores(f: impl Fn(u32) -> f32, seed: u64) -> Case {
    let mut problem = Problem::new(shape([1, 1, 1, 9, SK, 1, 4])).scale(Scale::Value(1.0));
    problem.stats = Stats::ALL;
    let mut case = Case::new(problem, seed);
    case.q.fill(1.0);
    case.fill(Tensor::K, |[_, _, j, _]| f(j));
    case
}

fn check_paths(case: &Case) {
    let gpu = gpu!();
    for options in all_paths() {
        check(gpu, case, &options);
    }
}

/// Largest scores that grow by less and by more than what lazy scaling lets pass (8 in log2, 5.545 in natural units), once and again and
/// again, at the first key, at the last, and after falls.
#[test]
fn maxima_that_grow_by_little_and_by_much() {
    let stairs: [fn(u32) -> f32; 8] = [
        |j| 0.5 * j as f32,
        |j| 5.54 * j as f32,
        |j| 5.55 * j as f32,
        |j| -3.0 * j as f32,
        |j| if j == SK - 1 { 5.5 } else { 0.0 },
        |j| if j == SK - 1 { 90.0 } else { -0.01 * j as f32 },
        |j| [0.0, 5.0, -40.0, 5.5, 6.0][j as usize % 5] + (j / 50) as f32 * 7.0,
        |j| if j < 20 { -200.0 } else { 4.0 * (j % 3) as f32 },
    ];
    for (seed, f) in (0..).zip(stairs) {
        let mut case = with_scores(f, 50 + seed);
        check_paths(&case);
        // Without entropies, which keep sums from being lazy; each row grows at keys of its own.
        case.problem.stats.entropy = false;
        case.fill(Tensor::Q, |[_, _, i, _]| [1.0, -1.0, 0.4, 0.7, -0.2][i as usize % 5]);
        check_paths(&case);
        case.problem.sink = Sink::Zero;
        check_paths(&case);
    }
}

#[test]
fn each_key_larger_than_the_last() {
    for step in [0.01, 1.0, 30.0] {
        check_paths(&with_scores(|j| step * j as f32, 1).vacuous_above(1e-2));
    }
}

#[test]
fn each_key_smaller_than_the_last() {
    for step in [0.01, 1.0, 30.0] {
        check_paths(&with_scores(|j| -step * j as f32, 2).vacuous_above(1e-2));
    }
}

#[test]
fn all_keys_equal() {
    for x in [0.0, 1.0, -1.0, 88.0, -1e4, 1e4] {
        check_paths(&with_scores(|_| x, 3).vacuous_above(2e-1));
    }
}

#[test]
fn scores_in_the_thousands() {
    check_paths(&with_scores(|j| 1000.0 * ((j * 7) % 11) as f32, 4).vacuous_above(1e-1));
    check_paths(&with_scores(|j| -5000.0 + (j % 13) as f32 * 0.5, 5).vacuous_above(1e-1));
}

#[test]
fn huge_and_small_in_turn() {
    check_paths(&with_scores(|j| if j % 2 == 0 { 1e4 } else { -1e4 }, 6).vacuous_above(2e-1));
    check_paths(&with_scores(|j| if j % 16 == 15 { 500.0 } else { 1e-3 * j as f32 }, 7).vacuous_above(1e-2));
}

/// The largest comes last, alone in its tile, far above all before it.
#[test]
fn the_last_key_outweighs_all_others() {
    check_paths(&with_scores(|j| if j == SK - 1 { 300.0 } else { 0.0 }, 8).vacuous_above(1e-2));
}

/// Small differences on a large common offset: what is subtracted must cancel exactly.
#[test]
fn a_common_offset_changes_nothing_but_lse() {
    let gpu = gpu!();
    for options in all_paths() {
        // Powers of two and small multiples of them, so that both sums are exact.
        let near = run(gpu, &with_scores(|j| (j % 8) as f32 * 0.5, 9), &options);
        let far = run(gpu, &with_scores(|j| 4096.0 + (j % 8) as f32 * 0.5, 9), &options);
        for (a, b) in near.out.iter().zip(&far.out) {
            // The scores are multiplied by log2(e), so that rounding 4096 costs 2^-24 * 5909 / 2.
            approx::assert_abs_diff_eq!(a, b, epsilon = 2e-3);
        }
    }
}

/// As far as f32 goes: beyond this the scores themselves (times log2 e) are infinite.
#[test]
fn scores_near_the_largest_float() {
    let gpu = gpu!();
    for options in all_paths() {
        for (big, small) in [(1e30, -1e30), (2e38, -2e38), (2e38, 0.0), (0.0, -2e38), (-1e38, -2e38)] {
            let case = with_scores(|j| if j == 77 { big } else { small }, 10);
            let got = run_plan(gpu, &plan(gpu, &case.problem, &options), &case);
            for row in got.out.chunks(4) {
                assert_eq!(row, &case.v[77 * 4..78 * 4], "key 77 with {big} among {small}");
            }
            assert_eq!(got.entropy.unwrap(), [0.0; 9], "{big} among {small}");
        }
        for x in [1e30, -1e30, 2e38, -2e38] {
            let case = with_scores(|_| x, 11);
            let got = run(gpu, &case, &options);
            let mean: f32 = case.v.chunks(4).map(|v| v[0]).sum::<f32>() / SK as f32;
            approx::assert_abs_diff_eq!(got.out[0], mean, epsilon = 1e-5);
        }
    }
}

/// Values of every size: the answer is exact relative to what is summed.
#[test]
fn large_and_tiny_values() {
    let gpu = gpu!();
    for size in [1e-20, 1e20] {
        let mut case = with_scores(|j| (j % 5) as f32, 12);
        case.v.iter_mut().for_each(|v| *v *= size);
        for options in all_paths() {
            let plan = plan(gpu, &case.problem, &options);
            let got = run_plan(gpu, &plan, &case);
            assert_right(gpu, &plan, &case, &case.truth(), &got);
        }
    }
}
