//! Adaptive temperature: flat rows are sharpened, by their entropy.

use crate::common::{Case, check_all, plan, run, shape};
use crate::gpu;
use wgpu_attention::{
    AdaptiveTemperature, Alignment, Broadcast, DType, Error, Kernel, MaskFormat, PlanOptions, Problem, Scale,
    ScoreStage, Stats, Tensor, reference,
};

fn adaptive(numbers: [u32; 7]) -> Problem {
    let mut problem = Problem::new(shape(numbers)).adaptive_temperature(AdaptiveTemperature::default());
    problem.stats = Stats::ALL;
    problem
}

#[test]
fn alone_and_with_masks() {
    let gpu = gpu!();
    for (sq, sk) in [(3, 2), (40, 100)] {
        for scale in [Scale::RsqrtHeadDim, Scale::Value(0.0), Scale::Value(3.0)] {
            let plain = adaptive([2, 2, 1, sq, sk, 8, 12]).scale(scale);
            check_all(gpu, &Case::new(plain.clone(), 1).vacuous_above(3e-2));
            let masked = plain.causal(Alignment::BottomRight).with_kv_len();
            check_all(gpu, &Case::new(masked, 2).vacuous_above(3e-2));
        }
    }
}

#[test]
fn with_other_options() {
    let gpu = gpu!();
    let problem = adaptive([2, 4, 2, 21, 50, 20, 7])
        .causal(Alignment::PerBatch)
        .with_kv_len()
        .softcap(5.0)
        .with_alibi()
        .bias(DType::F16, Broadcast([1, 4, 21, 50]))
        .mask(MaskFormat::Bits, Broadcast([2, 1, 21, 50]))
        .dtype(DType::F16)
        .dropout(0.2);
    check_all(gpu, &Case::new(problem, 4).vacuous_above(1e-2));
}

/// With n equal keys H = ln n, and the weights are 1/n whatever beta is: lse and row maximum show it.
#[test]
fn beta_follows_the_polynomial() {
    let gpu = gpu!();
    let poly = |h: f64| -0.037 * h.powi(4) + 0.481 * h.powi(3) - 2.3 * h * h + 4.917 * h - 1.791;
    for kernel in [Kernel::Tiled, Kernel::Naive] {
        for n in [1, 2, 3, 8, 64, 300, 500] {
            let mut case = Case::new(adaptive([1, 1, 1, 1, n, 1, 1]), 1);
            case.fill(Tensor::Q, |_| 2.0);
            case.fill(Tensor::K, |_| 1.0);
            let h = f64::from(n).ln();
            let beta = if h > 0.5 { poly(h).max(1.0) } else { 1.0 };
            let got = run(gpu, &case, &PlanOptions::kernel(kernel));
            let (row_max, lse) = (f64::from(got.row_max.unwrap()[0]), f64::from(got.lse.unwrap()[0]));
            assert!((row_max - 2.0 * beta).abs() < 1e-4, "{n} keys: {row_max}, beta {beta}");
            assert!((lse - (2.0 * beta + h)).abs() < 1e-4, "{n} keys: {lse}, beta {beta}");
        }
    }
    // The paper's polynomial is above 1 between 0.85 and 5.95 nats.
    assert!(poly(0.848) < 1.0 && poly(0.849) > 1.0 && poly(5.944) > 1.0 && poly(5.945) < 1.0);
}

/// A polynomial and a threshold of one's own; one that jumps at the threshold.
#[test]
fn coefficients_of_your_own() {
    let gpu = gpu!();
    for (coefficients, above) in [([0.0, 0.0, 0.0, 0.0, 3.0], 1.0), ([0.0, 0.1, 0.0, 1.0, 1.0], 0.0)] {
        let mut problem = adaptive([1, 2, 1, 20, 40, 8, 8]);
        problem.adaptive_temperature = Some(AdaptiveTemperature { coefficients, above });
        check_all(gpu, &Case::new(problem, 3).vacuous_above(1e-2));
    }
}

#[test]
fn sharper_than_before_where_it_was_flat() {
    let gpu = gpu!();
    let case = Case::new(adaptive([1, 2, 1, 30, 60, 8, 8]), 5);
    let mut plain = case.clone();
    plain.problem.adaptive_temperature = None;
    let with = run(gpu, &case, &PlanOptions::default()).entropy.unwrap();
    let without = run(gpu, &plain, &PlanOptions::default()).entropy.unwrap();
    for (with, without) in with.iter().zip(&without) {
        assert!(*without < 0.84 || with < without, "{without} became {with}");
    }
}

#[test]
fn weights_on_demand_and_no_twin() {
    let gpu = gpu!();
    let case = Case::new(adaptive([1, 2, 1, 6, 40, 8, 8]), 5);
    let (problem, inputs) = (&case.problem, case.inputs());
    for stage in ScoreStage::ALL {
        let scores =
            gpu.attention.scores_blocking(&gpu.queue, problem, &inputs, stage, [0, 1], 1..6).unwrap();
        for (row, got) in (1..).zip(scores.chunks(40)) {
            let truth = reference::scores_at(problem, &inputs, stage, [0, 1, row]).unwrap();
            assert!(reference::compare(got, &truth).passes(), "{stage:?}, row {row}");
        }
    }
    let tiled = plan(gpu, problem, &PlanOptions::kernel(Kernel::Tiled));
    assert!(matches!(reference::twin(&tiled, &inputs), Err(Error::KernelUnavailable { .. })));
}
