//! Multipliers that grow with the context count the keys that a row sees, no others.

use crate::common::{Case, check, check_all, shape};
use crate::gpu;
use wgpu_attention::{Alignment, LengthScale, PlanOptions, Problem, Scale, Stats, Temperature, Window};

const RULES: [LengthScale; 6] = [
    LengthScale::Ssmax,
    LengthScale::LogTrainLen { train_len: 2 },
    LengthScale::LogTrainLen { train_len: 20 },
    LengthScale::Llama4 { coef: 0.1, floor: 1 },
    LengthScale::Llama4 { coef: -0.2, floor: 7 },
    LengthScale::Yarn { factor: 4.0 },
];

fn problem(sq: u32, sk: u32, rule: LengthScale) -> Problem {
    let mut problem = Problem::new(shape([5, 2, 1, sq, sk, 8, 8])).length_scale(rule);
    problem.stats = Stats::ALL;
    problem
}

/// No key, one key and many; a window and kept keys that overlap it, that do not, and that are all keys.
#[test]
fn every_rule_with_lengths_and_windows() {
    let gpu = gpu!();
    // One of each that has code of its own.
    for rule in [RULES[0], RULES[2], RULES[4]] {
        let uses_positions = !matches!(rule, LengthScale::Yarn { .. });
        for window in [
            None,
            Some(Window::last(1)),
            Some(Window { left: Some(5), right: Some(3), keep_first: 0 }),
            Some(Window { left: Some(5), right: Some(3), keep_first: 4 }),
            Some(Window { left: None, right: Some(0), keep_first: 30 }),
            Some(Window { left: Some(2), right: None, keep_first: u32::MAX }),
        ] {
            for causal in [false, true] {
                let mut problem = problem(21, 40, rule).with_kv_len();
                (problem.window, problem.causal) = (window, causal);
                if uses_positions || window.is_some() || causal {
                    problem.alignment = Alignment::PerBatch;
                }
                let mut case = Case::new(problem, 1);
                case.kv_len = Some(vec![0, 1, 2, 33, 40]);
                if case.causal_offset.is_some() {
                    case.causal_offset = Some(vec![0, -5, 19, -30, 60]);
                }
                check_all(gpu, &case.vacuous_above(5e-3));
            }
        }
    }
}

/// Decoding with a cache and a prompt at once agree, row by row: n is what a row sees, not how long the cache is.
#[test]
fn a_decode_step_is_the_last_row_of_the_prompt() {
    let gpu = gpu!();
    for rule in RULES {
        for kernel in crate::common::KERNELS {
            let mut whole =
                Problem::new(shape([1, 1, 1, 40, 40, 8, 8])).causal(Alignment::BottomRight).with_lse();
            whole.length_scale = rule;
            let mut step = whole.clone();
            step.shape.seq_q = 1;
            let whole = Case::new(whole, 2);
            let mut last = Case::new(step, 2);
            last.q = whole.q[39 * 8..].to_vec();
            (last.k, last.v, last.ssmax) = (whole.k.clone(), whole.v.clone(), whole.ssmax.clone());
            let options = PlanOptions::kernel(kernel);
            let (a, b) = (check(gpu, &whole, &options), check(gpu, &last, &options));
            for (x, y) in a.out[39 * 8..].iter().zip(&b.out) {
                approx::assert_abs_diff_eq!(x, y, epsilon = 1e-6);
            }
        }
    }
}

/// The numbers of the papers' formulas, on scores that are known.
#[test]
fn known_numbers() {
    let gpu = gpu!();
    let row_max = |kernel, rule, n: u32, offset: Option<i32>| {
        let mut problem =
            Problem::new(shape([1, 1, 1, 1, n, 1, 1])).scale(Scale::Value(1.0)).length_scale(rule);
        problem.stats = Stats::ALL;
        problem.temperature = Temperature::Value(1.0);
        problem.alignment = offset.map_or(Alignment::default(), Alignment::Offset);
        let mut case = Case::new(problem, 3).vacuous_above(5e-3);
        (case.q, case.ssmax) = (vec![1.0], case.ssmax.map(|_| vec![0.43]));
        case.k.fill(1.0);
        check(gpu, &case, &PlanOptions::kernel(kernel)).row_max.unwrap()[0]
    };
    for kernel in crate::common::KERNELS {
        for (rule, n, offset, want) in [
            (LengthScale::Ssmax, 100, None, 0.43 * 100f32.ln()),
            (LengthScale::Ssmax, 1, None, 0.0),
            (LengthScale::LogTrainLen { train_len: 10 }, 100, None, 2.0),
            (LengthScale::LogTrainLen { train_len: 1000 }, 100, None, 1.0),
            (LengthScale::Llama4 { coef: 0.1, floor: 8192 }, 5, Some(8190), 1.0),
            (LengthScale::Llama4 { coef: 0.1, floor: 8192 }, 5, Some(8191), 1.0 + 0.1 * 2f32.ln()),
            (LengthScale::Llama4 { coef: 0.1, floor: 1 }, 5, Some(-3), 1.0 + 0.1 * 2f32.ln()),
            (LengthScale::Yarn { factor: 32.0 }, 5, None, (0.1 * 32f32.ln() + 1.0).powi(2)),
            (LengthScale::Yarn { factor: 0.5 }, 5, None, 1.0),
        ] {
            approx::assert_abs_diff_eq!(row_max(kernel, rule, n, offset), want, epsilon = 1e-5);
        }
    }
}
