//! Every generated shader of the operations, without a device: plain WGSL that translates to every back end's language, within
//! WebGPU's default limits.

use crate::sources::{sources, wide_sources};
use naga::back::{glsl, hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, Layouter};
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};

/// The first line of a text is its name, which says what it is written for.
fn is_for(source: &str, word: &str) -> bool {
    source.lines().next().is_some_and(|name| name.contains(word))
}

fn parse(source: &str) -> (naga::Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|e| panic!("{}\n{source}", e.emit_to_string(source)));
    // No capability beyond plain WGSL; all checks, uniform control flow at barriers among them. naga counts WGSL's unpacking
    // of f16 as one, because some OpenGL lacks it: only what is stored as f16 may ask for it.
    let mut capabilities = Capabilities::empty();
    capabilities.set(Capabilities::SHADER_FLOAT16_IN_FLOAT32, is_for(source, " f16"));
    capabilities.set(Capabilities::SUBGROUP, is_for(source, " subgroup"));
    capabilities.set(Capabilities::SHADER_INT64, is_for(source, " wide"));
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    if is_for(source, " subgroup") {
        validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(
            SubgroupOperationSet::BASIC | SubgroupOperationSet::VOTE | SubgroupOperationSet::ARITHMETIC,
        );
    }
    let info =
        validator.validate(&module).unwrap_or_else(|e| panic!("{}\n{source}", e.emit_to_string(source)));
    (module, info)
}

#[test]
fn every_shader_in_every_language() {
    let (all, wide) = (sources(), wide_sources());
    assert!(all.len() > 100 && wide.len() > 50, "{} and {} shaders", all.len(), wide.len());
    for source in all.iter().chain(&wide) {
        let name = source.lines().next().unwrap_or_default();
        let (module, info) = parse(source);
        limits(name, &module, &info);
        let options = spv::Options { lang_version: (1, 3), ..Default::default() };
        let words = spv::write_vec(&module, &info, &options, None);
        words.unwrap_or_else(|e| panic!("{name} to SPIR-V: {e}"));
        let wide = is_for(source, " wide");
        let options = msl_options(wide);
        msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
            .unwrap_or_else(|e| panic!("{name} to MSL: {e}"));
        let mut text = String::new();
        let options = hlsl_options(wide);
        hlsl::Writer::new(&mut text, &options, &hlsl::PipelineOptions::default())
            .write(&module, &info, None)
            .unwrap_or_else(|e| panic!("{name} to HLSL: {e}"));
        // OpenGL has no subgroups, and no words of 64 bits.
        let versions = [glsl::Version::Desktop(430), glsl::Version::new_gles(310)];
        for version in versions.into_iter().filter(|_| !wide && !is_for(source, " subgroup")) {
            for entry in &module.entry_points {
                let options = glsl::Options { version, ..Default::default() };
                let pipeline = glsl::PipelineOptions {
                    shader_stage: naga::ShaderStage::Compute,
                    entry_point: entry.name.clone(),
                    multiview: None,
                };
                let policies = BoundsCheckPolicies::default();
                glsl::Writer::new(&mut text, &module, &info, &options, &pipeline, policies)
                    .and_then(|mut w| w.write())
                    .unwrap_or_else(|e| panic!("{name} to GLSL: {e}"));
            }
        }
    }
}

/// Metal has words of 64 bits since version 2.3 of its language.
fn msl_options(wide: bool) -> msl::Options {
    let plain = msl::Options { fake_missing_bindings: true, ..Default::default() };
    if wide { msl::Options { lang_version: (2, 3), ..plain } } else { plain }
}

/// And DX12 since version 6.0 of its.
fn hlsl_options(wide: bool) -> hlsl::Options {
    let plain = hlsl::Options { fake_missing_bindings: true, ..Default::default() };
    if wide { hlsl::Options { shader_model: hlsl::ShaderModel::V6_0, ..plain } } else { plain }
}

/// Storage buffers, threads and workgroup memory, and no word that needs a feature or an atomic.
fn limits(name: &str, module: &naga::Module, info: &ModuleInfo) {
    let mut layouter = Layouter::default();
    layouter.update(module.to_ctx()).expect("a layout");
    for (number, entry) in module.entry_points.iter().enumerate() {
        let used = info.get_entry_point(number);
        let count = |space: fn(naga::AddressSpace) -> bool| {
            module.global_variables.iter().filter(move |(h, v)| space(v.space) && !used[*h].is_empty())
        };
        let storage = count(|space| matches!(space, naga::AddressSpace::Storage { .. })).count();
        assert!(storage <= 8, "{name}, {}: {storage} storage buffers", entry.name);
        let bytes: u32 = count(|space| space == naga::AddressSpace::WorkGroup)
            .map(|(_, v)| layouter[v.ty].size.next_multiple_of(16))
            .sum();
        assert!(bytes <= 16384, "{name}, {}: {bytes} bytes of workgroup memory", entry.name);
        assert!(entry.workgroup_size[0] <= 256 && entry.workgroup_size[1..] == [1, 1], "{name}");
    }
}

#[test]
fn texts_use_no_feature_but_what_they_are_for() {
    for source in sources().into_iter().chain(wide_sources()) {
        let code: String =
            source.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
        let subgroup = is_for(&source, " subgroup");
        for word in ["enable", "requires", "override", "f16", "subgroup", "ptr<"] {
            assert!(!code.contains(word) || (word == "subgroup" && subgroup), "{word} in\n{source}");
        }
        assert_eq!(code.contains("u64"), is_for(&source, " wide"), "{source}");
        // Lists are counted, and never asked for their order.
        let lists =
            ["narrow", "threshold", "target_pass", "round_pass", "list_pass", "search_pass", "keep_pass"]
                .iter()
                .any(|name| source.starts_with(&format!("// sampling {name}")));
        assert_eq!(code.contains("atomic"), lists, "atomics in\n{source}");
    }
}
