//! Normalised q and k.

use crate::common::{Case, assert_right, check_all, plan, run_plan, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, DType, Kernel, Layout, LengthScale, MaskFormat, NormGains, PlanOptions, Problem,
    QkNorm, Scale, Sink, Stats, Temperature, Tensor, Window,
};

fn problem(numbers: [u32; 7], norm: QkNorm) -> Problem {
    let mut problem = Problem::new(shape(numbers)).qk_norm(norm);
    problem.stats = Stats::ALL;
    problem
}

fn norms() -> Vec<QkNorm> {
    let gains = [NormGains::None, NormGains::Shared, NormGains::PerHead];
    [QkNorm::l2(), QkNorm::rms(1e-6), QkNorm::rms(0.7)]
        .into_iter()
        .flat_map(|norm| gains.map(|g| norm.gains(g)))
        .collect()
}

#[test]
fn both_lengths_with_and_without_gains() {
    let gpu = gpu!();
    for (n, norm) in norms().into_iter().enumerate() {
        // Head dims that are no multiple of four, and chunks that are not full.
        let [qk, v] = [[8, 8], [5, 7], [80, 12]][n / 3];
        let problem = problem([2, 4, 2, 19, 37, qk, v], norm).scale(Scale::Value(1.0));
        check_all(gpu, &Case::new(problem, n as u64));
    }
}

/// Cosine attention (arXiv 2111.09883): the cosine of q and k over a temperature for each head, by hand.
#[test]
fn cosines_over_a_temperature_for_each_head() {
    let gpu = gpu!();
    let problem = problem([1, 2, 1, 1, 2, 2, 1], QkNorm::l2())
        .scale(Scale::Value(1.0))
        .temperature(Temperature::PerHead);
    let mut case = Case::new(problem, 1);
    // Angles of 0 and 90 degrees, whatever the lengths are.
    (case.q, case.k, case.v) = (vec![3.0, 4.0, 0.3, 0.4], vec![30.0, 40.0, -0.8, 0.6], vec![1.0, 0.0]);
    case.temperature = Some(vec![1.0, 0.5]);
    for kernel in crate::common::KERNELS {
        let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
        let got = run_plan(gpu, &plan, &case);
        for (head, tau) in [1f32, 0.5].into_iter().enumerate() {
            let weight = 1.0 / (1.0 + (-1.0 / tau).exp());
            approx::assert_abs_diff_eq!(got.out[head], weight, epsilon = 1e-6);
            approx::assert_abs_diff_eq!(got.row_max.as_ref().unwrap()[head], 1.0 / tau, epsilon = 1e-6);
        }
    }
}

#[test]
fn with_every_other_option() {
    let gpu = gpu!();
    let options: [fn(Problem) -> Problem; 8] = [
        |p| p.causal(Alignment::BottomRight).temperature(Temperature::PerHead),
        |p| p.causal(Alignment::PerBatch).with_kv_len().temperature(Temperature::PerRow).softcap(3.0),
        |p| p.dtypes(DType::F16, DType::Bf16, DType::F32, DType::F16).layout(Layout::Bshd),
        |p| {
            p.window(Window { left: Some(6), right: Some(3), keep_first: 2 }).with_alibi().sink(Sink::PerHead)
        },
        |p| p.mask(MaskFormat::Bits, Broadcast([3, 1, 19, 37])).sink(Sink::Zero),
        |p| p.bias(DType::F16, Broadcast([1, 4, 1, 37])).length_scale(LengthScale::Ssmax),
        |p| p.length_scale(LengthScale::Llama4 { coef: 0.3, floor: 4 }).causal(Alignment::TopLeft),
        |p| p.with_q_len().with_kv_len(),
    ];
    for (n, option) in options.into_iter().enumerate() {
        let norm =
            [QkNorm::l2().gains(NormGains::PerHead), QkNorm::rms(1e-6).gains(NormGains::Shared)][n % 2];
        let case = Case::new(option(problem([3, 4, 2, 19, 37, 12, 8], norm)), n as u64);
        check_all(gpu, &case.vacuous_above(1e-2));
    }
}

