//! Sequences of different lengths, one after the other.

use crate::common::{
    Bench, Case, assert_right, assert_same_bits, check_all, indices, plan, plan_as_card, run, run_bench,
    run_plan, shape,
};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, DType, Kernel, Layout, LengthScale, MaskFormat, NormGains, Normalizer, Plan,
    PlanOptions, Problem, QkNorm, ScoreStage, Sequences, SigmoidBias, Sink, Stats, Strides, Temperature,
    Tensor, Window, reference,
};

/// Starts of sequences of these lengths.
fn starts(lengths: &[u32]) -> Vec<u32> {
    let mut starts = vec![0];
    starts.extend(lengths.iter().scan(0, |sum, n| {
        *sum += n;
        Some(*sum)
    }));
    starts
}

/// A problem over sequences of these lengths, from one without sizes of its own.
fn packed(problem: Problem, q: &[u32], k: &[u32], seed: u64) -> Case {
    let most = |lengths: &[u32]| *lengths.iter().max().unwrap();
    let mut problem = problem.packed(q.iter().sum(), k.iter().sum());
    (problem.shape.batch, problem.shape.seq_q, problem.shape.seq_k) = (q.len() as u32, most(q), most(k));
    problem.stats = match problem.normalizer {
        Normalizer::Softmax => Stats::ALL,
        _ => Stats { row_max: true, ..Stats::default() },
    };
    let mut case = Case::new(problem, seed);
    (case.cu_seqlens_q, case.cu_seqlens_k) = (Some(starts(q)), Some(starts(k)));
    case
}

fn problem() -> Problem {
    Problem::new(shape([0, 4, 2, 0, 0, 8, 8]))
}

const Q: [u32; 9] = [1, 33, 0, 5, 32, 64, 7, 3, 65];
const K: [u32; 9] = [1, 33, 9, 0, 70, 20, 7, 129, 65];

#[test]
fn every_layout_with_every_kernel() {
    let gpu = gpu!();
    let (q, k): (u64, u64) = (Q.iter().map(|&n| u64::from(n)).sum(), K.iter().map(|&n| u64::from(n)).sum());
    let odd =
        |rows: u64| Layout::Strided(Strides { offset: 3, batch: 0, head: rows * 9 + 5, seq: 9, dim: 1 });
    for layouts in [[Layout::Bshd; 4], [Layout::Bhsd; 4], [Layout::Bhsd, Layout::Bshd, odd(k), odd(q)]] {
        let [a, b, c, d] = layouts;
        check_all(gpu, &packed(problem().layouts(a, b, c, d), &Q, &K, 1));
    }
}

/// Everything that counts from a row or a key counts within its sequence.
#[test]
fn every_option() {
    let gpu = gpu!();
    let dense = Broadcast([9, 4, 65, 129]);
    let options: [fn(Problem, Broadcast) -> Problem; 14] = [
        |p, _| p.qk_norm(QkNorm::rms(1e-6).gains(NormGains::PerHead)).causal(Alignment::BottomRight),
        |p, _| p.with_documents().layout(Layout::Bshd).with_q_len(),
        |p, _| {
            p.normalizer(Normalizer::Sigmoid { bias: SigmoidBias::MinusLogVisible }).with_q_len().dropout(0.2)
        },
        |p, _| p.normalizer(Normalizer::Sigmoid { bias: SigmoidBias::MinusLogSeqK }),
        |p, _| p.causal(Alignment::BottomRight),
        |p, _| p.causal(Alignment::TopLeft).sink(Sink::PerHead),
        |p, _| p.causal(Alignment::PerBatch).with_alibi(),
        |p, _| p.window(Window { left: Some(6), right: Some(3), keep_first: 2 }),
        |p, _| p.window(Window::last(5)).align(Alignment::BottomRightValid).with_kv_len().with_q_len(),
        |p, d| p.mask(MaskFormat::Bits, d).temperature(Temperature::PerRow),
        |p, d| p.mask(MaskFormat::Bytes, Broadcast([1, 1, d.0[2], d.0[3]])).layout(Layout::Bshd).softcap(5.0),
        |p, d| p.bias(DType::F32, d).causal(Alignment::BottomRight),
        |p, d| p.bias(DType::F16, Broadcast([9, 1, d.0[2], 1])).dtype(DType::F16).with_kv_len(),
        |p, _| {
            p.length_scale(LengthScale::Ssmax)
                .causal(Alignment::BottomRight)
                .temperature(Temperature::PerHead)
        },
    ];
    for (n, option) in options.into_iter().enumerate() {
        check_all(gpu, &packed(option(problem(), dense), &Q, &K, n as u64).vacuous_above(3e-2));
    }
}

