//! Planning with limits made by hand: no device anywhere.

#[path = "common/mod.rs"]
mod common;

use common::{Rng, shape, value_error};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use wgpu_attention::{
    AdapterClass, AdaptiveTemperature, Alignment, Broadcast, Caps, DType, Dropout, Error, Inputs, Kernel,
    Layout, LengthScale, MaskFormat, NormGains, Normalizer, Plan, PlanOptions, Problem, QkNorm, Scale,
    SigmoidBias, Sink, Slice, Stat, Stats, Strides, Table, TableData, Temperature, Tensor, Tiles, Window,
    reference, wgpu,
};

fn caps(change: impl FnOnce(&mut Caps)) -> Caps {
    let mut caps = Caps::webgpu_default();
    change(&mut caps);
    caps
}

fn plan(problem: &Problem, caps: &Caps) -> Plan {
    Plan::new(problem, caps, &PlanOptions::default()).unwrap_or_else(|e| panic!("{problem:?}: {e}"))
}

fn plain(numbers: [u32; 7]) -> Problem {
    Problem::new(shape(numbers))
}

// ---- what every plan must keep to ---------------------------------------------------------------------------

fn assert_within(plan: &Plan, caps: &Caps) {
    let threads = plan.tiles().map_or(1, |t| t.threads);
    assert!(threads <= caps.max_compute_invocations_per_workgroup, "{plan}");
    assert!(threads <= caps.max_compute_workgroup_size_x, "{plan}");
    assert!(plan.workgroup_bytes() <= caps.max_compute_workgroup_storage_size, "{plan}");
    assert!(plan.scratch_bytes() <= caps.max_storage_buffer_binding_size, "{plan}");
    assert!(plan.stats_bytes() <= caps.max_storage_buffer_binding_size, "{plan}");
    assert!(plan.tables().bytes() <= caps.max_storage_buffer_binding_size, "{plan}");
    let alignment = u64::from(caps.min_storage_buffer_offset_alignment.max(1));
    for slice in plan.slices() {
        for (tensor, window) in Tensor::ALL.into_iter().zip(slice.spans) {
            let bits = u64::from(plan.problem().bits(tensor));
            let bytes = window.len.saturating_mul(bits).div_ceil(32) * 4;
            assert!(
                bytes <= caps.max_storage_buffer_binding_size,
                "{bytes} bytes of {} in {plan}",
                tensor.name()
            );
            assert_eq!(
                window.start * bits % (8 * alignment),
                0,
                "{} starts at {}",
                tensor.name(),
                window.start
            );
            assert!(
                window.start * bits / 8 + bytes <= plan.tensor_bytes(tensor),
                "{} reaches beyond its buffer: {window:?}",
                tensor.name()
            );
        }
        for &[x, y] in &slice.workgroups {
            let most = caps.max_compute_workgroups_per_dimension;
            assert!(x <= most && y <= most, "{x} x {y} workgroups of {most}");
        }
    }
    let text = plan.to_string();
    assert!(text.contains(plan.kernel().name()) && text.contains(plan.reason()), "{text}");
    assert!(!plan.reason().is_empty());
}

