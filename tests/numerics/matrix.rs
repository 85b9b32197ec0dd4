//! The matrix kernel's own edges. What it shares with the others comes by `check_all`, which gives it every case in f16.

use crate::common::{
    Case, Gpu, assert_right, assert_same_bits, check, indices, plan, run, run_plan, say, shape, test_name,
};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, DType, Kernel, MaskFormat, MatrixTiles, Plan, PlanOptions, Problem, QkNorm, Scale,
    Stats, Tensor, TileMask, Window, reference,
};

const MATRIX: Kernel = Kernel::Matrix;

fn halves(numbers: [u32; 7]) -> Problem {
    let mut problem = Problem::new(shape(numbers)).dtypes(DType::F16, DType::F16, DType::F16, DType::F32);
    problem.stats = Stats::ALL;
    problem
}

fn halves_case(problem: Problem, seed: u64) -> Case {
    // Weights in f16 are known to 2^-11.
    Case::new(problem, seed).vacuous_above(2e-3)
}

/// Whether there is anything to test here; says so where there is not.
fn has_matrices(gpu: &Gpu) -> bool {
    if !gpu.has_matrices() {
        say(&format!("LEFT OUT for want of cooperative matrices of f16: {}", test_name()));
    }
    gpu.has_matrices()
}

/// Around the size of a matrix in every direction, and where there is next to nothing.
#[test]
fn hostile_shapes() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    for (sq, sk, dqk, dv) in [
        (1, 1, 1, 1),
        (1, 0, 8, 8),
        (1, 33, 64, 64),
        (2, 8, 7, 9),
        (7, 9, 8, 8),
        (8, 7, 9, 7),
        (9, 65, 3, 5),
        (33, 31, 63, 65),
        (65, 32, 20, 12),
        (40, 130, 128, 40),
        (17, 40, 5, 256),
        (17, 40, 256, 200),
    ] {
        check(gpu, &halves_case(halves([2, 4, 2, sq, sk, dqk, dv]), 1), &PlanOptions::kernel(MATRIX));
    }
}

/// Tiles before, on and after the edges of causal masks and windows, with rows in more than one block.
#[test]
fn causal_and_windows() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    let base = || halves([1, 2, 1, 70, 150, 16, 16]);
    let window = |left, right, keep_first| Window { left, right, keep_first };
    for problem in [
        base().causal(Alignment::BottomRight),
        base().causal(Alignment::TopLeft),
        base().causal(Alignment::Offset(-20)),
        base().causal(Alignment::PerBatch).with_kv_len(),
        base().window(window(Some(9), Some(5), 0)),
        base().window(window(Some(40), None, 3)).causal(Alignment::BottomRight),
        base().window(window(Some(0), Some(0), 0)),
        base().window(window(None, Some(33), 0)).with_q_len(),
    ] {
        check(gpu, &halves_case(problem, 2), &PlanOptions::kernel(MATRIX));
    }
}

/// A product of matrices multiplies every weight with every value of its tile, weights of 0 too: NaN and infinity at keys that some rows do not
/// see must not reach these.
#[test]
fn hidden_values_that_are_not_finite() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    let (sq, sk) = (21u32, 70u32);
    // Bad values at every third key, shown to every third row.
    let bad_key = |j: u32| j % 3 == 1;
    let sees_bad = |i: u32| i % 3 == 2;
    let all = Broadcast([1, 1, sq, sk]);
    let mut masked = halves_case(halves([1, 2, 1, sq, sk, 12, 20]).mask(MaskFormat::Bytes, all), 3);
    masked.mask = Some((0..sq * sk).map(|n| u8::from(!bad_key(n % sk) || sees_bad(n / sk))).collect());
    let mut biased = halves_case(halves([1, 2, 1, sq, sk, 12, 20]).bias(DType::F32, all), 3);
    let hidden = |n: u32| bad_key(n % sk) && !sees_bad(n / sk);
    biased.bias = Some((0..sq * sk).map(|n| if hidden(n) { f32::NEG_INFINITY } else { 0.25 }).collect());
    for mut case in [masked, biased] {
        case.fill(Tensor::V, |[_, h, j, d]| match j % 9 {
            1 => f32::NAN,
            4 => f32::INFINITY,
            7 => f32::NEG_INFINITY,
            _ => ((h + j + d) % 5) as f32 - 2.0,
        });
        let truth = case.truth().of_kernel(MATRIX);
        for classes in [TileMask::Each, TileMask::Classified] {
            let got = run(gpu, &case, &PlanOptions::kernel(MATRIX).tile_mask(classes));
            let view = case.problem.view(Tensor::Out).unwrap();
            for at in indices(&case.problem, Tensor::Out) {
                let n = view.index(at) as usize;
                let right = reference::compare(&got.out[n..=n], &truth.out[n..=n]).passes();
                match sees_bad(at[2]) {
                    // What it comes to is not told, but it is no number.
                    true => assert!(!got.out[n].is_finite(), "{at:?}: {}", got.out[n]),
                    false => assert!(right, "{at:?}: {} and not {:?}", got.out[n], truth.out[n]),
                }
            }
            // What v holds is no matter of the scores.
            assert!(reference::compare(got.lse.as_ref().unwrap(), &truth.lse).passes());
            assert!(reference::compare(got.entropy.as_ref().unwrap(), &truth.entropy).passes());
        }
    }
    // Beyond a causal edge, within the tile of the rows that do see it.
    let mut case = halves_case(halves([1, 1, 1, 20, 20, 8, 8]).causal(Alignment::TopLeft), 4);
    (0..8).for_each(|d| case.set(Tensor::V, [0, 0, 13, d], f32::NAN));
    let (got, truth) = (run(gpu, &case, &PlanOptions::kernel(MATRIX)), case.truth().of_kernel(MATRIX));
    assert!(reference::compare(&got.out[..13 * 8], &truth.out[..13 * 8]).passes());
    assert!(got.out[13 * 8..].iter().all(|x| x.is_nan()));
}

