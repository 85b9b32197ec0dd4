//! Problems beyond a watchdog, a table or all bounds.

use super::*;

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
        let mut ways: Vec<_> = common::KERNELS.map(|kernel| (kernel, PlanOptions::kernel(kernel))).into();
        for movement in KeyMovement::ALL {
            let rows = RowTiles {
                lanes: 8,
                rows: 4,
                keys: 8,
                keys_at_once: 2,
                movement,
                grouped: true,
                lazy: true,
                fenced: false,
            };
            ways.push((Kernel::Rows, PlanOptions::rows(rows)));
        }
        for (kernel, options) in ways {
            let mut caps = Caps::webgpu_default();
            (caps.class, caps.subgroup_size, caps.loads_once) = (AdapterClass::Cpu, Some(8), true);
            let refused = Plan::new(&plain(numbers).with_lse(), &caps, &options);
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
    let staged = RowTiles {
        lanes: 8,
        rows: 4,
        keys: 2,
        keys_at_once: 2,
        movement: KeyMovement::Staged,
        grouped: false,
        lazy: false,
        fenced: false,
    };
    let ways = common::KERNELS.map(|kernel| (kernel, PlanOptions::kernel(kernel)));
    for (kernel, options) in ways.into_iter().chain([(Kernel::Rows, PlanOptions::rows(staged))]) {
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
                Plan::new(&plain([1, 2, 1, 50, sk, d, d]), &caps, &options)
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
