//! f16 as a type of the shader's own, where the device has it: what it loads and stores is what unpacking loads and stores, to the bit where both are
//! exact, and rounded to nearest otherwise.

use crate::common::{self, Case, Gpu, assert_right, run_plan, shape};
use crate::gpu;
use half::f16;
use wgpu_attention::{
    Alignment, Caps, DType, Error, Kernel, Outputs, Plan, PlanOptions, Problem, QkNorm, Scale, Stats, Tensor,
    wgpu,
};

/// The device's adapter has the feature; where it has not, the test says so.
fn has(gpu: &Gpu) -> bool {
    let has = gpu.attention.caps().shader_f16;
    assert_eq!(has, gpu.device.features().contains(wgpu::Features::SHADER_F16));
    if !has {
        common::say(&format!(
            "{}: without SHADER_F16 on {}, nothing to compare",
            common::test_name(),
            gpu.name
        ));
    }
    has
}

fn both(gpu: &Gpu, case: &Case, kernel: Kernel) -> [Outputs; 2] {
    [false, true].map(|native| {
        let plan = common::plan(gpu, &case.problem, &PlanOptions::kernel(kernel).native_f16(native));
        assert_eq!(plan.key().native_f16, native);
        run_plan(gpu, &plan, case)
    })
}

/// Every finite f16, and the two infinities and a NaN, as the only value that a row sees: out is that number, so that a load is told from its
/// bits. Out is f32 here.
fn copies(dtypes: [DType; 4]) -> Case {
    let numbers: Vec<f32> = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).collect();
    let rows = numbers.len() as u32 / 16;
    // A row of q sees one key, its own, with weight 1.
    let [q, k, v, out] = dtypes;
    let problem =
        Problem::new(shape([rows, 1, 1, 1, 1, 4, 16])).dtypes(q, k, v, out).scale(Scale::Value(0.0));
    let mut case = Case::new(problem, 1).vacuous_above(f64::INFINITY);
    case.v = numbers;
    case
}

#[test]
fn loads_are_the_same_to_the_bit() {
    let gpu = gpu!();
    if !has(gpu) {
        return;
    }
    let case = copies([DType::F32, DType::F32, DType::F16, DType::F32]);
    for kernel in common::kernels(&case.problem) {
        let [unpacked, native] = both(gpu, &case, kernel);
        for (at, (a, b)) in unpacked.out.iter().zip(&native.out).enumerate() {
            let exact = f16::from_bits(at as u16);
            // NaN has many bits; which is not said.
            let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same, "{kernel}: {at:#06x} ({exact}) is {a} unpacked and {b} as a type");
            if exact.is_finite() && exact.is_normal() {
                assert_eq!(*b, exact.to_f32(), "{kernel}: {at:#06x}");
            }
            // A subnormal is itself, or flushed to 0 as WGSL allows.
            assert!(*b == exact.to_f32() || *b == 0.0 || !exact.is_finite(), "{kernel}: {at:#06x} is {b}");
        }
    }
}

/// Numbers halfway between two of f16, next to halfway, subnormal ones, those beyond 65504, infinities and NaN: stored as nearest, to even, and
/// saturated.
#[test]
fn stores_round_to_nearest_even_and_saturate() {
    let gpu = gpu!();
    if !has(gpu) {
        return;
    }
    let mut numbers = Vec::new();
    for bits in (0..0x7bffu16).step_by(37).chain([0, 1, 2, 0x3ff, 0x400, 0x7bfe]) {
        let (low, high) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
        let half = (low + high) / 2.0;
        numbers.extend([half, f32::from_bits(half.to_bits() + 1), f32::from_bits(half.to_bits() - 1), low]);
        numbers.extend([-half, -low]);
    }
    numbers.extend([65504.0, 65519.9, 65520.0, 7e4, 1e30, -65520.0, -1e30, f32::INFINITY, f32::NEG_INFINITY]);
    numbers.resize(numbers.len().next_multiple_of(16), 1.0);
    let rows = numbers.len() as u32 / 16;
    let problem = Problem::new(shape([rows, 1, 1, 1, 1, 4, 16]))
        .dtypes(DType::F32, DType::F32, DType::F32, DType::F16)
        .scale(Scale::Value(0.0));
    let mut case = Case::new(problem, 1).vacuous_above(f64::INFINITY);
    case.v = numbers.clone();
    for kernel in common::kernels(&case.problem) {
        let [unpacked, native] = both(gpu, &case, kernel);
        for (at, &x) in numbers.iter().enumerate() {
            let nearest = f16::from_f32(x.clamp(-65504.0, 65504.0)).to_f32();
            let (a, b) = (unpacked.out[at], native.out[at]);
            let flushed = nearest.abs() < f16::MIN_POSITIVE.to_f32() && b == 0.0;
            if x.is_finite() {
                assert!(
                    b == nearest || flushed,
                    "{kernel}: {x:e} is stored as {b:e}, nearest is {nearest:e}, packed {a:e}"
                );
            } else {
                // What is not finite leaves its row unspecified, but is never a plausible number.
                assert!(b.abs() == 65504.0 || b.is_nan(), "{kernel}: {x} is stored as {b}");
            }
        }
    }
}

