//! Every kind of shader in Tint too, the front end of the browsers that are made from Chromium: it refuses what naga lets pass, such as
//! a barrier that not every thread reaches.
//!
//! Needs Node.js and a folder in which `npm install webgpu` has run, named by `WGPU_ATTENTION_TINT`; without it the test says that it was
//! left out.

#[path = "operations/sources.rs"]
mod operations;

use std::collections::HashSet;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use wgpu_attention::{
    AdapterClass, AdaptiveTemperature, Alignment, Broadcast, Caps, DType, Kernel, LengthScale, MaskFormat,
    NormGains, Normalizer, Plan, PlanOptions, Problem, QkNorm, Shape, SigmoidBias, Sink, Stats, Temperature,
    TileMask, Window, backward,
};

/// Problems that between them have every switch of the shaders on and off.
fn problems() -> Vec<Problem> {
    let mut all = Vec::new();
    for (head_dim_qk, head_dim_v) in [
        (1, 1),
        (3, 5),
        (32, 32),
        (64, 64),
        (63, 64),
        (96, 80),
        (128, 128),
        (256, 256),
        (512, 512),
        (20, 3000),
    ] {
        for seq_q in [1, 20, 512] {
            let shape =
                Shape { batch: 2, q_heads: 4, kv_heads: 2, seq_q, seq_k: 300, head_dim_qk, head_dim_v };
            let plain = Problem::new(shape);
            let full = Broadcast([2, 4, seq_q, 300]);
            let mut stats = plain.clone();
            stats.stats = Stats::ALL;
            all.extend([
                plain.clone(),
                stats.clone().causal(Alignment::PerBatch).with_kv_len().temperature(Temperature::PerRow),
                stats
                    .clone()
                    .causal(Alignment::BottomRightValid)
                    .with_q_len()
                    .temperature(Temperature::PerHead)
                    .sink(Sink::Zero),
                plain.clone().qk_norm(QkNorm::l2()).temperature(Temperature::PerHead),
                stats.clone().qk_norm(QkNorm::rms(1e-6).gains(NormGains::PerHead)).dtype(DType::F16),
                plain.clone().dtype(DType::F16).softcap(30.0).with_alibi().sink(Sink::PerHead),
                plain.clone().dtype(DType::Bf16).window(Window { left: Some(9), right: None, keep_first: 4 }),
                stats
                    .clone()
                    .bias(DType::F16, full)
                    .mask(MaskFormat::Bits, full)
                    .length_scale(LengthScale::Ssmax)
                    .with_kv_len(),
                plain
                    .clone()
                    .bias(DType::Bf16, full)
                    .mask(MaskFormat::Bytes, full)
                    .length_scale(LengthScale::LogTrainLen { train_len: 64 }),
                stats
                    .clone()
                    .packed(2 * seq_q, 300)
                    .causal(Alignment::BottomRight)
                    .with_documents()
                    .with_q_len()
                    .with_kv_len(),
                plain
                    .clone()
                    .with_row_max()
                    .normalizer(Normalizer::Sigmoid { bias: SigmoidBias::MinusLogVisible })
                    .dropout(0.1),
                stats.clone().dropout(0.1).sink(Sink::Zero),
                stats.clone().top_k(9).with_kv_len().sink(Sink::PerHead),
                stats.clone().adaptive_temperature(AdaptiveTemperature::default()).softcap(20.0),
                plain.clone().with_entropy().normalizer(Normalizer::Sparsemax).causal(Alignment::TopLeft),
                plain.clone().normalizer(Normalizer::Entmax15).dropout(0.1),
                stats.bias(DType::F32, full).length_scale(LengthScale::Llama4 { coef: 0.1, floor: 8 }),
            ]);
        }
    }
    all
}

/// Kernels whose shaders Tint is not given, and why.
const LEFT_OUT: [(Kernel, &str); 1] = [(
    Kernel::Matrix,
    "it is written in naga's extension wgpu_cooperative_matrix, which Tint does not parse and no browser has; naga validates it in tests/matrix.rs",
)];

