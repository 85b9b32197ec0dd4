//! Scale and temperature: one knob, from uniform to argmax.

use crate::common::{Case, Gpu, assert_right, check_all, plan, run, run_plan, shape};
use crate::gpu;
use wgpu_attention::{Alignment, Kernel, PlanOptions, Problem, Scale, Stats, Temperature, Tensor};

const SHAPE: [u32; 7] = [1, 2, 2, 9, 40, 8, 8];

fn problem() -> Problem {
    let mut problem = Problem::new(shape(SHAPE));
    problem.stats = Stats::ALL;
    problem
}

/// Sharp softmaxes amplify the rounding of large scores: how much is shown at all shrinks with the temperature.
fn looseness(tau: f64) -> f64 {
    (1e-4 / tau).clamp(1e-4, 0.5)
}

#[test]
fn temperatures_over_six_decades() {
    let gpu = gpu!();
    for tau in [1e-3, 1e-2, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0, 1e3] {
        let case = Case::new(problem().temperature(Temperature::Value(tau)), 1);
        check_all(gpu, &case.vacuous_above(looseness(tau.into())));
    }
}

#[test]
fn a_temperature_for_each_head_and_for_each_row() {
    let gpu = gpu!();
    for temperature in [Temperature::PerHead, Temperature::PerRow] {
        for causal in [None, Some(Alignment::BottomRight)] {
            let mut problem = problem().temperature(temperature);
            problem.shape.batch = 3;
            crate::common::set_causal(&mut problem, causal);
            let case = Case::new(problem, 2).vacuous_above(1e-2);
            check_all(gpu, &case);
        }
    }
}

#[test]
fn a_temperature_for_each_row_over_six_decades() {
    let gpu = gpu!();
    let mut case = Case::new(problem().temperature(Temperature::PerRow), 3).vacuous_above(looseness(1e-3));
    case.temperature = Some((0..18).map(|n| 10f32.powf(n as f32 / 17.0 * 6.0 - 3.0)).collect());
    check_all(gpu, &case);
}

/// The three ways to say the same temperature agree to the bit.
#[test]
fn number_per_head_and_per_row_agree() {
    let gpu = gpu!();
    // A power of two, so that folding it into the factor and dividing by it round alike.
    for tau in [0.25, 2.0] {
        for kernel in crate::common::KERNELS {
            let options = PlanOptions::kernel(kernel);
            let number = Case::new(problem().temperature(Temperature::Value(tau)), 4);
            let want = run(gpu, &number, &options);
            for (temperature, rows) in [(Temperature::PerHead, 2), (Temperature::PerRow, 18)] {
                let mut case = Case::new(problem().temperature(temperature), 4);
                case.temperature = Some(vec![tau; rows]);
                crate::common::assert_same_bits(&run(gpu, &case, &options), &want, "one temperature");
            }
        }
    }
}

/// softmax(scale x / temperature) = softmax(x / tau): what counts is the quotient.
#[test]
fn scale_and_temperature_are_one_knob() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let with = |scale, tau| {
            let problem = problem().scale(Scale::Value(scale)).temperature(Temperature::Value(tau));
            run(gpu, &Case::new(problem, 5), &options)
        };
        crate::common::assert_same_bits(&with(1.0, 2.0), &with(0.5, 1.0), "1/2 and 0.5/1");
        crate::common::assert_same_bits(&with(6.0, 2.0), &with(3.0, 1.0), "6/2 and 3/1");
    }
}

#[test]
fn every_scale() {
    let gpu = gpu!();
    for scale in [
        Scale::RsqrtHeadDim,
        Scale::PerHeadDim { numerator: 1.0 },
        Scale::PerHeadDim { numerator: 8.0 },
        Scale::PerHeadDim { numerator: -2.0 },
        Scale::Value(0.5),
        Scale::Value(0.75),
        Scale::Value(2.0),
        Scale::Value(1e-3),
        Scale::Value(-0.5),
        Scale::Value(1e-30),
        Scale::Value(-0.0),
    ] {
        check_all(gpu, &Case::new(problem().scale(scale), 6));
    }
}

