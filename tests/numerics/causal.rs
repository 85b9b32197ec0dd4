//! Alignment masks with every alignment.

use crate::common::{Bench, Case, check_all, plan, run, run_bench, shape};
use crate::gpu;
use wgpu_attention::{Alignment, Kernel, PlanOptions, Problem, Tensor};

/// Which keys each row sees, found out with v = one-hot: a weight above 0 is an x.
fn picture(gpu: &crate::common::Gpu, kernel: Kernel, causal: Alignment, sq: u32, sk: u32) -> String {
    let mut case = Case::new(Problem::new(shape([1, 1, 1, sq, sk, 8, sk])).causal(causal), 1);
    if causal == Alignment::PerBatch {
        case.causal_offset = Some(vec![1]);
    }
    case.fill(Tensor::V, |[_, _, j, d]| f32::from(u8::from(j == d)));
    let got = run(gpu, &case, &PlanOptions::kernel(kernel)).out;
    let row = |row: &[f32]| {
        let sum: f32 = row.iter().sum();
        assert!(sum == 0.0 || (sum - 1.0).abs() < 1e-5, "weights sum to {sum}");
        row.iter().map(|&x| if x > 0.0 { 'x' } else { '.' }).collect::<String>()
    };
    got.chunks(sk as usize).map(row).collect::<Vec<_>>().join("\n")
}

/// The pictures of the documentation, and those with more queries than keys.
#[test]
fn pictures() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        for (causal, sq, sk, want) in [
            (Alignment::BottomRight, 2, 5, "xxxx.\nxxxxx"),
            (Alignment::TopLeft, 2, 5, "x....\nxx..."),
            (Alignment::Offset(1), 2, 5, "xx...\nxxx.."),
            (Alignment::Offset(-1), 2, 5, ".....\nx...."),
            (Alignment::PerBatch, 2, 5, "xx...\nxxx.."),
            (Alignment::Offset(i32::MAX), 2, 5, "xxxxx\nxxxxx"),
            (Alignment::Offset(i32::MIN), 2, 5, ".....\n....."),
            (Alignment::BottomRight, 5, 2, "..\n..\n..\nx.\nxx"),
            (Alignment::TopLeft, 5, 2, "x.\nxx\nxx\nxx\nxx"),
        ] {
            assert_eq!(picture(gpu, kernel, causal, sq, sk), want, "{causal:?} {sq}x{sk} in {kernel}");
        }
    }
}

#[test]
fn every_alignment_at_many_shapes() {
    let gpu = gpu!();
    for (sq, sk) in [(1, 1), (1, 40), (40, 1), (17, 63), (63, 17), (64, 64), (65, 130), (100, 33)] {
        for causal in [
            Alignment::BottomRight,
            Alignment::TopLeft,
            Alignment::Offset(3),
            Alignment::Offset(-7),
            Alignment::Offset(sk as i32),
            Alignment::Offset(-(sq as i32)),
        ] {
            check_all(
                gpu,
                &Case::new(Problem::new(shape([1, 2, 1, sq, sk, 8, 8])).causal(causal).with_lse(), 2),
            );
        }
    }
}

#[test]
fn an_offset_for_each_batch() {
    let gpu = gpu!();
    let problem = Problem::new(shape([5, 2, 2, 33, 70, 8, 8])).causal(Alignment::PerBatch).with_lse();
    let mut case = Case::new(problem, 3);
    case.causal_offset = Some(vec![0, 37, -33, -10, 69]);
    check_all(gpu, &case);
}

/// Whatever a device wrote into the table, an offset means "all", "none" or what it says.
#[test]
fn offsets_from_the_device_are_clamped() {
    let gpu = gpu!();
    let problem = Problem::new(shape([4, 1, 1, 33, 70, 8, 8])).causal(Alignment::PerBatch).with_lse();
    let mut case = Case::new(problem.clone(), 4);
    case.causal_offset = Some(vec![i32::MAX, i32::MIN, i32::MAX - 40, 5]);
    for kernel in crate::common::KERNELS {
        let plan = plan(gpu, &problem, &PlanOptions::kernel(kernel));
        let bench =
            Bench::with_tables(gpu, &plan, &case, &[i32::MAX, i32::MIN, i32::MAX - 40, 5].map(|x| x as u32));
        run_bench(gpu, &plan, &bench);
        crate::common::assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
    }
}

#[test]
fn with_valid_lengths_both_must_hold() {
    let gpu = gpu!();
    for causal in [Alignment::BottomRight, Alignment::PerBatch] {
        let problem = Problem::new(shape([6, 2, 1, 33, 70, 8, 8])).causal(causal).with_kv_len().with_lse();
        let mut case = Case::new(problem, 5);
        case.kv_len = Some(vec![0, 1, 32, 40, 69, 70]);
        check_all(gpu, &case);
    }
}

/// The first row of the top-left corner sees only key 0, so it is v[0] to the bit.
#[test]
fn a_row_that_sees_one_key_is_that_value() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let case = Case::new(Problem::new(shape([1, 3, 3, 20, 20, 8, 8])).causal(Alignment::TopLeft), 6);
        let got = run(gpu, &case, &PlanOptions::kernel(kernel)).out;
        let view = case.problem.view(Tensor::Out).unwrap();
        for h in 0..3 {
            let at = view.index([0, h, 0, 0]) as usize;
            assert_eq!(got[at..at + 8], case.v[at..at + 8], "head {h} in {kernel}");
        }
    }
}
