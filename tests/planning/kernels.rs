//! Which kernel and tiles a device gets.

use super::*;

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

/// Many keys a thread where that is known to pay: not on every processor, and not where a search would be written out for each.
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

/// As many keys a tile as have text that a processor's cache of instructions holds: measured on llvmpipe, and two elsewhere.
#[test]
fn keys_that_are_handed_round_fit_the_cache_of_instructions() {
    let device = |is_llvmpipe, gathers, loads_once| {
        caps(|c| {
            (c.class, c.subgroup_size) = (AdapterClass::Cpu, Some(8));
            (c.is_llvmpipe, c.gathers, c.loads_once) = (is_llvmpipe, gathers, loads_once);
            c.max_loop_iterations = if loads_once { u32::MAX } else { 65535 };
        })
    };
    let keys = |numbers, caps: &Caps| {
        let rows = plan(&plain(numbers), caps).rows().unwrap();
        assert_eq!((rows.movement, rows.keys_at_once), (KeyMovement::Broadcast, rows.keys));
        rows.keys
    };
    let (new, old) = (device(true, true, true), device(true, true, false));
    let lazy = |caps: &Caps| plan(&plain([1, 4, 4, 512, 512, 64, 64]), caps).rows().unwrap().lazy;
    assert!(
        lazy(&new) && !lazy(&old) && !lazy(&device(false, true, false)),
        "what was measured to gain by it"
    );
    for (dim, on_new, on_old, without_gather) in [
        (16, 4, 4, 4),
        (30, 4, 4, 4),
        (32, 4, 2, 2),
        (48, 4, 2, 2),
        (64, 2, 1, 1),
        (75, 2, 1, 1),
        (96, 2, 2, 1),
        (128, 1, 2, 1),
    ] {
        let numbers = [1, 4, 4, 512, 512, dim, dim];
        assert_eq!((keys(numbers, &new), keys(numbers, &old)), (on_new, on_old), "head dim {dim}");
        assert_eq!(keys(numbers, &device(true, false, false)), without_gather, "no gather, head dim {dim}");
        assert_eq!(keys(numbers, &device(false, true, false)), 2, "another driver");
    }
    // What out takes counts as well.
    assert_eq!(keys([1, 4, 4, 512, 512, 128, 64], &new), 2);
    assert_eq!(keys([1, 4, 4, 512, 512, 64, 128], &new), 1);
    // A key a round is twice as many rounds as two, and there the old release would leave the loop.
    assert_eq!(keys([1, 1, 1, 8, 65000, 64, 64], &old), 1);
    assert_eq!(keys([1, 1, 1, 8, 65500, 64, 64], &old), 2);
    assert_eq!(keys([1, 1, 1, 8, 65500, 128, 128], &device(true, false, false)), 2);
}

/// Wide heads leave a lane fewer rows, and go to the tiled kernel where this one would compile for long.
#[test]
fn wide_heads_leave_a_lane_fewer_rows() {
    let device = |is_llvmpipe, loads_once| {
        caps(|c| {
            (c.class, c.subgroup_size) = (AdapterClass::Cpu, Some(8));
            (c.is_llvmpipe, c.loads_once) = (is_llvmpipe, loads_once);
        })
    };
    let rows = |[qk, v]: [u32; 2], caps: &Caps| {
        plan(&plain([1, 4, 4, 512, 512, qk, v]), caps).rows().map(|tiles| tiles.rows)
    };
    let (new, old, other) = (device(true, true), device(true, false), device(false, false));
    for (dims, on_new, on_old, elsewhere) in [
        ([128, 128], Some(4), Some(4), Some(4)),
        ([64, 192], Some(4), Some(4), None),
        ([129, 128], Some(2), Some(2), None),
        ([192, 128], Some(2), Some(2), None),
        ([256, 256], Some(2), Some(2), None),
        ([257, 256], Some(1), Some(1), None),
        ([512, 512], Some(1), Some(1), None),
        ([513, 8], None, None, None),
        // Two rows of q alone are 8064 bytes.
        ([504, 8], Some(1), Some(1), None),
    ] {
        let got = [&new, &old, &other].map(|caps| rows(dims, caps));
        assert_eq!(got, [on_new, on_old, elsewhere], "head dims {dims:?}");
    }
    let told = plan(&plain([1, 4, 4, 512, 512, 300, 300]), &other);
    assert_eq!(told.kernel(), Kernel::Tiled);
    assert!(told.reason().contains("head dim 300 is beyond the 128"), "{told}");
    // It can be asked for, with what compiles within seconds.
    let asked = |d, rows| {
        let tiles = RowTiles { rows, ..plan(&plain([1, 4, 4, 512, 512, 64, 64]), &old).rows().unwrap() };
        Plan::new(&plain([1, 4, 4, 512, 512, d, d]), &old, &PlanOptions::rows(tiles))
    };
    assert!(asked(256, 3).is_ok() && asked(512, 1).is_ok());
    // Where lanes gather, keys are handed round: one at a time, as of 128 dims, because half as many rows are half as much text.
    let mut gathers = new.clone();
    gathers.gathers = true;
    for dim in [128, 256, 512] {
        let tiles = plan(&plain([1, 4, 4, 512, 512, dim, dim]), &gathers).rows().unwrap();
        assert_eq!((tiles.movement, tiles.keys), (KeyMovement::Broadcast, 1), "head dim {dim}");
    }
    for (d, rows) in [(256, 4), (512, 2)] {
        let error = asked(d, rows).unwrap_err();
        assert!(matches!(&error, Error::Value { field: "rows.rows", .. }), "{error}");
    }
    // Dropout draws for four rows at a time.
    let drops = |d| plan(&plain([1, 4, 4, 512, 512, d, d]).dropout(0.1), &new).kernel();
    assert_eq!([drops(128), drops(160)], [Kernel::Rows, Kernel::Tiled]);
}