/// Only one side packed: queries of different lengths on a padded cache, and the other way round.
#[test]
fn one_side_of_two() {
    let gpu = gpu!();
    for causal in [Alignment::BottomRight, Alignment::BottomRightValid] {
        let mut queries = packed(problem().causal(causal).with_kv_len(), &Q, &K, 3);
        let mut keys = queries.clone();
        queries.problem.packed_k = None;
        keys.problem.packed_q = None;
        for mut case in [queries, keys] {
            let fresh = Case::new(case.problem.clone(), 3);
            (case.q, case.k, case.v) = (fresh.q, fresh.k, fresh.v);
            case.kv_len = Some(K.to_vec());
            case.cu_seqlens_q = case.cu_seqlens_q.filter(|_| case.problem.packed_q.is_some());
            case.cu_seqlens_k = case.cu_seqlens_k.filter(|_| case.problem.packed_k.is_some());
            check_all(gpu, &case);
        }
    }
}

/// Each sequence comes out, to the bit, as it does alone.
#[test]
fn a_packed_sequence_is_the_sequence_alone() {
    let gpu = gpu!();
    for layout in [Layout::Bhsd, Layout::Bshd] {
        for kernel in crate::common::KERNELS {
            let case = packed(problem().layout(layout).causal(Alignment::BottomRight), &Q, &K, 4);
            let whole = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
            let got = run_plan(gpu, &whole, &case);
            let options = whole.tiles().map_or(PlanOptions::kernel(kernel), PlanOptions::tiles);
            let tables = case.tables();
            let sequences = Sequences::new(&case.problem, &tables);
            let (first_q, first_k) = (starts(&Q), starts(&K));
            for b in 0..Q.len() {
                let mut alone = Problem::new(shape([1, 4, 2, Q[b], K[b], 8, 8])).layout(layout);
                alone = alone.causal(Alignment::BottomRight);
                alone.stats = Stats::ALL;
                let mut one = Case::new(alone, 4);
                for (tensor, from, first) in [
                    (Tensor::Q, &case.q, first_q[b]),
                    (Tensor::K, &case.k, first_k[b]),
                    (Tensor::V, &case.v, first_k[b]),
                ] {
                    let view = case.problem.view(tensor).unwrap();
                    one.fill(tensor, |[_, h, s, d]| from[view.index([0, h, first + s, d]) as usize]);
                }
                let want = run(gpu, &one, &options);
                let (view, own) =
                    (case.problem.view(Tensor::Out).unwrap(), one.problem.view(Tensor::Out).unwrap());
                for [_, h, i, d] in indices(&one.problem, Tensor::Out) {
                    let a = got.out[view.index([0, h, first_q[b] + i, d]) as usize];
                    let b = want.out[own.index([0, h, i, d]) as usize];
                    assert_eq!(a.to_bits(), b.to_bits(), "{layout:?} {kernel} row {i}");
                }
                for (got, want) in [(&got.lse, &want.lse), (&got.entropy, &want.entropy)] {
                    for h in 0..4 {
                        for i in 0..Q[b] {
                            let a = got.as_ref().unwrap()[sequences.row_number([b as u32, h, i])];
                            let b = want.as_ref().unwrap()[(h * Q[b] + i) as usize];
                            assert_eq!(a.to_bits(), b.to_bits());
                        }
                    }
                }
            }
        }
    }
}

