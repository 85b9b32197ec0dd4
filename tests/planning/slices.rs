//! How a problem is cut to the limits of a device.

use super::*;

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
