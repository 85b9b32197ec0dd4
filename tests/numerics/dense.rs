//! Dense masks and additive bias: broadcasting, the last bits of a buffer, and rows that are hidden altogether.

use crate::common::{
    Bench, Case, Guarded, assert_right, assert_same_bits, check, check_all, plan, run, run_bench, shape,
};
use crate::gpu;
use wgpu_attention::{Alignment, Broadcast, DType, MaskFormat, PlanOptions, Problem, Stats, Tensor};

const FORMATS: [MaskFormat; 2] = [MaskFormat::Bytes, MaskFormat::Bits];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

fn problem(numbers: [u32; 7]) -> Problem {
    let mut problem = Problem::new(shape(numbers));
    problem.stats = Stats::ALL;
    problem
}

/// Each of the four sizes whole or 1.
fn broadcasts(full: [u32; 4]) -> impl Iterator<Item = Broadcast> {
    (0..16).map(move |n| Broadcast(std::array::from_fn(|d| if n >> d & 1 == 1 { 1 } else { full[d] })))
}

/// jax-ml/jax#28974, intel/torch-xpu-ops#5090: every way to broadcast, with grouped heads, and rows of 11 pairs, which are no
/// whole bytes and words.
#[test]
fn every_broadcast() {
    let gpu = gpu!();
    for sizes in broadcasts([2, 4, 5, 11]) {
        for format in FORMATS {
            check_all(gpu, &Case::new(problem([2, 4, 2, 5, 11, 8, 8]).mask(format, sizes), 1));
        }
        for dtype in DTYPES {
            check_all(gpu, &Case::new(problem([2, 4, 2, 5, 11, 8, 8]).bias(dtype, sizes), 2));
        }
    }
}

/// A mask of (batch, 1, q, k) is not one of (1, head, q, k), though both have three sizes and here even the same numbers
/// (onnx/onnx#8108).
#[test]
fn batch_and_head_are_not_confused() {
    let gpu = gpu!();
    for format in FORMATS {
        for kernel in gpu.kernels() {
            let with = |sizes| {
                let case = Case::new(problem([2, 2, 2, 5, 11, 8, 8]).mask(format, Broadcast(sizes)), 3);
                check(gpu, &case, &PlanOptions::kernel(kernel)).out
            };
            assert_ne!(with([2, 1, 5, 11]), with([1, 2, 5, 11]));
        }
    }
}

/// microsoft/onnxruntime#26766: a bias for all heads alike was read as one for each.
#[test]
fn one_bias_for_two_heads() {
    let gpu = gpu!();
    for dtype in DTYPES {
        for kernel in gpu.kernels() {
            let with = |heads| {
                let mut case =
                    Case::new(problem([1, 2, 2, 4, 4, 2, 2]).bias(dtype, Broadcast([1, heads, 4, 4])), 4);
                case.bias = Some((0..16 * heads).map(|n| (n % 16) as f32 * 0.25 - 2.0).collect());
                check(gpu, &case, &PlanOptions::kernel(kernel))
            };
            assert_same_bits(&with(1), &with(2), "one bias, and two alike");
        }
    }
}

