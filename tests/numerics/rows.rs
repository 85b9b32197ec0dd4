//! The row kernel with every kind of sizes, with and without subgroups.

use crate::common::{Case, assert_right, plan, run_plan, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, DType, Kernel, KeyMovement, MaskFormat, Plan, PlanOptions, Problem, QkNorm,
    RowTiles, Scale, Stats, Tensor, Window, reference,
};

/// Corners of what `RowTiles` allows. With handing round where the device has subgroups of one size, which is also their lanes.
fn many(subgroup: Option<u32>) -> Vec<RowTiles> {
    let mut all = Vec::new();
    for (lanes, rows, keys, keys_at_once, grouped) in [
        (1, 1, 1, 1, false),
        (8, 4, 2, 2, false),
        (8, 4, 2, 1, true),
        (8, 3, 4, 2, true),
        (4, 2, 8, 4, false),
        (32, 1, 4, 4, true),
        (64, 2, 16, 8, false),
    ] {
        let movement = KeyMovement::Uniform;
        let uniform =
            RowTiles { lanes, rows, keys, keys_at_once, movement, grouped, lazy: keys > 2, fenced: rows > 2 };
        let staged = RowTiles { movement: KeyMovement::Staged, lazy: grouped, ..uniform };
        all.extend([uniform, staged, RowTiles { fenced: !uniform.fenced, ..staged }]);
        if let Some(lanes) = subgroup {
            let keys = keys.min(lanes);
            let keys_at_once = keys_at_once.min(keys);
            let handed_round =
                RowTiles { lanes, keys, keys_at_once, movement: KeyMovement::Broadcast, ..uniform };
            all.extend([false, true].map(|lazy| RowTiles { lazy, ..handed_round }));
        }
    }
    all.dedup();
    all
}

fn check_many(case: &Case) {
    let gpu = gpu!();
    let truth = case.truth();
    for rows in many(gpu.attention.caps().subgroup_size) {
        let plan = plan(gpu, &case.problem, &PlanOptions::rows(rows));
        assert_right(gpu, &plan, case, &truth, &run_plan(gpu, &plan, case));
    }
}

#[test]
fn all_sizes_are_right() {
    let mut problem = Problem::new(shape([2, 4, 2, 21, 70, 12, 20])).causal(Alignment::BottomRight);
    problem.stats = Stats::ALL;
    check_many(&Case::new(problem.clone(), 1));
    // Sums are lazy only without entropies; so large a scale has them grow, in rows of a lane apart.
    problem.stats.entropy = false;
    check_many(&Case::new(problem.scale(Scale::Value(3.0)), 1));
}

#[test]
fn all_sizes_with_odd_head_dims_and_no_mask() {
    check_many(&Case::new(Problem::new(shape([1, 3, 1, 3, 35, 5, 7])), 2));
}

#[test]
fn all_sizes_with_dense_masks_in_16_bits() {
    let full = Broadcast([2, 4, 9, 30]);
    let problem =
        Problem::new(shape([2, 4, 2, 9, 30, 8, 8])).mask(MaskFormat::Bits, full).bias(DType::F16, full);
    check_many(&Case::new(problem.dtype(DType::F16), 3));
}

/// Heads so wide that a lane has one to three rows: statistics, lengths and norms of those it has, whichever way its keys come.
#[test]
fn wide_heads_in_every_movement() {
    let gpu = gpu!();
    let mut problem = Problem::new(shape([2, 4, 2, 21, 40, 132, 140]))
        .causal(Alignment::BottomRight)
        .qk_norm(QkNorm::l2())
        .with_q_len()
        .with_kv_len();
    problem.stats = Stats::ALL;
    let case = Case::new(problem, 12);
    let truth = case.truth();
    // The same with a value that is no number. It has rows of one head that see it, and others that do not.
    let mut spoilt = case.clone();
    spoilt.set(Tensor::V, [0, 0, 30, 139], f32::NAN);
    let is_spoilt: Vec<bool> = spoilt.truth().out.iter().map(|x| x.value.is_nan()).collect();
    let of_head = |row: usize| is_spoilt[row * 140 + 139];
    assert!((0..21).any(of_head) && !(0..21).all(of_head));
    let subgroup = gpu.attention.caps().subgroup_size;
    for (movement, lanes, rows) in [
        (KeyMovement::Uniform, 8, 1),
        (KeyMovement::Staged, 16, 2),
        (KeyMovement::Staged, 8, 3),
        (KeyMovement::Broadcast, subgroup.unwrap_or(0), 2),
    ] {
        if lanes > 0 {
            let fenced = movement == KeyMovement::Staged;
            let tiles = RowTiles {
                lanes,
                rows,
                keys: 2,
                keys_at_once: 2,
                movement,
                grouped: rows == 1,
                lazy: false,
                fenced,
            };
            let plan = plan(gpu, &case.problem, &PlanOptions::rows(tiles));
            assert_right(gpu, &plan, &case, &truth, &run_plan(gpu, &plan, &case));
            let got = run_plan(gpu, &plan, &spoilt).out;
            // All of a row that sees it may be NaN, nothing of one that does not.
            for (row, numbers) in got.chunks(140).enumerate() {
                assert_eq!(numbers[139].is_finite(), !of_head(row), "row {row}, {plan}");
                assert!(of_head(row) || numbers.iter().all(|x| x.is_finite()), "row {row}, {plan}");
            }
        }
    }
}

