//! Every byte that is written, and none that must not be. `common::Bench` does the looking in all numeric tests; here
//! are the cases that aim at it, and tests of the looking itself.

#[path = "common/mod.rs"]
mod common;

use common::{Bench, Case, GUARD, Guarded, POISON, assert_right, plan, run_bench, run_plan, shape};
use wgpu_attention::{
    Alignment, BufferRef, Buffers, Caps, Kernel, Layout, Plan, PlanOptions, Problem, Stats, Strides, Tensor,
    Tiles,
};

fn with_stats(mut problem: Problem) -> Problem {
    problem.stats = Stats::ALL;
    problem
}

fn all_paths() -> [PlanOptions; 3] {
    let tiles = Tiles { threads: 32, row_groups: 4, keys_per_thread: 2, dim_chunk: 1, v_chunk: 8 };
    [
        PlanOptions::tiles(tiles),
        PlanOptions::tiles(Tiles { v_chunk: 0, ..tiles }),
        PlanOptions::kernel(Kernel::Naive),
    ]
}

/// The last tile of rows and the last vec4 of a row are the ones that could write too much.
#[test]
fn row_tails_and_dim_tails_stay_within_out() {
    let gpu = gpu!();
    for d in [1, 3, 8, 9] {
        for sq in [1, 3, 15, 16, 17, 18] {
            let case = Case::new(with_stats(Problem::new(shape([1, 2, 1, sq, 9, d, d]))), 1);
            for options in all_paths() {
                common::check(gpu, &case, &options);
            }
        }
    }
}

/// Buffers that end where the tensor does, with nothing around them.
#[test]
fn buffers_of_exactly_the_right_size() {
    let gpu = gpu!();
    for d in [8, 5] {
        let case = Case::new(with_stats(Problem::new(shape([2, 2, 1, 17, 35, d, d])).with_kv_len()), 2);
        for options in all_paths() {
            let plan = plan(gpu, &case.problem, &options);
            let tables = plan.tables().pack(&case.problem, &case.tables()).unwrap();
            let exact = |name, numbers: &[f32]| Guarded::exact(gpu, name, bytemuck::cast_slice(numbers));
            let poison = |name, bytes: u64| Guarded::exact(gpu, name, &vec![POISON; bytes as usize / 4]);
            let bench = Bench {
                bias: None,
                mask: None,
                q: exact("q", &case.q),
                k: exact("k", &case.k),
                v: exact("v", &case.v),
                out: poison("out", plan.tensor_bytes(Tensor::Out)),
                stats: Some(poison("stats", plan.stats_bytes())),
                tables: Some(Guarded::exact(gpu, "tables", &tables)),
            };
            assert_eq!(bench.out.buffer.size(), plan.tensor_bytes(Tensor::Out));
            run_bench(gpu, &plan, &bench);
            assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
        }
    }
}

/// What was in out before the call does not matter, whatever it was.
#[test]
fn old_contents_of_out_do_not_matter() {
    let gpu = gpu!();
    let case =
        Case::new(with_stats(Problem::new(shape([1, 2, 1, 17, 35, 8, 8])).causal(Alignment::Offset(-5))), 3);
    for options in all_paths() {
        let plan = plan(gpu, &case.problem, &options);
        let want = run_plan(gpu, &plan, &case);
        for word in [0u32, 1, f32::INFINITY.to_bits(), f32::NAN.to_bits(), u32::MAX, 1e30f32.to_bits()] {
            let bench = Bench {
                out: Guarded::new(gpu, "out", &vec![word; case.q.len()]),
                stats: Some(Guarded::new(gpu, "stats", &vec![word; plan.stats_bytes() as usize / 4])),
                ..Bench::new(gpu, &plan, &case)
            };
            run_bench(gpu, &plan, &bench);
            common::assert_same_bits(
                &bench.read(gpu, &plan),
                &want,
                &format!("out was {word:#x} everywhere"),
            );
        }
    }
}

/// Slices bind windows of the buffers: neither they nor the places between them write beyond.
#[test]
fn slices_stay_within_their_parts() {
    let gpu = gpu!();
    let row = 11u64;
    let strided = |heads: u64, seq: u64| {
        Layout::Strided(Strides {
            offset: 3,
            batch: heads * seq * row + 7,
            head: seq * row,
            seq: row,
            dim: 1,
        })
    };
    let problem = Problem::new(shape([3, 4, 2, 19, 17, 8, 8])).layouts(
        strided(4, 19),
        strided(2, 17),
        strided(2, 17),
        strided(4, 19),
    );
    let case = Case::new(with_stats(problem), 4);
    let mut caps: Caps = gpu.attention.caps().clone();
    caps.max_storage_buffer_binding_size = 6000;
    for options in all_paths() {
        let parts = Plan::new(&case.problem, &caps, &options).unwrap();
        assert!(parts.slices().len() > 1);
        assert_right(gpu, &parts, &case, &case.truth(), &run_plan(gpu, &parts, &case));
    }
}

/// Two answers in one buffer, at binding offsets, one call after the other.
#[test]
fn two_outputs_in_one_buffer() {
    let gpu = gpu!();
    let cases = [5, 6].map(|seed| Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])), seed));
    let plan = plan(gpu, &cases[0].problem, &PlanOptions::default());
    let bytes = plan.tensor_bytes(Tensor::Out);
    let step = bytes.next_multiple_of(common::alignment(gpu).into()) + u64::from(common::alignment(gpu));
    let shared = Guarded::exact(gpu, "shared", &vec![POISON; (step + bytes) as usize / 4]);
    let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
    let mut encoder = common::encoder(gpu);
    let benches = [0, 1].map(|n| Bench::new(gpu, &plan, &cases[n]));
    for (n, bench) in benches.iter().enumerate() {
        let out = BufferRef { buffer: &shared.buffer, offset: n as u64 * step };
        prepared.encode(&mut encoder, &Buffers { out, ..bench.buffers() }).unwrap();
    }
    gpu.queue.submit([encoder.finish()]);
    let words = common::read_words(gpu, &shared.buffer);
    for (n, case) in cases.iter().enumerate() {
        let from = n * step as usize / 4;
        let out = words[from..from + bytes as usize / 4].iter().map(|&w| f32::from_bits(w)).collect();
        let got = wgpu_attention::Outputs { out, ..Default::default() };
        assert_right(gpu, &plan, case, &case.truth(), &got);
    }
    assert!(words[bytes as usize / 4..step as usize / 4].iter().all(|&w| w == POISON), "between the two");
}

/// The guards do catch a write beside the binding.
#[test]
fn guards_notice() {
    let gpu = gpu!();
    for at in [0, 4] {
        let guarded = Guarded::new(gpu, "guarded", &[1, 2, 3]);
        let beside = if at == 0 { guarded.lead - 4 } else { guarded.lead + 12 };
        gpu.queue.write_buffer(&guarded.buffer, beside, &7u32.to_le_bytes());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| guarded.read(gpu, "guarded")));
        assert!(caught.is_err());
    }
    assert_eq!(Guarded::new(gpu, "guarded", &[1, 2, 3]).read(gpu, "guarded"), [1, 2, 3]);
    assert!(f32::from_bits(GUARD).is_nan() && f32::from_bits(POISON).is_nan());
}
