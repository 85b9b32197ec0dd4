//! Every generated shader, without a device: valid WGSL that translates to every back end's language and declares what the plan
//! says it does.

#[path = "common/mod.rs"]
mod common;

use common::shape;
use naga::back::{glsl, hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy, Layouter};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use std::collections::HashSet;
use wgpu_attention::{
    Access, AdapterClass, AdaptiveTemperature, Alignment, Broadcast, Caps, DType, Dropout, Kernel,
    KeyMovement, Layout, LengthScale, MaskFormat, NormGains, Normalizer, Plan, PlanOptions, Problem, QkNorm,
    RowTiles, SigmoidBias, Sink, Stats, Strides, Temperature, TileMask, Tiles, Window, validate,
};

fn caps(change: impl FnOnce(&mut Caps)) -> Caps {
    let mut caps = Caps::webgpu_default();
    change(&mut caps);
    caps
}

fn entry_points(kernel: Kernel) -> &'static [&'static str] {
    match kernel {
        Kernel::Tiled | Kernel::Rows => &["attention"],
        _ => &["scores_pass", "softmax_pass", "output_pass"],
    }
}

fn parse(plan: &Plan) -> (naga::Module, ModuleInfo) {
    let source = plan.shader_source();
    let module = naga::front::wgsl::parse_str(&source).unwrap_or_else(|e| {
        panic!("{}\n{source}", e.emit_to_string_with_path(&source, &plan.key().to_string()))
    });
    // No capability beyond plain WGSL; all checks, uniform control flow at barriers among them. naga counts WGSL's unpacking
    // of f16 as one, because some OpenGL lacks it: only what is stored as f16 may ask for it.
    let key = plan.key();
    let f16 = key.dtypes.contains(&DType::F16) || key.bias == Some(DType::F16);
    let mut capabilities = Capabilities::empty();
    capabilities.set(Capabilities::SHADER_FLOAT16_IN_FLOAT32, f16);
    capabilities.set(Capabilities::SHADER_FLOAT16, key.native_f16);
    capabilities.set(Capabilities::SHADER_INT64, is_wide(plan));
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    if is_broadcast(plan) {
        use naga::valid::{ShaderStages, SubgroupOperationSet};
        capabilities.insert(Capabilities::SUBGROUP);
        validator = Validator::new(ValidationFlags::all(), capabilities);
        validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(
            SubgroupOperationSet::BASIC | SubgroupOperationSet::BALLOT | SubgroupOperationSet::VOTE,
        );
    }
    let info = validator.validate(&module).unwrap_or_else(|e| {
        panic!("{}\n{source}", e.emit_to_string_with_path(&source, &plan.key().to_string()))
    });
    (module, info)
}

/// Written for a device with the feature SUBGROUP.
fn is_broadcast(plan: &Plan) -> bool {
    plan.key().rows.is_some_and(|rows| rows.movement == KeyMovement::Broadcast)
}

/// Written for a device with the feature SHADER_INT64.
fn is_wide(plan: &Plan) -> bool {
    plan.key().access.contains(&Access::Wide)
}

