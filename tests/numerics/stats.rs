//! Log-sum-exp, entropy and row maximum beside the answer.

use crate::common::{Case, check, check_all, run, shape};
use crate::gpu;
use wgpu_attention::{Alignment, PlanOptions, Problem, Stats, Tensor};

fn combinations() -> impl Iterator<Item = Stats> {
    (0..8).map(|n| Stats { lse: n & 1 != 0, entropy: n & 2 != 0, row_max: n & 4 != 0 })
}

/// Each is the same whatever else is asked for, and out is the same with all of them.
#[test]
fn all_eight_combinations() {
    let gpu = gpu!();
    for kernel in gpu.kernels() {
        let options = PlanOptions::kernel(kernel);
        let mut problem = Problem::new(shape([2, 2, 1, 21, 45, 8, 8])).causal(Alignment::BottomRight);
        problem.stats = Stats::ALL;
        let all = check(gpu, &Case::new(problem.clone(), 1), &options);
        for stats in combinations() {
            problem.stats = stats;
            let mut got = check(gpu, &Case::new(problem.clone(), 1), &options);
            got.lse = got.lse.or(all.lse.clone());
            got.entropy = got.entropy.or(all.entropy.clone());
            got.row_max = got.row_max.or(all.row_max.clone());
            crate::common::assert_same_bits(&got, &all, &format!("{stats:?} in {kernel}"));
        }
    }
}

/// With q = 0 every weight is 1/n: lse and entropy are ln n, natural and not base 2.
#[test]
fn lse_and_entropy_of_a_uniform_row_are_ln_n() {
    let gpu = gpu!();
    for kernel in gpu.kernels() {
        for n in [1, 2, 8, 33, 1000] {
            let mut problem = Problem::new(shape([1, 1, 1, 4, n, 8, 8]));
            problem.stats = Stats::ALL;
            let mut case = Case::new(problem, 2);
            case.q.fill(0.0);
            let got = check(gpu, &case, &PlanOptions::kernel(kernel));
            let ln = (n as f32).ln();
            for i in 0..4 {
                approx::assert_relative_eq!(
                    got.lse.as_ref().unwrap()[i],
                    ln,
                    epsilon = 1e-6,
                    max_relative = 1e-6
                );
                let entropy = got.entropy.as_ref().unwrap()[i];
                approx::assert_relative_eq!(entropy, ln, epsilon = 1e-6, max_relative = 1e-6);
                assert_eq!(got.row_max.as_ref().unwrap()[i], 0.0);
            }
        }
    }
}

/// One key: lse and row maximum are its score, the entropy is exactly 0.
#[test]
fn of_a_row_with_one_key() {
    let gpu = gpu!();
    let mut problem = Problem::new(shape([1, 1, 1, 3, 1, 8, 8]));
    problem.stats = Stats::ALL;
    let case = Case::new(problem, 3);
    for kernel in gpu.kernels() {
        let got = check(gpu, &case, &PlanOptions::kernel(kernel));
        assert_eq!(got.lse, got.row_max);
        assert_eq!(got.entropy.unwrap(), [0.0; 3]);
    }
}

/// Entropy is never negative and never above ln n, also for rows that are all but one-hot.
#[test]
fn entropy_stays_within_its_range() {
    let gpu = gpu!();
    for factor in [1.0, 30.0, 1000.0] {
        let mut problem =
            Problem::new(shape([1, 2, 2, 33, 70, 8, 8])).scale(wgpu_attention::Scale::Value(factor));
        problem.stats = Stats::ALL;
        let case = Case::new(problem, 4);
        for kernel in crate::common::KERNELS {
            for entropy in run(gpu, &case, &PlanOptions::kernel(kernel)).entropy.unwrap() {
                assert!(
                    (0.0..=70f32.ln() + 1e-5).contains(&entropy),
                    "{entropy} with scale {factor} in {kernel}"
                );
            }
        }
    }
}

/// With v = 1 the answer is the sum of the weights.
#[test]
fn weights_sum_to_one() {
    let gpu = gpu!();
    for (sq, sk) in [(1, 1), (9, 40), (17, 1000), (3, 10_007)] {
        let mut case = Case::new(Problem::new(shape([1, 1, 1, sq, sk, 8, 8])), 5);
        case.v.fill(1.0);
        for kernel in crate::common::KERNELS {
            // Two sums of sk terms each, divided: 2^-24 sqrt(sk) is what rounding usually comes to, and 1e-6 the least.
            let epsilon = 1e-6f32.max((sk as f32).sqrt() / (1 << 24) as f32);
            for x in run(gpu, &case, &PlanOptions::kernel(kernel)).out {
                approx::assert_abs_diff_eq!(x, 1.0, epsilon = epsilon);
            }
        }
    }
}

/// Two halves of the keys, merged by their lse as float64 would, are the whole.
#[test]
fn halves_merge_to_the_whole_by_their_lse() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let whole = Case::new(Problem::new(shape([1, 1, 1, 9, 90, 8, 8])).with_lse(), 6);
        let part = |keys: std::ops::Range<usize>| {
            let sk = keys.len() as u32;
            let mut case = Case::new(Problem::new(shape([1, 1, 1, 9, sk, 8, 8])).with_lse(), 6);
            case.q.clone_from(&whole.q);
            case.k = whole.k[keys.start * 8..keys.end * 8].to_vec();
            case.v = whole.v[keys.start * 8..keys.end * 8].to_vec();
            run(gpu, &case, &options)
        };
        let (a, b, c) = (part(0..37), part(37..90), run(gpu, &whole, &options));
        for i in 0..9 {
            let lse = |o: &wgpu_attention::Outputs| f64::from(o.lse.as_ref().unwrap()[i]);
            let merged = lse(&a) + (lse(&b) - lse(&a)).exp().ln_1p();
            approx::assert_abs_diff_eq!(merged, lse(&c), epsilon = 2e-6);
            for d in i * 8..(i + 1) * 8 {
                let (wa, wb) = ((lse(&a) - merged).exp(), (lse(&b) - merged).exp());
                let x = wa * f64::from(a.out[d]) + wb * f64::from(b.out[d]);
                approx::assert_abs_diff_eq!(x, f64::from(c.out[d]), epsilon = 2e-6);
            }
        }
    }
}

/// The row maximum is scaled, as the scores that softmax is taken of are.
#[test]
fn row_max_is_the_largest_scaled_score() {
    let gpu = gpu!();
    let mut case = Case::new(Problem::new(shape([1, 1, 1, 3, 40, 4, 4])).with_row_max(), 7);
    case.fill(Tensor::Q, |_| 1.0);
    case.fill(Tensor::K, |[_, _, j, _]| if j == 23 { 5.0 } else { -1.0 });
    check_all(gpu, &case);
    let got = run(gpu, &case, &PlanOptions::default()).row_max.unwrap();
    for x in got {
        approx::assert_relative_eq!(x, 10.0, max_relative = 1e-6); // 4 * 5 / sqrt 4
    }
}