/// What a sequence holds reaches no row of its neighbours.
#[test]
fn nothing_leaks_into_the_neighbours() {
    let gpu = gpu!();
    let clean = packed(problem(), &Q, &K, 5);
    let (first_q, first_k) = (starts(&Q), starts(&K));
    for kernel in crate::common::KERNELS {
        let want = run(gpu, &clean, &PlanOptions::kernel(kernel));
        for b in [1, 4, 6] {
            let mut case = clean.clone();
            for (tensor, starts) in [(Tensor::Q, &first_q), (Tensor::K, &first_k), (Tensor::V, &first_k)] {
                for at in indices(&clean.problem, tensor) {
                    if (starts[b]..starts[b + 1]).contains(&at[2]) {
                        case.set(tensor, at, f32::NAN);
                    }
                }
            }
            let got = run(gpu, &case, &PlanOptions::kernel(kernel));
            let view = clean.problem.view(Tensor::Out).unwrap();
            for at in indices(&clean.problem, Tensor::Out) {
                let n = view.index(at) as usize;
                if !(first_q[b]..first_q[b + 1]).contains(&at[2]) {
                    assert_eq!(got.out[n], want.out[n], "{at:?} with NaN in sequence {b}, {kernel}");
                }
            }
        }
    }
}

/// Whatever a device wrote into the tables, nothing but rows of out is touched (the guards around all buffers say so), and
/// sequences that make sense come out right.
#[test]
fn wild_prefix_sums_touch_nothing_else() {
    let gpu = gpu!();
    let case = packed(problem().causal(Alignment::BottomRight), &Q, &K, 6);
    let (total_q, total_k) = (case.problem.packed_q.unwrap(), case.problem.packed_k.unwrap());
    let wild = [0i32, -1, i32::MIN, i32::MAX, 1_000_000_000, 3, 7, -40, total_q as i32 - 1, total_q as i32];
    for kernel in crate::common::KERNELS {
        let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
        for turn in 0..10 {
            let table: Vec<u32> =
                (0..20).map(|n| if n == 0 { 0 } else { wild[(n * 7 + turn * 3) % 10] as u32 }).collect();
            let bench = Bench::with_tables(gpu, &plan, &case, &table);
            run_bench(gpu, &plan, &bench);
            for (name, buffer) in [("out", &bench.out), ("stats", bench.stats.as_ref().unwrap())] {
                buffer.read(gpu, name);
            }
        }
        // A short sequence, and the rest in the next: what is cut off at the longest is not written.
        let (q, k) = ([0, 3, 3 + 65], [0, 20, 20 + 129]);
        let mut table = vec![total_q; 10];
        table[..3].copy_from_slice(&q);
        let mut keys = vec![total_k; 10];
        keys[..3].copy_from_slice(&k);
        table.extend(keys);
        let bench = Bench::with_tables(gpu, &plan, &case, &table);
        run_bench(gpu, &plan, &bench);
        let out = bench.out.read(gpu, "out");
        // The tables of the first two sequences, which the reference can be given.
        let mut two = case.clone();
        two.problem.shape.batch = 2;
        two.problem = two.problem.packed(68, 149);
        (two.cu_seqlens_q, two.cu_seqlens_k) = (Some(q.to_vec()), Some(k.to_vec()));
        two.fill(Tensor::Q, |[_, h, s, d]| case.q[((h * total_q + s) * 8 + d) as usize]);
        two.fill(Tensor::K, |[_, h, s, d]| case.k[((h * total_k + s) * 8 + d) as usize]);
        two.fill(Tensor::V, |[_, h, s, d]| case.v[((h * total_k + s) * 8 + d) as usize]);
        (two.q, two.k, two.v) =
            (two.q[..4 * 68 * 8].to_vec(), two.k[..2 * 149 * 8].to_vec(), two.v[..2 * 149 * 8].to_vec());
        let truth = two.truth();
        let got: Vec<f32> = (0..4 * 68 * 8usize)
            .map(|n| f32::from_bits(out[(n / (68 * 8)) * total_q as usize * 8 + n % (68 * 8)]))
            .collect();
        assert!(reference::compare(&got, &truth.out).passes(), "{kernel}");
    }
}