/// A value that is not finite reaches the rows that see its key, as NaN or infinity, and no others: in the middle of what all rows see
/// and on the boundary.
#[test]
fn values_that_are_not_finite_reach_the_rows_that_see_them() {
    let gpu = gpu!();
    for (bad, dim) in [(f32::NAN, 8), (f32::INFINITY, 8), (f32::NEG_INFINITY, 8), (f32::NAN, 40)] {
        for key in [3, 33, 40] {
            let problem = Problem::new(shape([1, 2, 1, 40, 50, dim, dim])).causal(Alignment::BottomRight);
            let mut case = Case::new(problem, 4);
            case.set(Tensor::V, [0, 0, key, dim - 3], bad);
            for rows in many(gpu.attention.caps().subgroup_size) {
                let plan = plan(gpu, &case.problem, &PlanOptions::rows(rows));
                let got = run_plan(gpu, &plan, &case).out;
                for (row, numbers) in got.chunks(dim as usize).enumerate() {
                    let sees = key <= row as u32 % 40 + 10;
                    assert_eq!(
                        numbers[dim as usize - 3].is_finite(),
                        !sees,
                        "row {row}, key {key}, {bad}, {rows}"
                    );
                    assert!(
                        sees || numbers.iter().all(|x| x.is_finite()),
                        "row {row}, key {key}, {bad}, {rows}"
                    );
                }
            }
        }
    }
}

/// In a workgroup of many subgroups each begins and ends with the keys of its own rows, while it goes on staging for the others.
#[test]
fn staged_keys_end_where_each_row_does() {
    let gpu = gpu!();
    let tiles = |lanes, keys| RowTiles {
        lanes,
        rows: 4,
        keys,
        keys_at_once: 2,
        movement: KeyMovement::Staged,
        grouped: false,
        lazy: lanes == 32,
        fenced: keys == 4,
    };
    // Of one stretch between barriers, and of several.
    let plain = |qk, v| {
        let mut problem = Problem::new(shape([1, 2, 1, 300, 270, qk, v]));
        problem.stats = Stats { entropy: qk < 32, ..Stats::ALL };
        problem
    };
    let window =
        |[qk, v]: [u32; 2], left, right, keep_first| plain(qk, v).window(Window { left, right, keep_first });
    let (narrow, wide) = ([8, 12], [68, 37]);
    for (n, problem) in [
        plain(8, 12).causal(Alignment::BottomRight),
        plain(8, 12).causal(Alignment::TopLeft).with_kv_len(),
        plain(70, 36).causal(Alignment::BottomRight).qk_norm(QkNorm::l2()),
        window(narrow, Some(20), Some(9), 0),
        window(wide, Some(20), Some(0), 5),
        window(narrow, None, Some(3), 0).with_q_len(),
        window(wide, None, Some(3), 0).with_q_len().with_kv_len(),
        window(wide, Some(7), None, 30).causal(Alignment::Offset(-60)),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case::new(problem, 20 + n as u64);
        let truth = case.truth();
        for tiles in [tiles(64, 2), tiles(32, 4)] {
            let plan = plan(gpu, &case.problem, &PlanOptions::rows(tiles));
            assert_right(gpu, &plan, &case, &truth, &run_plan(gpu, &plan, &case));
        }
    }
}