/// What the text and the module must be like for every device.
fn check(plan: &Plan, caps: &Caps) -> (naga::Module, ModuleInfo) {
    let (module, info) = parse(plan);
    assert!(!module.entry_points.is_empty());
    let name = plan.key().to_string();
    // 16-bit numbers that share words are put there by atomics, and bits of classes are brought together by one.
    let [.., out] = plan.key().dtypes;
    let atomics = (out != DType::F32 && plan.key().access[3] == Access::Scalar) || plan.key().tile_classes;
    let mut text = plan.shader_source();
    if plan.key().native_f16 {
        let marks = ["\nenable f16;\n", "array<vec4<f16>>", "= vec4<f16>("];
        assert!(text.contains(marks[0]) && text.contains(marks[1]), "{name}");
        text = marks.iter().fold(text, |text, mark| text.replace(mark, ""));
    }
    // Nothing is computed in f16: it is in no other place.
    check_text(&text, &name, atomics, is_broadcast(plan));
    assert_eq!(text.contains("u64"), is_wide(plan), "{name}");

    // Storage bindings, and the one group.
    for (_, variable) in module.global_variables.iter() {
        if let Some(binding) = &variable.binding {
            assert_eq!(binding.group, 0, "{name}");
            assert!(binding.binding < 12, "{name} uses binding {}", binding.binding);
        }
    }
    // The limit is on what one entry point uses.
    for (number, entry) in module.entry_points.iter().enumerate() {
        let used = info.get_entry_point(number);
        let storage = module
            .global_variables
            .iter()
            .filter(|(handle, v)| {
                matches!(v.space, naga::AddressSpace::Storage { .. }) && !used[*handle].is_empty()
            })
            .count() as u32;
        let name = format!("{name}, {}", entry.name);
        assert!(storage <= caps.max_storage_buffers_per_shader_stage, "{name} has {storage} storage buffers");
        assert!(storage <= 8, "{name} has {storage} storage buffers");
    }

    // Workgroup memory, as wgpu counts it.
    let mut layouter = Layouter::default();
    layouter.update(module.to_ctx()).unwrap();
    let bytes: u32 = module
        .global_variables
        .iter()
        .filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup)
        // A pass of its own has this one word, and nothing of the rest.
        .filter(|(_, v)| !(plan.key().tile_classes && v.name.as_deref() == Some("found")))
        .map(|(_, v)| layouter[v.ty].size.next_multiple_of(16))
        .sum();
    assert_eq!(bytes, plan.workgroup_bytes(), "{name}: declared and planned workgroup memory");
    assert!(bytes <= caps.max_compute_workgroup_storage_size, "{name}: {bytes} bytes");

    // Entry points.
    let names: Vec<&str> = module.entry_points.iter().map(|e| e.name.as_str()).collect();
    let classify = plan.key().tile_classes.then_some("classify");
    assert_eq!(names.len(), entry_points(plan.kernel()).len() + usize::from(classify.is_some()), "{name}");
    assert!(
        entry_points(plan.kernel()).iter().copied().chain(classify).all(|e| names.contains(&e)),
        "{name}"
    );
    for entry in &module.entry_points {
        let [x, y, z] = entry.workgroup_size;
        assert_eq!((y, z), (1, 1), "{name}");
        assert_eq!(x, plan.key().tiles.threads, "{name}");
        assert!(x <= caps.max_compute_invocations_per_workgroup && x <= caps.max_compute_workgroup_size_x);
    }
    (module, info)
}

/// What naga does not mind and other compilers do.
fn check_text(source: &str, name: &str, atomics: bool, subgroups: bool) {
    let code: String =
        source.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    for word in ["enable", "requires", "diagnostic", "override", "f16", "ptr<"] {
        assert!(!code.contains(word), "{name} contains {word}");
    }
    assert_eq!(code.contains("subgroup"), subgroups, "{name}");
    assert_eq!(code.contains("atomic"), atomics, "{name}");
    // Infinity and NaN, as literals, as overflowing constants or as constant bits that are made into a float.
    for word in ["inf", "Inf", "INF", "nan", "NaN", "NAN", "1.0 / 0", "0.0 / 0", "0x1p128", "e39", "e+39"] {
        let hit = code.match_indices(word).find(|&(at, _)| {
            let before =
                code[..at].chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            let after =
                code[at + word.len()..].chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            !(before || after) || !word.starts_with(|c: char| c.is_ascii_alphabetic())
        });
        assert!(
            hit.is_none(),
            "{name} contains {word}: {}",
            &code[hit.unwrap().0.saturating_sub(40)..][..80]
        );
    }
    for bitcast in code.split("bitcast<f32>(").skip(1) {
        assert!(
            !bitcast.starts_with(|c: char| c.is_ascii_digit()) && !bitcast.starts_with("MINUS_INFINITY"),
            "{name}"
        );
    }
    assert!(!code.contains("// unroll") && !code.contains(".x.x"), "{name}");
    assert_initial_values(&code, name);
}

/// A variable without an initial value is zero, anew in each round of a loop. Tint's SPIR-V (Chromium 156 on Vulkan) forgets the "anew",
/// so that sums go on from the round before: every variable has to have one written out.
fn assert_initial_values(code: &str, name: &str) {
    let is_own = |s: &&str| s.starts_with("var ") || s.starts_with("var<private>");
    for declaration in code.split(['{', '}', ';']).map(str::trim).filter(is_own) {
        assert!(declaration.contains('='), "{name} has no initial value in `{declaration}`");
    }
}