/// Cut by batches, heads and rows: what is bound is all rows of the heads.
#[test]
fn in_slices() {
    let gpu = gpu!();
    for layout in [Layout::Bhsd, Layout::Bshd] {
        for kernel in crate::common::KERNELS {
            let options = PlanOptions::kernel(kernel);
            let problem =
                problem().layout(layout).causal(Alignment::BottomRight).temperature(Temperature::PerRow);
            let case = packed(problem, &Q, &K, 7).vacuous_above(1e-2);
            let whole = plan(gpu, &case.problem, &options);
            let want = run_plan(gpu, &whole, &case);
            assert_right(gpu, &whole, &case, &case.truth(), &want);
            let mut cuts: Vec<fn(&mut wgpu_attention::Caps)> =
                vec![|caps| caps.max_compute_workgroups_per_dimension = 3];
            if layout == Layout::Bhsd {
                cuts.push(|caps| caps.max_storage_buffer_binding_size = 20_000);
            }
            for cut in cuts {
                let mut caps = gpu.attention.caps().clone();
                cut(&mut caps);
                let parts = Plan::new(&case.problem, &caps, &options).unwrap();
                assert!(parts.slices().len() > 1, "{parts}");
                assert_same_bits(&want, &run_plan(gpu, &parts, &case), "whole and in parts");
            }
        }
    }
}

/// One head after another is all that packed heads can be cut into; where even one does not fit, that is said.
#[test]
fn what_does_not_fit_is_refused() {
    let caps = |bytes| {
        let mut caps = wgpu_attention::Caps::webgpu_default();
        caps.max_storage_buffer_binding_size = bytes;
        caps
    };
    let packed = Problem::new(shape([64, 8, 8, 100, 100, 64, 64])).packed(6400, 6400);
    let of = |problem: &Problem, bytes| Plan::new(problem, &caps(bytes), &PlanOptions::kernel(Kernel::Tiled));
    assert_eq!(of(&packed, 2 * 6400 * 64 * 4).unwrap().slices().len(), 4);
    let error = of(&packed, 6400 * 64 * 4 - 16).unwrap_err().to_string();
    assert!(error.contains("max_storage_buffer_binding_size"), "{error}");
    let error = of(&packed.layout(Layout::Bshd), 6400 * 64 * 4 * 7).unwrap_err().to_string();
    assert!(error.contains("max_storage_buffer_binding_size"), "{error}");
}

#[test]
fn scores_on_demand() {
    let gpu = gpu!();
    let dense = Broadcast([9, 4, 65, 129]);
    let options = problem()
        .layout(Layout::Bshd)
        .softcap(3.0)
        .causal(Alignment::BottomRight)
        .with_kv_len()
        .with_q_len()
        .temperature(Temperature::PerRow)
        .bias(DType::F32, dense)
        .mask(MaskFormat::Bits, Broadcast([9, 1, 1, 129]));
    let sigmoid = options.clone().normalizer(Normalizer::Sigmoid { bias: SigmoidBias::MinusLogSeqK });
    let cases = [packed(options, &Q, &K, 8), packed(sigmoid, &Q, &K, 8)];
    for (case, stage) in cases.iter().flat_map(|case| ScoreStage::ALL.map(|stage| (case, stage))) {
        for (b, rows) in [(0, 0..1u32), (1, 3..9), (2, 0..0), (3, 0..5), (4, 0..32), (8, 64..65)] {
            let got = gpu
                .attention
                .scores_blocking(&gpu.queue, &case.problem, &case.inputs(), stage, [b, 3], rows.clone())
                .unwrap();
            let keys = K[b as usize] as usize;
            assert_eq!(got.len(), rows.len() * keys);
            for (i, got) in rows.zip(got.chunks(keys.max(1))) {
                let want = reference::scores_at(&case.problem, &case.inputs(), stage, [b, 3, i]).unwrap();
                let compared = reference::compare(got, &want);
                assert!(compared.passes(), "{stage:?} of row {i} of sequence {b}: {compared:?}");
            }
        }
    }
    let case = &cases[0];
    let beyond = gpu.attention.scores_blocking(
        &gpu.queue,
        &case.problem,
        &case.inputs(),
        ScoreStage::Raw,
        [3, 0],
        0..6,
    );
    assert_eq!(crate::common::value_error(beyond).0, "rows");
}

