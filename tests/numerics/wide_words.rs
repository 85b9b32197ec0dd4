//! Words of 64 bits, where the device has them: they move the same numbers, so that every result is the same to the bit.

use crate::common::{self, Case, Gpu, assert_right, row_paths::row_paths, run_plan, shape};
use crate::gpu;
use wgpu_attention::{
    Access, AdapterClass, Alignment, Caps, DType, Error, Kernel, Layout, Outputs, Plan, PlanOptions, Problem,
    Stats, wgpu,
};

/// The device's adapter has the feature; where it has not, the test says so.
fn has(gpu: &Gpu) -> bool {
    let has = gpu.attention.caps().shader_int64;
    assert_eq!(has, gpu.device.features().contains(wgpu::Features::SHADER_INT64));
    if !has {
        common::say(&format!(
            "{}: without SHADER_INT64 on {}, nothing to compare",
            common::test_name(),
            gpu.name
        ));
    }
    has
}

/// Every way through the row kernel, every storage, rows that are aligned and rows of which only some are.
#[test]
fn wide_words_change_no_bit() {
    let gpu = gpu!();
    if !has(gpu) {
        return;
    }
    let mut problems = Vec::new();
    let storages = [
        [DType::F32; 4],
        [DType::F16; 4],
        [DType::Bf16; 4],
        [DType::F16, DType::F32, DType::Bf16, DType::F32],
        [DType::Bf16, DType::F16, DType::F32, DType::F16],
    ];
    for (n, dims) in
        [[33, 70, 32, 32], [1, 200, 8, 4], [40, 9, 4, 30], [17, 31, 36, 24]].into_iter().enumerate()
    {
        let [sq, sk, d, dv] = dims;
        for (m, [q, k, v, out]) in storages.into_iter().enumerate() {
            let mut problem = Problem::new(shape([2, 4, 2, sq, sk, d, dv])).dtypes(q, k, v, out);
            problem.stats = Stats::ALL;
            problems.push(match (n + m) % 2 {
                0 => problem.layout(Layout::Bshd),
                _ => problem.causal(Alignment::BottomRight).with_kv_len(),
            });
        }
    }
    let large = Problem::new(shape([1, 2, 2, 40, 100, 64, 64]));
    problems.push(large.causal(Alignment::BottomRight));
    for problem in problems {
        let case = Case::new(problem, 3).vacuous_above(2e-2);
        let truth = case.truth();
        // How keys reach the lanes does not depend on the storage.
        let paths = if case.problem.dtypes == storages[0] { &row_paths()[..] } else { &[] };
        for options in paths.iter().copied().chain([PlanOptions::kernel(Kernel::Rows)]) {
            let [plain, wide] = [false, true].map(|wide| {
                let plan = common::plan(gpu, &case.problem, &options.native_f16(false).wide_words(wide));
                assert_eq!(plan.key().access.contains(&Access::Wide), wide, "{plan}");
                let got = run_plan(gpu, &plan, &case);
                assert_right(gpu, &plan, &case, &truth, &got);
                got
            });
            assert_eq!(bits(&plain.out), bits(&wide.out), "{:?}", case.problem);
            let stats =
                |got: &Outputs| [&got.lse, &got.entropy, &got.row_max].map(|stat| stat.as_deref().map(bits));
            assert_eq!(stats(&plain), stats(&wide));
        }
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// What cannot be is refused, also of a plan that was made for another device; and the planner's own choice says why.
#[test]
fn asked_for_where_they_cannot_be() {
    let mut without = Caps::webgpu_default();
    without.class = AdapterClass::Cpu;
    let mut with = without.clone();
    (with.shader_int64, with.shader_f16) = (true, true);
    let rows = PlanOptions::kernel(Kernel::Rows);
    let even = Problem::new(shape([1, 1, 1, 8, 8, 8, 8]));
    let odd = Problem::new(shape([1, 1, 1, 8, 8, 7, 7]));
    let f16 = even.clone().dtype(DType::F16);
    for (problem, caps, options, word) in [
        (&even, &without, rows, "SHADER_INT64"),
        (&even, &with, PlanOptions::kernel(Kernel::Tiled), "only the row kernel"),
        (&odd, &with, rows, "multiples of four"),
        (&f16, &with, rows.native_f16(true), "f16 is a type"),
    ] {
        let error = Plan::new(problem, caps, &options.wide_words(true)).unwrap_err();
        let refused = matches!(error, Error::KernelUnavailable { .. }) && error.to_string().contains(word);
        assert!(refused, "{error}");
        // Unasked, there is a plan.
        let plan = Plan::new(problem, caps, &options).unwrap();
        assert!(!plan.key().access.contains(&Access::Wide) && plan.words_reason().is_none(), "{plan}");
    }
    let plan = Plan::new(&even, &with, &rows).unwrap();
    assert_eq!(plan.key().access, [Access::Wide; 4]);
    assert!(plan.to_string().contains("words       of 64 bits"), "{plan}");
    assert_eq!(Plan::new(&even, &with, &plan.options()).unwrap().key(), plan.key());
    assert!(matches!(plan.fits(&without), Err(Error::LimitExceeded { .. })));
    assert!(plan.fits(&with).is_ok());
    let narrow = Plan::new(&even, &with, &rows.wide_words(false)).unwrap();
    assert_eq!(narrow.key().access, [Access::Vec4; 4]);
    assert!(narrow.words_reason().is_some_and(|reason| reason.contains("asked for")), "{narrow}");
    // Who asks for words of 64 bits, and not for f16 as a type, has them.
    let both = Plan::new(&f16, &with, &rows.wide_words(true)).unwrap();
    assert!(both.key().access == [Access::Wide; 4] && !both.key().native_f16, "{both}");
    // A graphics card loads 16 bytes at once as it is.
    with.class = AdapterClass::Discrete;
    let card = Plan::new(&even, &with, &rows).unwrap();
    assert_eq!(card.key().access, [Access::Vec4; 4]);
    assert_eq!(Plan::new(&even, &with, &rows.wide_words(true)).unwrap().key().access, [Access::Wide; 4]);
}