fn sources() -> Vec<String> {
    let limits = wgpu_attention::wgpu::Limits::default();
    let mut keys = HashSet::new();
    let mut sources = Vec::new();
    for problem in problems() {
        for (class, subgroup, once, gathers) in [
            (AdapterClass::Other, None, false, false),
            (AdapterClass::Cpu, None, false, false),
            (AdapterClass::Cpu, Some(8), false, false),
            (AdapterClass::Cpu, Some(8), true, false),
            (AdapterClass::Cpu, Some(8), true, true),
        ] {
            let known = |kernel: &Kernel| LEFT_OUT.iter().all(|(left, _)| kernel != left);
            for kernel in Kernel::ALL.into_iter().filter(known).filter(|kernel| kernel.supports(&problem)) {
                let mut caps = Caps::from_limits(&limits, class);
                (caps.subgroup_size, caps.loads_once, caps.gathers) = (subgroup, once, gathers);
                let options = PlanOptions::kernel(kernel);
                let plan = Plan::new(&problem, &caps, &options).expect("a plan");
                let classified = Plan::new(&problem, &caps, &options.tile_mask(TileMask::Classified));
                caps.shader_f16 = true;
                let native = Plan::new(&problem, &caps, &options.native_f16(true));
                for plan in [Ok(plan), classified, native].into_iter().flatten() {
                    if keys.insert(plan.key().clone()) {
                        sources.push(plan.shader_source());
                    }
                }
            }
        }
    }
    sources.extend(gradients(&Caps::from_limits(&limits, AdapterClass::Other)));
    #[cfg(feature = "user-code")]
    sources.push(user_code(&limits));
    sources
}

/// The passes of the gradients.
fn gradients(caps: &Caps) -> Vec<String> {
    let plain = |dim| Problem::new(Shape { kv_heads: 2, ..Shape::self_attention(2, 4, 100, dim) });
    let full = Broadcast([2, 4, 100, 100]);
    let problems = [
        plain(64),
        plain(7).temperature(Temperature::PerHead).softcap(5.0).with_alibi().sink(Sink::PerHead),
        plain(320).temperature(Temperature::PerRow).with_kv_len().with_q_len().dtype(DType::F16),
        plain(64).bias(DType::F16, full).mask(MaskFormat::Bits, full).causal(Alignment::PerBatch),
        plain(64)
            .window(Window { left: Some(9), right: None, keep_first: 4 })
            .length_scale(LengthScale::Ssmax),
    ];
    let mut all = Vec::new();
    for forward in problems {
        let (bias, sinks) = (forward.bias.is_some(), forward.sink == Sink::PerHead);
        let mut problem = backward::Problem::new(forward).with_temperature().with_lse();
        (problem.dbias, problem.dsinks) = (bias, sinks);
        all.extend(backward::Plan::new(&problem, caps).expect("a plan").shader_sources());
    }
    all
}

#[cfg(feature = "user-code")]
fn user_code(limits: &wgpu_attention::wgpu::Limits) -> String {
    use wgpu_attention::UserCode;
    let score = "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 { return score * param_f32(head); }";
    let mask = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool { return k_index < param_u32(q_index); }";
    let problem = Problem::new(Shape::self_attention(1, 2, 100, 64))
        .score_mod(UserCode::score_mod(score).expect("score_mod"))
        .mask_mod(UserCode::mask_mod(mask).expect("mask_mod"))
        .user_params(200);
    let caps = Caps::from_limits(limits, AdapterClass::Other);
    Plan::new(&problem, &caps, &PlanOptions::default()).expect("a plan").shader_source()
}

/// What a lot takes at most: seconds, usually.
const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn every_shader_compiles_in_tint() {
    for (kernel, why) in LEFT_OUT {
        let _ = writeln!(std::io::stderr(), "LEFT OUT of Tint: the {kernel} kernel, because {why}");
    }
    let mut sources = sources();
    sources.extend(operations::sources());
    assert!(sources.len() > 100, "{} shaders", sources.len());
    let Some(node_folder) = std::env::var_os("WGPU_ATTENTION_TINT") else {
        // Past libtest's capture.
        let _ = writeln!(
            std::io::stderr(),
            "LEFT OUT: every_shader_compiles_in_tint, because WGPU_ATTENTION_TINT names no folder with npm's webgpu"
        );
        return;
    };
    let folder = std::env::temp_dir().join(format!("wgpu-attention-tint-{}", std::process::id()));
    // Node looks for packages beside the script.
    let script = std::path::Path::new(&node_folder).join("tint.mjs");
    std::fs::copy("scripts/tint.mjs", &script).expect("copying the script");
    // A process for each lot: Dawn breaks down, or waits for ever, under some hundreds of large modules.
    for (lot, sources) in sources.iter().collect::<Vec<_>>().chunks(150).enumerate() {
        let folder = folder.join(lot.to_string());
        std::fs::create_dir_all(&folder).expect("a folder for the shaders");
        for (number, source) in sources.iter().enumerate() {
            std::fs::write(folder.join(format!("{number:04}.wgsl")), source).expect("writing a shader");
        }
        let mut node = Command::new("node").arg(&script).arg(&folder).spawn().expect("running node");
        let start = Instant::now();
        let status = loop {
            match node.try_wait().expect("waiting for node") {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => {
                    let _ = node.kill();
                    panic!("Tint is still at {} after {PATIENCE:?}", folder.display());
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        assert!(status.success(), "Tint refused shaders of {}, or broke down: {status}", folder.display());
    }
    std::fs::remove_dir_all(&folder).expect("removing the shaders");
}