/// Every row is in exactly one slice, and what is bound of each tensor holds all that the slice needs. The boxes are read
/// from what the shader is told, which `Debug` shows.
fn assert_covers(plan: &Plan) {
    let s = plan.problem().shape;
    let mut seen = vec![0u32; s.rows() as usize];
    for slice in plan.slices() {
        let [b, h, i, batches, heads, rows] = extent(slice);
        for b in b..b + batches {
            for h in h..h + heads {
                for i in i..i + rows {
                    seen[((b * s.q_heads + h) * s.seq_q + i) as usize] += 1;
                    for (tensor, window) in Tensor::ALL.into_iter().zip(slice.spans) {
                        let view = plan.problem().view(tensor).unwrap();
                        let [_, _, seq, dim] = view.sizes();
                        if view.extent() == 0 {
                            continue;
                        }
                        let (head, places) = match tensor {
                            Tensor::Q | Tensor::Out | Tensor::Bias | Tensor::Mask => (h, i..i + 1),
                            _ => (h / s.group(), 0..seq),
                        };
                        for at in places {
                            for d in [0, dim - 1] {
                                let n = view.index([b, head, at, d]);
                                assert!(
                                    (window.start..window.start + window.len).contains(&n),
                                    "{} {n} is not in {window:?}",
                                    tensor.name()
                                );
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|&n| n == 1), "rows are covered {seen:?} times\n{plan}");
}

/// first batch, head and row; how many of each.
fn extent(slice: &Slice) -> [u32; 6] {
    let text = format!("{slice:?}");
    ["first_batch", "first_head", "first_row", "batches", "heads", "rows"].map(|name| {
        let field = format!(" {name}: ");
        let at = text.find(&field).unwrap_or_else(|| panic!("{name} is not in {text}")) + field.len();
        text[at..].split([',', ' ']).next().unwrap().parse().unwrap()
    })
}

// ---- kernels and tiles --------------------------------------------------------------------------------------

#[test]
fn default_limits_are_enough_for_every_head_dim() {
    let caps = Caps::webgpu_default();
    assert_eq!(caps.max_compute_workgroup_storage_size, 16384);
    for d in (1..=300).chain([320, 512, 576, 1000, 1024, 1500, 2048, 4096, 65536]) {
        let plan = plan(&plain([1, 2, 1, 128, 128, d, d]), &caps);
        assert_eq!(plan.kernel(), Kernel::Tiled, "head dim {d}");
        assert_within(&plan, &caps);
    }
}

#[test]
fn fewer_threads() {
    for threads in [256, 255, 128, 100, 64, 32, 7, 1] {
        for size_x in [threads, 1024] {
            let caps = caps(|c| {
                c.max_compute_invocations_per_workgroup = threads;
                c.max_compute_workgroup_size_x = size_x;
            });
            for d in [1, 64, 128, 576] {
                let plan = plan(&plain([1, 2, 1, 128, 128, d, d]), &caps);
                assert_within(&plan, &caps);
                assert_eq!(plan.kernel(), Kernel::Tiled);
            }
        }
    }
}

#[test]
fn less_workgroup_memory() {
    for bytes in [65536, 32768, 16384, 16352, 8192, 4096, 2048, 1024, 512, 300] {
        let caps = caps(|c| c.max_compute_workgroup_storage_size = bytes);
        for d in [1, 64, 128, 256, 576] {
            let plan = plan(&plain([1, 2, 1, 128, 128, d, d]), &caps);
            assert_within(&plan, &caps);
            assert_eq!(plan.kernel(), Kernel::Tiled, "{bytes} bytes, head dim {d}");
        }
    }
}

#[test]
fn no_workgroup_memory_falls_to_naive_and_says_why() {
    for bytes in [0, 16, 63] {
        let caps = caps(|c| c.max_compute_workgroup_storage_size = bytes);
        let problem = plain([1, 2, 1, 128, 128, 64, 64]);
        let plan = plan(&problem, &caps);
        assert_eq!(plan.kernel(), Kernel::Naive);
        assert_eq!(plan.workgroup_bytes(), 0);
        assert!(plan.reason().contains(&format!("{bytes} bytes of workgroup memory")), "{}", plan.reason());
        let asked = Plan::new(&problem, &caps, &PlanOptions::kernel(Kernel::Tiled));
        assert!(matches!(asked, Err(Error::KernelUnavailable { kernel: "tiled", .. })), "{asked:?}");
    }
}

#[test]
fn the_tiled_kernel_needs_no_scratch_and_the_naive_one_says_how_much() {
    let problem = plain([2, 4, 2, 100, 300, 64, 64]);
    assert_eq!(plan(&problem, &Caps::webgpu_default()).scratch_bytes(), 0);
    let naive = Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::kernel(Kernel::Naive)).unwrap();
    assert_eq!(naive.scratch_bytes(), 2 * 4 * 100 * 300 * 4);
}

#[test]
fn a_device_without_compute_is_refused_and_not_planned_for() {
    let limits = wgpu::Limits::downlevel_webgl2_defaults();
    let caps = Caps::from_limits(&limits, AdapterClass::Other);
    for kernel in [None, Some(Kernel::Tiled), Some(Kernel::Naive)] {
        let mut options = PlanOptions::default();
        options.kernel = kernel;
        let refused = Plan::new(&plain([1, 1, 1, 8, 8, 8, 8]), &caps, &options);
        assert!(
            matches!(refused, Err(Error::LimitExceeded { .. } | Error::KernelUnavailable { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn few_storage_buffers() {
    let mut full = plain([1, 1, 1, 8, 8, 8, 8]).with_kv_len();
    full.stats = Stats::ALL;
    for (problem, kernel, needed) in [
        (plain([1, 1, 1, 8, 8, 8, 8]), Kernel::Tiled, 4),
        (plain([1, 1, 1, 8, 8, 8, 8]).with_lse(), Kernel::Tiled, 5),
        (plain([1, 1, 1, 8, 8, 8, 8]).with_kv_len(), Kernel::Tiled, 5),
        (full.clone(), Kernel::Tiled, 6),
        // Three passes, each with its own bindings: the first has q, k, tables and scores.
        (full, Kernel::Naive, 4),
    ] {
        let options = PlanOptions::kernel(kernel);
        let with = |n| caps(|c| c.max_storage_buffers_per_shader_stage = n);
        assert!(Plan::new(&problem, &with(needed), &options).is_ok());
        match Plan::new(&problem, &with(needed - 1), &options) {
            Err(Error::LimitExceeded { limit, needed: n, available, .. }) => {
                assert_eq!(limit, "max_storage_buffers_per_shader_stage");
                assert_eq!((n, available), (needed.into(), u64::from(needed) - 1));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn tiles_of_ones_own_are_checked() {
    let good = Tiles { threads: 64, row_groups: 4, keys_per_thread: 2, dim_chunk: 2, v_chunk: 4 };
    let problem = plain([1, 1, 1, 8, 8, 8, 8]);
    let ask = |tiles| Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::tiles(tiles));
    assert_eq!(ask(good).unwrap().tiles(), Some(good));
    for (tiles, field) in [
        (Tiles { threads: 0, ..good }, "tiles.threads"),
        (Tiles { threads: 63, ..good }, "tiles.threads"),
        (Tiles { threads: 2048, ..good }, "tiles.threads"),
        (Tiles { row_groups: 0, ..good }, "tiles.row_groups"),
        (Tiles { row_groups: 3, ..good }, "tiles.row_groups"),
        (Tiles { row_groups: 128, ..good }, "tiles.row_groups"),
        (Tiles { threads: 4, row_groups: 8, ..good }, "tiles.row_groups"),
        (Tiles { keys_per_thread: 0, ..good }, "tiles.keys_per_thread"),
        (Tiles { keys_per_thread: 5, ..good }, "tiles.keys_per_thread"),
        (Tiles { dim_chunk: 0, ..good }, "tiles.dim_chunk"),
        (Tiles { dim_chunk: u32::MAX, ..good }, "tiles.dim_chunk"),
        (Tiles { v_chunk: 3, ..good }, "tiles.v_chunk"),
        (Tiles { v_chunk: 64, ..good }, "tiles.v_chunk"),
    ] {
        assert_eq!(value_error(ask(tiles)).0, field, "{tiles:?}");
    }
    for (tiles, limit) in [
        (
            Tiles { threads: 1024, ..good },
            "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
        ),
        (Tiles { dim_chunk: 64, keys_per_thread: 16, ..good }, "max_compute_workgroup_storage_size"),
    ] {
        match ask(tiles) {
            Err(Error::LimitExceeded { limit: found, needed, available, .. }) => {
                assert_eq!(found, limit);
                assert!(needed > available);
            }
            other => panic!("{other:?}"),
        }
    }
    let mut both = PlanOptions::kernel(Kernel::Naive);
    both.tiles = Some(good);
    let refused = Plan::new(&problem, &Caps::webgpu_default(), &both);
    assert!(matches!(refused, Err(Error::KernelUnavailable { kernel: "naive", .. })));
}

/// A growing cache or a longer prompt compiles a handful of variants at most.
#[test]
fn lengths_hardly_change_the_variant() {
    let caps = Caps::webgpu_default();
    let keys = |lengths: &mut dyn Iterator<Item = (u32, u32)>| {
        let problem = |(sq, sk)| plain([1, 8, 2, sq, sk, 128, 128]).causal(Alignment::BottomRight);
        lengths
            .map(|lengths| plan(&problem(lengths), &caps).key().clone())
            .collect::<std::collections::HashSet<_>>()
            .len()
    };
    assert_eq!(keys(&mut (1..2000).map(|sk| (1, sk))), 1, "decoding");
    assert!(keys(&mut (1..2000).map(|s| (s, s))) <= 6, "prompts");
}

// ---- slices -------------------------------------------------------------------------------------------------

#[test]
fn most_problems_are_one_dispatch() {
    let plan = plan(&plain([2, 12, 12, 512, 512, 64, 64]), &Caps::webgpu_default());
    assert_eq!(plan.slices().len(), 1);
    let whole = plan.slices()[0].spans;
    let [main @ .., bias, mask] = whole;
    assert!(main.iter().all(|w| w.start == 0 && w.len == 2 * 12 * 512 * 64));
    assert_eq!([bias.len, mask.len], [0, 0]);
}

#[test]
fn small_bindings_cut_by_batch_head_and_row() {
    let packed = |layout| plain([5, 6, 2, 21, 19, 8, 8]).layout(layout);
    let odd = Layout::Strided(Strides { offset: 3, batch: 2903, head: 300, seq: 9, dim: 1 });
    let transposed = Layout::Strided(Strides { offset: 0, batch: 6 * 8 * 21, head: 8 * 21, seq: 1, dim: 21 });
    let mut problems = vec![packed(Layout::Bhsd), packed(Layout::Bshd), packed(odd), packed(transposed)];
    problems.push(plain([1, 1, 1, 700, 9, 8, 8]));
    problems.push(plain([3, 14, 2, 41, 5, 7, 5]).layout(Layout::Bshd));
    for kernel in common::KERNELS {
        for problem in &problems {
            let mut cut = 0;
            for bytes in [1500, 2048, 3000, 4096, 6000, 8192, 20_000, 1 << 20] {
                for alignment in [4, 32, 256, 96] {
                    let caps = caps(|c| {
                        c.max_storage_buffer_binding_size = bytes;
                        c.min_storage_buffer_offset_alignment = alignment;
                    });
                    match Plan::new(problem, &caps, &PlanOptions::kernel(kernel)) {
                        Ok(plan) => {
                            assert_within(&plan, &caps);
                            assert_covers(&plan);
                            cut += usize::from(plan.slices().len() > 1);
                        }
                        Err(Error::LimitExceeded { limit, needed, available, .. }) => {
                            assert_eq!(limit, "max_storage_buffer_binding_size");
                            assert!(needed > available && available <= bytes, "{needed} of {available}");
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            }
            assert!(cut > 0, "nothing was ever cut of {problem:?}");
        }
    }
}

#[test]
fn few_workgroups_in_a_dispatch() {
    for kernel in common::KERNELS {
        for most in [1, 2, 3, 4, 7, 100] {
            let caps = caps(|c| c.max_compute_workgroups_per_dimension = most);
            match Plan::new(&plain([5, 6, 2, 21, 19, 8, 8]), &caps, &PlanOptions::kernel(kernel)) {
                Ok(plan) => {
                    assert_within(&plan, &caps);
                    assert_covers(&plan);
                }
                Err(e) => panic!("{most} workgroups: {e}"),
            }
        }
    }
}

#[test]
fn too_few_workgroups_is_an_error_that_names_them() {
    for (kernel, most, numbers) in [
        (Kernel::Tiled, 0, [1, 1, 1, 8, 8, 8, 8]),
        (Kernel::Tiled, 1, [1, 1, 1, 8, 8, 8, 100_000]),
        (Kernel::Naive, 4, [1, 1, 1, 8, 100_000, 8, 8]),
        // Would be more dispatches than a plan holds.
        (Kernel::Tiled, 1, [4096, 64, 64, 8, 8, 8, 8]),
    ] {
        let caps = caps(|c| c.max_compute_workgroups_per_dimension = most);
        match Plan::new(&plain(numbers), &caps, &PlanOptions::kernel(kernel)) {
            Err(Error::LimitExceeded { limit, needed, available, .. }) => {
                assert_eq!(limit, "max_compute_workgroups_per_dimension", "{numbers:?}");
                assert_eq!(available, u64::from(most));
                assert!(needed > available, "{needed} of {available}");
            }
            other => panic!("{numbers:?}: {other:?}"),
        }
    }
}

/// Some back ends say 2^32 - 1 of everything.
#[test]
fn boundless_limits() {
    let caps = caps(|c| {
        c.max_buffer_size = u64::MAX;
        c.max_storage_buffer_binding_size = u64::MAX;
        c.max_storage_buffers_per_shader_stage = u32::MAX;
        c.max_compute_workgroup_storage_size = u32::MAX;
        c.max_compute_invocations_per_workgroup = u32::MAX;
        c.max_compute_workgroup_size_x = u32::MAX;
        c.max_compute_workgroups_per_dimension = u32::MAX;
    });
    for kernel in common::KERNELS {
        for numbers in [[1, 1, 1, 8, 8, 8, 8], [2048, 32, 32, 1, 1, 8, 8], [4, 64, 8, 4096, 4096, 128, 128]] {
            let plan = Plan::new(&plain(numbers), &caps, &PlanOptions::kernel(kernel)).unwrap();
            assert_within(&plan, &caps);
            assert!(!plan.slices().is_empty());
        }
    }
    // Sections are found with 32-bit indices: 2^33 statistics are refused, not misplaced.
    let refused =
        Plan::new(&plain([1 << 14, 1 << 14, 1, 1 << 5, 1, 1, 1]).with_lse(), &caps, &PlanOptions::default());
    assert!(matches!(refused, Err(Error::LimitExceeded { .. })), "{refused:?}");
    let tables = plain([1 << 14, 1 << 14, 1, 1 << 5, 1, 1, 1]).temperature(Temperature::PerRow);
    let refused = Plan::new(&tables, &caps, &PlanOptions::default());
    assert!(matches!(refused, Err(Error::LimitExceeded { .. })), "{refused:?}");
}

#[test]
fn all_zero_limits_are_an_error() {
    let caps = caps(|c| {
        c.max_buffer_size = 0;
        c.max_storage_buffer_binding_size = 0;
        c.max_storage_buffers_per_shader_stage = 0;
        c.max_compute_workgroup_storage_size = 0;
        c.max_compute_invocations_per_workgroup = 0;
        c.max_compute_workgroup_size_x = 0;
        c.max_compute_workgroups_per_dimension = 0;
        c.min_storage_buffer_offset_alignment = 0;
        c.min_uniform_buffer_offset_alignment = 0;
    });
    for kernel in [None, Some(Kernel::Naive)] {
        let mut options = PlanOptions::default();
        options.kernel = kernel;
        let refused = Plan::new(&plain([1, 1, 1, 8, 8, 8, 8]), &caps, &options);
        assert!(matches!(refused, Err(Error::LimitExceeded { .. })), "{refused:?}");
    }
}

/// The number of workgroups is folded into two dimensions.
#[test]
fn more_than_65535_workgroups() {
    let caps = Caps::webgpu_default();
    for kernel in common::KERNELS {
        let plan =
            Plan::new(&plain([2048, 32, 32, 1, 1, 8, 8]), &caps, &PlanOptions::kernel(kernel)).unwrap();
        assert_within(&plan, &caps);
        let groups: u64 =
            plan.slices().iter().map(|s| u64::from(s.workgroups[0][0]) * u64::from(s.workgroups[0][1])).sum();
        let work = if kernel == Kernel::Naive { 65536 / 64 } else { 65536 };
        assert!((work..work + 100).contains(&groups), "{groups} workgroups for {work}");
    }
}

#[test]
fn a_binding_of_exactly_the_limit_is_bound_and_four_bytes_more_are_refused() {
    let caps = Caps::webgpu_default();
    let limit = caps.max_storage_buffer_binding_size;
    assert_eq!(limit, 128 << 20);
    let sk = (limit / 4) as u32; // head dim 1
    let fits = plan(&plain([1, 1, 1, 1, sk, 1, 1]), &caps);
    assert_eq!(fits.tensor_bytes(Tensor::K), limit);
    assert_within(&fits, &caps);
    match Plan::new(&plain([1, 1, 1, 1, sk + 1, 1, 1]), &caps, &PlanOptions::default()) {
        Err(Error::LimitExceeded { what, limit: name, needed, available, .. }) => {
            assert_eq!(name, "max_storage_buffer_binding_size");
            assert_eq!((needed, available), (limit + 4, limit));
            assert!(what.starts_with("k ") || what.starts_with("v "), "{what}");
        }
        other => panic!("{other:?}"),
    }
    // More heads of exactly that size, each of which starts where a binding may.
    let several = plan(&plain([2, 2, 1, 1, sk, 1, 1]), &caps);
    assert_within(&several, &caps);
    assert_covers_windows(&several);
}

fn assert_covers_windows(plan: &Plan) {
    for tensor in Tensor::ALL {
        let mut ranges: Vec<_> = plan.slices().iter().map(|s| s.spans[tensor as usize]).collect();
        ranges.sort_by_key(|w| w.start);
        let mut reached = 0;
        for window in ranges {
            assert!(window.start <= reached, "{} leaves out {reached}..{}", tensor.name(), window.start);
            reached = reached.max(window.start + window.len);
        }
        assert_eq!(reached * 4, plan.tensor_bytes(tensor), "{}", tensor.name());
    }
}

// ---- large problems -----------------------------------------------------------------------------------------

/// One dispatch must not take so long that the system resets the driver.
#[test]
fn long_work_is_cut() {
    for class in [AdapterClass::Discrete, AdapterClass::Integrated, AdapterClass::Cpu, AdapterClass::Other] {
        let mut caps = Caps::webgpu_default();
        caps.class = class;
        caps.max_storage_buffer_binding_size = 1 << 30;
        let problem = plain([1, 32, 32, 32768, 32768, 128, 128]);
        let plan = plan(&problem, &caps);
        assert_within(&plan, &caps);
        assert_covers_windows(&plan);
        let flops = problem.flops() / plan.slices().len() as u64;
        assert!(flops <= 400_000_000_000, "{flops} operations in one dispatch of {class:?}");
        assert!(plan.slices().len() <= 1 << 14, "{} dispatches", plan.slices().len());
    }
}

/// What a causal mask or a window hides takes no time, so that it is no reason to cut.
#[test]
fn hidden_work_is_not_cut() {
    let caps = caps(|c| c.class = AdapterClass::Cpu);
    let slices = |problem: &Problem, kernel| {
        Plan::new(problem, &caps, &PlanOptions::kernel(kernel)).unwrap().slices().len()
    };
    let all = plain([1, 4, 4, 4096, 4096, 64, 64]);
    let causal = all.clone().causal(Alignment::BottomRight);
    let window = all.clone().window(Window::last(16));
    let unknown = all.clone().causal(Alignment::PerBatch);
    for kernel in [Kernel::Tiled, Kernel::Rows] {
        let [all, causal, window] = [&all, &causal, &window].map(|p| slices(p, kernel));
        assert!(window == 1 && all >= 2 * causal, "{kernel}: {all}, causal {causal}, window {window}");
        // Where each batch begins is in a table, so that all keys may be seen.
        assert_eq!(slices(&unknown, kernel), all, "{kernel}");
    }
    // It goes through what is hidden, too.
    assert_eq!(slices(&window, Kernel::Naive), slices(&all, Kernel::Naive));
}

/// Many keys a thread where that is known to compile quickly: not on every processor, and not where a search would be written out for each.
#[test]
fn llvmpipe_gets_more_keys_a_thread() {
    let keys = |problem: &Problem, is_llvmpipe| {
        let caps = caps(|c| {
            c.class = AdapterClass::Cpu;
            c.is_llvmpipe = is_llvmpipe;
        });
        let plan = plan(problem, &caps);
        let keys = plan.tiles().unwrap().keys_per_thread;
        assert_eq!(plan.reason().contains("llvmpipe"), keys > 4, "{plan}");
        keys
    };
    let problem = plain([1, 4, 4, 512, 512, 64, 64]);
    assert_eq!(keys(&problem, true), 8);
    assert_eq!(keys(&problem, false), 4);
    assert_eq!(keys(&problem.top_k(8), true), 4);
}

/// Cutting for the sake of time stops before a plan grows out of hand, and is never why a problem is refused.
#[test]
fn work_without_end_is_planned_all_the_same() {
    let caps = caps(|c| {
        c.class = AdapterClass::Cpu;
        c.max_storage_buffer_binding_size = u64::from(u32::MAX);
    });
    let plan = plan(&plain([64, 8, 8, 1 << 16, 1 << 16, 16, 16]), &caps);
    assert_within(&plan, &caps);
    assert!(plan.slices().len() <= 1 << 16);
    let endless =
        Plan::new(&plain([16, 1, 1, 1 << 23, 1 << 23, 64, 64]), &caps, &PlanOptions::default()).unwrap();
    assert!(endless.slices().len() <= 1 << 16);
    assert_within(&endless, &caps);
    assert!(endless.tensor_bytes(Tensor::Q) / 4 > 1 << 32, "more elements than 32-bit indices reach");
}

#[test]
fn shapes_beyond_all_bounds_are_errors() {
    let most = 1 << 30;
    for numbers in [
        [u32::MAX, u32::MAX, u32::MAX, most, most, most, most],
        [u32::MAX, 1, 1, most, most, 1, 1],
        [1, u32::MAX, 1, most, 1, 1, 1],
        [1, 1, 1, most, most, most, most],
        [u32::MAX, u32::MAX, 1, 1, 1, 1, 1],
        [65536, 65536, 65536, 65536, 65536, 65536, 65536],
    ] {
        for kernel in common::KERNELS {
            let refused =
                Plan::new(&plain(numbers).with_lse(), &Caps::webgpu_default(), &PlanOptions::kernel(kernel));
            let too_wide = kernel == Kernel::Rows && matches!(refused, Err(Error::KernelUnavailable { .. }));
            assert!(
                too_wide || matches!(refused, Err(Error::Value { .. } | Error::LimitExceeded { .. })),
                "{numbers:?}: {refused:?}"
            );
        }
    }
}

#[test]
fn the_largest_lengths_are_planned() {
    let caps = caps(|c| c.max_storage_buffer_binding_size = u64::from(u32::MAX) / 4 * 4);
    for numbers in [[1, 1, 1, 1 << 30, 1, 1, 1], [1, 1, 1, 1, (1 << 30) - 1, 1, 1]] {
        for causal in [None, Some(Alignment::BottomRight), Some(Alignment::Offset(i32::MAX))] {
            let mut problem = plain(numbers);
            common::set_causal(&mut problem, causal);
            assert_within(&plan(&problem, &caps), &caps);
        }
    }
}

#[test]
fn nothing_to_compute_is_no_dispatch() {
    for numbers in [[0, 2, 2, 3, 5, 8, 8], [2, 0, 0, 3, 5, 8, 8], [2, 2, 2, 0, 5, 8, 8]] {
        let plan = plan(&plain(numbers).with_lse(), &Caps::webgpu_default());
        assert!(plan.slices().is_empty());
        assert_eq!(plan.stats_bytes(), 0);
        assert_eq!(plan.tensor_bytes(Tensor::Out), 0);
    }
    // No keys: rows are empty but there.
    let no_keys = plan(&plain([2, 2, 2, 3, 0, 8, 8]), &Caps::webgpu_default());
    assert_eq!(no_keys.slices().len(), 1);
    assert_eq!(no_keys.tensor_bytes(Tensor::K), 0);
}

/// Drivers that leave loops after so many rounds get no more than that.
#[test]
fn a_driver_that_ends_loops_early() {
    for kernel in common::KERNELS {
        // The row kernel goes through two keys in a round.
        let (many, least) = if kernel == Kernel::Rows { (200_000, 100_000) } else { (70_000, 70_000) };
        for d in [8, 128, 576] {
            if !kernel.supports(&plain([1, 2, 1, 50, many, d, d])) {
                assert_eq!((kernel, d), (Kernel::Rows, 576));
                continue;
            }
            let with = |sk, most| {
                let caps = caps(|c| {
                    c.max_loop_iterations = most;
                    c.max_storage_buffer_binding_size = 1 << 30;
                });
                Plan::new(&plain([1, 2, 1, 50, sk, d, d]), &caps, &PlanOptions::kernel(kernel))
            };
            assert!(with(2000, 65535).is_ok());
            match with(many, 65535) {
                Err(Error::LimitExceeded { limit, needed, available, .. }) => {
                    assert_eq!((limit, available), ("max_loop_iterations", 65535));
                    assert!(needed >= least, "{needed} rounds for {many} keys");
                    // Exactly what is needed is enough, and one less is not.
                    assert!(with(many, needed as u32).is_ok());
                    assert!(with(many, needed as u32 - 1).is_err());
                }
                other => panic!("{other:?}"),
            }
            assert!(with(many, u32::MAX).is_ok());
        }
    }
}

// ---- errors -------------------------------------------------------------------------------------------------

#[test]
fn every_rule_names_its_field_and_value() {
    let good = plain([1, 2, 1, 8, 8, 8, 8]);
    let with = |change: fn(&mut Problem)| {
        let mut problem = good.clone();
        change(&mut problem);
        assert_eq!(
            problem.check(),
            Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::default()).map(|_| ())
        );
        value_error(problem.check())
    };
    let is = |field, value: &str| (field, value.to_owned());
    assert_eq!(with(|p| p.shape.head_dim_qk = 0), is("head_dim_qk", "0"));
    assert_eq!(with(|p| p.shape.head_dim_v = 0), is("head_dim_v", "0"));
    assert_eq!(with(|p| p.shape.head_dim_v = u32::MAX), is("head_dim_v", "4294967295"));
    assert_eq!(with(|p| p.shape.seq_q = (1 << 30) + 1), is("seq_q", "1073741825"));
    assert_eq!(with(|p| p.shape.seq_k = u32::MAX), is("seq_k", "4294967295"));
    assert_eq!(with(|p| p.scale = Scale::Value(f32::NAN)), is("scale", "NaN"));
    assert_eq!(with(|p| p.scale = Scale::Value(f32::INFINITY)), is("scale", "inf"));
    assert_eq!(with(|p| p.scale = Scale::Value(f32::NEG_INFINITY)), is("scale", "-inf"));
    assert_eq!(with(|p| p.scale = Scale::PerHeadDim { numerator: f32::NAN }), is("scale numerator", "NaN"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(0.0)), is("temperature", "0"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(-0.0)), is("temperature", "-0"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(-1.0)), is("temperature", "-1"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(f32::NAN)), is("temperature", "NaN"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(f32::INFINITY)), is("temperature", "inf"));
    // Each is fine, but not their quotient.
    assert_eq!(with(|p| p.temperature = Temperature::Value(1e-40)).0, "scale / temperature");
    assert_eq!(with(|p| p.scale = Scale::Value(f32::MAX)).0, "scale / temperature");
    let far = Strides { offset: 0, batch: 0, head: 0, seq: u64::MAX / 4, dim: 1 };
    let (field, value) = value_error({
        let mut problem = good.clone();
        problem.k_layout = Layout::Strided(far);
        problem.check()
    });
    assert_eq!(field, "k");
    assert!(value.contains("elements"), "{value}");
}

#[test]
fn rules_of_the_options() {
    let good = plain([2, 4, 2, 8, 9, 8, 8]);
    let is = |field, value: &str| (field, value.to_owned());
    let with = |problem: Problem| value_error(problem.check());
    // The field, and the number however it is written.
    let is_number = |(named, value): (&str, String), field: &str, number: f32| {
        let read: f32 = value.parse().unwrap();
        assert!(
            named == field && read.total_cmp(&number).is_eq(),
            "{named} is {value}, not {field} {number}"
        );
        assert!(value.len() <= 20, "{value}");
    };
    for cap in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 2.4e38] {
        is_number(with(good.clone().softcap(cap)), "softcap", cap);
    }
    assert_eq!(with(good.clone().softcap(1e-40)).0, "scale / temperature");
    assert!(good.clone().softcap(2.3e38).check().is_ok());
    for eps in [-1.0, 1e-19, f32::NAN, f32::INFINITY] {
        let norm = QkNorm { eps, ..QkNorm::l2() };
        is_number(with(good.clone().qk_norm(norm)), "qk_norm eps", eps);
        assert_eq!(good.clone().qk_norm(QkNorm::rms(eps)).check().is_ok(), eps == 1e-19);
    }
    for sizes in [[3, 4, 8, 9], [2, 2, 8, 9], [2, 4, 9, 8], [0, 4, 8, 9], [2, 4, 8, 0], [u32::MAX; 4]] {
        let value = format!("{sizes:?}");
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            assert_eq!(with(good.clone().bias(dtype, Broadcast(sizes))), is("bias sizes", &value));
        }
        for format in [MaskFormat::Bytes, MaskFormat::Bits] {
            assert_eq!(with(good.clone().mask(format, Broadcast(sizes))), is("mask sizes", &value));
        }
    }
    for train_len in [0, 1] {
        let rule = LengthScale::LogTrainLen { train_len };
        assert_eq!(with(good.clone().length_scale(rule)), is("train_len", &train_len.to_string()));
    }
    assert_eq!(
        with(good.clone().length_scale(LengthScale::Llama4 { coef: 0.1, floor: 0 })),
        is("llama4 floor", "0")
    );
    for x in [f32::NAN, f32::INFINITY] {
        let llama = LengthScale::Llama4 { coef: x, floor: 1 };
        is_number(with(good.clone().length_scale(llama)), "llama4 coef", x);
    }
    for x in [f32::NAN, f32::INFINITY, 0.0, -5.0] {
        let yarn = LengthScale::Yarn { factor: x };
        is_number(with(good.clone().length_scale(yarn)), "yarn factor", x);
    }
    for alignment in [Alignment::TopLeft, Alignment::Offset(0), Alignment::PerBatch] {
        for problem in [
            good.clone(),
            good.clone().length_scale(LengthScale::Yarn { factor: 2.0 }),
            good.clone().softcap(1.0),
        ] {
            let error = problem.align(alignment).check();
            assert!(matches!(error, Err(Error::Unused { field: "alignment", .. })), "{error:?}");
        }
        for problem in [
            good.clone().with_alibi(),
            good.clone().window(Window::default()),
            good.clone().length_scale(LengthScale::Ssmax),
        ] {
            assert_eq!(problem.align(alignment).check(), Ok(()));
        }
    }
    let error = good.clone().user_params(1).check();
    assert!(matches!(error, Err(Error::Unused { field: "user_params", .. })), "{error:?}");
}

/// Dropout's seed is a table; its rate has a rule, and so have the places that its random numbers count.
#[test]
fn dropout_has_a_rate_and_a_seed() {
    let good = plain([2, 4, 2, 8, 9, 8, 8]).dropout(0.25);
    let tables = plan(&good, &Caps::webgpu_default()).tables().clone();
    assert_eq!(tables.range(Table::Dropout), Some(0..8));
    let data = TableData { dropout: Some([7, 9]), ..TableData::default() };
    assert_eq!(tables.pack(&good, &data), Ok(vec![7, 9]));
    let missing = tables.pack(&good, &TableData::default());
    assert!(matches!(missing, Err(Error::Missing { field: "dropout (seed and offset)", .. })), "{missing:?}");
    let unused = tables.pack(&plain([2, 4, 2, 8, 9, 8, 8]), &data);
    assert!(matches!(unused, Err(Error::Unused { field: "dropout (seed and offset)", .. })), "{unused:?}");
    let other = tables.pack(&good.clone().with_alibi(), &TableData { alibi_slopes: Some(&[0.5; 4]), ..data });
    assert!(matches!(other, Err(Error::Incompatible { option: "the problem", .. })), "{other:?}");
    // Rates that no problem accepts do no harm either.
    let keep = [-1.0, 0.0, 0.25, 1.0, 2.0, f32::INFINITY, f32::NAN].map(|rate| Dropout { rate }.keep());
    assert_eq!(keep, [1.0, 1.0, 0.75, 0.0, 0.0, 0.0, 1.0]);
    for rate in [-0.1, 1.0, 1.5, 0.999_999, f32::NAN, f32::INFINITY] {
        let (field, value) = value_error(good.clone().dropout(rate).check());
        assert_eq!((field, value), ("dropout rate", rate.to_string()));
    }
    for rate in [0.0, 1e-9, 0.5, 1.0 - 1.0 / 65536.0] {
        assert_eq!(good.clone().dropout(rate).check(), Ok(()));
    }
    let places = |seq_q| plain([1 << 14, 16, 16, seq_q, 1, 1, 1]).dropout(0.5).check();
    assert_eq!(places(1 << 16), Ok(()));
    assert_eq!(value_error(places((1 << 16) + 1)).0, "batch * q_heads * ceil(seq_q / 4)");
}

/// What has no meaning beside a sigmoid is refused by name.
#[test]
fn sigmoid_attention_has_no_sum() {
    let sigmoid = |bias| plain([2, 4, 2, 8, 9, 8, 8]).normalizer(Normalizer::Sigmoid { bias });
    let good = sigmoid(SigmoidBias::MinusLogSeqK);
    assert_eq!(good.clone().with_row_max().dropout(0.1).check(), Ok(()));
    let refused: [(Problem, &str); 4] = [
        (good.clone().with_lse(), "lse"),
        (good.clone().with_entropy(), "entropy"),
        (good.clone().sink(Sink::Zero), "a sink"),
        (good.clone().sink(Sink::PerHead), "a sink"),
    ];
    for (problem, named) in refused {
        let error = problem.check();
        let by_name = matches!(error, Err(Error::Incompatible { option: "sigmoid attention", other, .. }) if other == named);
        assert!(by_name, "{error:?}");
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2e38] {
        assert_eq!(value_error(sigmoid(SigmoidBias::Value(bad)).check()).0, "sigmoid bias");
    }
    assert_eq!(sigmoid(SigmoidBias::Value(-1e38)).check(), Ok(()));
}

/// Options that need another look at the keys, and what they do not go with.
#[test]
fn searches_have_rules() {
    let plain = || plain([2, 4, 2, 8, 9, 8, 8]);
    let adaptive = || plain().adaptive_temperature(AdaptiveTemperature::default());
    let sparse = || plain().normalizer(Normalizer::Sparsemax);
    for good in [
        adaptive().with_lse().with_entropy(),
        plain().top_k(3).sink(Sink::PerHead).with_lse().dropout(0.1),
        plain().top_k(u32::MAX),
        sparse().with_entropy().with_row_max(),
        plain().normalizer(Normalizer::Entmax15).dropout(0.5),
    ] {
        assert_eq!(good.check(), Ok(()), "{good:?}");
    }
    for (bad, pair) in [
        (adaptive().sink(Sink::Zero), ["adaptive_temperature", "a sink"]),
        (adaptive().top_k(3), ["adaptive_temperature", "top_k"]),
        (
            adaptive().normalizer(Normalizer::Entmax15),
            ["adaptive_temperature", "a normalizer other than the softmax"],
        ),
        (sparse().top_k(3), ["top_k", "a normalizer other than the softmax"]),
        (sparse().with_lse(), ["sparsemax", "lse"]),
        (sparse().sink(Sink::PerHead), ["sparsemax", "a sink"]),
        (plain().normalizer(Normalizer::Entmax15).with_lse(), ["entmax15", "lse"]),
    ] {
        let error = bad.check();
        assert!(
            matches!(error, Err(Error::Incompatible { option, other, .. }) if [option, other] == pair),
            "{error:?}"
        );
    }
    assert_eq!(value_error(plain().top_k(0).check()).0, "top_k");
    let long = Problem::new(shape([1, 1, 1, 1, (1 << 24) + 1, 1, 1]));
    assert_eq!(long.check(), Ok(()));
    assert_eq!(value_error(long.top_k(5).check()).0, "seq_k");
    let with = |n: usize, x: f32, above: f32| {
        let mut adaptive = AdaptiveTemperature { above, ..AdaptiveTemperature::default() };
        adaptive.coefficients[n] = x;
        value_error(plain().adaptive_temperature(adaptive).check()).0
    };
    assert_eq!(with(2, f32::NAN, 0.5), "adaptive temperature's coefficient");
    assert_eq!(with(0, 1.0, f32::NAN), "adaptive temperature's threshold");
    assert_eq!(with(0, 1.0, -0.1), "adaptive temperature's threshold");
}

/// A search goes through the keys again and again, and its rounds count where a driver ends loops early.
#[test]
fn passes_count_as_rounds() {
    for kernel in [Kernel::Tiled, Kernel::Naive] {
        // The smallest power of two that is enough.
        let needed = |change: fn(Problem) -> Problem| {
            let problem = change(plain([1, 1, 1, 8, 2000, 8, 8]));
            let fits = |limit: &u32| {
                let caps = caps(|c| c.max_loop_iterations = *limit);
                Plan::new(&problem, &caps, &PlanOptions::kernel(kernel)).is_ok()
            };
            (0..32).map(|log| 1 << log).find(fits).unwrap()
        };
        let one = needed(|p| p);
        let two = needed(|p| p.adaptive_temperature(AdaptiveTemperature::default()));
        assert!(one <= two && two <= 4 * one, "{kernel}: {one}, {two}");
        for many in [needed(|p| p.normalizer(Normalizer::Sparsemax)), needed(|p| p.top_k(5))] {
            assert!(many >= 4 * one && many <= 32 * one, "{kernel}: {one}, {many}");
        }
    }
}

/// Tables are asked for, and refused, each by its name and length; and their numbers have rules.
#[test]
fn tables_of_the_options() {
    let full = plain([2, 4, 2, 8, 9, 4, 8])
        .with_alibi()
        .sink(Sink::PerHead)
        .length_scale(LengthScale::Ssmax)
        .qk_norm(QkNorm::l2().gains(NormGains::Shared));
    let plan = plan(&full, &Caps::webgpu_default());
    let four = [0.5f32; 4];
    let data = TableData {
        alibi_slopes: Some(&four),
        sinks: Some(&four),
        ssmax: Some(&four),
        q_gain: Some(&four),
        k_gain: Some(&four),
        ..TableData::default()
    };
    assert_eq!(plan.tables().pack(&full, &data).map(|t| t.len()), Ok(20));
    let none = plain([2, 4, 2, 8, 9, 8, 8]);
    type Set = for<'a> fn(&mut TableData<'a>, Option<&'a [f32]>);
    let set: [(&str, Set); 5] = [
        ("alibi_slopes", |t, x| t.alibi_slopes = x),
        ("sinks", |t, x| t.sinks = x),
        ("ssmax", |t, x| t.ssmax = x),
        ("q_gain", |t, x| t.q_gain = x),
        ("k_gain", |t, x| t.k_gain = x),
    ];
    for (name, set) in set {
        let pack = |problem: &Problem, values: Option<&[f32]>, base: &TableData<'_>| {
            let mut data = *base;
            let values = values.map(<[f32]>::to_vec);
            set(&mut data, values.as_deref());
            plan.tables().pack(problem, &data).map(|_| ())
        };
        assert!(matches!(pack(&full, None, &data), Err(Error::Missing { field, .. }) if field == name));
        let short = pack(&full, Some(&four[1..]), &data);
        assert!(matches!(short, Err(Error::Length { field, got: 3, expected: 4 }) if field == name));
        let unused = pack(&none, Some(&four), &TableData::default());
        assert!(matches!(unused, Err(Error::Unused { field, .. }) if field == name));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (field, value) = value_error(pack(&full, Some(&[0.0, 1.0, bad, 0.0]), &data));
            assert_eq!((field, value), (name, bad.to_string()));
        }
    }
}

/// The pairs that lengths and positions leave visible are counted one by one by the reference.
#[test]
fn visible_pairs_are_the_pairs_that_are_visible() {
    let mut rng = Rng::new(7);
    for n in 0..1500 {
        let (sq, sk) = (rng.range(1, 12) as u32, rng.range(0, 12) as u32);
        let mut problem = plain([2, 2, 1, sq, sk, 1, 1]);
        problem.causal = rng.chance(0.5);
        let side = |rng: &mut Rng| rng.chance(0.6).then(|| rng.range(0, 9) as u32);
        if rng.chance(0.7) {
            let keep_first = if rng.chance(0.5) { rng.range(0, 14) as u32 } else { 0 };
            problem.window = Some(Window { left: side(&mut rng), right: side(&mut rng), keep_first });
        }
        if problem.causal || problem.window.is_some() {
            let offset = Alignment::Offset(rng.range(-14, 14) as i32);
            problem.alignment = rng.pick(&[Alignment::BottomRight, Alignment::TopLeft, offset]);
        }
        let (q, kv) = (vec![0.0; 4 * sq as usize], vec![0.0; 2 * sk as usize]);
        let inputs = Inputs::new(&q, &kv, &kv);
        let row =
            |i| reference::scores(&problem, &inputs, [0, 0, i]).unwrap().into_iter().flatten().count() as u64;
        let pairs: u64 = (0..sq).map(row).sum();
        assert_eq!(problem.visible_pairs(), 4 * pairs, "{n}: {problem:?}");
    }
}

/// Tensors beyond all memory: counted without overflow, and refused.
#[test]
fn tensors_beyond_all_memory() {
    let point = Layout::Strided(Strides { offset: 0, batch: 0, head: 0, seq: 0, dim: 0 });
    let x = [0.0];
    for format in [MaskFormat::Bytes, MaskFormat::Bits] {
        for numbers in
            [[1 << 12, 1 << 10, 1, 1 << 20, 1 << 20, 1, 1], [1 << 16, 1 << 16, 1, 1, 1 << 30, 1, 1]]
        {
            let mut problem = plain(numbers).layouts(point, point, point, Layout::Bhsd);
            let s = problem.shape;
            problem.mask = Some((format, Broadcast([s.batch, s.q_heads, s.seq_q, s.seq_k])));
            assert_eq!(problem.check(), Ok(()));
            assert!(problem.bytes(Tensor::Mask).unwrap() >= 1 << 59);
            let mut inputs = Inputs::new(&x, &x, &x);
            inputs.mask = Some(&[1]);
            assert!(matches!(inputs.check(&problem), Err(Error::Length { field: "mask", got: 1, .. })));
            assert!(Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::default()).is_err());
        }
    }
    // Two batches as far apart as numbers go: small parts of a buffer that nobody has.
    for far in [1u64 << 60, 1 << 61, (1 << 62) - 100] {
        let strided = Layout::Strided(Strides { offset: 0, batch: far, head: 64, seq: 8, dim: 1 });
        let b = Layout::Bhsd;
        for layouts in [[strided, b, b, b], [b, strided, b, b], [b, b, b, strided]] {
            let [q, k, v, out] = layouts;
            let problem = plain([2, 1, 1, 8, 8, 8, 8]).layouts(q, k, v, out);
            let plan = plan(&problem, &Caps::webgpu_default());
            let bytes = Tensor::MAIN.map(|tensor| plan.tensor_bytes(tensor));
            assert!(bytes.iter().any(|&b| b >= far), "{bytes:?}");
        }
    }
}

#[test]
fn heads_that_cannot_be_shared_out() {
    for (q_heads, kv_heads) in [(6, 4), (1, 2), (5, 0), (0, 3), (u32::MAX, 2)] {
        let problem = plain([1, q_heads, kv_heads, 1, 1, 1, 1]);
        assert_eq!(problem.check(), Err(Error::HeadsNotMultiple { q_heads, kv_heads }));
        let text = problem.check().unwrap_err().to_string();
        assert!(text.contains(&q_heads.to_string()) && text.contains(&kv_heads.to_string()), "{text}");
    }
}

#[test]
fn an_output_whose_elements_overlap() {
    let strided = |batch, head, seq, dim| Layout::Strided(Strides { offset: 0, batch, head, seq, dim });
    let b = Layout::Bhsd;
    for out in [
        strided(0, 64, 8, 1),
        strided(128, 0, 8, 1),
        strided(128, 64, 0, 1),
        strided(128, 64, 8, 0),
        strided(128, 64, 7, 1),
        strided(127, 64, 8, 1),
        strided(64, 128, 8, 2),
    ] {
        let problem = plain([2, 2, 2, 8, 8, 8, 8]).layouts(b, b, b, out);
        assert_eq!(value_error(problem.check()).0, "out", "{out:?}");
        // The same is fine to read.
        assert!(plain([2, 2, 2, 8, 8, 8, 8]).layouts(out, out, out, b).check().is_ok());
    }
}

#[test]
fn messages_say_what_to_do() {
    let e = Plan::new(&plain([1, 1, 1, 8, 1 << 29, 8, 8]), &Caps::webgpu_default(), &PlanOptions::default());
    let text = e.unwrap_err().to_string();
    for part in ["max_storage_buffer_binding_size", "134217728", "17179869184", "helpful_limits"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

// ---- sections of the small buffers --------------------------------------------------------------------------

#[test]
fn sections_follow_each_other() {
    let mut problem = plain([3, 4, 2, 5, 7, 8, 8])
        .with_kv_len()
        .causal(Alignment::PerBatch)
        .temperature(Temperature::PerRow);
    problem.stats = Stats { lse: true, entropy: false, row_max: true };
    let plan = plan(&problem, &Caps::webgpu_default());
    assert_eq!(plan.tables().range(Table::KvLen), Some(0..12));
    assert_eq!(plan.tables().range(Table::CausalOffset), Some(12..24));
    assert_eq!(plan.tables().range(Table::Temperature), Some(24..24 + 60 * 4));
    assert_eq!(plan.tables().bytes(), 24 + 60 * 4);
    assert_eq!(plan.stats_range(Stat::Lse), Some(0..240));
    assert_eq!(plan.stats_range(Stat::Entropy), None);
    assert_eq!(plan.stats_range(Stat::RowMax), Some(240..480));
    assert_eq!(plan.stats_bytes(), 480);
}

// ---- anything at all ----------------------------------------------------------------------------------------

fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..5, 0u32..300, Just(1 << 16), Just(1 << 30), Just((1 << 30) + 1), any::<u32>()]
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let stride = || prop_oneof![0u64..10, 0u64..5000, any::<u64>()];
    prop_oneof![
        2 => Just(Layout::Bhsd),
        2 => Just(Layout::Bshd),
        1 => (stride(), stride(), stride(), stride(), stride()).prop_map(|(offset, batch, head, seq, dim)| {
            Layout::Strided(Strides { offset, batch, head, seq, dim })
        }),
    ]
}

fn any_problem() -> impl Strategy<Value = Problem> {
    let shape = proptest::array::uniform7(any_number()).prop_map(shape);
    let layouts = proptest::array::uniform4(any_layout());
    let options = (
        any::<f32>(),
        any::<f32>(),
        any::<i32>(),
        0u32..4,
        0u32..7,
        any::<bool>(),
        any::<[bool; 3]>(),
        1u32..9,
    );
    (shape, layouts, options).prop_map(|(mut shape, [q, k, v, out], options)| {
        let (scale, tau, offset, temperature, causal, kv_len, [lse, entropy, row_max], group) = options;
        if let Some(heads) = shape.kv_heads.checked_mul(group).filter(|_| group < 8) {
            shape.q_heads = heads; // often a legal one
        }
        let mut problem = Problem::new(shape).layouts(q, k, v, out);
        (problem.q_len, problem.kv_len) = (lse && kv_len, kv_len);
        problem.documents = entropy && kv_len;
        if row_max && kv_len {
            (problem.packed_q, problem.packed_k) = (Some(offset as u32), lse.then_some(offset as u32 >> 8));
        }
        problem.stats = Stats { lse, entropy, row_max };
        problem.temperature = match temperature {
            0 => Temperature::PerHead,
            1 => Temperature::PerRow,
            2 => Temperature::Value(tau),
            _ => Temperature::Value(0.7),
        };
        if temperature == 2 {
            problem.scale = Scale::Value(scale);
        }
        let causal = match causal {
            0 => Some(Alignment::BottomRight),
            1 => Some(Alignment::TopLeft),
            2 => Some(Alignment::Offset(offset)),
            3 => Some(Alignment::PerBatch),
            4 => Some(Alignment::BottomRightValid),
            _ => None,
        };
        common::set_causal(&mut problem, causal);
        add_options(&mut problem, offset as u32, [lse, entropy, row_max]);
        problem
    })
}

/// Options with numbers as they come.
fn add_options(problem: &mut Problem, wild: u32, on: [bool; 3]) {
    let s = problem.shape;
    let pick = |shift: u32, n: u32| (wild >> shift & 0xff) % n;
    let sizes = |shift: u32| {
        let full = [s.batch, s.q_heads, s.seq_q, s.seq_k];
        Broadcast(std::array::from_fn(|d| if wild >> (shift + d as u32) & 1 == 0 { 1 } else { full[d] }))
    };
    let dtype = |shift: u32| [DType::F32, DType::F16, DType::Bf16][(wild >> shift) as usize % 3];
    problem.dtypes = [dtype(0), dtype(3), dtype(5), dtype(7)];
    if on[0] {
        let format = if wild & 2 == 0 { MaskFormat::Bytes } else { MaskFormat::Bits };
        problem.mask = Some((format, sizes(4)));
    }
    if on[1] {
        problem.bias = Some((dtype(9), sizes(8)));
    }
    if on[2] && wild & 4 == 0 {
        let side = |n: u32| if n & 1 == 0 { Some(n) } else { None };
        problem.window = Some(Window { left: side(wild), right: side(wild >> 3), keep_first: wild >> 5 });
        problem.alibi = wild & 8 == 0;
        problem.softcap = (wild & 16 == 0).then_some(f32::from_bits(wild));
        problem.sink = [Sink::None, Sink::Zero, Sink::PerHead][pick(13, 3) as usize];
        problem.top_k = (wild & 64 == 0).then_some(wild >> 7);
        problem.adaptive_temperature = (wild & 128 == 0).then_some(AdaptiveTemperature {
            coefficients: [1.0, 0.5, 0.0, -2.0, f32::from_bits(wild.rotate_left(3))],
            above: f32::from_bits(wild.rotate_left(5)),
        });
        let gains = [NormGains::None, NormGains::Shared, NormGains::PerHead][pick(21, 3) as usize];
        let eps = f32::from_bits(wild.rotate_left(11));
        problem.qk_norm = match wild % 7 {
            0 => Some(QkNorm { eps, ..QkNorm::l2().gains(gains) }),
            1 => Some(QkNorm::rms(eps).gains(gains)),
            2 => Some(QkNorm::l2().gains(gains)),
            _ => None,
        };
        problem.normalizer = match wild % 7 {
            2 => Normalizer::Sparsemax,
            3 => Normalizer::Entmax15,
            0 => Normalizer::Sigmoid { bias: SigmoidBias::Value(f32::from_bits(wild)) },
            1 => Normalizer::Sigmoid { bias: SigmoidBias::MinusLogVisible },
            _ => Normalizer::Softmax,
        };
        problem.dropout = (wild & 32 == 0).then_some(Dropout { rate: f32::from_bits(wild.rotate_left(9)) });
        problem.length_scale = match wild % 5 {
            0 => LengthScale::Ssmax,
            1 => LengthScale::LogTrainLen { train_len: wild >> 20 },
            2 => LengthScale::Llama4 { coef: f32::from_bits(wild), floor: wild >> 25 },
            3 => LengthScale::Yarn { factor: f32::from_bits(wild.rotate_left(7)) },
            _ => LengthScale::None,
        };
    }
}

fn any_caps() -> impl Strategy<Value = Caps> {
    let usual = proptest::array::uniform9(0u8..12);
    (usual, proptest::array::uniform9(any::<u32>())).prop_map(|(which, wild)| {
        let mut caps = Caps::webgpu_default();
        // One limit in four is some odd one, and one in twelve is anything.
        let pick = |n: usize, odd: &[u32], usual: u32| match which[n] {
            0 => wild[n],
            1 | 2 => odd[wild[n] as usize % odd.len()],
            _ => usual,
        };
        caps.max_compute_workgroup_storage_size = pick(0, &[0, 100, 4096, 32768], 16384);
        caps.max_compute_invocations_per_workgroup = pick(1, &[0, 1, 7, 32, 128, 1024], 256);
        caps.max_compute_workgroup_size_x = pick(2, &[0, 1, 64, 128, 1024], 256);
        caps.max_compute_workgroups_per_dimension = pick(3, &[0, 1, 4, 100], 65535);
        caps.max_storage_buffers_per_shader_stage = pick(4, &[0, 4, 6], 8);
        caps.min_storage_buffer_offset_alignment = pick(5, &[0, 4, 16, 32, 96], 256);
        caps.min_uniform_buffer_offset_alignment = pick(6, &[0, 16, 64], 256);
        caps.max_storage_buffer_binding_size = pick(7, &[0, 256, 4096, 30_000], 128 << 20).into();
        if which[8] == 0 {
            caps.max_storage_buffer_binding_size = u64::MAX - u64::from(wild[8]);
        }
        caps
    })
}

fn any_tiles() -> impl Strategy<Value = Tiles> {
    let size = || prop_oneof![4 => (0u32..9).prop_map(|n| 1 << n), 1 => any::<u32>(), 1 => Just(0)];
    (size(), size(), size(), size(), size()).prop_map(
        |(threads, row_groups, keys_per_thread, dim_chunk, v_chunk)| Tiles {
            threads,
            row_groups,
            keys_per_thread,
            dim_chunk,
            v_chunk,
        },
    )
}

/// The same cases in every run, 4000 of each; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` for others.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { 4000 };
    let rng_seed = match default.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        seed => seed,
    };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    /// No problem and no device makes planning panic, and a plan keeps to the device's limits.
    #[test]
    fn any_problem_on_any_device(problem in any_problem(), caps in any_caps(), kernel in 0usize..3) {
        let mut options = PlanOptions::default();
        options.kernel = common::KERNELS.get(kernel).copied();
        let _ = (problem.flops(), problem.visible_pairs());
        let _ = Tensor::ALL.map(|tensor| (problem.bytes(tensor).is_ok(), problem.bits(tensor)));
        // Inputs that are far too short, before and after anything else is known.
        let x = [0.0; 3];
        let mut inputs = Inputs::new(&x, &x, &x);
        (inputs.bias, inputs.mask) = (Some(&x[..]), Some(&[1][..]));
        let _ = inputs.check(&problem);
        match Plan::new(&problem, &caps, &options) {
            Ok(plan) => {
                assert_within(&plan, &caps);
                if plan.problem().shape.rows() < 2000 && plan.slices().len() < 500 && problem.shape.seq_k < 500 {
                    assert_covers(&plan);
                }
            }
            Err(e) => {
                if let Error::LimitExceeded { needed, available, .. } = e {
                    assert!(needed > available, "{e}");
                }
                assert!(!e.to_string().is_empty());
            }
        }
    }

    /// Nor do tiles of any kind.
    #[test]
    fn any_tiles_on_any_device(tiles in any_tiles(), caps in any_caps(), dims in [1u32..3000, 1u32..3000]) {
        let _ = (tiles.rows(), tiles.keys(), tiles.key_lanes(), tiles.to_string());
        let _ = (tiles.shape(dims[1]), tiles.shape(0), tiles.workgroup_bytes(u32::MAX));
        let problem = plain([1, 1, 1, 50, 50, dims[0], dims[1]]);
        if let Ok(plan) = Plan::new(&problem, &caps, &PlanOptions::tiles(tiles)) {
            assert_within(&plan, &caps);
            assert_covers(&plan);
        }
    }
}

/// A slice never holds part of a group beside part of another.
#[test]
fn heads_are_cut_between_groups_or_within_one() {
    let mut rng = Rng::new(1);
    for _ in 0..300 {
        let (kv, group) = (rng.range(1, 6) as u32, rng.range(1, 6) as u32);
        let numbers =
            [rng.range(1, 3) as u32, kv * group, kv, rng.range(1, 40) as u32, rng.range(1, 40) as u32, 4, 4];
        let caps = caps(|c| c.max_storage_buffer_binding_size = 2048 + rng.below(8000));
        let Ok(plan) = Plan::new(&plain(numbers), &caps, &PlanOptions::default()) else { continue };
        assert_covers(&plan);
        for slice in plan.slices() {
            let [_, first, _, _, heads, _] = extent(slice);
            assert!(
                heads == 1 || (first % group == 0 && heads % group == 0),
                "heads {first}.. + {heads} of {group}"
            );
        }
    }
}