/// A row shares its matrices with others, and NaN in it is its own.
#[test]
fn a_bad_query_spoils_its_row_alone() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    let clean = halves_case(halves([1, 2, 1, 19, 40, 8, 8]), 5);
    let want = run(gpu, &clean, &PlanOptions::kernel(MATRIX));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut case = clean.clone();
        case.set(Tensor::Q, [0, 1, 10, 3], bad);
        let got = run(gpu, &case, &PlanOptions::kernel(MATRIX));
        for row in (0..38).filter(|row| *row != 19 + 10) {
            assert_eq!(got.out[row * 8..(row + 1) * 8], want.out[row * 8..(row + 1) * 8], "row {row}");
            assert_eq!(got.lse.as_ref().unwrap()[row], want.lse.as_ref().unwrap()[row], "row {row}");
        }
    }
}

/// The ends of f16: products far beyond it, values at its end.
#[test]
fn the_largest_halves() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    let problem = halves([1, 1, 1, 9, 40, 64, 8]).scale(Scale::Value(1e-9));
    let mut case = halves_case(problem, 6).vacuous_above(0.1);
    case.fill(Tensor::Q, |[_, _, i, d]| if (i + d) % 2 == 0 { 65504.0 } else { -65504.0 });
    case.fill(Tensor::K, |[_, _, j, d]| if (j * d) % 3 == 0 { 65504.0 } else { 60000.0 });
    case.fill(Tensor::V, |[_, _, j, d]| if (j + d) % 2 == 0 { 65504.0 } else { -65504.0 });
    check(gpu, &case, &PlanOptions::kernel(MATRIX));
    // All alike: nothing cancels, and sums of 40 such values are beyond f16.
    case.v.fill(65504.0);
    check(gpu, &case, &PlanOptions::kernel(MATRIX));
}

/// One key far above 3000 others whose weights, 2^-18 of its own, would be subnormal in f16 as they are. Together they are a percent, which has to
/// come out as exactly as any other weight.
#[test]
fn small_weights_keep_their_digits() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    let n = 3001;
    let mut case = halves_case(halves([1, 1, 1, 3, n, 8, 8]).scale(Scale::Value(1.0)), 7);
    case.q.fill(0.0);
    (0..3).for_each(|i| case.set(Tensor::Q, [0, 0, i, 0], 1.0));
    case.k.fill(0.0);
    (1..n).for_each(|j| case.set(Tensor::K, [0, 0, j, 0], -12.5 - (j % 7) as f32 / 64.0));
    // What the large one brings is 0, so that the small ones are all there is.
    case.fill(Tensor::V, |[_, _, j, _]| if j == 0 { 0.0 } else { 1.0 });
    let got = check(gpu, &case, &PlanOptions::kernel(MATRIX));
    let truth = case.truth();
    for (x, want) in got.out.iter().zip(&truth.out) {
        // 2^-11 of what they come to, and far from the 2^-11 of the whole that the bound would let pass.
        let relative = (f64::from(*x) - want.value).abs() / want.value;
        assert!(relative < 5e-4, "{x} and {want:?}");
    }
}

