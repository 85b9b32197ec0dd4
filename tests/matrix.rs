//! The matrix kernel without a device: what is planned, and its shaders, valid in naga's extension, for both sizes of matrices, translated to the two languages
//! that have them, and declaring the workgroup memory that the plan says.
//!
//! HLSL and GLSL have no cooperative matrices in naga, and wgpu gives the feature on neither; Tint does not know the extension.

#[path = "common/mod.rs"]
mod common;

use common::shape;
use naga::back::{msl, spv};
use naga::proc::Layouter;
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, ValidationFlags, Validator};
use std::collections::HashSet;
use wgpu_attention::{
    AdapterClass, Alignment, Broadcast, Caps, DType, Error, Kernel, MATRIX_FEATURES, MaskFormat, MatrixTiles,
    NormGains, Plan, PlanOptions, Problem, QkNorm, Stats, TileMask, validate, wgpu,
};

/// A device with matrices of these sizes and workgroup memory as graphics cards have it.
fn caps(class: AdapterClass, sizes: &[u32], subgroup: u32) -> Caps {
    let mut caps = Caps::webgpu_default();
    (caps.class, caps.matrix_sizes, caps.max_subgroup_size) = (class, sizes.to_vec(), subgroup);
    caps.max_compute_workgroup_storage_size = 32 << 10;
    // One of the features that matrices need.
    caps.shader_f16 = true;
    caps
}

fn devices() -> [Caps; 4] {
    [
        caps(AdapterClass::Cpu, &[8], 8),
        caps(AdapterClass::Discrete, &[16], 32),
        caps(AdapterClass::Discrete, &[8, 16], 64),
        caps(AdapterClass::Integrated, &[8], 32),
    ]
}

fn halves(mut problem: Problem) -> Problem {
    problem.dtypes[..3].fill(DType::F16);
    problem
}

fn parse(plan: &Plan) -> (naga::Module, ModuleInfo) {
    let source = plan.shader_source();
    let show = |message: String| -> ! { panic!("{}\n{source}\n{message}", plan.key()) };
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|e| show(e.emit_to_string_with_path(&source, "matrix")));
    let capabilities = Capabilities::COOPERATIVE_MATRIX
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SUBGROUP;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(ShaderStages::COMPUTE);
    let info =
        validator.validate(&module).unwrap_or_else(|e| show(e.emit_to_string_with_path(&source, "matrix")));
    (module, info)
}

fn check(plan: &Plan, caps: &Caps) {
    let (module, info) = parse(plan);
    let name = plan.key().to_string();
    assert_eq!(plan.kernel(), Kernel::Matrix);
    let source = plan.shader_source();
    let code: String =
        source.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    assert_eq!(code.matches("enable ").count(), 2, "{name}");
    assert!(!code.contains("// unroll") && !code.contains("ptr<"), "{name}");

    let mut layouter = Layouter::default();
    layouter.update(module.to_ctx()).unwrap();
    let bytes: u32 = module
        .global_variables
        .iter()
        .filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup && v.name.as_deref() != Some("found"))
        .map(|(_, v)| layouter[v.ty].size)
        .inspect(|size| assert!(size % 16 == 0, "{name}: Vulkan wants matrices at multiples of 16 bytes"))
        .sum();
    assert_eq!(bytes, plan.workgroup_bytes(), "{name}: declared and planned workgroup memory");
    assert!(bytes <= caps.max_compute_workgroup_storage_size, "{name}");
    for (number, entry) in module.entry_points.iter().enumerate() {
        assert_eq!(entry.workgroup_size, [plan.key().tiles.threads, 1, 1], "{name}");
        assert_eq!(entry.workgroup_size[0] % caps.max_subgroup_size, 0, "{name}");
        let used = info.get_entry_point(number);
        let storage = module.global_variables.iter().filter(|(handle, v)| {
            matches!(v.space, naga::AddressSpace::Storage { .. }) && !used[*handle].is_empty()
        });
        assert!(storage.count() <= 8, "{name}");
    }

    let words =
        spv::write_vec(&module, &info, &spv::Options { lang_version: (1, 6), ..Default::default() }, None)
            .unwrap_or_else(|e| panic!("{name} to SPIR-V: {e}"));
    assert_eq!(words[0], 0x0723_0203, "{name}: SPIR-V's magic number");
    // Metal has matrices that are 8 wide.
    if plan.matrix().is_some_and(|matrix| matrix.size == 8) {
        let options =
            msl::Options { fake_missing_bindings: true, lang_version: (2, 3), ..Default::default() };
        let (text, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
            .unwrap_or_else(|e| panic!("{name} to MSL: {e}"));
        assert!(text.contains("simdgroup_multiply_accumulate"), "{name}");
    }
}

fn plan(problem: &Problem, caps: &Caps) -> Plan {
    Plan::new(problem, caps, &PlanOptions::kernel(Kernel::Matrix))
        .unwrap_or_else(|e| panic!("{problem:?}: {e}"))
}