#[test]
fn every_variable_of_every_file_has_its_initial_value_written_out() {
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders"))];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "wgsl") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code: Vec<&str> =
                    text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect();
                assert_initial_values(&code.join("\n"), &path.display().to_string());
                files += 1;
            }
        }
    }
    assert!(files > 30, "{files} files");
}

/// To the languages of Vulkan, Metal, DX12 and OpenGL.
fn translate(plan: &Plan, (module, info): &(naga::Module, ModuleInfo)) {
    let name = plan.key().to_string();
    let options = spv::Options { lang_version: (1, 3), ..Default::default() };
    let words =
        spv::write_vec(module, info, &options, None).unwrap_or_else(|e| panic!("{name} to SPIR-V: {e}"));
    assert_eq!(words[0], 0x0723_0203, "{name}: SPIR-V's magic number");

    // Metal has words of 64 bits since version 2.3 of its language, DX12 since 6.0 of its, and OpenGL not at all.
    let wide = is_wide(plan);
    let mut options = msl::Options { fake_missing_bindings: true, ..Default::default() };
    if wide {
        options.lang_version = (2, 3);
    }
    let (text, _) = msl::write_string(module, info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|e| panic!("{name} to MSL: {e}"));
    assert!(text.contains("kernel void"), "{name}");

    let shader_model = if wide { hlsl::ShaderModel::V6_0 } else { hlsl::ShaderModel::V5_1 };
    let options = hlsl::Options { fake_missing_bindings: true, shader_model, ..Default::default() };
    let pipeline = hlsl::PipelineOptions::default();
    let mut text = String::new();
    hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(module, info, None)
        .unwrap_or_else(|e| panic!("{name} to HLSL: {e}"));
    assert!(text.contains("numthreads"), "{name}");

    let policies = BoundsCheckPolicies { index: BoundsCheckPolicy::Restrict, ..Default::default() };
    // Nor f16 as a type.
    let versions = [glsl::Version::Desktop(430), glsl::Version::new_gles(310)];
    for version in versions.into_iter().filter(|_| !plan.key().native_f16 && !wide) {
        let options = glsl::Options { version, ..Default::default() };
        for entry_point in entry_points(plan.kernel()) {
            let pipeline = glsl::PipelineOptions {
                shader_stage: naga::ShaderStage::Compute,
                entry_point: (*entry_point).to_owned(),
                multiview: None,
            };
            let mut text = String::new();
            glsl::Writer::new(&mut text, module, info, &options, &pipeline, policies)
                .and_then(|mut w| w.write())
                .unwrap_or_else(|e| panic!("{name} to GLSL: {e}"));
            assert!(text.contains("void main()"), "{name}");
        }
    }
}

fn plan(problem: &Problem, caps: &Caps, options: &PlanOptions) -> Plan {
    Plan::new(problem, caps, options).unwrap_or_else(|e| panic!("{problem:?}: {e}"))
}

fn plain(dqk: u32, dv: u32) -> Problem {
    Problem::new(shape([2, 4, 2, 100, 100, dqk, dv]))
}

/// All options that change the shader, in all their combinations.
fn options(problem: &Problem) -> Vec<Problem> {
    let mut all = Vec::new();
    for causal in [None, Some(Alignment::BottomRight), Some(Alignment::PerBatch)] {
        for kv_len in [false, true] {
            for temperature in [Temperature::Value(0.5), Temperature::PerHead, Temperature::PerRow] {
                for n in 0..8 {
                    let mut problem = problem.clone();
                    common::set_causal(&mut problem, causal);
                    problem.kv_len = kv_len;
                    problem.temperature = temperature;
                    problem.stats = Stats { lse: n & 1 != 0, entropy: n & 2 != 0, row_max: n & 4 != 0 };
                    all.push(problem);
                }
            }
        }
    }
    all
}

#[test]
fn every_combination_of_options_in_every_language() {
    let caps = Caps::webgpu_default();
    let mut keys = HashSet::new();
    for kernel in common::KERNELS {
        for problem in options(&plain(8, 8)) {
            let plan = plan(&problem, &caps, &PlanOptions::kernel(kernel));
            translate(&plan, &check(&plan, &caps));
            assert!(keys.insert(plan.key().clone()), "two problems with one key: {}", plan.key());
        }
    }
    assert_eq!(keys.len(), 3 * 3 * 2 * 3 * 8);
}

