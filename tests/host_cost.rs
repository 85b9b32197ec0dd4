//! What a call costs the host once it is prepared: recording allocates nothing of its own. (How long it takes is for
//! `cargo bench --features measure --bench host` to say.)

#[path = "common/mod.rs"]
mod common;

use common::{Bench, Case, plan, shape};
use wgpu_attention::{Alignment, PlanOptions, Problem, Stats, Temperature};

/// wgpu keeps commands in lists of its own, which double now and then. Anything that each call allocated would be as many as there
/// are calls.
#[test]
fn recording_allocates_nothing() {
    const CALLS: u64 = 2000;
    let gpu = gpu!();
    let mut problem = Problem::new(shape([1, 4, 2, 33, 40, 16, 16]))
        .causal(Alignment::BottomRight)
        .temperature(Temperature::PerHead);
    problem.stats = Stats::ALL;
    for problem in [Problem::new(shape([1, 4, 2, 33, 40, 16, 16])), problem] {
        let case = Case::new(problem, 1);
        for kernel in common::KERNELS {
            let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
            let bench = Bench::new(gpu, &plan, &case);
            let bound = gpu.attention.prepare_blocking(&plan).unwrap().bind(&bench.buffers()).unwrap();
            let mut encoder = common::encoder(gpu);
            let mut pass = encoder.begin_compute_pass(&Default::default());
            bound.encode_in_pass(&mut pass);
            let counted = allocation_counter::measure(|| {
                for _ in 0..CALLS {
                    bound.encode_in_pass(&mut pass);
                }
            });
            assert!(counted.count_total < CALLS / 20, "{kernel}: {} allocations", counted.count_total);
        }
    }
}

/// The counter does count.
#[test]
fn allocations_are_counted() {
    let counted = allocation_counter::measure(|| {
        for n in 0..100u64 {
            std::hint::black_box(Box::new(n));
        }
    });
    assert_eq!(counted.count_total, 100);
}