/// Every option that a draw may come to, on every device.
#[test]
fn random_combinations_of_all_options() {
    let mut keys = HashSet::new();
    let mut taken = 0;
    for n in 0..500 {
        let problem = halves(validate::problem_of(n as u64, n as u64));
        if !Kernel::Matrix.supports(&problem) {
            continue;
        }
        taken += 1;
        let caps = &devices()[n % 4];
        let plan = plan(&problem, caps);
        if keys.insert(plan.key().clone()) {
            check(&plan, caps);
        }
    }
    assert!(taken > 300 && keys.len() > 250, "{taken} taken, {} variants", keys.len());
}

#[test]
fn head_dims_and_few_rows() {
    for caps in devices() {
        for (dqk, dv) in
            [(1, 1), (3, 5), (8, 8), (20, 7), (64, 64), (65, 80), (128, 128), (40, 256), (256, 256)]
        {
            for rows in [1, 9, 100] {
                let mut problem = halves(Problem::new(shape([2, 4, 2, rows, 100, dqk, dv])));
                problem.stats = Stats::ALL;
                check(&plan(&problem.causal(Alignment::BottomRight), &caps), &caps);
            }
        }
    }
}

#[test]
fn classes_of_mask_tiles() {
    let caps = &devices()[1];
    let problem = halves(Problem::new(shape([2, 4, 2, 100, 100, 64, 64])))
        .mask(MaskFormat::Bits, Broadcast([2, 4, 100, 100]));
    let options = PlanOptions::kernel(Kernel::Matrix).tile_mask(TileMask::Classified);
    check(&Plan::new(&problem, caps, &options).unwrap(), caps);
}