/// Every option on its own, each with what changes its code.
fn each_option() -> Vec<Problem> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Problem)| {
        let mut problem = plain(8, 8);
        change(&mut problem);
        all.push(problem);
    };
    let full = Broadcast([2, 4, 100, 100]);
    for keep_first in [0, 4] {
        for causal in [None, Some(Alignment::BottomRight), Some(Alignment::PerBatch)] {
            add(&|p| {
                common::set_causal(p, causal);
                p.window = Some(Window { left: Some(7), right: Some(3), keep_first });
            });
        }
    }
    for format in [MaskFormat::Bytes, MaskFormat::Bits] {
        add(&|p| p.mask = Some((format, full)));
    }
    let dtypes = [DType::F32, DType::F16, DType::Bf16];
    for dtype in dtypes {
        add(&|p| p.bias = Some((dtype, full)));
    }
    for [q, k] in [[Some(150), None], [None, Some(150)], [Some(150), Some(150)]] {
        add(&|p| (p.packed_q, p.packed_k) = (q, k));
        for alignment in [Alignment::BottomRight, Alignment::BottomRightValid] {
            add(&|p| {
                (p.packed_q, p.packed_k, p.causal, p.alignment, p.q_len) = (q, k, true, alignment, true)
            });
        }
    }
    for alignment in [Alignment::BottomRight, Alignment::BottomRightValid] {
        add(&|p| (p.q_len, p.causal, p.alignment) = (true, true, alignment));
        add(&|p| (p.q_len, p.causal, p.alignment, p.stats) = (true, true, alignment, Stats::ALL));
    }
    for total in [None, Some(150)] {
        add(&|p| (p.documents, p.packed_q, p.packed_k) = (true, total, total));
    }
    add(&|p| p.softcap = Some(30.0));
    for norm in [QkNorm::l2(), QkNorm::rms(1e-6)] {
        for gains in [NormGains::None, NormGains::Shared, NormGains::PerHead] {
            add(&|p| p.qk_norm = Some(norm.gains(gains)));
        }
    }
    for alignment in [Alignment::BottomRight, Alignment::PerBatch] {
        add(&|p| (p.alibi, p.alignment) = (true, alignment));
    }
    for sink in [Sink::Zero, Sink::PerHead] {
        for entropy in [false, true] {
            add(&|p| (p.sink, p.stats.entropy) = (sink, entropy));
        }
    }
    for bias in [SigmoidBias::MinusLogSeqK, SigmoidBias::MinusLogVisible] {
        for row_max in [false, true] {
            add(&|p| (p.normalizer, p.stats.row_max) = (Normalizer::Sigmoid { bias }, row_max));
        }
    }
    for entropy in [false, true] {
        for normalizer in [Normalizer::Sparsemax, Normalizer::Entmax15] {
            add(&|p| (p.normalizer, p.stats.entropy) = (normalizer, entropy));
        }
        add(&|p| (p.top_k, p.stats.entropy) = (Some(7), entropy));
        add(&|p| {
            (p.adaptive_temperature, p.stats.entropy) = (Some(AdaptiveTemperature::default()), entropy);
        });
    }
    for sink in [Sink::None, Sink::PerHead] {
        add(&|p| (p.dropout, p.sink) = (Some(Dropout { rate: 0.1 }), sink));
    }
    for length in [
        LengthScale::Ssmax,
        LengthScale::LogTrainLen { train_len: 9 },
        LengthScale::Llama4 { coef: 0.1, floor: 8192 },
    ] {
        for keep_first in [None, Some(0), Some(4)] {
            add(&|p| {
                p.length_scale = length;
                p.window = keep_first.map(|keep_first| Window { left: Some(7), right: None, keep_first });
            });
        }
    }
    // Every mix of storage and access of each tensor; and all of out's with all of the others'.
    let odd = Layout::Strided(Strides { offset: 1, batch: 100_000, head: 10_000, seq: 20, dim: 2 });
    for layout in [Layout::Bhsd, odd] {
        for a in dtypes {
            for b in dtypes {
                add(&|p| {
                    (p.dtypes, p.q_layout, p.k_layout) = ([a, b, DType::F32, DType::F32], layout, layout)
                });
                add(&|p| {
                    (p.dtypes, p.v_layout, p.out_layout) = ([DType::F32, DType::F32, a, b], layout, layout)
                });
            }
        }
    }
    all.dedup();
    all
}