/// The last pair of a buffer that is exactly as long as it has to be, and what stands behind it in the last word
/// (ggml-org/llama.cpp#16316).
#[test]
fn the_last_pair_of_an_exact_buffer() {
    let gpu = gpu!();
    for (sq, sk) in [(5, 64), (3, 11), (1, 1), (1, 33), (7, 9)] {
        let pairs = (sq * sk) as usize;
        for format in FORMATS {
            for keep in [false, true] {
                for behind in [0x00u8, 0xff] {
                    let mut case = Case::new(
                        problem([1, 1, 1, sq, sk, 8, 8]).mask(format, Broadcast([1, 1, sq, sk])),
                        5,
                    );
                    let mut mask = case.mask.take().unwrap();
                    match format {
                        MaskFormat::Bits => {
                            let (byte, bit) = ((pairs - 1) / 8, (pairs - 1) % 8);
                            mask[byte] &= !(0xffu8 << bit);
                            mask[byte] |= u8::from(keep) << bit | (u16::from(behind) << (bit + 1)) as u8;
                        }
                        _ => mask[pairs - 1] = if keep { 128 } else { 0 },
                    }
                    case.mask = Some(mask.clone());
                    let truth = case.truth();
                    mask.resize(mask.len().next_multiple_of(4), behind);
                    for kernel in crate::common::KERNELS {
                        let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
                        assert_eq!(plan.tensor_bytes(Tensor::Mask), mask.len() as u64);
                        let mut bench = Bench::new(gpu, &plan, &case);
                        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&mask);
                        bench.mask = Some(Guarded::exact(gpu, "mask", &words));
                        run_bench(gpu, &plan, &bench);
                        assert_right(gpu, &plan, &case, &truth, &bench.read(gpu, &plan));
                    }
                }
            }
        }
        for dtype in DTYPES {
            let case = Case::new(problem([1, 1, 1, sq, sk, 8, 8]).bias(dtype, Broadcast([1, 1, sq, sk])), 6);
            let truth = case.truth();
            let mut bytes = dtype.encode(case.bias.as_deref().unwrap());
            // NaN behind the last number, where it leaves half of a word.
            let used = pairs * dtype.bits() as usize / 8;
            bytes[used..].fill(0xff);
            for kernel in crate::common::KERNELS {
                let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
                assert_eq!(plan.tensor_bytes(Tensor::Bias), bytes.len() as u64);
                let mut bench = Bench::new(gpu, &plan, &case);
                let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
                bench.bias = Some(Guarded::exact(gpu, "bias", &words));
                run_bench(gpu, &plan, &bench);
                assert_right(gpu, &plan, &case, &truth, &bench.read(gpu, &plan));
            }
        }
    }
}

/// Rows of -inf are empty, however they are stored and whatever the scores are; rows beside them are not touched.
#[test]
fn rows_of_minus_infinity_are_empty() {
    let gpu = gpu!();
    for dtype in DTYPES {
        let mut case = Case::new(problem([1, 2, 1, 6, 70, 8, 8]).bias(dtype, Broadcast([1, 1, 6, 70])), 7);
        let hidden = |i: usize| i == 0 || i == 3 || i == 5;
        case.bias = Some((0..420).map(|n| if hidden(n / 70) { f32::NEG_INFINITY } else { 0.5 }).collect());
        check_all(gpu, &case);
        for kernel in gpu.kernels() {
            let got = check(gpu, &case, &PlanOptions::kernel(kernel));
            for row in (0..12).filter(|row| hidden(row % 6)) {
                assert_eq!(got.out[row * 8..row * 8 + 8], [0.0; 8]);
                assert_eq!(got.lse.as_ref().unwrap()[row], f32::NEG_INFINITY);
                assert_eq!(got.row_max.as_ref().unwrap()[row], f32::NEG_INFINITY);
                assert_eq!(got.entropy.as_ref().unwrap()[row], 0.0);
            }
        }
    }
}

/// ggml-org/llama.cpp#12776: -inf for the first half of the keys, so that whole tiles are hidden before the first key.
#[test]
fn tiles_of_minus_infinity_come_first() {
    let gpu = gpu!();
    for dtype in DTYPES {
        let mut case =
            Case::new(problem([1, 1, 1, 1, 2048, 8, 8]).bias(dtype, Broadcast([1, 1, 1, 2048])), 8);
        case.bias = Some((0..2048).map(|j| if j < 1024 { f32::NEG_INFINITY } else { 0.0 }).collect());
        check_all(gpu, &case);
    }
}

/// The least finite number, in use for -inf elsewhere, hides a key beside others; a row of nothing else is a row like any.
#[test]
fn the_least_finite_bias() {
    let gpu = gpu!();
    for (dtype, least) in [(DType::F32, f32::MIN), (DType::F16, -65504.0), (DType::Bf16, -3.389_531_4e38)] {
        let mut case = Case::new(problem([1, 1, 1, 4, 70, 8, 8]).bias(dtype, Broadcast([1, 1, 4, 70])), 9);
        case.bias = Some((0..280).map(|n| if n % 70 >= 20 * (n / 70) { least } else { 0.0 }).collect());
        let truth = case.truth();
        for kernel in crate::common::KERNELS {
            let got = run(gpu, &case, &PlanOptions::kernel(kernel));
            let finite = |list: &[f32]| list.iter().all(|x| x.is_finite());
            assert!(
                finite(&got.out)
                    && finite(got.lse.as_ref().unwrap())
                    && finite(got.entropy.as_ref().unwrap())
            );
            let out = wgpu_attention::reference::compare(&got.out[8..], &truth.out[8..]);
            assert!(out.passes() && out.max_abs < 1e-5, "{dtype:?} {kernel}: {out:?}");
            for (got, truth) in
                [(&got.lse, &truth.lse), (&got.entropy, &truth.entropy), (&got.row_max, &truth.row_max)]
            {
                let it = wgpu_attention::reference::compare(&got.as_ref().unwrap()[1..], &truth[1..]);
                assert!(it.passes() && it.max_abs < 1e-4, "{dtype:?} {kernel}: {it:?}");
            }
            // Row 0 holds nothing else: scores drown in numbers of that size, and what is left is a mean.
            if dtype != DType::F16 {
                for d in 0..8 {
                    let mean = (0..70).map(|j| case.v[j * 8 + d]).sum::<f32>() / 70.0;
                    approx::assert_abs_diff_eq!(got.out[d], mean, epsilon = 1e-5);
                }
            }
        }
    }
}