/// Sizes that the tuner may come to.
#[test]
fn sizes_by_hand() {
    let caps = caps(AdapterClass::Discrete, &[8, 16], 32);
    let problem = halves(Problem::new(shape([1, 2, 1, 100, 100, 64, 72]))).with_entropy();
    let mut checked = 0;
    for size in [8, 16] {
        for threads in [32, 64, 256] {
            for (row_blocks, key_blocks, out_blocks, abreast) in
                [(1, 1, 1, 1), (2, 4, 2, 4), (4, 2, 8, 2), (8, 1, 1, 8), (1, 8, 16, 1)]
            {
                let matrix = MatrixTiles { size, threads, row_blocks, key_blocks, out_blocks, abreast };
                if let Ok(plan) = Plan::new(&problem, &caps, &PlanOptions::matrix(matrix)) {
                    check(&plan, &caps);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 8, "{checked}");
}

// ---- planning

fn square(d: u32) -> Problem {
    halves(Problem::new(shape([1, 2, 2, 256, 256, d, d])))
}

#[test]
fn what_it_does_not_take_is_told() {
    let caps = &devices()[1];
    let refused =
        |problem: &Problem, caps: &Caps| match Plan::new(problem, caps, &PlanOptions::kernel(Kernel::Matrix))
        {
            Err(Error::KernelUnavailable { kernel: "matrix", reason }) => reason,
            other => panic!("{other:?}"),
        };
    let f32s = Problem::new(shape([1, 2, 2, 256, 256, 64, 64]));
    let mixed = f32s.clone().dtypes(DType::F16, DType::F16, DType::Bf16, DType::F16);
    for (problem, words) in [
        (f32s.clone(), vec!["f16 only", "q is f32"]),
        (mixed, vec!["v is bf16", "65504"]),
        (square(64).qk_norm(QkNorm::l2().gains(NormGains::Shared)), vec!["gains", "f16"]),
        (square(257), vec!["head dim 257", "256"]),
    ] {
        assert!(!Kernel::Matrix.supports(&problem));
        let reason = refused(&problem, caps);
        assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
    }
    assert!(Kernel::Matrix.supports(&square(64)));
    let reason = refused(&square(64), &Caps::webgpu_default());
    assert!(reason.contains("MATRIX_FEATURES") && reason.contains("with_matrices"), "{reason}");
    let mut small = caps.clone();
    small.max_compute_workgroup_storage_size = 1000;
    assert!(refused(&square(64), &small).contains("1000 bytes"));
}

/// Only who asks gets it; who could, is told so.
#[test]
fn never_unasked() {
    for caps in devices() {
        for problem in [square(64), square(128).causal(Alignment::BottomRight)] {
            let plan = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
            assert_ne!(plan.kernel(), Kernel::Matrix);
            assert!(plan.reason().contains("not matrices"), "{}", plan.reason());
        }
        let f32s = Problem::new(shape([1, 2, 2, 256, 256, 64, 64]));
        let plan = Plan::new(&f32s, &caps, &PlanOptions::default()).unwrap();
        assert!(!plan.reason().contains("matrices"), "{}", plan.reason());
    }
}

/// The widest matrices that there are, whole subgroups, and no more rows than there are.
#[test]
fn the_planners_sizes() {
    let matrix = |problem: &Problem, n: usize| plan(problem, &devices()[n]).matrix().unwrap();
    assert_eq!(matrix(&square(64), 1).size, 16);
    assert_eq!(matrix(&square(64), 2).size, 16);
    assert_eq!(matrix(&square(64), 3).size, 8);
    assert!(matrix(&square(64), 1).rows() > matrix(&square(64), 0).rows(), "small ones for a processor");
    let few = halves(Problem::new(shape([1, 2, 2, 3, 256, 64, 64])));
    assert_eq!((matrix(&few, 0).rows(), matrix(&few, 1).rows()), (8, 16));
    for n in 0..4 {
        assert_eq!(matrix(&square(256), n).threads % devices()[n].max_subgroup_size, 0);
    }
}

#[test]
fn what_an_adapter_says() {
    use wgpu::CooperativeScalarType::{F16, F32};
    let entry = |m_size, k_size, ab_type, cr_type| wgpu::CooperativeMatrixProperties {
        m_size,
        n_size: m_size,
        k_size,
        ab_type,
        cr_type,
        saturating_accumulation: false,
    };
    let sizes = |features, list: &[wgpu::CooperativeMatrixProperties]| {
        Caps::webgpu_default().with_matrices(features, list).matrix_sizes
    };
    let all = [entry(16, 16, F16, F32), entry(8, 8, F16, F32)];
    assert_eq!(sizes(MATRIX_FEATURES, &all), [8, 16]);
    assert_eq!(sizes(MATRIX_FEATURES, &all[..1]), [16]);
    // Sums in f16, inputs of f32, and matrices that are not square are of no use here.
    let others = [entry(16, 16, F16, F16), entry(8, 8, F32, F32), entry(8, 16, F16, F32)];
    assert!(sizes(MATRIX_FEATURES, &others).is_empty());
    for missing in MATRIX_FEATURES.iter() {
        assert!(sizes(MATRIX_FEATURES - missing, &all).is_empty());
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let caps = &devices()[2];
    let good = plan(&square(64), caps).matrix().unwrap();
    let make = |matrix| Plan::new(&square(64), caps, &PlanOptions::matrix(matrix));
    assert!(make(good).is_ok());
    for (matrix, field) in [
        (MatrixTiles { size: 4, ..good }, "matrix.size"),
        (MatrixTiles { threads: 0, ..good }, "matrix.threads"),
        (MatrixTiles { threads: 32, ..good }, "matrix.threads"),
        (MatrixTiles { row_blocks: 3, ..good }, "matrix.row_blocks"),
        (MatrixTiles { row_blocks: u32::MAX, ..good }, "matrix.row_blocks"),
        (MatrixTiles { key_blocks: 0, ..good }, "matrix.key_blocks"),
        (MatrixTiles { out_blocks: 64, ..good }, "matrix.out_blocks"),
        (MatrixTiles { abreast: 5, ..good }, "matrix.abreast"),
    ] {
        assert_eq!(common::value_error(make(matrix)).0, field, "{matrix:?}");
    }
    assert!(matches!(
        make(MatrixTiles { row_blocks: 32, threads: 1024, ..good }),
        Err(Error::LimitExceeded { .. })
    ));
    // Sizes of another kernel.
    let tiles = Plan::new(&square(64), caps, &PlanOptions::default()).unwrap().tiles();
    let mut options = PlanOptions::matrix(good);
    options.tiles = tiles;
    assert!(matches!(Plan::new(&square(64), caps, &options), Err(Error::KernelUnavailable { .. })));
    options.kernel = Some(Kernel::Tiled);
    assert!(matches!(Plan::new(&square(64), caps, &options), Err(Error::KernelUnavailable { .. })));
    options.kernel = None;
    assert!(matches!(Plan::new(&square(64), caps, &options), Err(Error::KernelUnavailable { .. })));
}

/// A plan says itself whether another device has what it needs.
#[test]
fn a_plan_for_another_device() {
    let made = plan(&square(64), &devices()[1]);
    assert!(made.fits(&devices()[1]).is_ok());
    assert!(made.fits(&devices()[2]).is_ok() || !made.matrix().unwrap().threads.is_multiple_of(64));
    for other in [&devices()[0], &devices()[3]] {
        assert!(matches!(made.fits(other), Err(Error::LimitExceeded { limit: "matrix_sizes", .. })));
    }
    assert!(matches!(made.fits(&Caps::webgpu_default()), Err(Error::LimitExceeded { .. })));
    let narrow = plan(&halves(Problem::new(shape([1, 1, 1, 9, 9, 64, 64]))), &devices()[1]);
    assert_eq!(narrow.matrix().unwrap().threads, 32);
    let wide = caps(AdapterClass::Discrete, &[16], 64);
    assert!(matches!(narrow.fits(&wide), Err(Error::LimitExceeded { limit: "max_subgroup_size", .. })));
    // What asks for it again.
    assert_eq!(Plan::new(made.problem(), &devices()[1], &made.options()).unwrap().key(), made.key());
}