/// Classes of mask tiles, of everything that they can be of.
#[test]
fn tile_classes_in_every_language_on_every_class_of_adapter() {
    let full = Broadcast([2, 4, 100, 100]);
    let packed = plain(8, 8).packed(150, 150);
    let problems = [
        plain(8, 8).mask(MaskFormat::Bytes, full),
        plain(8, 8).mask(MaskFormat::Bits, full).causal(Alignment::BottomRight).with_documents(),
        plain(63, 64).bias(DType::F16, full).with_documents().with_q_len(),
        packed.clone().with_documents(),
        packed.mask(MaskFormat::Bits, full).bias(DType::F32, full),
        plain(64, 64).bias(DType::Bf16, full).window(Window { left: Some(3), right: None, keep_first: 2 }),
    ];
    for caps in classes() {
        for problem in &problems {
            let plan =
                plan(problem, &caps, &PlanOptions::kernel(Kernel::Tiled).tile_mask(TileMask::Classified));
            assert!(plan.shader_source().contains("fn classify"));
            translate(&plan, &check(&plan, &caps));
        }
    }
}

/// f16 as a type of the shader's own: every mix of tensors that are stored so, in every kernel, with what else changes the code.
#[test]
fn native_f16_in_every_language_on_every_class_of_adapter() {
    let dtypes = [DType::F32, DType::F16, DType::Bf16];
    let full = Broadcast([2, 4, 100, 100]);
    let mut problems = Vec::new();
    for n in 0..16 {
        let pick = |bit: u32| if n >> bit & 1 == 1 { DType::F16 } else { dtypes[2 * (n >> 1 & 1) as usize] };
        problems.push(plain(8, 8).dtypes(pick(0), pick(1), pick(2), pick(3)));
    }
    problems.extend([
        plain(64, 64).dtype(DType::F16).causal(Alignment::BottomRight).with_kv_len().with_lse(),
        plain(63, 64).dtype(DType::F16).bias(DType::F16, full).mask(MaskFormat::Bits, full),
        plain(128, 128).dtype(DType::F16).qk_norm(QkNorm::l2()),
        plain(64, 64).dtype(DType::F16).top_k(7),
        plain(256, 256).dtype(DType::F16).packed(150, 150).with_documents(),
    ]);
    let mut native = 0;
    for caps in classes() {
        let mut caps = caps;
        caps.shader_f16 = true;
        for problem in &problems {
            for kernel in common::kernels(problem) {
                let options = PlanOptions::kernel(kernel);
                let asked = Plan::new(problem, &caps, &options.native_f16(true));
                let refused = plan(problem, &caps, &options.native_f16(false));
                assert!(!refused.key().native_f16 && !refused.shader_source().contains("enable"));
                let Ok(asked) = asked else {
                    assert!(!problem.dtypes.contains(&DType::F16), "{problem:?}");
                    continue;
                };
                assert_ne!(asked.key(), refused.key());
                translate(&asked, &check(&asked, &caps));
                native += 1;
            }
        }
    }
    assert!(native > 150, "{native} variants");
}

/// WebGPU's default limits, on what the planner takes for a processor without and with subgroups, and one whose driver loads once what all
/// lanes load, with words of 64 bits and without, a graphics card and no one knows what.
fn classes() -> [Caps; 8] {
    [
        (AdapterClass::Cpu, None, false, false, false),
        (AdapterClass::Discrete, Some(32), false, false, true),
        (AdapterClass::Other, None, false, false, false),
        (AdapterClass::Cpu, Some(8), false, false, false),
        (AdapterClass::Cpu, Some(8), true, false, false),
        (AdapterClass::Cpu, Some(8), true, true, false),
        (AdapterClass::Cpu, Some(8), true, true, true),
        (AdapterClass::Cpu, None, false, false, true),
    ]
    .map(|(class, subgroup, once, gathers, words)| {
        caps(|c| {
            (c.class, c.subgroup_size, c.loads_once) = (class, subgroup, once);
            (c.gathers, c.shader_int64) = (gathers, words);
        })
    })
}

#[test]
fn each_option_in_every_language_on_every_class_of_adapter() {
    let mut keys = HashSet::new();
    for caps in classes() {
        for problem in each_option() {
            for kernel in common::kernels(&problem) {
                let plan = plan(&problem, &caps, &PlanOptions::kernel(kernel));
                if keys.insert(plan.key().clone()) {
                    translate(&plan, &check(&plan, &caps));
                }
            }
        }
    }
    assert!(keys.len() > 150, "only {} variants", keys.len());
}

