//! Rows that see no key, and problems with nothing in them.

use crate::common::{Case, block_on, check_all, run, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, Attention, Broadcast, DType, Error, MaskFormat, Outputs, PlanOptions, Problem, Stats,
    reference,
};

fn assert_empty(rows: std::ops::Range<usize>, width: usize, got: &Outputs) {
    for i in rows {
        let out = &got.out[i * width..(i + 1) * width];
        assert!(out.iter().all(|x| x.to_bits() == 0), "row {i} is {out:?}, not exactly 0");
        assert_eq!(got.lse.as_ref().unwrap()[i], f32::NEG_INFINITY, "lse of row {i}");
        assert_eq!(got.entropy.as_ref().unwrap()[i], 0.0, "entropy of row {i}");
        assert_eq!(got.row_max.as_ref().unwrap()[i], f32::NEG_INFINITY, "row_max of row {i}");
    }
}

fn with_stats(mut problem: Problem) -> Problem {
    problem.stats = Stats::ALL;
    problem
}

#[test]
fn rows_without_a_visible_key_are_exactly_zero() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let problem = with_stats(Problem::new(shape([1, 1, 1, 40, 9, 8, 8])).causal(Alignment::BottomRight));
        let case = Case::new(problem, 1);
        assert_empty(0..31, 8, &run(gpu, &case, &PlanOptions::kernel(kernel)));
        check_all(gpu, &case);
    }
}

#[test]
fn a_batch_of_length_zero_is_exactly_zero_and_its_neighbours_are_right() {
    let gpu = gpu!();
    let problem = with_stats(Problem::new(shape([3, 1, 1, 5, 40, 8, 8])).with_kv_len());
    let mut case = Case::new(problem, 2);
    case.kv_len = Some(vec![40, 0, 40]);
    for kernel in crate::common::KERNELS {
        let got = crate::common::check(gpu, &case, &PlanOptions::kernel(kernel));
        assert_empty(5..10, 8, &got);
    }
}

#[test]
fn no_keys_at_all() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        for d in [8, 5] {
            let case = Case::new(with_stats(Problem::new(shape([2, 4, 2, 3, 0, d, d]))), 3);
            let got = run(gpu, &case, &PlanOptions::kernel(kernel));
            assert_eq!(got.out.len(), 24 * d as usize);
            assert_empty(0..24, d as usize, &got);
        }
    }
}

/// An app keeps its mask and its bias whether or not there is something to hide.
#[test]
fn masks_for_no_pairs() {
    let gpu = gpu!();
    let attention = Attention::new(&gpu.device);
    for (numbers, sizes) in [([1, 2, 2, 0, 9, 8, 8], [1, 1, 1, 9]), ([2, 2, 2, 5, 0, 8, 8], [2, 1, 5, 1])] {
        let sizes = Broadcast(sizes);
        let count = sizes.0.iter().product::<u32>() as usize;
        for kernel in crate::common::KERNELS {
            for format in [MaskFormat::Bytes, MaskFormat::Bits] {
                let problem =
                    with_stats(Problem::new(shape(numbers))).bias(DType::F32, sizes).mask(format, sizes);
                let case = Case::new(problem, 5);
                let bytes = if format == MaskFormat::Bits { count.div_ceil(8) } else { count };
                let (bias, mask) = (vec![0.0; count], vec![1; bytes]);
                for inputs in [case.inputs().bias(&[]).mask(&[]), case.inputs().bias(&bias).mask(&mask)] {
                    let options = PlanOptions::kernel(kernel);
                    let got = attention.run_with(&gpu.queue, &case.problem, &inputs, &options);
                    let got = block_on(got).unwrap();
                    assert!(got.out.iter().all(|&x| x == 0.0));
                    assert_eq!(got.lse, Some(vec![f32::NEG_INFINITY; case.problem.rows() as usize]));
                    let truth = reference::truth(&case.problem, &inputs).unwrap();
                    assert!(truth.compare(&got).passes());
                }
                let wrong = vec![1; bytes + 1];
                let error = case.inputs().bias(&bias).mask(&wrong).check(&case.problem).unwrap_err();
                assert!(matches!(error, Error::Length { field: "mask", .. }), "{error}");
            }
        }
    }
}

#[test]
fn nothing_to_compute() {
    let gpu = gpu!();
    let attention = Attention::new(&gpu.device);
    for numbers in
        [[0, 2, 2, 3, 5, 8, 8], [2, 0, 0, 3, 5, 8, 8], [2, 2, 2, 0, 5, 8, 8], [0, 0, 0, 0, 0, 1, 1]]
    {
        for kernel in crate::common::KERNELS {
            let case = Case::new(with_stats(Problem::new(shape(numbers))), 4);
            let options = PlanOptions::kernel(kernel);
            let inputs = case.inputs();
            let got = block_on(attention.run_with(&gpu.queue, &case.problem, &inputs, &options)).unwrap();
            let nothing = Some(vec![]);
            assert_eq!(
                got,
                Outputs { out: vec![], lse: nothing.clone(), entropy: nothing.clone(), row_max: nothing },
                "{numbers:?}"
            );
        }
    }
    assert_eq!(attention.compiled(), 0, "nothing was compiled for nothing");
}
