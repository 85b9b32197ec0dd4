//! Dropout: the same weights on every kernel, tile and slice, and as often as the rate says.

use crate::common::{Case, assert_same_bits, check_all, plan, plan_as_card, run_plan, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, DType, Dropout, Kernel, Layout, Plan, PlanOptions, Problem, ScoreStage, Sink, Stats, reference,
};

fn dropout(numbers: [u32; 7], rate: f32) -> Problem {
    let mut problem = Problem::new(shape(numbers)).dropout(rate);
    problem.stats = Stats::ALL;
    problem
}

/// The mask is part of the truth, so that one weight that is kept or dropped wrongly fails.
#[test]
fn every_rate_and_shape() {
    let gpu = gpu!();
    for rate in [0.0, 0.1, 0.5, 0.99] {
        for (sq, sk) in [(1, 1), (3, 40), (21, 100)] {
            let plain = dropout([2, 4, 2, sq, sk, 8, 8], rate);
            check_all(gpu, &Case::new(plain.clone(), 1).vacuous_above(5e-3));
            let masked = plain.causal(Alignment::BottomRight).with_kv_len().sink(Sink::PerHead);
            check_all(gpu, &Case::new(masked.layout(Layout::Bshd), 2).vacuous_above(5e-3));
        }
    }
    let wide = dropout([1, 2, 1, 9, 33, 20, 7], 0.3).dtype(DType::F16);
    check_all(gpu, &Case::new(wide, 3).vacuous_above(5e-3));
}

/// v of ones gives the sum of what is kept: each row is told apart, and statistics know nothing of it.
#[test]
fn seed_and_offset_choose_the_weights_and_statistics_do_not_change() {
    let gpu = gpu!();
    let mut sums = Vec::new();
    let mut case = Case::new(dropout([2, 2, 1, 30, 64, 8, 4], 0.5), 1);
    case.v.fill(1.0);
    let mut plain = case.clone();
    (plain.problem.dropout, plain.dropout) = (None, None);
    let tiled = plan(gpu, &case.problem, &PlanOptions::kernel(Kernel::Tiled));
    let undropped = run_plan(gpu, &plan(gpu, &plain.problem, &PlanOptions::kernel(Kernel::Tiled)), &plain);
    for seed in [[0, 0], [1, 0], [0, 1], [u32::MAX, 7]] {
        case.dropout = Some(seed);
        check_all(gpu, &case.clone().vacuous_above(5e-3));
        let got = run_plan(gpu, &tiled, &case);
        assert_eq!(
            (&got.lse, &got.entropy, &got.row_max),
            (&undropped.lse, &undropped.entropy, &undropped.row_max)
        );
        sums.push(got.out);
    }
    for (n, a) in sums.iter().enumerate() {
        assert!(sums[..n].iter().all(|b| a != b), "two seeds drop the same weights");
        // Columns of one row share their mask.
        assert!(a.chunks(4).all(|row| row.iter().all(|x| *x == row[0])));
        // Of 120 rows no two have the same sum.
        let mut rows: Vec<u32> = a.chunks(4).map(|row| row[0].to_bits()).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), 120);
        // The mean of what stays is 1: each of 120 * 64 weights of about 1/64 is 0 or doubled.
        let mean = a.iter().sum::<f32>() / a.len() as f32;
        assert!((mean - 1.0).abs() < 0.1, "{mean}");
    }
}

/// How many are kept is binomial: within five standard deviations, over 2^17 places, at each rate.
#[test]
fn as_many_are_kept_as_the_rate_says() {
    for rate in [0.001, 0.1, 0.5, 0.9] {
        let (dropout, shape) = (Dropout { rate }, shape([2, 2, 1, 256, 128, 1, 1]));
        let kept = (0..4 * 256 * 128u32)
            .filter(|n| dropout.keeps(&shape, [3, 4], [n >> 16, n >> 15 & 1, n >> 7 & 255, n & 127]))
            .count();
        let (n, keep) = (f64::from(4 * 256 * 128), dropout.keep());
        let deviations = (kept as f64 - n * keep) / (n * keep * (1.0 - keep)).sqrt();
        assert!(deviations.abs() < 5.0, "rate {rate}: {deviations} standard deviations off");
        assert!((keep - f64::from(1.0 - rate)).abs() <= 1.0 / 131_072.0 + 1e-9);
    }
}

/// However a problem is cut, its rows, heads and batches count from the whole.
#[test]
fn slices_agree() {
    let gpu = gpu!();
    let case = Case::new(dropout([3, 4, 2, 37, 40, 8, 8], 0.4), 6);
    for kernel in crate::common::KERNELS {
        let whole = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
        let mut caps = gpu.attention.caps().clone();
        caps.max_compute_workgroups_per_dimension = 2;
        let cut = match Plan::new(&case.problem, &caps, &PlanOptions::kernel(kernel)) {
            Ok(cut) if cut.slices().len() > 3 => cut,
            _ => {
                // The naive kernel has more workgroups than that for one row.
                caps.max_compute_workgroups_per_dimension = 65535;
                caps.max_storage_buffer_binding_size = 1024 * 16;
                Plan::new(&case.problem, &caps, &PlanOptions::kernel(kernel)).unwrap()
            }
        };
        assert!(cut.slices().len() > 3, "{cut}");
        assert_same_bits(&run_plan(gpu, &whole, &case), &run_plan(gpu, &cut, &case), kernel.name());
    }
    let card = plan_as_card(gpu, &case.problem);
    let truth = case.truth();
    crate::common::assert_right(gpu, &card, &case, &truth, &run_plan(gpu, &card, &case));
}

/// The weights on demand are those before dropout; the twin drops what the kernel drops.
#[test]
fn weights_on_demand_and_the_twin() {
    let gpu = gpu!();
    let case = Case::new(dropout([1, 2, 1, 6, 40, 8, 8], 0.5), 5);
    let (problem, inputs) = (&case.problem, case.inputs());
    let probs =
        gpu.attention.scores_blocking(&gpu.queue, problem, &inputs, ScoreStage::Probs, [0, 1], 1..6).unwrap();
    for (row, got) in (1..).zip(probs.chunks(40)) {
        let truth = reference::scores_at(problem, &inputs, ScoreStage::Probs, [0, 1, row]).unwrap();
        assert!(reference::compare(got, &truth).passes(), "row {row}");
        assert!((got.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }
    let tiled = plan(gpu, problem, &PlanOptions::kernel(Kernel::Tiled));
    assert!(case.truth().compare(&reference::twin(&tiled, &inputs).unwrap()).passes());
}
