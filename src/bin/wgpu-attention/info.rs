//! `info`: the adapters, what they can do and which kernel would run.

use crate::fail::{Fail, Result};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use wgpu_attention::{Caps, Error, OPTIONAL_FEATURES, Plan, PlanOptions, Problem, Shape, headless, wgpu};

/// Show the graphics adapters, their drivers and limits, and which kernel runs on them and why
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print an array of objects
    #[arg(long)]
    json: bool,
    /// Only adapters with this in their name, in any case
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
}

#[derive(Debug, Serialize)]
struct Adapter {
    name: String,
    default: bool,
    backend: String,
    driver: String,
    driver_info: String,
    kind: String,
    features: Vec<&'static str>,
    /// Sizes of the cooperative matrices that the matrix kernel could use.
    matrix_sizes: Vec<u32>,
    limits: Limits,
    kernels: Vec<Choice>,
}

/// Those that planning looks at.
#[derive(Debug, Serialize)]
struct Limits {
    max_buffer_size: u64,
    max_storage_buffer_binding_size: u64,
    max_storage_buffers_per_shader_stage: u32,
    max_compute_workgroup_storage_size: u32,
    max_compute_invocations_per_workgroup: u32,
    max_compute_workgroup_size_x: u32,
    max_compute_workgroups_per_dimension: u32,
    min_storage_buffer_offset_alignment: u32,
}

#[derive(Debug, Serialize)]
struct Choice {
    problem: String,
    kernel: String,
    variant: String,
    workgroup_bytes: u32,
    reason: String,
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let found = pollster::block_on(headless::adapters());
    if found.is_empty() {
        return Err(Error::NoAdapter("none of them can run compute shaders".to_owned()).into());
    }
    let default =
        headless::open_blocking(&headless::Options::default()).ok().map(|gpu| gpu.adapter.get_info());
    let wanted = args.adapter.as_deref().unwrap_or_default().to_lowercase();
    let names: Vec<String> = found.iter().map(|a| a.get_info().name).collect();
    let adapters: Vec<Adapter> = found
        .iter()
        .filter(|a| a.get_info().name.to_lowercase().contains(&wanted))
        .map(|a| adapter(a, default.as_ref()))
        .collect::<Result<_>>()?;
    if adapters.is_empty() {
        return Err(Fail::NoAdapter(format!("no adapter is called {wanted:?}; there are {names:?}")));
    }
    if args.json {
        writeln!(
            out,
            "{}",
            serde_json::to_string_pretty(&adapters).map_err(|e| Fail::usage(e.to_string()))?
        )?;
    } else {
        for adapter in &adapters {
            print(adapter, out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn adapter(adapter: &wgpu::Adapter, default: Option<&wgpu::AdapterInfo>) -> Result<Adapter> {
    let info = adapter.get_info();
    let caps = Caps::from_adapter(adapter);
    Ok(Adapter {
        default: default == Some(&info),
        backend: info.backend.to_string(),
        driver: info.driver,
        driver_info: info.driver_info,
        kind: format!("{:?}", info.device_type),
        features: adapter.features().iter_names().map(|(name, _)| name).collect(),
        matrix_sizes: {
            let matrices = adapter.cooperative_matrix_properties();
            caps.clone().with_matrices(adapter.features(), &matrices).matrix_sizes
        },
        limits: Limits {
            max_buffer_size: caps.max_buffer_size,
            max_storage_buffer_binding_size: caps.max_storage_buffer_binding_size,
            max_storage_buffers_per_shader_stage: caps.max_storage_buffers_per_shader_stage,
            max_compute_workgroup_storage_size: caps.max_compute_workgroup_storage_size,
            max_compute_invocations_per_workgroup: caps.max_compute_invocations_per_workgroup,
            max_compute_workgroup_size_x: caps.max_compute_workgroup_size_x,
            max_compute_workgroups_per_dimension: caps.max_compute_workgroups_per_dimension,
            min_storage_buffer_offset_alignment: caps.min_storage_buffer_offset_alignment,
        },
        kernels: typical().into_iter().map(|(name, shape)| choice(name, shape, &caps)).collect(),
        name: info.name,
    })
}

/// Problems that people have.
fn typical() -> [(&'static str, Shape); 8] {
    let own = |heads, seq, dim| Shape::self_attention(1, heads, seq, dim);
    [
        ("head dim 32, 128 tokens", own(12, 128, 32)),
        ("head dim 64, 1024 tokens", own(12, 1024, 64)),
        ("head dim 80, 1024 tokens", own(16, 1024, 80)),
        ("head dim 128, 4096 tokens", own(32, 4096, 128)),
        (
            "head dim 128, 1 query on 4096 keys, 8 kv heads",
            Shape { kv_heads: 8, seq_q: 1, ..own(32, 4096, 128) },
        ),
        ("head dims 192 and 128, 1024 tokens", Shape { head_dim_v: 128, ..own(16, 1024, 192) }),
        ("head dim 256, 1024 tokens", own(8, 1024, 256)),
        ("head dim 512, 4096 tokens, 1 head", own(1, 4096, 512)),
    ]
}

fn choice(problem: &str, shape: Shape, caps: &Caps) -> Choice {
    match Plan::new(&Problem::new(shape), caps, &PlanOptions::default()) {
        Ok(plan) => Choice {
            problem: problem.to_owned(),
            kernel: plan.kernel().to_string(),
            variant: plan.key().to_string(),
            workgroup_bytes: plan.workgroup_bytes(),
            reason: plan.reason().to_owned(),
        },
        Err(error) => Choice {
            problem: problem.to_owned(),
            kernel: "none".to_owned(),
            variant: String::new(),
            workgroup_bytes: 0,
            reason: error.to_string(),
        },
    }
}

fn print(adapter: &Adapter, out: &mut impl Write) -> Result<()> {
    let limits = &adapter.limits;
    let mib = |bytes: u64| bytes >> 20;
    writeln!(out, "{}{}", adapter.name, if adapter.default { "  (the default)" } else { "" })?;
    writeln!(out, "  backend   {}, {}", adapter.backend, adapter.kind)?;
    writeln!(out, "  driver    {} {}", adapter.driver, adapter.driver_info)?;
    let useful = OPTIONAL_FEATURES
        .iter_names()
        .map(|(name, _)| format!("{name} {}", if adapter.features.contains(&name) { "yes" } else { "no" }));
    writeln!(out, "  features  {} (of use here; none is needed)", useful.collect::<Vec<_>>().join(", "))?;
    let sizes: Vec<String> = adapter.matrix_sizes.iter().map(|n| format!("{n} x {n}")).collect();
    if !sizes.is_empty() {
        writeln!(
            out,
            "  matrices  {} (f16, sums in f32; experimental, for --kernel matrix)",
            sizes.join(", ")
        )?;
    }
    writeln!(
        out,
        "  limits    workgroup: {} threads, {} bytes; binding: {} MiB; buffer: {} MiB; {} storage buffers; \
         {} workgroups in a dimension",
        limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
        limits.max_compute_workgroup_storage_size,
        mib(limits.max_storage_buffer_binding_size),
        mib(limits.max_buffer_size),
        limits.max_storage_buffers_per_shader_stage,
        limits.max_compute_workgroups_per_dimension,
    )?;
    writeln!(out, "  kernels")?;
    for choice in &adapter.kernels {
        writeln!(out, "    {}", choice.problem)?;
        writeln!(out, "      {} with {} bytes of workgroup memory", choice.variant, choice.workgroup_bytes)?;
        writeln!(out, "      because: {}", choice.reason)?;
    }
    Ok(())
}
