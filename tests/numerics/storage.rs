//! 16-bit storage: overflow, rounding, odd sizes, and words that two numbers share.

use crate::common::{Case, check, check_all, run, shape};
use crate::gpu;
use half::{bf16, f16};
use wgpu_attention::{DType, Layout, PlanOptions, Problem, Scale, Strides};

const HALVES: [DType; 2] = [DType::F16, DType::Bf16];

/// microsoft/onnxruntime#24723: 128 products of 30 and 30 are beyond f16 before they are scaled.
#[test]
fn products_beyond_f16() {
    let gpu = gpu!();
    for dtype in HALVES {
        let mut case = Case::new(Problem::new(shape([1, 1, 1, 5, 5, 128, 128])).dtype(dtype), 1);
        case.q.fill(30.0);
        case.k.fill(30.0);
        for kernel in crate::common::KERNELS {
            let got = run(gpu, &case, &PlanOptions::kernel(kernel)).out;
            for row in got.chunks(128) {
                for (d, x) in row.iter().enumerate() {
                    let mean = (0..5).map(|j| dtype.round(case.v[j * 128 + d])).sum::<f32>() / 5.0;
                    approx::assert_relative_eq!(*x, mean, max_relative = 8e-3, epsilon = 1e-4);
                }
            }
        }
    }
}

/// microsoft/onnxruntime#31626: one key row of 800 among small ones: finite all over, and near the truth, number by number.
#[test]
fn one_large_key_row() {
    let gpu = gpu!();
    let mut case = Case::new(Problem::new(shape([1, 1, 1, 9, 40, 64, 64])).dtype(DType::F16), 2);
    case.k[17 * 64..18 * 64].fill(800.0);
    check_all(gpu, &case.vacuous_above(0.1));
}

/// An f16 output saturates at the largest number: no infinity, on either side.
#[test]
fn f16_outputs_saturate() {
    let gpu = gpu!();
    for d in [3, 8] {
        let problem = Problem::new(shape([1, 1, 1, 3, 4, 8, d])).scale(Scale::Value(0.0)).dtypes(
            DType::F32,
            DType::F32,
            DType::F32,
            DType::F16,
        );
        let mut case = Case::new(problem, 3);
        case.v =
            (0..4 * d).map(|n| [1e6, -1e6, 65_504.0, 65_519.0, 1e30][n as usize % d as usize % 5]).collect();
        for kernel in crate::common::KERNELS {
            for (n, x) in run(gpu, &case, &PlanOptions::kernel(kernel)).out.into_iter().enumerate() {
                let want = if n % d as usize % 5 == 1 { -65_504.0 } else { 65_504.0 };
                assert_eq!(x, want, "{n} of {kernel}");
            }
        }
    }
}

/// gpuweb/gpuweb#5203, gfx-rs/wgpu-rs#578: odd counts of 16-bit numbers, whose words are shared by rows, heads and the gaps of a
/// layout. `Bench` checks every half of every word around what is written.
#[test]
fn odd_sizes_and_shared_words() {
    let gpu = gpu!();
    for dtype in HALVES {
        for d in [1, 3, 5] {
            for (sq, sk) in [(1, 3), (2, 1), (33, 20)] {
                let problem = Problem::new(shape([2, 3, 3, sq, sk, d, d])).dtype(dtype);
                check_all(gpu, &Case::new(problem.clone(), 4).vacuous_above(2e-2));
                check_all(gpu, &Case::new(problem.layout(Layout::Bshd), 5).vacuous_above(2e-2));
            }
            // Padded rows of odd length, from an odd place on; rows that lie column by column.
            let (w, d64) = (u64::from(d) + 2, u64::from(d));
            for (offset, seq, dim) in [(1, w, 1), (3, 2 * d64 + 1, 2), (1, 1, 7)] {
                let head = 7 * w.max(2 * d64 + 1) + 1;
                let out = Layout::Strided(Strides { offset, batch: 3 * head, head, seq, dim });
                let problem = Problem::new(shape([2, 3, 3, 7, 11, d, d])).dtype(dtype).layouts(
                    out,
                    out_of(out),
                    out_of(out),
                    out,
                );
                check_all(gpu, &Case::new(problem, 6).vacuous_above(2e-2));
            }
        }
    }
}