/// Barriers stand between stretches of 32 dims: heads of less than one, of one, of a part of a third, and of two sizes, with rows that end before others.
#[test]
fn fenced_heads_of_every_length_are_right() {
    let gpu = gpu!();
    let subgroup = gpu.attention.caps().subgroup_size;
    for (seed, qk, v, causal) in
        [(40, 32, 33, false), (41, 72, 40, true), (42, 5, 70, true), (43, 66, 3, false), (44, 128, 100, true)]
    {
        let mut problem = Problem::new(shape([1, 2, 1, 150, 90, qk, v]));
        problem.stats = Stats { entropy: causal, ..Stats::ALL };
        crate::common::set_causal(&mut problem, causal.then_some(Alignment::TopLeft));
        let case = Case::new(problem, seed);
        let truth = case.truth();
        let uniform = RowTiles {
            lanes: 8,
            rows: 4,
            keys: 4,
            keys_at_once: 2,
            movement: KeyMovement::Uniform,
            grouped: false,
            lazy: !causal,
            fenced: true,
        };
        let staged = RowTiles { lanes: 32, movement: KeyMovement::Staged, ..uniform };
        let handed_round =
            subgroup.map(|lanes| RowTiles { lanes, keys: 2, movement: KeyMovement::Broadcast, ..uniform });
        let grouped = RowTiles { grouped: true, ..staged };
        for rows in [uniform, staged, grouped].into_iter().chain(handed_round) {
            let plan = plan(gpu, &case.problem, &PlanOptions::rows(rows));
            assert_right(gpu, &plan, &case, &truth, &run_plan(gpu, &plan, &case));
        }
    }
}

/// The device may differ from the twin only by what its exp2, log2, division and fma round differently.
#[test]
fn the_twin_and_the_device_agree() {
    let gpu = gpu!();
    for (seed, sq, sk, d, causal) in
        [(5, 21, 70, 12, false), (6, 33, 260, 12, true), (7, 1, 1000, 12, false), (8, 9, 300, 100, true)]
    {
        let mut problem = Problem::new(shape([1, 2, 1, sq, sk, d, 20]));
        problem.stats = Stats::ALL;
        crate::common::set_causal(&mut problem, causal.then_some(Alignment::BottomRight));
        if seed % 2 == 1 {
            problem.stats.entropy = false;
            problem = problem.scale(Scale::Value(3.0));
        }
        let case = Case::new(problem, seed);
        let truth = case.truth();
        let chosen: Plan = plan(gpu, &case.problem, &PlanOptions::kernel(Kernel::Rows));
        let by_hand =
            [(KeyMovement::Staged, false), (KeyMovement::Uniform, false), (KeyMovement::Uniform, true)];
        let by_hand = by_hand.map(|(movement, lazy)| {
            let tiles = RowTiles {
                lanes: 8,
                rows: 4,
                keys: 2,
                keys_at_once: 2,
                movement,
                grouped: false,
                lazy,
                fenced: false,
            };
            plan(gpu, &case.problem, &PlanOptions::rows(tiles))
        });
        for plan in by_hand.into_iter().chain([chosen]) {
            let twin = reference::twin(&plan, &case.inputs()).unwrap();
            assert_right(gpu, &plan, &case, &truth, &twin);
            let (device, twin) = (truth.compare(&run_plan(gpu, &plan, &case)), truth.compare(&twin));
            assert!(
                device.max_abs <= 8.0 * twin.max_abs + 1e-6,
                "the device is off by {:e}, the twin by {:e} on {}\n{plan}",
                device.max_abs,
                twin.max_abs,
                gpu.name
            );
        }
    }
}

/// Over very many keys sums lose hardly more than over a few, because those of a block of tiles meet the others as one.
#[test]
fn long_rows_lose_little() {
    let gpu = gpu!();
    let mut problem = Problem::new(shape([1, 1, 1, 4, 40_000, 8, 8]));
    problem.stats = Stats::ALL;
    let case = Case::new(problem, 8);
    let truth = case.truth();
    let plan = plan(gpu, &case.problem, &PlanOptions::kernel(Kernel::Rows));
    let got = run_plan(gpu, &plan, &case);
    assert_right(gpu, &plan, &case, &truth, &got);
    let off = reference::compare(got.entropy.as_deref().unwrap(), &truth.entropy).max_abs;
    assert!(off < 3e-5, "the entropy is off by {off:e} on {}", gpu.name);
}
