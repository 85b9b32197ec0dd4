//! NaN and infinity in keys that a row does not see must not reach that row: hidden means hidden, not weight 0.

use crate::common::{Case, Rng, assert_right, check, plan, row_paths::row_paths, run, run_plan, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, DType, Kernel, MaskFormat, PlanOptions, Problem, Sink, Stats, Tensor, Tiles,
    Window, reference,
};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

fn with_stats(mut problem: Problem) -> Problem {
    problem.stats = Stats::ALL;
    problem
}

/// v by way of workgroup memory and straight from its buffer, the naive kernel, and rows of which keys are staged or loaded by all.
fn all_paths() -> Vec<PlanOptions> {
    let tiles = Tiles { threads: 32, row_groups: 4, keys_per_thread: 2, dim_chunk: 1, v_chunk: 8 };
    let mut all = vec![
        PlanOptions::tiles(tiles),
        PlanOptions::tiles(Tiles { v_chunk: 0, ..tiles }),
        PlanOptions::kernel(Kernel::Naive),
    ];
    all.extend(row_paths());
    all
}

#[test]
fn beyond_the_valid_length() {
    let gpu = gpu!();
    let mut case = Case::new(with_stats(Problem::new(shape([5, 2, 1, 9, 50, 8, 8])).with_kv_len()), 1);
    let lens = vec![0, 1, 16, 31, 49];
    case.kv_len = Some(lens.clone());
    let (k, v) = (case.k.clone(), case.v.clone());
    let view = case.problem.view(Tensor::K).unwrap();
    for bad in BAD {
        let plant = |from: &[f32], [b, h, j, d]: [u32; 4]| {
            if j >= lens[b as usize] { bad } else { from[view.index([b, h, j, d]) as usize] }
        };
        case.fill(Tensor::K, |at| plant(&k, at));
        case.fill(Tensor::V, |at| plant(&v, at));
        for options in all_paths() {
            check(gpu, &case, &options);
        }
    }
}

/// One bad key at a time, at every position: rows that do not see it are right, to the bit the same as without it.
#[test]
fn above_the_causal_diagonal() {
    let gpu = gpu!();
    let (sq, sk) = (35, 40);
    let offset = 5;
    let clean =
        Case::new(with_stats(Problem::new(shape([1, 1, 1, sq, sk, 8, 8])).causal(Alignment::BottomRight)), 2);
    for (n, options) in all_paths().into_iter().enumerate() {
        let plan = plan(gpu, &clean.problem, &options);
        let want = run_plan(gpu, &plan, &clean);
        assert_right(gpu, &plan, &clean, &clean.truth(), &want);
        for j in 0..sk {
            let mut case = clean.clone();
            let bad = BAD[(j as usize + n) % 3];
            for d in 0..8 {
                case.set(Tensor::K, [0, 0, j, d], bad);
                case.set(Tensor::V, [0, 0, j, d], bad);
            }
            let got = run_plan(gpu, &plan, &case);
            for i in (0..sq).filter(|&i| j > i + offset) {
                let row = i as usize * 8..(i as usize + 1) * 8;
                assert_eq!(got.out[row.clone()], want.out[row], "row {i} with {bad} in key {j}\n{plan}");
                for (got, want) in [(&got.lse, &want.lse), (&got.entropy, &want.entropy)] {
                    let (got, want) = (got.as_ref().unwrap(), want.as_ref().unwrap());
                    assert_eq!(got[i as usize], want[i as usize], "row {i} with {bad} in key {j}\n{plan}");
                }
            }
        }
    }
}