/// The same strides with room for the 11 keys.
fn out_of(layout: Layout) -> Layout {
    let Layout::Strided(s) = layout else { unreachable!() };
    let dim = if s.seq == 1 { 11 } else { s.dim };
    Layout::Strided(Strides { head: 3 * s.head, batch: 9 * s.head, dim, ..s })
}

/// bf16 outputs are rounded to nearest even: v of one key comes out as the CPU rounds it.
#[test]
fn bf16_rounds_to_nearest_even() {
    let gpu = gpu!();
    let bits = [
        0x3f80_0000u32,
        0x3f80_7fff,
        0x3f80_8000,
        0x3f80_8001,
        0x3f81_8000,
        0x3f81_7fff,
        0xbf80_8000,
        0xbf81_8000,
        0x3f7f_ffff,
    ];
    for d in [9, 12] {
        let problem = Problem::new(shape([1, 1, 1, 2, 1, 8, d])).dtypes(
            DType::F32,
            DType::F32,
            DType::F32,
            DType::Bf16,
        );
        let mut case = Case::new(problem, 7);
        case.v = (0..d as usize).map(|n| f32::from_bits(bits[n % bits.len()])).collect();
        for kernel in crate::common::KERNELS {
            for (n, x) in run(gpu, &case, &PlanOptions::kernel(kernel)).out.into_iter().enumerate() {
                let v = case.v[n % d as usize];
                assert_eq!(x, bf16::from_f32(v).to_f32(), "{v} in {kernel}");
            }
        }
    }
}

/// Every f16 and every finite bf16 above f32's subnormals is read as the number that it stands for; f16's subnormals too.
#[test]
fn every_16_bit_number_is_read_right() {
    let gpu = gpu!();
    let all = |keep: fn(f32) -> bool, of: fn(u16) -> f32| {
        (0..=u16::MAX).map(of).filter(|&x| keep(x)).collect::<Vec<_>>()
    };
    let halves = all(f32::is_finite, |n| f16::from_bits(n).to_f32());
    let brains = all(|x| x == 0.0 || x.is_normal(), |n| bf16::from_bits(n).to_f32());
    for (dtype, numbers) in [(DType::F16, halves), (DType::Bf16, brains)] {
        for layout in
            [Layout::Bhsd, Layout::Strided(Strides { offset: 1, batch: 0, head: 64, seq: 64, dim: 1 })]
        {
            let heads = numbers.len().div_ceil(64) as u32;
            let b = Layout::Bhsd;
            let problem = Problem::new(shape([1, heads, heads, 1, 1, 8, 64]))
                .layouts(b, b, layout, b)
                .dtypes(DType::F32, DType::F32, dtype, DType::F32);
            let mut case = Case::new(problem, 8);
            let first = case.v.len() - heads as usize * 64;
            case.v[first..].fill(1.0);
            case.v[first..first + numbers.len()].copy_from_slice(&numbers);
            for kernel in crate::common::KERNELS {
                let got = run(gpu, &case, &PlanOptions::kernel(kernel)).out;
                for (x, want) in got.iter().zip(&numbers) {
                    assert!(x == want, "{want:e} of {dtype:?} came out as {x:e} in {kernel}");
                }
            }
        }
    }
}

/// Every mix of storage, in both kernels.
#[test]
fn every_mix_of_storage() {
    let gpu = gpu!();
    let dtypes = [DType::F32, DType::F16, DType::Bf16];
    for a in dtypes {
        for b in dtypes {
            let case = Case::new(Problem::new(shape([1, 2, 1, 9, 40, 8, 8])).dtypes(a, b, b, a), 9);
            for kernel in crate::common::KERNELS {
                check(gpu, &case.clone().vacuous_above(2e-2), &PlanOptions::kernel(kernel));
            }
        }
    }
}
