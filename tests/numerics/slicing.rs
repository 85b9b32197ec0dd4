//! Problems that are cut into several dispatches give, to the bit, what one dispatch gives.

use crate::common::{Case, Gpu, assert_right, assert_same_bits, run_plan, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, Caps, DType, Kernel, Layout, MaskFormat, Plan, PlanOptions, Problem, Sink, Stats,
    Strides, Temperature,
};

fn compare(gpu: &Gpu, case: &Case, options: &PlanOptions, shrink: impl Fn(&mut Caps)) -> usize {
    let whole = gpu.attention.plan_with(&case.problem, options).unwrap();
    let mut caps = gpu.attention.caps().clone();
    shrink(&mut caps);
    let parts = Plan::new(&case.problem, &caps, options).unwrap();
    assert_eq!(whole.key(), parts.key(), "the same variant");
    let (a, b) = (run_plan(gpu, &whole, case), run_plan(gpu, &parts, case));
    assert_right(gpu, &whole, case, &case.truth(), &a);
    assert_same_bits(&a, &b, &format!("whole and in {} parts\n{parts}", parts.slices().len()));
    parts.slices().len()
}

fn problem(batch: u32, hq: u32, hkv: u32, sq: u32, sk: u32) -> Problem {
    let mut problem = Problem::new(shape([batch, hq, hkv, sq, sk, 8, 8]));
    problem.stats = Stats::ALL;
    problem
}

#[test]
fn by_what_can_be_bound() {
    let gpu = gpu!();
    for layout in [Layout::Bhsd, Layout::Bshd] {
        for kernel in crate::common::KERNELS {
            let problem = problem(5, 6, 2, 21, 19).layout(layout).causal(Alignment::BottomRight);
            let case = Case::new(problem, 1);
            for kib in [16, 12, 8] {
                let parts = compare(gpu, &case, &PlanOptions::kernel(kernel), |caps| {
                    caps.max_storage_buffer_binding_size = kib * 1024;
                });
                assert!(parts > 1, "{kib} KiB cut nothing");
            }
        }
    }
}

/// Rows are the last thing that is cut: few heads, many rows.
#[test]
fn by_rows() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let case = Case::new(problem(1, 1, 1, 2000, 9).causal(Alignment::Offset(-100)), 2);
        let parts = compare(gpu, &case, &PlanOptions::kernel(kernel), |caps| {
            caps.max_storage_buffer_binding_size = 24576;
        });
        // The row kernel has up to 512 rows a workgroup.
        assert!(parts >= 4, "{parts} parts");
    }
}

#[test]
fn with_every_table() {
    let gpu = gpu!();
    for temperature in [Temperature::PerHead, Temperature::PerRow] {
        for kernel in crate::common::KERNELS {
            let problem =
                problem(5, 6, 2, 21, 19).causal(Alignment::PerBatch).with_kv_len().temperature(temperature);
            let case = Case::new(problem, 3).vacuous_above(1e-2);
            let parts = compare(gpu, &case, &PlanOptions::kernel(kernel), |caps| {
                caps.max_storage_buffer_binding_size = 8 * 1024;
            });
            assert!(parts > 1);
        }
    }
}

/// Strided tensors whose parts start between the places where a binding may start.
#[test]
fn with_strides_that_fit_no_alignment() {
    let gpu = gpu!();
    let odd = |heads: u64, seq: u64| {
        let strides =
            Strides { offset: 3, batch: heads * (seq * 9 + 5) + 1, head: seq * 9 + 5, seq: 9, dim: 1 };
        Layout::Strided(strides)
    };
    for kernel in crate::common::KERNELS {
        let problem = problem(5, 6, 2, 21, 19).layouts(odd(6, 21), odd(2, 19), odd(2, 19), odd(6, 21));
        let case = Case::new(problem, 4);
        let parts = compare(gpu, &case, &PlanOptions::kernel(kernel), |caps| {
            caps.max_storage_buffer_binding_size = 8 * 1024;
        });
        assert!(parts > 1);
    }
}

