//! Sparsemax and 1.5-entmax: weights that are exactly 0 for most keys.

use crate::common::{Case, check_all, plan, plan_as_card, run, run_plan, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, DType, Error, Kernel, LengthScale, MaskFormat, Normalizer, PlanOptions, Problem,
    Scale, ScoreStage, Temperature, Tensor, Window, reference,
};

const BOTH: [Normalizer; 2] = [Normalizer::Sparsemax, Normalizer::Entmax15];

fn entmax(numbers: [u32; 7], normalizer: Normalizer) -> Problem {
    Problem::new(shape(numbers)).normalizer(normalizer).with_entropy().with_row_max()
}

#[test]
fn alone_and_with_masks() {
    let gpu = gpu!();
    for normalizer in BOTH {
        for (sq, sk) in [(3, 2), (40, 100)] {
            for scale in [Scale::RsqrtHeadDim, Scale::Value(0.0), Scale::Value(0.02), Scale::Value(3.0)] {
                let plain = entmax([2, 2, 1, sq, sk, 8, 12], normalizer).scale(scale);
                check_all(gpu, &Case::new(plain.clone(), 1).vacuous_above(2e-3));
                let masked = plain.causal(Alignment::BottomRight).with_kv_len();
                check_all(gpu, &Case::new(masked, 2).vacuous_above(2e-3));
            }
        }
    }
}

#[test]
fn with_other_options() {
    let gpu = gpu!();
    for normalizer in BOTH {
        let problem = entmax([2, 4, 2, 21, 50, 20, 7], normalizer)
            .causal(Alignment::PerBatch)
            .with_kv_len()
            .temperature(Temperature::PerRow)
            .length_scale(LengthScale::LogTrainLen { train_len: 20 })
            .softcap(5.0)
            .with_alibi()
            .bias(DType::F16, Broadcast([1, 4, 21, 50]))
            .mask(MaskFormat::Bits, Broadcast([2, 1, 21, 50]))
            .dtypes(DType::F16, DType::Bf16, DType::F16, DType::F32)
            .dropout(0.2);
        check_all(gpu, &Case::new(problem, 4).vacuous_above(1e-2));
        let window = Window { left: Some(9), right: Some(2), keep_first: 3 };
        check_all(
            gpu,
            &Case::new(entmax([1, 2, 1, 30, 60, 8, 8], normalizer).window(window), 5).vacuous_above(2e-3),
        );
    }
}

/// Long rows, flat and sharp, on every kind of tile.
#[test]
fn many_keys() {
    let gpu = gpu!();
    for normalizer in BOTH {
        for scale in [0.001, 0.1, 1.0, 30.0] {
            let problem = entmax([1, 1, 1, 5, 500, 8, 8], normalizer).scale(Scale::Value(scale));
            check_all(gpu, &Case::new(problem, 6).vacuous_above(1e-2));
        }
    }
}

/// From the papers' definitions, by hand: scores 0, -1/2 and far below.
#[test]
fn numbers_by_hand() {
    let gpu = gpu!();
    // Sparsemax: (x - t) + (x - 1/2 - t) = 1 with x = 0 gives t = -3/4: weights 3/4 and 1/4.
    // Entmax: d = 0 and -1/4; (-t)^2 + (-1/4 - t)^2 = 1 gives t = -(1/8 + sqrt(31)/8).
    let t = -(1.0 + 31f64.sqrt()) / 8.0;
    for (normalizer, want) in [(BOTH[0], [0.75, 0.25]), (BOTH[1], [t * t, (0.25 + t) * (0.25 + t)])] {
        for kernel in [Kernel::Tiled, Kernel::Naive] {
            let mut case = Case::new(entmax([1, 1, 1, 1, 3, 1, 3], normalizer), 1);
            case.q = vec![1.0];
            case.k = vec![7.0, 6.5, -90.0];
            case.fill(Tensor::V, |[_, _, j, d]| f32::from(u8::from(j == d)));
            let got = run(gpu, &case, &PlanOptions::kernel(kernel));
            let want = [want[0], want[1], 0.0];
            for (got, want) in got.out.iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 1e-6, "{normalizer:?}: {:?}, not {want:?}", got);
            }
            assert_eq!((got.out[2], got.row_max.as_deref()), (0.0, Some(&[7.0][..])));
            let entropy = -want.iter().filter(|&&p| p > 0.0).map(|p| p * p.ln()).sum::<f64>();
            assert!((f64::from(got.entropy.unwrap()[0]) - entropy).abs() < 2e-6);
        }
    }
}