/// A processor whose driver loads once what all lanes load, and which cannot load for each lane at a price, stages keys for many rows. Where
/// it can, or where the driver does not, they are handed round in subgroups.
#[test]
fn keys_are_staged_where_lanes_cannot_gather() {
    let device = |loads_once, gathers, bytes| {
        caps(|c| {
            (c.class, c.subgroup_size) = (AdapterClass::Cpu, Some(8));
            (c.loads_once, c.gathers, c.max_compute_workgroup_storage_size) = (loads_once, gathers, bytes);
            c.processors = 2;
        })
    };
    let problem = plain([1, 4, 4, 512, 512, 64, 64]);
    let movement = |c: &Caps| plan(&problem, c).rows().map(|rows| rows.movement);
    assert_eq!(movement(&device(true, false, 16384)), Some(KeyMovement::Staged));
    assert_eq!(movement(&device(true, true, 16384)), Some(KeyMovement::Broadcast));
    assert_eq!(movement(&device(false, false, 16384)), Some(KeyMovement::Broadcast));
    // Where they do not fit, they are handed round, too.
    assert_eq!(movement(&device(true, false, 1000)), Some(KeyMovement::Broadcast));

    let caps = device(true, false, 16384);
    for (numbers, lanes) in [
        // As many as there are rows for, and work for several cores.
        ([1, 4, 4, 512, 512, 64, 64], 128),
        ([1, 1, 1, 512, 512, 64, 64], 32),
        ([1, 1, 1, 2048, 512, 64, 64], 128),
        ([8, 8, 2, 1, 512, 64, 64], 8),
        ([4, 1, 1, 100, 512, 64, 64], 32),
        // Of the rows that a dispatch is cut down to, too.
        ([1, 4, 4, 4096, 4096, 128, 128], 128),
        ([1, 4, 4, 16384, 16384, 128, 128], 64),
    ] {
        let plan = plan(&plain(numbers), &caps);
        assert_eq!(plan.rows().unwrap().lanes, lanes, "{numbers:?}");
        assert!(plan.reason().contains("staged"), "{plan}");
        assert_within(&plan, &caps);
    }
    let mut llvmpipe = caps.clone();
    llvmpipe.is_llvmpipe = true;
    for (dim, keys) in [(8, 8), (16, 8), (17, 4), (64, 4), (128, 4), (129, 2), (512, 2)] {
        let rows = plan(&plain([1, 4, 4, 512, 512, dim, dim]), &llvmpipe).rows().unwrap();
        assert_eq!((rows.keys, rows.fenced), (keys, true), "head dim {dim}");
    }
    // Eight times the work in a dispatch, but for the narrowest heads, and for nobody else.
    let dispatches = |numbers, c: &Caps| {
        let plan = plan(&plain(numbers), c);
        assert_within(&plan, c);
        plan.slices().len()
    };
    for (dim, staged, handed_round) in [(64, 2, 16), (16, 1, 4), (4, 1, 1), (128, 4, 32)] {
        let numbers = [1, 4, 4, 4096, 4096, dim, dim];
        let found = [true, false].map(|loads_once| dispatches(numbers, &device(loads_once, false, 16384)));
        assert_eq!(found, [staged, handed_round], "head dim {dim}");
    }
    // As many rows as can be bound.
    let mut small = caps.clone();
    small.max_storage_buffer_binding_size = 300 * 4 * 64;
    let rows = Plan::new(&plain([1, 4, 4, 2048, 64, 64, 64]), &small, &PlanOptions::kernel(Kernel::Rows));
    assert_eq!(rows.unwrap().rows().unwrap().block(), 256);
    let mut many = caps.clone();
    many.processors = 16;
    assert_eq!(plan(&problem, &many).rows().unwrap().lanes, 16, "32 workgroups for 16 threads");
    let tiles = plan(&problem, &caps).rows().unwrap();
    let foreign = plan(&problem, &caps).fits(&device(true, false, 1000));
    assert!(matches!(foreign, Err(Error::LimitExceeded { .. })), "{foreign:?}");
    let refused = Plan::new(&problem, &device(true, false, 1000), &PlanOptions::rows(tiles));
    assert!(
        matches!(refused, Err(Error::LimitExceeded { limit: "max_compute_workgroup_storage_size", .. })),
        "{refused:?}"
    );
}