/// A bad number at one place of v only reaches column d of the rows that see it.
#[test]
fn a_bad_value_stays_in_its_column_head_and_batch() {
    let gpu = gpu!();
    let clean = Case::new(Problem::new(shape([2, 4, 2, 9, 40, 8, 8])), 3);
    let view = clean.problem.view(Tensor::Out).unwrap();
    for options in all_paths() {
        let want = run(gpu, &clean, &options).out;
        let mut rng = Rng::new(3);
        for _ in 0..12 {
            let (b, h, j, d) =
                (rng.below(2) as u32, rng.below(2) as u32, rng.below(40) as u32, rng.below(8) as u32);
            let mut case = clean.clone();
            case.set(Tensor::V, [b, h, j, d], rng.pick(&BAD));
            let got = run(gpu, &case, &options).out;
            for at in crate::common::indices(&clean.problem, Tensor::Out) {
                if at[0] != b || at[1] / 2 != h || at[3] != d {
                    let n = view.index(at) as usize;
                    assert_eq!(got[n], want[n], "{at:?} with a bad v at {:?}", [b, h, j, d]);
                }
            }
        }
    }
}

/// A bad row of q reaches no other row.
#[test]
fn a_bad_query_stays_in_its_row() {
    let gpu = gpu!();
    let clean = Case::new(with_stats(Problem::new(shape([1, 2, 2, 21, 40, 8, 8]))), 4);
    for options in all_paths() {
        let want = run(gpu, &clean, &options);
        for (i, bad) in (0..21).zip(BAD.into_iter().cycle()) {
            let mut case = clean.clone();
            (0..8).for_each(|d| case.set(Tensor::Q, [0, 1, i, d], bad));
            let got = run(gpu, &case, &options);
            for row in (0..42).filter(|&row| row != 21 + i as usize) {
                let at = row * 8..(row + 1) * 8;
                assert_eq!(got.out[at.clone()], want.out[at], "row {row} with {bad} in row {i} of head 1");
                assert_eq!(got.lse.as_ref().unwrap()[row], want.lse.as_ref().unwrap()[row]);
            }
        }
    }
}

/// The tail of a row that is no whole vec4, and the rows beyond the last, are never taken for numbers: layouts with NaN in
/// every gap (`Case::new` puts it there).
#[test]
fn gaps_of_padded_rows() {
    let gpu = gpu!();
    let pad = |heads: u64, seq: u64, row: u64| {
        let strides = wgpu_attention::Strides {
            offset: 1,
            batch: heads * (seq + 3) * row,
            head: (seq + 3) * row,
            seq: row,
            dim: 1,
        };
        wgpu_attention::Layout::Strided(strides)
    };
    for d in [1, 5, 6, 7] {
        let problem = Problem::new(shape([2, 2, 2, 6, 19, d, d])).layouts(
            pad(2, 6, 9),
            pad(2, 19, 9),
            pad(2, 19, 9),
            pad(2, 6, 9),
        );
        let case = Case::new(problem, d.into());
        for options in all_paths() {
            check(gpu, &case, &options);
        }
    }
}

/// A temperature from the device that breaks its rule spoils its own row and no other.
#[test]
fn a_bad_temperature_stays_in_its_row() {
    let gpu = gpu!();
    let problem = Problem::new(shape([1, 2, 2, 9, 40, 8, 8]))
        .temperature(wgpu_attention::Temperature::PerRow)
        .with_lse();
    let mut clean = Case::new(problem, 5);
    clean.temperature = Some(vec![1.0; 18]);
    for options in all_paths() {
        let plan = plan(gpu, &clean.problem, &options);
        let want = run_plan(gpu, &plan, &clean);
        for (row, bad) in [(0, 0.0), (5, -1.0), (9, f32::NAN), (17, f32::INFINITY), (4, 1e-40)] {
            let mut table = vec![1f32.to_bits(); 18];
            table[row] = f32::to_bits(bad);
            let bench = crate::common::Bench::with_tables(gpu, &plan, &clean, &table);
            crate::common::run_bench(gpu, &plan, &bench);
            let got = bench.read(gpu, &plan);
            for i in (0..18).filter(|&i| i != row) {
                assert_eq!(
                    got.out[i * 8..(i + 1) * 8],
                    want.out[i * 8..(i + 1) * 8],
                    "row {i}, {bad} in {row}"
                );
            }
        }
    }
}