/// Folded into two dimensions, and cut where that is not enough either.
#[test]
fn by_the_workgroups_of_a_dispatch() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let case = Case::new(problem(5, 6, 2, 21, 19), 5);
        for most in [3, 4, 7] {
            compare(gpu, &case, &PlanOptions::kernel(kernel), |caps| {
                caps.max_compute_workgroups_per_dimension = most;
            });
        }
    }
}

/// One query head of a group at a time, where a group's heads do not fit.
#[test]
fn within_a_group_of_heads() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let case = Case::new(problem(1, 14, 2, 41, 5), 6);
        let parts = compare(gpu, &case, &PlanOptions::kernel(kernel), |caps| {
            caps.max_storage_buffer_binding_size = 8 * 1024;
        });
        assert_eq!(parts, 14);
    }
}

/// More workgroups than one dimension of a dispatch holds.
#[test]
fn more_than_65535_workgroups() {
    let gpu = gpu!();
    // 65536 heads of one row and one key: out is v.
    let case = Case::new(Problem::new(shape([2048, 32, 32, 1, 1, 8, 8])), 7);
    for kernel in crate::common::KERNELS {
        let plan = gpu.attention.plan_with(&case.problem, &PlanOptions::kernel(kernel)).unwrap();
        let got = run_plan(gpu, &plan, &case);
        if kernel == Kernel::Tiled {
            let groups: u64 =
                plan.slices().iter().map(|s| u64::from(s.workgroups[0][0] * s.workgroups[0][1])).sum();
            assert!(groups > 65535);
        }
        assert_eq!(got.out, case.v, "{kernel}");
    }
}

/// Bias, masks and 16-bit tensors are bound in parts too: of rows that are no whole bytes and words, and of odd lengths.
#[test]
fn with_bias_masks_and_16_bit_storage() {
    let gpu = gpu!();
    let full = Broadcast([5, 6, 21, 19]);
    let options: [fn(Problem, Broadcast) -> Problem; 8] = [
        |p, full| p.mask(MaskFormat::Bytes, full),
        |p, full| p.mask(MaskFormat::Bits, full),
        |p, full| p.bias(DType::F32, full),
        |p, full| p.bias(DType::F16, full).mask(MaskFormat::Bits, Broadcast([1, 6, 21, 19])),
        |p, full| p.bias(DType::Bf16, Broadcast([5, 1, 21, 1])).mask(MaskFormat::Bytes, full),
        |p, _| p.dtype(DType::F16),
        |p, _| p.dtype(DType::Bf16).layout(Layout::Bshd),
        |p, full| p.dtype(DType::F16).bias(DType::F16, full).softcap(5.0).with_alibi().sink(Sink::PerHead),
    ];
    for (n, option) in options.into_iter().enumerate() {
        for d in if n > 4 { vec![8, 5] } else { vec![8] } {
            let mut problem = option(problem(5, 6, 2, 21, 19), full);
            problem.shape.head_dim_v = d;
            let case = Case::new(problem, n as u64).vacuous_above(2e-2);
            for kernel in crate::common::kernels(&case.problem) {
                let mut most = 0;
                // Bindings from a share of the score matrix down to one that holds few rows.
                for bytes in [8192, 1300] {
                    most = most.max(compare(gpu, &case, &PlanOptions::kernel(kernel), |caps| {
                        caps.max_storage_buffer_binding_size = bytes.max(case.problem.shape.rows() * 12 + 64);
                        caps.max_compute_workgroups_per_dimension = if bytes < 4096 { 3 } else { 65535 };
                    }));
                }
                assert!(most > 3, "{most} parts");
            }
        }
    }
    // Rows of one long mask, cut in the middle of bytes.
    for format in [MaskFormat::Bytes, MaskFormat::Bits] {
        let rows = Problem::new(shape([1, 1, 1, 700, 37, 8, 8])).mask(format, Broadcast([1, 1, 700, 37]));
        let case = Case::new(rows.causal(Alignment::Offset(-100)), 9);
        for kernel in crate::common::KERNELS {
            let parts = compare(gpu, &case, &PlanOptions::kernel(kernel), |caps| {
                caps.max_storage_buffer_binding_size = 2600;
            });
            assert!(parts >= 8, "{parts} parts");
        }
    }
}
