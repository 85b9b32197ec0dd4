//! Valid key counts for each batch.

use crate::common::{Bench, Case, assert_right, check_all, plan, run_bench, shape};
use crate::gpu;
use wgpu_attention::{Kernel, PlanOptions, Problem, Stats};

#[test]
fn from_none_to_all() {
    let gpu = gpu!();
    let mut problem = Problem::new(shape([7, 2, 1, 9, 67, 8, 8])).with_kv_len();
    problem.stats = Stats::ALL;
    let mut case = Case::new(problem, 1);
    case.kv_len = Some(vec![0, 1, 31, 32, 33, 66, 67]);
    check_all(gpu, &case);
}

/// Lengths that only the device knows are clamped, so that no key that is not there is ever read.
#[test]
fn values_out_of_range_from_the_device_are_clamped() {
    let gpu = gpu!();
    let problem = Problem::new(shape([6, 1, 1, 9, 67, 8, 8])).with_kv_len().with_lse();
    let mut case = Case::new(problem.clone(), 2);
    // What the device holds, and what it means.
    let table = [-5, 1_000_000_000, i32::MIN, i32::MAX, 68, 66].map(|x: i32| x as u32);
    case.kv_len = Some(vec![0, 67, 0, 67, 67, 66]);
    for kernel in Kernel::ALL {
        let plan = plan(gpu, &problem, &PlanOptions::kernel(kernel));
        let bench = Bench::with_tables(gpu, &plan, &case, &table);
        run_bench(gpu, &plan, &bench);
        assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
    }
}