/// The combinations that the tests of numbers draw, and many more of them.
#[test]
fn random_combinations_of_all_options() {
    let mut keys = HashSet::new();
    for n in 0..600 {
        let problem = validate::problem_of(n as u64, n as u64);
        let caps = &classes()[n % 8];
        let kernels: Vec<Kernel> = common::kernels(&problem).collect();
        let plan = plan(&problem, caps, &PlanOptions::kernel(kernels[n / 8 % kernels.len()]));
        let checked = check(&plan, caps);
        if keys.insert(plan.key().clone()) && n % 5 == 0 {
            translate(&plan, &checked);
        }
    }
    assert!(keys.len() > 400, "only {} variants", keys.len());
}

/// Equal keys mean equal text, and different keys different text, over everything that can be drawn.
#[test]
fn keys_stand_for_texts() {
    let mut texts = std::collections::HashMap::new();
    for n in 1000..1400 {
        let problem = validate::problem_of(n, n);
        let plan = plan(&problem, &Caps::webgpu_default(), &PlanOptions::default());
        // The first line is the key's name.
        let text = plan.shader_source().split_once('\n').unwrap().1.to_owned();
        let known = texts.entry(plan.key().clone()).or_insert_with(|| text.clone());
        assert_eq!(*known, text, "{}", plan.key());
    }
}

#[cfg(feature = "user-code")]
#[test]
fn user_code_in_every_language() {
    use wgpu_attention::UserCode;
    let score = "const a = 2.0; fn helper(x: f32) -> f32 { return a * x + param_f32(1u); }
        fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 { return helper(score); }";
    let mask = "const a = 2u; fn helper(x: u32) -> u32 { return a * x + param_u32(0u); }
        fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool { return helper(q_index) > k_index; }";
    let (score, mask) = (UserCode::score_mod(score).unwrap(), UserCode::mask_mod(mask).unwrap());
    for caps in classes() {
        for kernel in common::KERNELS {
            for n in 1..4 {
                for params in [0, 2] {
                    let mut problem = plain(8, 8).user_params(params);
                    problem.score_mod = (n & 1 != 0).then(|| score.clone());
                    problem.mask_mod = (n & 2 != 0).then(|| mask.clone());
                    let plan = plan(&problem, &caps, &PlanOptions::kernel(kernel));
                    translate(&plan, &check(&plan, &caps));
                }
            }
        }
    }
}

#[test]
fn every_head_dim_up_to_1100() {
    let caps = Caps::webgpu_default();
    for d in (1..=260).chain((261..=1100).step_by(7)).chain([512, 576, 1024, 1100]) {
        for (dqk, dv) in [(d, d), (d, 64), (64, d)] {
            let plan = plan(&plain(dqk, dv), &caps, &PlanOptions::kernel(Kernel::Tiled));
            check(&plan, &caps);
        }
    }
    for d in (1..=1100).step_by(13) {
        check(&plan(&plain(d, d + 1), &caps, &PlanOptions::kernel(Kernel::Naive)), &caps);
    }
}

#[test]
fn some_head_dims_in_every_language() {
    let caps = Caps::webgpu_default();
    for kernel in common::KERNELS {
        for d in [1, 3, 63, 64, 65, 128, 256, 257, 576, 1025] {
            if !kernel.supports(&plain(d, d)) {
                assert!(kernel == Kernel::Rows && d > 512, "{kernel} at head dim {d}");
                continue;
            }
            let plan = plan(&plain(d, d), &caps, &PlanOptions::kernel(kernel));
            translate(&plan, &check(&plan, &caps));
        }
    }
}

#[test]
fn every_way_to_fetch() {
    let caps = Caps::webgpu_default();
    let odd = Layout::Strided(Strides { offset: 1, batch: 100_000, head: 10_000, seq: 20, dim: 2 });
    let mut found = HashSet::new();
    for kernel in common::KERNELS {
        for n in 0..16 {
            let pick = |bit: u32| if n >> bit & 1 == 1 { odd } else { Layout::Bshd };
            let problem = plain(8, 8).layouts(pick(0), pick(1), pick(2), pick(3)).with_lse();
            let plan = plan(&problem, &caps, &PlanOptions::kernel(kernel));
            translate(&plan, &check(&plan, &caps));
            found.insert((kernel, plan.key().access));
        }
    }
    assert_eq!(found.len(), 3 * 16);
}

