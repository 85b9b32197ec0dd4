//! What a call costs the host once it is prepared: recording allocates nothing of its own, and is short. (How long it takes is for
//! `cargo bench --bench host` to say; here is only the limit.)

#[path = "common/mod.rs"]
mod common;

use common::{Bench, Case, plan, shape};
use wgpu_attention::{Alignment, Kernel, PlanOptions, Problem, Stats, Temperature};

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
        for kernel in Kernel::ALL {
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

/// What recording costs the host, wgpu's work when the encoder is finished included. It is a few microseconds; the promise is 20, which
/// leaves room for slow machines and busy ones.
#[test]
#[cfg(feature = "measure")]
fn recording_takes_less_than_20_microseconds() {
    use wgpu_attention::measure::Work;
    let gpu = gpu!();
    let problem = Problem::new(shape([1, 4, 2, 33, 40, 16, 16])).causal(Alignment::BottomRight);
    let work = pollster::block_on(Work::new(&gpu.attention, &problem)).unwrap();
    for kernel in Kernel::ALL {
        let plan = plan(gpu, &problem, &PlanOptions::kernel(kernel));
        let ready = pollster::block_on(work.prepare(&plan)).unwrap();
        let [encode, finish] = ready.host_cost(&gpu.device);
        assert!(encode > 0.0 && encode + finish < 20e-6, "{kernel}: {encode} s, {finish} s to finish");
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
