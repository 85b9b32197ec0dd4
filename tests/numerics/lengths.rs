//! Valid key and query counts for each batch.

use crate::common::{
    Bench, Case, assert_right, assert_same_bits, check_all, plan, plan_as_card, run_bench, shape,
};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, LengthScale, MaskFormat, Plan, PlanOptions, Problem, ScoreStage, Sink, Stats,
    Temperature, Tensor, Window, reference,
};

#[test]
fn from_none_to_all() {
    let gpu = gpu!();
    let mut problem = Problem::new(shape([7, 2, 1, 9, 67, 8, 8])).with_kv_len();
    problem.stats = Stats::ALL;
    let mut case = Case::new(problem, 1);
    case.kv_len = Some(vec![0, 1, 31, 32, 33, 66, 67]);
    check_all(gpu, &case);
}

/// Lengths that only the device knows are clamped, so that no key that is not there is ever read.
#[test]
fn values_out_of_range_from_the_device_are_clamped() {
    let gpu = gpu!();
    let problem = Problem::new(shape([6, 1, 1, 9, 67, 8, 8])).with_kv_len().with_lse();
    let mut case = Case::new(problem.clone(), 2);
    // What the device holds, and what it means.
    let table = [-5, 1_000_000_000, i32::MIN, i32::MAX, 68, 66].map(|x: i32| x as u32);
    case.kv_len = Some(vec![0, 67, 0, 67, 67, 66]);
    for kernel in crate::common::KERNELS {
        let plan = plan(gpu, &problem, &PlanOptions::kernel(kernel));
        let bench = Bench::with_tables(gpu, &plan, &case, &table);
        run_bench(gpu, &plan, &bench);
        assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
    }
}

// ---- queries ------------------------------------------------------------------------------------------------

/// With NaN in every row that is not valid.
fn padded(problem: Problem, q_len: &[u32], seed: u64) -> Case {
    let mut case = Case::new(problem, seed);
    case.q_len = Some(q_len.to_vec());
    let view = case.problem.view(Tensor::Q).unwrap();
    let q = case.q.clone();
    case.fill(
        Tensor::Q,
        |at| {
            if at[2] < q_len[at[0] as usize] { q[view.index(at) as usize] } else { f32::NAN }
        },
    );
    case
}

fn with_stats(numbers: [u32; 7]) -> Problem {
    let mut problem = Problem::new(shape(numbers)).with_q_len();
    problem.stats = Stats::ALL;
    problem
}

/// Within a tile, at its edges, none and all; each with what reads more of a row than q.
#[test]
fn rows_beyond_the_valid_ones_are_0_whatever_they_hold() {
    let gpu = gpu!();
    let options: [fn(Problem) -> Problem; 6] = [
        |p| p,
        |p| p.causal(Alignment::BottomRight).sink(Sink::PerHead),
        |p| p.sink(Sink::Zero).temperature(Temperature::PerRow).with_kv_len(),
        |p| p.mask(MaskFormat::Bits, Broadcast([8, 1, 67, 33])).with_alibi(),
        |p| {
            p.window(Window { left: Some(3), right: Some(1), keep_first: 2 })
                .align(Alignment::BottomRightValid)
        },
        |p| p.length_scale(LengthScale::Ssmax).causal(Alignment::BottomRightValid).with_kv_len(),
    ];
    for (n, option) in options.into_iter().enumerate() {
        let problem = option(with_stats([8, 2, 1, 67, 33, 8, 8]));
        let mut case = padded(problem, &[0, 1, 31, 32, 33, 64, 66, 67], n as u64).vacuous_above(2e-2);
        if let Some(taus) = &mut case.temperature {
            // Of the first row that is not valid, in each batch.
            for (b, len) in [0, 1, 31, 32, 33, 64, 66].into_iter().enumerate() {
                taus[b * 2 * 67 + len] = f32::from_bits(1);
            }
        }
        check_all(gpu, &case);
    }
}

/// A key that rows see may hold anything too, and then spoils them; the rows that are not there stay 0.
#[test]
fn a_bad_key_spoils_no_row_that_is_not_there() {
    let gpu = gpu!();
    let mut case = padded(with_stats([1, 1, 1, 9, 33, 8, 8]), &[3], 9);
    (0..8).for_each(|d| case.set(Tensor::K, [0, 0, 5, d], f32::NAN));
    (0..8).for_each(|d| case.set(Tensor::V, [0, 0, 5, d], f32::INFINITY));
    let mut plans: Vec<Plan> =
        crate::common::KERNELS.iter().map(|&k| plan(gpu, &case.problem, &PlanOptions::kernel(k))).collect();
    plans.push(plan_as_card(gpu, &case.problem));
    for plan in plans {
        let got = crate::common::run_plan(gpu, &plan, &case);
        assert!(got.out[3 * 8..].iter().all(|&x| x == 0.0), "{:?}\n{plan}", got.out);
        assert!(got.lse.unwrap()[3..].iter().all(|&x| x == f32::NEG_INFINITY));
        assert!(got.row_max.unwrap()[3..].iter().all(|&x| x == f32::NEG_INFINITY));
        assert!(got.entropy.unwrap()[3..].iter().all(|&x| x == 0.0));
    }
}

