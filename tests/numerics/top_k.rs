//! Top-k attention: exactly the k largest scores of a row, of equal ones the first.

use crate::common::{Case, Rng, check_all, plan, plan_as_card, run_plan, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, DType, Error, Kernel, Plan, PlanOptions, Problem, ScoreStage, Sink, Stats, Tensor,
    Window, reference,
};

fn top_k(numbers: [u32; 7], k: u32) -> Problem {
    let mut problem = Problem::new(shape(numbers)).top_k(k);
    problem.stats = Stats::ALL;
    problem
}

/// One query of 1, so that the scores are the keys.
fn scores(case: &mut Case, scores: &[f32]) {
    case.q.fill(1.0);
    case.k = scores.to_vec();
}

fn plans(gpu: &crate::common::Gpu, problem: &Problem) -> [Plan; 3] {
    let [tiled, naive] =
        [Kernel::Tiled, Kernel::Naive].map(|kernel| plan(gpu, problem, &PlanOptions::kernel(kernel)));
    [tiled, naive, plan_as_card(gpu, problem)]
}

/// Which keys have a weight, in each kernel: v tells them apart.
fn kept(gpu: &crate::common::Gpu, case: &Case) -> Vec<Vec<usize>> {
    let width = case.problem.shape.head_dim_v as usize;
    let run = |plan: Plan| {
        let out = run_plan(gpu, &plan, case).out;
        (0..width).filter(|&j| out[j] > 0.0).collect()
    };
    plans(gpu, &case.problem).into_iter().map(run).collect()
}

#[test]
fn alone_and_with_masks() {
    let gpu = gpu!();
    for (sq, sk) in [(3, 2), (40, 100)] {
        for k in [1, 2, 7, 64, 1000] {
            let plain = top_k([2, 2, 1, sq, sk, 8, 12], k);
            check_all(gpu, &Case::new(plain.clone(), 1).vacuous_above(2e-3));
            let masked = plain.causal(Alignment::BottomRight).with_kv_len().sink(Sink::PerHead);
            check_all(gpu, &Case::new(masked, 2).vacuous_above(2e-3));
        }
    }
}

#[test]
fn with_other_options() {
    let gpu = gpu!();
    let window = Window { left: Some(19), right: Some(2), keep_first: 3 };
    let problem = top_k([2, 4, 2, 21, 50, 20, 7], 5)
        .window(window)
        .with_alibi()
        .softcap(20.0)
        .bias(DType::F32, Broadcast([1, 4, 21, 50]))
        .dropout(0.2);
    check_all(gpu, &Case::new(problem, 4).vacuous_above(5e-3));
}

/// Scores in any order, some of them equal: the set is the one that sorting gives, to the key.
#[test]
fn exactly_the_keys_that_sorting_gives() {
    let gpu = gpu!();
    let mut rng = Rng::new(5);
    let n = 150;
    for kind in 0..7 {
        let numbers: Vec<f32> = (0..n)
            .map(|j| match kind {
                0 => rng.normal(),
                1 => rng.range(-3, 3) as f32, // many equal ones
                2 => 0.5,                     // all equal
                3 => f32::exp2(rng.range(-60, 60) as f32) * rng.pick(&[-1.0, 1.0]), // of all sizes
                4 => {
                    if j % 2 == 0 {
                        0.0
                    } else {
                        -0.0
                    }
                } // one place for both zeros
                5 => 1000.0 + rng.range(0, 9) as f32 * 2f32.powi(-11), // near neighbours in f32
                _ => {
                    if j == 3 {
                        -9e37
                    } else {
                        j as f32 * 1e-3
                    }
                } // one far below
            })
            .collect();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| numbers[b].partial_cmp(&numbers[a]).unwrap());
        for k in [1, 2, 10, 75, 149, 150, 151] {
            let mut problem = top_k([1, 1, 1, 1, n as u32, 1, n as u32], k);
            // Weights that are all of some size, whatever the scores are.
            problem.scale = wgpu_attention::Scale::Value(1.0);
            problem.stats = Stats::default();
            let mut case = Case::new(problem, 1);
            scores(&mut case, &numbers);
            case.fill(Tensor::V, |[_, _, j, d]| f32::from(u8::from(j == d)));
            let mut want = order[..n.min(k as usize)].to_vec();
            // Of those that are kept, the ones whose weight f32 can hold.
            let largest = numbers[order[0]];
            want.retain(|&j| numbers[j] - largest > -80.0);
            want.sort_unstable();
            for got in kept(gpu, &case) {
                assert_eq!(got, want, "kind {kind}, k = {k}");
            }
        }
    }
}

/// With k keys or fewer it is the plain softmax, to the bit.
#[test]
fn k_of_all_keys_changes_nothing() {
    let gpu = gpu!();
    let with = Case::new(top_k([1, 2, 1, 20, 60, 8, 8], 60).causal(Alignment::BottomRight), 3);
    let mut without = with.clone();
    without.problem.top_k = None;
    for a in plans(gpu, &with.problem) {
        // Sums in the same order: the planner may give a search other tiles.
        let options = a.tiles().map_or(PlanOptions::kernel(a.kernel()), PlanOptions::tiles);
        let b = plan(gpu, &without.problem, &options);
        let (a, b) = (run_plan(gpu, &a, &with), run_plan(gpu, &b, &without));
        crate::common::assert_same_bits(&a, &b, "top_k of all keys");
    }
}

#[test]
fn rows_without_keys_and_no_keys_at_all() {
    let gpu = gpu!();
    let mut case = Case::new(top_k([3, 1, 1, 5, 20, 8, 8], 3).with_kv_len(), 1);
    case.kv_len = Some(vec![0, 2, 20]);
    check_all(gpu, &case.vacuous_above(2e-3));
    check_all(gpu, &Case::new(top_k([2, 1, 1, 5, 0, 8, 8], 3), 1));
}

#[test]
fn weights_on_demand_and_no_twin() {
    let gpu = gpu!();
    let case = Case::new(top_k([1, 2, 1, 6, 80, 8, 8], 9), 5);
    let (problem, inputs) = (&case.problem, case.inputs());
    let probs =
        gpu.attention.scores_blocking(&gpu.queue, problem, &inputs, ScoreStage::Probs, [0, 1], 1..6).unwrap();
    for (row, got) in (1..).zip(probs.chunks(80)) {
        let truth = reference::scores_at(problem, &inputs, ScoreStage::Probs, [0, 1, row]).unwrap();
        assert!(reference::compare(got, &truth).passes(), "row {row}");
        assert_eq!(got.iter().filter(|p| **p > 0.0).count(), 9);
    }
    let tiled = plan(gpu, problem, &PlanOptions::kernel(Kernel::Tiled));
    assert!(matches!(reference::twin(&tiled, &inputs), Err(Error::KernelUnavailable { .. })));
}
