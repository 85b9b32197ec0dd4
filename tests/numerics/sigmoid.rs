//! Sigmoid attention: each key by itself.

use crate::common::{Case, check_all, plan, run, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, DType, Kernel, LengthScale, Normalizer, PlanOptions, Problem, ScoreStage, SigmoidBias,
    Temperature, Window, reference,
};

const BIASES: [SigmoidBias; 3] =
    [SigmoidBias::Value(-2.5), SigmoidBias::MinusLogSeqK, SigmoidBias::MinusLogVisible];

fn sigmoid(numbers: [u32; 7], bias: SigmoidBias) -> Problem {
    Problem::new(shape(numbers)).normalizer(Normalizer::Sigmoid { bias }).with_row_max()
}

#[test]
fn each_bias_alone_and_with_masks() {
    let gpu = gpu!();
    for bias in BIASES {
        for (sq, sk) in [(1, 1), (17, 33), (40, 100)] {
            let plain = sigmoid([2, 2, 1, sq, sk, 8, 12], bias);
            check_all(gpu, &Case::new(plain.clone(), 1));
            check_all(gpu, &Case::new(plain.clone().causal(Alignment::BottomRight).with_kv_len(), 2));
            let window = Window { left: Some(9), right: Some(2), keep_first: 3 };
            check_all(gpu, &Case::new(plain.window(window), 3));
        }
    }
}

#[test]
fn with_every_other_option() {
    let gpu = gpu!();
    for bias in BIASES {
        let problem = sigmoid([2, 4, 2, 21, 50, 20, 7], bias)
            .causal(Alignment::PerBatch)
            .with_kv_len()
            .temperature(Temperature::PerRow)
            .length_scale(LengthScale::Ssmax)
            .softcap(5.0)
            .with_alibi()
            .bias(DType::F16, wgpu_attention::Broadcast([1, 4, 21, 50]))
            .mask(wgpu_attention::MaskFormat::Bits, wgpu_attention::Broadcast([2, 1, 21, 50]))
            .dtypes(DType::F16, DType::Bf16, DType::F16, DType::F16)
            .dropout(0.2);
        // Out is stored in 16 bits, and its weights sum to more than 1.
        check_all(gpu, &Case::new(problem, 4).vacuous_above(1e-2));
    }
}

/// Nothing but the number of keys brings a row's weights near to a sum of 1; with one key they are what the formula says.
#[test]
fn numbers_by_hand() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let mut case = Case::new(sigmoid([1, 1, 1, 1, 1, 1, 1], SigmoidBias::Value(0.0)), 1);
        (case.q, case.k, case.v) = (vec![0.0], vec![1.0], vec![8.0]);
        assert_eq!(run(gpu, &case, &PlanOptions::kernel(kernel)).out, [4.0]);

        // 8 keys whose score is 0: each has 1 / (1 + 8), and a value of 9.
        for bias in [SigmoidBias::MinusLogSeqK, SigmoidBias::MinusLogVisible] {
            let mut case = Case::new(sigmoid([1, 1, 1, 1, 8, 1, 1], bias), 1);
            (case.q, case.k, case.v) = (vec![0.0], vec![1.0; 8], vec![9.0; 8]);
            let out = run(gpu, &case, &PlanOptions::kernel(kernel)).out;
            assert!((out[0] - 8.0).abs() < 1e-5, "{out:?}");
        }
        // Row 0 sees one key, row 1 two: 1/2 of 2, and 1/3 of 3 twice.
        let problem = sigmoid([1, 1, 1, 2, 2, 1, 1], SigmoidBias::MinusLogVisible).causal(Alignment::TopLeft);
        let mut case = Case::new(problem, 1);
        (case.q, case.k, case.v) = (vec![0.0; 2], vec![1.0; 2], vec![2.0, 4.0]);
        let out = run(gpu, &case, &PlanOptions::kernel(kernel)).out;
        assert!((out[0] - 1.0).abs() < 1e-6 && (out[1] - 2.0).abs() < 1e-6, "{out:?}");
    }
}

/// Far out on both sides weights are 0 and 1, and nothing overflows.
#[test]
fn scores_in_the_thousands() {
    let gpu = gpu!();
    for bias in [SigmoidBias::Value(0.0), SigmoidBias::Value(1e38), SigmoidBias::Value(-1e38)] {
        for kernel in crate::common::KERNELS {
            let mut case = Case::new(sigmoid([1, 1, 1, 1, 3, 1, 1], bias), 1);
            (case.q, case.k, case.v) = (vec![1.0], vec![1e5, -1e5, 3e37], vec![1.0, 10.0, 100.0]);
            let want = match bias {
                SigmoidBias::Value(0.0) => 101.0,
                SigmoidBias::Value(b) if b > 0.0 => 111.0,
                _ => 0.0,
            };
            // The least weight is 2^-126.
            let got = run(gpu, &case, &PlanOptions::kernel(kernel)).out[0];
            assert!((got - want).abs() < 1e-35, "{bias:?}: {got}");
            check_all(gpu, &case);
        }
    }
}

#[test]
fn rows_without_keys_and_no_keys_at_all() {
    let gpu = gpu!();
    for bias in BIASES {
        let mut case = Case::new(sigmoid([3, 1, 1, 5, 20, 8, 8], bias).with_kv_len(), 1);
        case.kv_len = Some(vec![0, 1, 20]);
        check_all(gpu, &case);
        check_all(gpu, &Case::new(sigmoid([2, 1, 1, 5, 0, 8, 8], bias), 1));
    }
}

#[test]
fn weights_on_demand_and_the_twin() {
    let gpu = gpu!();
    for bias in BIASES {
        let case = Case::new(sigmoid([2, 2, 1, 9, 40, 8, 8], bias).causal(Alignment::BottomRight), 5);
        let (problem, inputs) = (&case.problem, case.inputs());
        let probs = gpu
            .attention
            .scores_blocking(&gpu.queue, problem, &inputs, ScoreStage::Probs, [1, 1], 2..9)
            .unwrap();
        for (row, got) in (2..).zip(probs.chunks(40)) {
            let truth = reference::scores_at(problem, &inputs, ScoreStage::Probs, [1, 1, row]).unwrap();
            assert!(reference::compare(got, &truth).passes(), "row {row}");
        }
        let tiled = plan(gpu, problem, &PlanOptions::kernel(Kernel::Tiled));
        let twin = reference::twin(&tiled, &inputs).unwrap();
        assert!(case.truth().compare(&twin).passes());
    }
}