/// The last valid query sees the last valid key, as it does when there is no padding at all.
#[test]
fn bottom_right_of_what_is_valid_is_bottom_right_without_padding() {
    let gpu = gpu!();
    for (q_len, kv_len) in [(5, 33), (21, 20), (1, 1), (21, 7), (8, 40)] {
        let mut problem =
            with_stats([1, 2, 1, 21, 40, 8, 8]).with_kv_len().causal(Alignment::BottomRightValid);
        problem.window = Some(Window::last(9));
        let mut case = padded(problem, &[q_len], 10);
        case.kv_len = Some(vec![kv_len]);
        check_all(gpu, &case);
        let mut short = Problem::new(shape([1, 2, 1, q_len, kv_len, 8, 8])).causal(Alignment::BottomRight);
        (short.window, short.stats) = (case.problem.window, Stats::ALL);
        let mut same = Case::new(short, 10);
        for (tensor, seq) in [(Tensor::Q, 21), (Tensor::K, 40), (Tensor::V, 40)] {
            let from = [&case.q, &case.k, &case.v][tensor as usize].clone();
            same.fill(tensor, |[_, h, s, d]| from[((h * seq + s) * 8 + d) as usize]);
        }
        for kernel in crate::common::KERNELS {
            // The same tiles, or sums come in another order.
            let long = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
            let options = long.tiles().map_or(PlanOptions::kernel(kernel), PlanOptions::tiles);
            let a = crate::common::run_plan(gpu, &long, &case);
            let b = crate::common::run(gpu, &same, &options);
            for h in 0..2usize {
                let (wide, narrow) = (h * 21, h * q_len as usize);
                for i in 0..q_len as usize {
                    assert_eq!(a.lse.as_ref().unwrap()[wide + i], b.lse.as_ref().unwrap()[narrow + i]);
                    let (x, y) = ((wide + i) * 8, (narrow + i) * 8);
                    assert_eq!(a.out[x..x + 8], b.out[y..y + 8], "row {i} of {q_len} on {kv_len}\n{long}");
                }
            }
        }
    }
}

#[test]
fn query_counts_from_the_device_are_clamped() {
    let gpu = gpu!();
    let problem = with_stats([6, 1, 1, 9, 67, 8, 8]).causal(Alignment::BottomRightValid);
    let mut case = padded(problem.clone(), &[0, 9, 0, 9, 9, 8], 11);
    let table = [-5, 1_000_000_000, i32::MIN, i32::MAX, 10, 8].map(|x: i32| x as u32);
    case.q_len = Some(vec![0, 9, 0, 9, 9, 8]);
    for kernel in crate::common::KERNELS {
        let plan = plan(gpu, &problem, &PlanOptions::kernel(kernel));
        let bench = Bench::with_tables(gpu, &plan, &case, &table);
        run_bench(gpu, &plan, &bench);
        assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
    }
}

/// Valid rows end before, in and after the rows of a slice.
#[test]
fn query_counts_in_slices_of_rows() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        let problem = with_stats([2, 1, 1, 700, 9, 8, 8]).causal(Alignment::BottomRightValid);
        let case = padded(problem, &[333, 0], 12);
        let options = PlanOptions::kernel(kernel);
        let whole = plan(gpu, &case.problem, &options);
        let mut caps = gpu.attention.caps().clone();
        caps.max_storage_buffer_binding_size = 18000;
        let parts = Plan::new(&case.problem, &caps, &options).unwrap();
        assert!(parts.slices().len() >= 4, "{parts}");
        let (a, b) =
            (crate::common::run_plan(gpu, &whole, &case), crate::common::run_plan(gpu, &parts, &case));
        assert_right(gpu, &whole, &case, &case.truth(), &a);
        assert_same_bits(&a, &b, "whole and in parts");
    }
}

#[test]
fn query_counts_of_scores_on_demand() {
    let gpu = gpu!();
    let problem =
        with_stats([2, 2, 1, 9, 21, 8, 8]).softcap(3.0).causal(Alignment::BottomRightValid).with_kv_len();
    let mut case = padded(problem, &[4, 7], 13);
    case.kv_len = Some(vec![20, 3]);
    for stage in ScoreStage::ALL {
        for (b, rows) in [(0, 0..9u32), (0, 5..9), (1, 6..8)] {
            let got = gpu
                .attention
                .scores_blocking(&gpu.queue, &case.problem, &case.inputs(), stage, [b, 1], rows.clone())
                .unwrap();
            for (i, got) in rows.zip(got.chunks(21)) {
                let want = reference::scores_at(&case.problem, &case.inputs(), stage, [b, 1, i]).unwrap();
                let compared = reference::compare(got, &want);
                assert!(compared.passes(), "{stage:?} of row {i} of batch {b}: {compared:?}");
            }
        }
    }
}
