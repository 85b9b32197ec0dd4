//! The call on host slices.

use crate::common::{Case, assert_right, shape};
use crate::gpu;
use wgpu_attention::{Alignment, Error, Inputs, PlanOptions, Problem, Stats, Temperature};

#[test]
fn with_every_option() {
    let gpu = gpu!();
    let mut problem = Problem::new(shape([3, 4, 2, 9, 40, 8, 8]))
        .causal(Alignment::PerBatch)
        .with_kv_len()
        .temperature(Temperature::PerRow);
    problem.stats = Stats::ALL;
    let case = Case::new(problem, 1).vacuous_above(1e-2);
    for kernel in crate::common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let got =
            gpu.attention.run_with_blocking(&gpu.queue, &case.problem, &case.inputs(), &options).unwrap();
        let plan = gpu.attention.plan_with(&case.problem, &options).unwrap();
        assert_right(gpu, &plan, &case, &case.truth(), &got);
    }
}

/// A future needs no executor of any kind and nobody who polls the device.
#[test]
fn async_on_any_executor() {
    let gpu = gpu!();
    let case = Case::new(Problem::new(shape([1, 1, 1, 9, 40, 8, 8])), 2);
    let got = pollster::block_on(gpu.attention.run(&gpu.queue, &case.problem, &case.inputs())).unwrap();
    assert!(case.truth().compare(&got).passes());
}

/// What a strided out leaves out is 0.
#[test]
fn gaps_of_out_are_zero() {
    let gpu = gpu!();
    let b = wgpu_attention::Layout::Bhsd;
    let strides = wgpu_attention::Strides { offset: 2, batch: 0, head: 0, seq: 11, dim: 1 };
    let problem =
        Problem::new(shape([1, 1, 1, 3, 5, 8, 8])).layouts(b, b, b, wgpu_attention::Layout::Strided(strides));
    let case = Case::new(problem, 3);
    let got = gpu.attention.run_blocking(&gpu.queue, &case.problem, &case.inputs()).unwrap().out;
    assert_eq!(got.len(), 2 + 2 * 11 + 8);
    assert_eq!(got[0..2], [0.0; 2]);
    assert_eq!(got[10..13], [0.0; 3]);
    assert!(case.truth().compare(&wgpu_attention::Outputs { out: got, ..Default::default() }).passes());
}

#[test]
fn wrong_inputs_are_typed_errors() {
    let gpu = gpu!();
    let x = [0.0f32; 64];
    let run = |problem: &Problem, inputs: &Inputs<'_>| {
        gpu.attention.run_blocking(&gpu.queue, problem, inputs).unwrap_err()
    };
    let plain = Problem::new(shape([1, 1, 1, 8, 8, 8, 8]));
    let ok = Inputs::new(&x, &x, &x);
    assert_eq!(
        run(&plain, &Inputs::new(&x[..63], &x, &x)),
        Error::Length { field: "q", got: 63, expected: 64 }
    );
    assert_eq!(
        run(&plain, &Inputs::new(&x, &x[..56], &x)),
        Error::Length { field: "k", got: 56, expected: 64 }
    );
    assert_eq!(run(&plain, &Inputs::new(&x, &x, &[])), Error::Length { field: "v", got: 0, expected: 64 });
    assert!(matches!(run(&plain, &ok.kv_len(&[8])), Error::Unused { field: "kv_len", .. }));
    assert!(matches!(run(&plain, &ok.causal_offset(&[0])), Error::Unused { field: "causal_offset", .. }));
    assert!(matches!(run(&plain, &ok.temperature(&[1.0])), Error::Unused { field: "temperature", .. }));
    let q_len = plain.clone().with_q_len();
    assert!(matches!(run(&plain, &ok.q_len(&[1])), Error::Unused { field: "q_len", .. }));
    assert!(matches!(run(&q_len, &ok), Error::Missing { field: "q_len", .. }));
    assert_eq!(run(&q_len, &ok.q_len(&[1, 1])), Error::Length { field: "q_len", got: 2, expected: 1 });
    assert!(matches!(run(&q_len, &ok.q_len(&[99])), Error::Value { field: "q_len", .. }));
    let kv_len = plain.clone().with_kv_len();
    assert!(matches!(run(&kv_len, &ok), Error::Missing { field: "kv_len", .. }));
    assert_eq!(run(&kv_len, &ok.kv_len(&[8, 8])), Error::Length { field: "kv_len", got: 2, expected: 1 });
    assert!(matches!(run(&kv_len, &ok.kv_len(&[9])), Error::Value { field: "kv_len", .. }));
    let per_head = plain.clone().temperature(Temperature::PerHead);
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(run(&per_head, &ok.temperature(&[bad])), Error::Value { field: "temperature", .. }));
    }
}