/// NaN and infinity in one key and value, hidden from some rows by each kind of mask and in each storage: the rows that do not
/// see it are, to the bit, what they were.
#[test]
fn behind_every_kind_of_mask_in_every_storage() {
    let gpu = gpu!();
    let (sq, sk) = (21, 40);
    let full = Broadcast([2, 2, sq, sk]);
    let masks: [fn(Problem, Broadcast) -> Problem; 10] = [
        |p, _| p.with_documents(),
        |p, full| p.mask(MaskFormat::Bytes, full),
        |p, full| p.mask(MaskFormat::Bits, full),
        |p, full| p.bias(DType::F32, full).softcap(5.0),
        |p, full| p.bias(DType::F16, full),
        |p, full| p.bias(DType::Bf16, full),
        |p, _| p.with_kv_len().with_alibi(),
        |p, _| p.window(Window { left: Some(5), right: Some(4), keep_first: 0 }),
        |p, _| {
            p.window(Window { left: Some(5), right: Some(4), keep_first: 3 }).causal(Alignment::BottomRight)
        },
        |p, full| p.mask(MaskFormat::Bits, full).causal(Alignment::PerBatch).sink(Sink::PerHead).softcap(5.0),
    ];
    let f = DType::F32;
    for dtypes in [[f; 4], [f, DType::F16, DType::Bf16, DType::F16]] {
        for (n, mask) in masks.into_iter().enumerate() {
            let [q, k, v, out] = dtypes;
            let problem = with_stats(Problem::new(shape([2, 2, 1, sq, sk, 8, 8])).dtypes(q, k, v, out));
            let clean = Case::new(mask(problem, full), n as u64).vacuous_above(2e-2);
            let truth = clean.truth();
            let row = |h, i| reference::scores(&clean.problem, &clean.inputs(), [1, h, i]).unwrap();
            let row = |h, i| row(h, i).iter().map(Option::is_some).collect::<Vec<_>>();
            let seen = [0, 1].map(|h| (0..sq).map(|i| row(h, i)).collect::<Vec<_>>());
            // The row kernel refuses soft caps.
            let takes =
                |options: &PlanOptions| options.rows.is_none() || Kernel::Rows.supports(&clean.problem);
            for options in all_paths().into_iter().filter(takes) {
                let plan = plan(gpu, &clean.problem, &options);
                let want = run_plan(gpu, &plan, &clean);
                assert_right(gpu, &plan, &clean, &truth, &want);
                let mut hidden = 0;
                for j in [0, 15, 39] {
                    let mut case = clean.clone();
                    let bad = BAD[(j as usize + n) % 3];
                    for d in 0..8 {
                        case.set(Tensor::K, [1, 0, j, d], bad);
                        case.set(Tensor::V, [1, 0, j, d], bad);
                    }
                    let got = run_plan(gpu, &plan, &case);
                    for row in 0..2 * 2 * sq as usize {
                        let [b, h, i] = [row / 2 / sq as usize, row / sq as usize % 2, row % sq as usize];
                        if b == 1 && seen[h][i][j as usize] {
                            continue;
                        }
                        hidden += usize::from(b == 1);
                        let at = row * 8..(row + 1) * 8;
                        assert_eq!(
                            got.out[at.clone()],
                            want.out[at],
                            "row {row} with {bad} in key {j}\n{plan}"
                        );
                        for (got, want) in [
                            (&got.lse, &want.lse),
                            (&got.entropy, &want.entropy),
                            (&got.row_max, &want.row_max),
                        ] {
                            assert_eq!(
                                got.as_ref().unwrap()[row],
                                want.as_ref().unwrap()[row],
                                "row {row}\n{plan}"
                            );
                        }
                    }
                }
                assert!(hidden > 10, "only {hidden} pairs were hidden\n{plan}");
            }
        }
    }
}