/// The bound grows for this kernel and for no other, by what is argued.
#[test]
fn the_bound_is_this_kernels_own() {
    let mut case = halves_case(halves([1, 1, 1, 1, 2, 1, 1]).scale(Scale::Value(0.0)), 8);
    case.v = vec![1.0, -3.0];
    let truth = case.truth();
    for kernel in Kernel::ALL {
        let grown = truth.clone().of_kernel(kernel).out[0].bound - truth.out[0].bound;
        // Weights of a half: half of each |v| to 2^-11, and all of it to 2^-29.
        let want = if kernel == MATRIX { 2.0 / 2048.0 + 4.0 / 536_870_912.0 } else { 0.0 };
        approx::assert_abs_diff_eq!(grown, want, epsilon = 1e-12);
    }
    let twice = truth.clone().of_kernel(MATRIX).of_kernel(MATRIX);
    assert_eq!(twice.out, truth.of_kernel(MATRIX).out, "it grows once");
}

/// The same bits run after run, and however the problem is cut.
#[test]
fn slices_and_runs_agree() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    for problem in [
        halves([3, 4, 2, 37, 40, 8, 8]).causal(Alignment::BottomRight),
        halves([3, 4, 2, 37, 40, 8, 8]).dropout(0.3),
    ] {
        let case = halves_case(problem, 9).vacuous_above(5e-3);
        let options = PlanOptions::kernel(MATRIX);
        let whole = plan(gpu, &case.problem, &options);
        let want = run_plan(gpu, &whole, &case);
        assert_right(gpu, &whole, &case, &case.truth(), &want);
        for _ in 0..5 {
            assert_same_bits(&run_plan(gpu, &whole, &case), &want, "run after run");
        }
        let mut caps = gpu.attention.caps().clone();
        caps.max_compute_workgroups_per_dimension = 2;
        let parts = Plan::new(&case.problem, &caps, &options).unwrap();
        assert!(parts.slices().len() > 3, "{parts}");
        assert_same_bits(&run_plan(gpu, &parts, &case), &want, "in parts");
    }
}

/// Packed sequences, of which the neighbours hold NaN.
#[test]
fn packed_sequences() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    let (q, k) = ([0, 5, 5, 42, 43], [0, 20, 21, 90, 95]);
    let mut problem = halves([4, 4, 2, 37, 69, 8, 8]).causal(Alignment::BottomRight);
    (problem.packed_q, problem.packed_k) = (Some(43), Some(95));
    let mut case = halves_case(problem, 10);
    (case.cu_seqlens_q, case.cu_seqlens_k) = (Some(q.to_vec()), Some(k.to_vec()));
    let want = check(gpu, &case, &PlanOptions::kernel(MATRIX));
    for tensor in [Tensor::Q, Tensor::K, Tensor::V] {
        let starts = if tensor == Tensor::Q { &q } else { &k };
        for at in indices(&case.problem, tensor) {
            if (starts[2]..starts[3]).contains(&at[2]) {
                case.set(tensor, at, f32::NAN);
            }
        }
    }
    let got = run(gpu, &case, &PlanOptions::kernel(MATRIX));
    let view = case.problem.view(Tensor::Out).unwrap();
    for at in indices(&case.problem, Tensor::Out) {
        let n = view.index(at) as usize;
        if !(q[2]..q[3]).contains(&at[2]) {
            assert_eq!(got.out[n], want.out[n], "{at:?}");
        }
    }
}

/// Sizes that the tuner may come to, with every part of the kernel that depends on them.
#[test]
fn sizes_by_hand() {
    let gpu = gpu!();
    if !has_matrices(gpu) {
        return;
    }
    let subgroup = gpu.attention.caps().max_subgroup_size;
    let problem = halves([1, 2, 1, 70, 75, 20, 44]).causal(Alignment::Offset(4)).qk_norm(QkNorm::rms(1e-6));
    let mut ran = 0;
    for &size in &gpu.attention.caps().matrix_sizes.clone() {
        for (subgroups, row_blocks, key_blocks, out_blocks, abreast) in [
            (1, 1, 1, 1, 1),
            (1, 4, 2, 2, 1),
            (4, 4, 4, 4, 2),
            (8, 2, 1, 8, 4),
            (2, 4, 1, 2, 2),
            (3, 2, 2, 1, 1),
            (2, 2, 2, 2, 16),
            (1, 2, 8, 1, 4),
        ] {
            let threads = subgroup * subgroups;
            let matrix = MatrixTiles { size, threads, row_blocks, key_blocks, out_blocks, abreast };
            let case = halves_case(problem.clone(), 11);
            match gpu.attention.plan_with(&case.problem, &PlanOptions::matrix(matrix)) {
                Ok(_) => {
                    check(gpu, &case, &PlanOptions::matrix(matrix));
                    ran += 1;
                }
                Err(error) => assert!(error.to_string().contains("matrix."), "{error}"),
            }
        }
    }
    assert!(ran >= 4, "{ran}");
}
