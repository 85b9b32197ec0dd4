//! Every legal choice of tiles computes the same thing; and the f32 twin tells what rounding alone does.

use crate::common::{Case, assert_right, check, plan, run_plan, shape};
use crate::gpu;
use wgpu_attention::{Alignment, Error, Outputs, Plan, PlanOptions, Problem, Stats, Tiles, reference};

/// Corners of what `Tiles` allows, within WebGPU's default limits.
fn many() -> Vec<Tiles> {
    [
        (1, 1, 1, 1, 0),
        (1, 1, 4, 1, 1),
        (2, 1, 1, 1, 2),
        (4, 4, 1, 1, 0),
        (8, 1, 16, 1, 0),
        (8, 8, 2, 2, 2),
        (16, 2, 2, 4, 16),
        (32, 16, 1, 1, 2),
        (32, 1, 1, 8, 32),
        (64, 16, 4, 1, 8),
        (64, 4, 2, 2, 0),
        (64, 64, 1, 1, 1),
        (128, 16, 4, 2, 16),
        (128, 8, 1, 8, 8),
        (256, 16, 2, 2, 32),
        (256, 1, 1, 1, 0),
    ]
    .map(|(threads, row_groups, keys_per_thread, dim_chunk, v_chunk)| Tiles {
        threads,
        row_groups,
        keys_per_thread,
        dim_chunk,
        v_chunk,
    })
    .to_vec()
}

#[test]
fn all_choices_are_right() {
    let gpu = gpu!();
    let mut problem = Problem::new(shape([1, 2, 1, 21, 70, 12, 20])).causal(Alignment::BottomRight);
    problem.stats = Stats::ALL;
    let case = Case::new(problem, 1);
    let truth = case.truth();
    let mut ran = 0;
    for tiles in many() {
        let plan = match gpu.attention.plan_with(&case.problem, &PlanOptions::tiles(tiles)) {
            Err(Error::LimitExceeded { .. }) => continue, // a device below the defaults
            other => other.unwrap_or_else(|e| panic!("{tiles:?}: {e}")),
        };
        assert_right(gpu, &plan, &case, &truth, &run_plan(gpu, &plan, &case));
        ran += 1;
    }
    assert!(ran >= 12, "only {ran} choices of tiles fit the device");
}

#[test]
fn all_choices_with_odd_head_dims_and_no_mask() {
    let gpu = gpu!();
    let case = Case::new(Problem::new(shape([1, 2, 1, 21, 70, 5, 7])), 2);
    for tiles in many().into_iter().step_by(3) {
        check(gpu, &case, &PlanOptions::tiles(tiles));
    }
}

/// The GPU may differ from the twin only by what its exp2, log2, division and fma round differently: well within the bound, and
/// a small multiple of the twin's own error.
#[test]
fn the_twin_and_the_device_agree() {
    let gpu = gpu!();
    for (seed, sq, sk, causal) in [(3, 21, 70, false), (4, 33, 260, true), (5, 1, 1000, false)] {
        let mut problem = Problem::new(shape([1, 2, 1, sq, sk, 12, 20]));
        problem.stats = Stats::ALL;
        crate::common::set_causal(&mut problem, causal.then_some(Alignment::BottomRight));
        let case = Case::new(problem, seed);
        let truth = case.truth();
        let plan: Plan = plan(gpu, &case.problem, &PlanOptions::kernel(wgpu_attention::Kernel::Tiled));
        let twin = reference::twin(&plan, &case.inputs()).unwrap();
        assert_right(gpu, &plan, &case, &truth, &twin);
        let got = run_plan(gpu, &plan, &case);
        let (device, twin) = (truth.compare(&got), truth.compare(&twin));
        assert!(
            device.max_abs <= 8.0 * twin.max_abs + 1e-6,
            "the device is off by {:e}, the twin by {:e} on {}\n{plan}",
            device.max_abs,
            twin.max_abs,
            gpu.name
        );
    }
}

/// The bounds are not so wide that anything passes: numbers of size 1 that are off by a few 1e-4 do not.
#[test]
fn the_bounds_catch_small_errors() {
    let gpu = gpu!();
    let mut problem = Problem::new(shape([1, 2, 1, 21, 70, 12, 20]));
    problem.stats = Stats::ALL;
    let case = Case::new(problem, 6);
    let truth = case.truth();
    let right = run_plan(gpu, &plan(gpu, &case.problem, &PlanOptions::default()), &case);
    assert!(truth.compare(&right).passes());
    let mut wrong = right.clone();
    wrong.out[37] += 1e-4;
    assert!(!truth.compare(&wrong).passes(), "out");
    let statistic = |outputs: &mut Outputs, n: usize, at: usize, x: f32| {
        let lists = [&mut outputs.lse, &mut outputs.entropy, &mut outputs.row_max];
        lists.into_iter().nth(n).unwrap().as_mut().unwrap()[at] += x;
    };
    for n in 0..3 {
        let mut wrong = right.clone();
        statistic(&mut wrong, n, 11, 3e-4);
        assert!(!truth.compare(&wrong).passes(), "3e-4 off in statistic {n}");
        let mut wrong = right.clone();
        statistic(&mut wrong, n, 41, f32::NAN);
        assert!(!truth.compare(&wrong).passes(), "NaN in statistic {n}");
    }
}