/// A row of zeros stays one: its scores are 0, and NaN is nowhere.
#[test]
fn rows_of_zeros() {
    let gpu = gpu!();
    for norm in [QkNorm::l2(), QkNorm { eps: 0.0, ..QkNorm::l2() }, QkNorm::rms(0.0), QkNorm::rms(1e-6)] {
        let mut case = Case::new(problem([1, 1, 1, 9, 21, 8, 8], norm), 2);
        case.fill(Tensor::Q, |[_, _, i, d]| if i % 3 == 0 { 0.0 } else { (i + d) as f32 - 5.0 });
        case.fill(Tensor::K, |[_, _, j, d]| if j % 4 == 1 { 0.0 } else { (j * d % 7) as f32 - 2.5 });
        check_all(gpu, &case);
    }
}

/// Lengths from one end of the documented range to the other, each row and key of its own.
#[test]
fn lengths_of_every_magnitude() {
    let gpu = gpu!();
    for norm in [QkNorm { eps: 0.0, ..QkNorm::l2() }, QkNorm::rms(0.0), QkNorm::rms(1e-6), QkNorm::l2()] {
        let mut case = Case::new(problem([1, 1, 1, 9, 29, 12, 8], norm).scale(Scale::Value(1.0)), 3);
        let size = |n: u32| 10f32.powi(n as i32 % 8 * 4 - 13);
        let plain = Case::new(case.problem.clone(), 4);
        let (q, k) = (case.problem.view(Tensor::Q).unwrap(), case.problem.view(Tensor::K).unwrap());
        case.fill(Tensor::Q, |at| plain.q[q.index(at) as usize] * size(at[2]));
        case.fill(Tensor::K, |at| plain.k[k.index(at) as usize] * size(at[2] + 3));
        check_all(gpu, &case);
    }
}

/// NaN in keys that nobody sees, and in queries that are none, stays there.
#[test]
fn what_is_hidden_is_not_measured() {
    let gpu = gpu!();
    for norm in [QkNorm::l2(), QkNorm::rms(1e-6).gains(NormGains::Shared)] {
        let mut case = Case::new(problem([2, 2, 1, 19, 37, 12, 8], norm).with_q_len().with_kv_len(), 5);
        (case.q_len, case.kv_len) = (Some(vec![3, 19]), Some(vec![21, 5]));
        let clean = case.clone();
        for at in crate::common::indices(&clean.problem, Tensor::K) {
            if at[2] >= [21, 5][at[0] as usize] {
                case.set(Tensor::K, at, f32::NAN);
                case.set(Tensor::V, [at[0], at[1], at[2], at[3].min(7)], f32::NAN);
            }
        }
        for at in crate::common::indices(&clean.problem, Tensor::Q) {
            if at[2] >= [3, 19][at[0] as usize] {
                case.set(Tensor::Q, at, f32::NAN);
            }
        }
        let truth = clean.truth();
        for kernel in crate::common::KERNELS {
            let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
            assert_right(gpu, &plan, &case, &truth, &run_plan(gpu, &plan, &case));
        }
    }
}

/// Heads cut into slices read the gains of their own.
#[test]
fn gains_of_slices() {
    let gpu = gpu!();
    let mut problem = problem([1, 6, 3, 40, 40, 8, 8], QkNorm::l2().gains(NormGains::PerHead));
    problem.stats = Stats::default();
    let case = Case::new(problem, 6);
    let mut caps = gpu.attention.caps().clone();
    // One head's part of q, k and v at most.
    caps.max_storage_buffer_binding_size = 40 * 8 * 4 * 2;
    for kernel in crate::common::KERNELS {
        let Ok(plan) = wgpu_attention::Plan::new(&case.problem, &caps, &PlanOptions::kernel(kernel)) else {
            assert_eq!(kernel, Kernel::Naive, "the tiled kernel needs no score matrix");
            continue;
        };
        assert!(plan.slices().len() > 1, "{plan}");
        assert_right(gpu, &plan, &case, &case.truth(), &run_plan(gpu, &plan, &case));
    }
}