/// NaN or +inf in the bias of one row spoils that row and no other.
#[test]
fn a_bad_bias_stays_in_its_row() {
    let gpu = gpu!();
    for dtype in DTYPES {
        let clean = Case::new(problem([1, 2, 1, 9, 40, 8, 8]).bias(dtype, Broadcast([1, 2, 9, 40])), 10);
        for kernel in crate::common::KERNELS {
            let options = PlanOptions::kernel(kernel);
            let want = run(gpu, &clean, &options);
            for (row, bad) in [(0, f32::NAN), (7, f32::INFINITY), (17, f32::NAN), (12, f32::INFINITY)] {
                let mut case = clean.clone();
                case.bias.as_mut().unwrap()[row * 40 + 5 * row % 40] = bad;
                let got = run(gpu, &case, &options);
                for i in (0..18).filter(|&i| i != row) {
                    assert_eq!(
                        got.out[i * 8..(i + 1) * 8],
                        want.out[i * 8..(i + 1) * 8],
                        "row {i}, {bad} in {row}"
                    );
                    assert_eq!(got.lse.as_ref().unwrap()[i], want.lse.as_ref().unwrap()[i]);
                }
            }
        }
    }
}

/// tenstorrent/tt-metal#54833: a causal mask as a mask, as a bias and as an option are the same, at every length.
#[test]
fn a_causal_mask_in_every_form() {
    let gpu = gpu!();
    for s in [16, 31, 32, 40, 65] {
        let sizes = Broadcast([1, 1, s, s]);
        let sees = |n: u32| n % s <= n / s;
        for kernel in gpu.kernels() {
            let options = PlanOptions::kernel(kernel);
            let plain = problem([1, 1, 1, s, s, 64, 64]);
            let flag = check(gpu, &Case::new(plain.clone().causal(Alignment::TopLeft), 11), &options);
            for dtype in DTYPES {
                let mut case = Case::new(plain.clone().bias(dtype, sizes), 11);
                case.bias = Some((0..s * s).map(|n| if sees(n) { 0.0 } else { f32::NEG_INFINITY }).collect());
                assert_same_bits(&check(gpu, &case, &options), &flag, "bias and option");
            }
            let mut case = Case::new(plain.clone().mask(MaskFormat::Bytes, sizes), 11);
            case.mask = Some((0..s * s).map(|n| u8::from(sees(n))).collect());
            assert_same_bits(&check(gpu, &case, &options), &flag, "mask and option");
            let mut case = Case::new(plain.clone().mask(MaskFormat::Bits, sizes), 11);
            let bit = |n: u32| u8::from(n < s * s && sees(n));
            case.mask =
                Some((0..(s * s).div_ceil(8)).map(|b| (0..8).map(|i| bit(8 * b + i) << i).sum()).collect());
            assert_same_bits(&check(gpu, &case, &options), &flag, "bits and option");
        }
    }
}

/// Masks, bias, causal masks, windows and lengths hide together what any of them hides.
#[test]
fn everything_that_hides_at_once() {
    let gpu = gpu!();
    for format in FORMATS {
        for dtype in DTYPES {
            let problem = problem([3, 8, 2, 21, 70, 8, 8])
                .mask(format, Broadcast([3, 8, 21, 70]))
                .bias(dtype, Broadcast([3, 8, 21, 70]))
                .causal(Alignment::PerBatch)
                .window(wgpu_attention::Window { left: Some(30), right: None, keep_first: 3 })
                .with_kv_len();
            check_all(gpu, &Case::new(problem, 12));
        }
    }
}