#[test]
fn tiles_for_many_devices() {
    let mut tiles = HashSet::new();
    for bytes in [300, 512, 1024, 2048, 4096, 8192, 16384, 32768, 49152, 65536] {
        for threads in [1, 2, 8, 32, 64, 100, 128, 256, 1024] {
            let caps = caps(|c| {
                c.max_compute_workgroup_storage_size = bytes;
                c.max_compute_invocations_per_workgroup = threads;
                c.max_compute_workgroup_size_x = threads.max(64);
            });
            for (sq, d) in [(1, 64), (3, 128), (100, 1), (100, 64), (100, 128), (100, 257), (1000, 576)] {
                let mut problem = Problem::new(shape([1, 2, 1, sq, 100, d, d]));
                problem.stats = Stats::ALL;
                let plan = plan(&problem, &caps, &PlanOptions::default());
                if tiles.insert((plan.kernel(), plan.key().tiles, d)) {
                    check(&plan, &caps);
                }
            }
        }
    }
    assert!(tiles.len() > 60, "only {} kinds of tiles", tiles.len());
}

#[test]
fn tiles_by_hand() {
    let caps = caps(|c| {
        c.max_compute_workgroup_storage_size = 1 << 23;
        c.max_compute_invocations_per_workgroup = 1024;
        c.max_compute_workgroup_size_x = 1024;
    });
    let mut checked = 0;
    for threads in [1, 4, 32, 256, 1024] {
        for row_groups in [1, 4, 16, 64] {
            for keys_per_thread in [1, 2, 8] {
                for (dim_chunk, v_chunk) in [(1, 0), (4, 1), (2, 8), (16, 4)] {
                    let tiles = Tiles { threads, row_groups, keys_per_thread, dim_chunk, v_chunk };
                    if row_groups > threads || v_chunk > tiles.keys() {
                        continue;
                    }
                    let problem = plain(24, 40).causal(Alignment::BottomRight).with_entropy();
                    check(&plan(&problem, &caps, &PlanOptions::tiles(tiles)), &caps);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 150, "{checked}");
}

/// Lengths, strides, scales, offsets and limits are no part of a shader: equal keys, equal text.
#[test]
fn equal_keys_have_equal_text() {
    let caps = Caps::webgpu_default();
    let a = plan(&plain(64, 64).causal(Alignment::BottomRight), &caps, &PlanOptions::default());
    for (numbers, causal, tau) in [
        ([1, 1, 1, 100, 7, 64, 64], Alignment::TopLeft, 0.1),
        ([9, 8, 2, 64, 5000, 64, 64], Alignment::Offset(-3), 9.0),
    ] {
        let problem = Problem::new(shape(numbers))
            .causal(causal)
            .temperature(Temperature::Value(tau))
            .layout(Layout::Bshd);
        let b = plan(&problem, &caps, &PlanOptions::default());
        assert_eq!(a.key(), b.key());
        assert_eq!(a.shader_source(), b.shader_source());
    }
}

/// The largest shader stays small enough for compilers that unrolling could drown.
#[test]
fn shaders_stay_small() {
    let caps = Caps::webgpu_default();
    for d in [64, 128, 256, 512, 1024, 4096] {
        let problem = options(&plain(d, d)).pop().unwrap();
        for kernel in common::kernels(&problem) {
            let plan = plan(&problem, &caps, &PlanOptions::kernel(kernel));
            let bytes = plan.shader_source().len();
            // Whole rows are written out.
            let most = if kernel == Kernel::Rows { 350_000 } else { 200_000 };
            assert!(bytes < most, "{bytes} bytes of WGSL for {kernel} at head dim {d}");
        }
    }
}

/// Sizes that the planner does not take by itself.
#[test]
fn rows_by_hand() {
    let caps = caps(|c| c.subgroup_size = Some(8));
    for movement in KeyMovement::ALL {
        for (lanes, rows, keys, keys_at_once) in
            [(8, 4, 2, 1), (8, 2, 8, 4), (64, 4, 16, 1), (128, 1, 1, 1), (8, 3, 2, 2)]
        {
            if movement == KeyMovement::Broadcast && lanes != 8 {
                continue;
            }
            for grouped in [false, true] {
                for (qk, v) in [(64, 64), (36, 13)] {
                    let problem = Problem::new(shape([1, 4, 2, 30, 40, qk, v]))
                        .causal(Alignment::BottomRight)
                        .with_lse();
                    for lazy in [false, true] {
                        let rows = RowTiles {
                            lanes,
                            rows,
                            keys,
                            keys_at_once,
                            movement,
                            grouped,
                            lazy,
                            fenced: lazy || grouped,
                        };
                        let plan = plan(&problem, &caps, &PlanOptions::rows(rows));
                        translate(&plan, &check(&plan, &caps));
                    }
                }
            }
        }
    }
}

/// Sums that lag behind their maximum are for what has one, and for no statistic that would lose by it.
#[test]
fn lazy_sums_are_for_a_softmax_without_entropies() {
    let caps = caps(|c| c.subgroup_size = Some(8));
    let is_lazy = |problem: Problem, lazy| {
        let movement = KeyMovement::Broadcast;
        let rows = RowTiles {
            lanes: 8,
            rows: 4,
            keys: 2,
            keys_at_once: 2,
            movement,
            grouped: false,
            lazy,
            fenced: false,
        };
        let source = plan(&problem, &caps, &PlanOptions::rows(rows)).shader_source();
        let [on, off] = ["true", "false"].map(|word| source.contains(&format!("const LAZY = {word};")));
        assert_ne!(on, off);
        on
    };
    assert!(is_lazy(plain(16, 16), true) && is_lazy(plain(16, 16).with_lse(), true));
    assert!(!is_lazy(plain(16, 16), false));
    assert!(!is_lazy(plain(16, 16).with_entropy(), true));
    let sigmoid = Normalizer::Sigmoid { bias: SigmoidBias::Value(0.0) };
    assert!(!is_lazy(plain(16, 16).normalizer(sigmoid), true));
}

/// The row kernel has few branches, whatever is written out: with one for each number that is loaded or stored, or for each vec4 of o,
/// SwiftShader compiles for minutes and runs out of memory. A short-circuiting && is a branch too.
#[test]
fn few_branches_are_written_out() {
    for caps in classes() {
        for dtype in [DType::F32, DType::F16] {
            let branches = |d| {
                let problem = plain(d, d).dtype(dtype).causal(Alignment::BottomRight);
                let tiles = plan(&problem, &caps, &PlanOptions::kernel(Kernel::Rows)).rows().unwrap();
                // As many keys for all head dims.
                let options = PlanOptions::rows(RowTiles { keys: 2, keys_at_once: 2, ..tiles });
                let (module, _) = parse(&plan(&problem, &caps, &options));
                branches(&module, &module.entry_points[0].function, None)
            };
            // What is stored has some: at most 8 vec4s are in one text, and each number of them may be the last. Each such part of q and of o is a
            // branch: four of them up to 128, eight at 256.
            for (narrow, wide) in [(4, 64), (4, 128), (3, 63), (3, 127), (4, 256), (3, 255)] {
                let more = branches(wide) - branches(narrow);
                let most = if wide > 128 { 80 + 8 } else { 80 };
                assert!(more < most, "{more} branches more at head dim {wide} than at {narrow}, {dtype:?}");
            }
        }
    }
}

/// Branches of a function, or of a block of it, with all that it calls written out. Those on a constant are none.
fn branches(module: &naga::Module, function: &naga::Function, block: Option<&naga::Block>) -> usize {
    use naga::{Expression, Statement};
    let of = |block: &naga::Block| branches(module, function, Some(block));
    let is_constant = |condition| {
        matches!(function.expressions[condition], Expression::Constant(_) | Expression::Literal(_))
    };
    let one = |statement: &Statement| match statement {
        Statement::Block(block) => of(block),
        Statement::If { condition, accept, reject } => {
            usize::from(!is_constant(*condition)) + of(accept) + of(reject)
        }
        Statement::Switch { cases, .. } => cases.iter().map(|case| 1 + of(&case.body)).sum(),
        Statement::Loop { body, continuing, .. } => of(body) + of(continuing),
        Statement::Call { function, .. } => branches(module, &module.functions[*function], None),
        _ => 0,
    };
    block.unwrap_or(&function.body).iter().map(one).sum()
}