#[test]
fn every_kernel_agrees_with_float64() {
    let gpu = gpu!();
    if !has(gpu) {
        return;
    }
    for [sq, sk, d, dv] in [[1, 1, 4, 4], [33, 70, 64, 64], [17, 129, 20, 12], [9, 40, 8, 7]] {
        let mut plain = Problem::new(shape([2, 4, 2, sq, sk, d, dv])).dtype(DType::F16);
        plain.stats = Stats::ALL;
        let problems = [
            plain.clone(),
            plain.clone().causal(Alignment::BottomRight).with_kv_len().dtypes(
                DType::F16,
                DType::Bf16,
                DType::F16,
                DType::F32,
            ),
            plain.qk_norm(QkNorm::rms(1e-6)),
        ];
        for problem in problems {
            let case = Case::new(problem, 3).vacuous_above(2e-2);
            let truth = case.truth();
            for kernel in common::kernels(&case.problem) {
                let options = PlanOptions::kernel(kernel).native_f16(true);
                let plan = common::plan(gpu, &case.problem, &options);
                assert_right(gpu, &plan, &case, &truth, &run_plan(gpu, &plan, &case));
            }
        }
    }
}

/// What cannot be is refused, also of a plan that was made for another device; and the planner's own choice says why.
#[test]
fn asked_for_where_it_cannot_be() {
    let without = Caps::webgpu_default();
    let mut with = without.clone();
    with.shader_f16 = true;
    let native = PlanOptions::default().native_f16(true);
    let f16 = Problem::new(shape([1, 1, 1, 8, 8, 8, 8])).dtype(DType::F16);
    let odd = Problem::new(shape([1, 1, 1, 8, 8, 7, 7])).dtype(DType::F16);
    let f32 = Problem::new(shape([1, 1, 1, 8, 8, 8, 8]));
    for (problem, caps, word) in
        [(&f16, &without, "SHADER_F16"), (&odd, &with, "multiples of four"), (&f32, &with, "no tensor")]
    {
        let error = Plan::new(problem, caps, &native).unwrap_err();
        assert!(
            matches!(error, Error::KernelUnavailable { .. }) && error.to_string().contains(word),
            "{error}"
        );
        // Unasked, there is a plan.
        assert!(!Plan::new(problem, caps, &PlanOptions::default()).unwrap().key().native_f16);
    }
    let plan = Plan::new(&f16, &with, &PlanOptions::default()).unwrap();
    assert!(plan.key().native_f16 && plan.f16_reason().unwrap().contains("SHADER_F16"), "{plan}");
    assert!(plan.to_string().contains("f16         a type of the shader"), "{plan}");
    assert!(matches!(plan.fits(&without), Err(Error::LimitExceeded { .. })));
    assert!(plan.fits(&with).is_ok());
    assert!(Plan::new(&f32, &with, &PlanOptions::default()).unwrap().f16_reason().is_none());
    let plan = Plan::new(&f16, &without, &PlanOptions::default()).unwrap();
    assert!(plan.f16_reason().unwrap().contains("without the feature"), "{plan}");
    assert_eq!(plan.tensor_bytes(Tensor::Q), 128);
}