/// Thousands apart, and alike to the last bit: one weight, or all the same.
#[test]
fn one_key_or_all_of_them() {
    let gpu = gpu!();
    for normalizer in BOTH {
        for kernel in [Kernel::Tiled, Kernel::Naive] {
            let mut case = Case::new(entmax([1, 1, 1, 2, 100, 1, 1], normalizer), 1);
            case.q = vec![1.0, 0.0];
            case.fill(Tensor::K, |[_, _, j, _]| if j == 37 { 1e5 } else { -(j as f32) * 1e4 });
            case.fill(Tensor::V, |[_, _, j, _]| j as f32);
            let got = run(gpu, &case, &PlanOptions::kernel(kernel));
            assert_eq!(got.out[0], 37.0);
            assert_eq!(got.entropy.as_ref().unwrap()[0], 0.0);
            assert!((got.out[1] - 49.5).abs() < 1e-4, "{:?}", got.out);
            assert!((got.entropy.unwrap()[1] - 100f32.ln()).abs() < 1e-5);
        }
    }
}

/// Scores for which Newton's steps are short: every key adds a corner to f just before the root.
#[test]
fn slow_scores() {
    let gpu = gpu!();
    for normalizer in BOTH {
        for ratio in [0.5, 0.9, 0.99] {
            let mut case = Case::new(entmax([1, 1, 1, 1, 200, 1, 2], normalizer), 1);
            case.q = vec![1.0];
            case.fill(Tensor::K, |[_, _, j, _]| -2.0 * (1.0 - f32::powi(ratio, j as i32)));
            check_all(gpu, &case.clone().vacuous_above(2e-3));
            case.fill(Tensor::K, |[_, _, j, _]| -2.0 * f32::powi(ratio, j as i32));
            check_all(gpu, &case.vacuous_above(2e-3));
        }
    }
}

#[test]
fn rows_without_keys_and_no_keys_at_all() {
    let gpu = gpu!();
    for normalizer in BOTH {
        let mut case = Case::new(entmax([3, 1, 1, 5, 20, 8, 8], normalizer).with_kv_len(), 1);
        case.kv_len = Some(vec![0, 1, 20]);
        check_all(gpu, &case.vacuous_above(2e-3));
        check_all(gpu, &Case::new(entmax([2, 1, 1, 5, 0, 8, 8], normalizer), 1));
    }
}

/// Most keys have a weight of exactly 0, and weights sum to 1.
#[test]
fn weights_on_demand_are_sparse() {
    let gpu = gpu!();
    for normalizer in BOTH {
        let case = Case::new(entmax([1, 2, 1, 6, 80, 8, 8], normalizer).scale(Scale::Value(1.0)), 5);
        let (problem, inputs) = (&case.problem, case.inputs());
        let probs = gpu
            .attention
            .scores_blocking(&gpu.queue, problem, &inputs, ScoreStage::Probs, [0, 1], 1..6)
            .unwrap();
        for (row, got) in (1..).zip(probs.chunks(80)) {
            let truth = reference::scores_at(problem, &inputs, ScoreStage::Probs, [0, 1, row]).unwrap();
            assert!(reference::compare(got, &truth).passes(), "row {row}");
            let zeros = got.iter().filter(|p| **p == 0.0).count();
            assert!(zeros > 50, "only {zeros} zeros");
            assert!((got.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        let tiled = plan(gpu, problem, &PlanOptions::kernel(Kernel::Tiled));
        assert!(matches!(reference::twin(&tiled, &inputs), Err(Error::KernelUnavailable { .. })));
    }
}

/// The temperature takes both from one key to all of them, as it does a softmax.
#[test]
fn temperature_is_the_same_knob() {
    let gpu = gpu!();
    for normalizer in BOTH {
        let entropies: Vec<f32> = [0.01, 0.3, 3.0, 1e5]
            .into_iter()
            .map(|tau| {
                let problem = entmax([1, 1, 1, 1, 60, 8, 8], normalizer).temperature(Temperature::Value(tau));
                let case = Case::new(problem, 7);
                let card = plan_as_card(gpu, &case.problem);
                run_plan(gpu, &card, &case).entropy.unwrap()[0]
            })
            .collect();
        assert!(entropies.windows(2).all(|two| two[0] < two[1]), "{entropies:?}");
        assert!(entropies[0] == 0.0 && (entropies[3] - 60f32.ln()).abs() < 1e-3, "{entropies:?}");
    }
}