#[test]
fn scale_zero_is_uniform_over_the_visible_keys() {
    let gpu = gpu!();
    let case = Case::new(problem().scale(Scale::Value(0.0)).causal(Alignment::TopLeft), 7);
    for kernel in crate::common::KERNELS {
        let got = crate::common::check(gpu, &case, &PlanOptions::kernel(kernel));
        for (row, (&lse, &entropy)) in got.lse.iter().flatten().zip(got.entropy.iter().flatten()).enumerate()
        {
            let n = (row % 9 + 1) as f32;
            approx::assert_abs_diff_eq!(lse, n.ln(), epsilon = 2e-6);
            approx::assert_abs_diff_eq!(entropy, n.ln(), epsilon = 2e-6);
        }
    }
}

/// A negative scale prefers the keys that a positive one likes least.
#[test]
fn a_negative_scale_is_a_negated_q() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let positive = Case::new(problem().scale(Scale::Value(0.5)), 8);
        let mut negative = Case::new(problem().scale(Scale::Value(-0.5)), 8);
        negative.q.iter_mut().for_each(|q| *q = -*q);
        let (a, b) = (run(gpu, &positive, &options), run(gpu, &negative, &options));
        crate::common::assert_same_bits(&a, &b, "-scale and -q");
    }
}

/// Towards temperature 0 a row becomes the value of its best key.
#[test]
fn a_low_temperature_is_the_argmax() {
    let gpu = gpu!();
    for tau in [1e-3, 1e-6, 1e-20, 1e-30] {
        for kernel in crate::common::KERNELS {
            limit(gpu, kernel, tau, |scores, v| {
                let best = (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
                v[best]
            });
        }
    }
}

/// Towards an infinite one it becomes the mean.
#[test]
fn a_high_temperature_is_the_mean() {
    let gpu = gpu!();
    for tau in [1e8, 1e20, 1e30] {
        for kernel in crate::common::KERNELS {
            limit(gpu, kernel, tau, |_, v| v.iter().sum::<f32>() / v.len() as f32);
        }
    }
}

/// Keys are small whole numbers apart, so that the best is best by a margin.
fn limit(gpu: &Gpu, kernel: Kernel, tau: f32, want: impl Fn(&[f32], &[f32]) -> f32) {
    let sk = 40;
    let problem = Problem::new(shape([1, 1, 1, 5, sk, 1, 1])).temperature(Temperature::Value(tau));
    let mut case = Case::new(problem, 9);
    case.fill(Tensor::Q, |[_, _, i, _]| i as f32 + 1.0);
    case.fill(Tensor::K, |[_, _, j, _]| ((j * 17) % sk) as f32 - 13.0);
    let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
    let got = run_plan(gpu, &plan, &case);
    for i in 0..5 {
        let scores: Vec<f32> = case.k.iter().map(|k| k * (i + 1) as f32).collect();
        let want = want(&scores, &case.v);
        approx::assert_abs_diff_eq!(got.out[i], want, epsilon = 1e-5);
    }
}

/// At the limits too, the reference agrees with itself: float64 is one-hot where f32 is.
#[test]
fn a_low_temperature_against_float64() {
    let gpu = gpu!();
    let mut case = Case::new(problem().temperature(Temperature::Value(1e-3)), 10).vacuous_above(0.5);
    // Whole numbers, so that scores are exact and only their differences count.
    case.fill(Tensor::Q, |[_, h, i, d]| ((h + i + d) % 3) as f32 - 1.0);
    case.fill(Tensor::K, |[_, h, j, d]| ((h * 5 + j * 3 + d * d) % 7) as f32 - 3.0);
    for kernel in crate::common::KERNELS {
        let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
        let got = run_plan(gpu, &plan, &case);
        assert_right(gpu, &plan, &case, &case.truth(), &got);
    }
}