/// The one-shot call, with 16-bit storage of odd counts, and the f32 twin.
#[test]
fn one_shot_and_twin() {
    let gpu = gpu!();
    let mut base = Problem::new(shape([0, 3, 1, 0, 0, 5, 7])).layout(Layout::Bshd).dtype(DType::F16);
    base = base.causal(Alignment::BottomRight);
    let case = packed(base, &[3, 0, 5], &[2, 4, 5], 9);
    let got = gpu.attention.run_blocking(&gpu.queue, &case.problem, &case.inputs()).unwrap();
    let truth = case.truth();
    assert!(truth.compare(&got).passes());
    let twin = reference::twin(&plan_as_card(gpu, &case.problem), &case.inputs()).unwrap();
    assert!(truth.compare(&twin).passes());
}

#[test]
fn prefix_sums_are_checked() {
    let problem = Problem::new(shape([3, 1, 1, 4, 6, 4, 4])).packed(6, 9);
    let zeros = [0.0; 36];
    let inputs = wgpu_attention::Inputs::new(&zeros[..24], &zeros, &zeros);
    let check = |q: &[u32], k: &[u32]| inputs.cu_seqlens(q, k).check(&problem);
    let good = ([0, 2, 2, 6], [0, 6, 7, 9]);
    check(&good.0, &good.1).unwrap();
    for (q, k, field, value) in [
        ([1, 2, 2, 6], good.1, "cu_seqlens_q", "1 at 0"),
        ([0, 3, 2, 6], good.1, "cu_seqlens_q", "2 at 2"),
        ([0, 5, 5, 6], good.1, "cu_seqlens_q", "5 at 1"),
        ([0, 1, 2, 5], good.1, "cu_seqlens_q", "5 at 3"),
        ([0, 1, 2, u32::MAX], good.1, "cu_seqlens_q", "4294967295 at 3"),
        (good.0, [0, 7, 7, 9], "cu_seqlens_k", "7 at 1"),
        (good.0, [0, 6, 7, 8], "cu_seqlens_k", "8 at 3"),
    ] {
        assert_eq!(crate::common::value_error(check(&q, &k)), (field, value.to_owned()));
    }
    assert!(matches!(
        check(&good.0[..3], &good.1),
        Err(wgpu_attention::Error::Length { field: "cu_seqlens_q", .. })
    ));
    assert!(matches!(
        inputs.check(&problem),
        Err(wgpu_attention::Error::Missing { field: "cu_seqlens_q", .. })
    ));
    for wrong in [problem.clone().packed(13, 9), problem.clone().packed(6, 19)] {
        let (field, _) = crate::common::value_error(wrong.check());
        assert!(field.starts_with("packed_"));
    }
}

/// No sequence, no row and no key are nothing to do, and no error.
#[test]
fn empty_ones() {
    let gpu = gpu!();
    for (q, k) in [(vec![0, 0], vec![0, 5]), (vec![3, 1], vec![0, 0]), (vec![0], vec![0])] {
        check_all(gpu, &packed(problem().sink(Sink::Zero), &q, &k, 10));
    }
    let none = Problem::new(shape([0, 1, 1, 0, 0, 4, 4])).packed(0, 0);
    let inputs = wgpu_attention::Inputs::new(&[], &[], &[]).cu_seqlens(&[0], &[0]);
    assert!(gpu.attention.run_blocking(&gpu.queue, &none, &inputs).unwrap().out.is_empty());
}
