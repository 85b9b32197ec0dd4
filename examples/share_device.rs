//! Attention within an app that has a device of its own, with WebGPU's default limits, and work of its own before and after.
//!
//! Each step is one submission, in which nothing comes back to the host:
//!
//! 1. the app's shader makes q, k and v, and writes valid lengths and temperatures into the tables;
//! 2. causal attention with these tables gives `a`;
//! 3. attention without a mask, with `a` as its queries, gives `b`, and the entropy of its rows;
//! 4. the app's shader adds the two.
//!
//! Buffers are bound once and recorded in every step. After the last step all is read back and compared with float64.
//!
//! ```sh
//! cargo run --example share_device
//! ```

use std::error::Error;
use std::sync::mpsc;
use wgpu_attention::reference::truth;
use wgpu_attention::{
    Alignment, Attention, Bound, Buffers, Inputs, Layout, Outputs, Problem, Shape, Stat, Table, Temperature,
    Tensor, wgpu,
};

const SHAPE: Shape = Shape {
    batch: 2,
    q_heads: 6,
    kv_heads: 2,
    seq_q: 96,
    seq_k: 96,
    head_dim_qk: 32,
    head_dim_v: 32, // that of q: the second attention takes the first one's answer for its queries
};
const STEPS: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let (device, queue) = pollster::block_on(open())?;
    let attention = Attention::new(&device);

    // ---- plans: what is to be computed, decided and compiled once
    let causal = Problem::new(SHAPE)
        .layout(Layout::Bshd)
        .causal(Alignment::BottomRight)
        .with_kv_len()
        .temperature(Temperature::PerHead);
    let all = Problem::new(SHAPE).layout(Layout::Bshd).with_entropy();
    let first = attention.prepare_blocking(&attention.plan(&causal)?)?;
    let second = attention.prepare_blocking(&attention.plan(&all)?)?;
    println!("{}\n\n{}\n", first.plan(), second.plan());

    // ---- the app's buffers, as large as the plans say
    let storage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    let buffer = |label, size, usage| {
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        device.create_buffer(&descriptor)
    };
    let q = buffer("q", first.plan().tensor_bytes(Tensor::Q), storage);
    let k = buffer("k", first.plan().tensor_bytes(Tensor::K), storage);
    let v = buffer("v", first.plan().tensor_bytes(Tensor::V), storage);
    let a = buffer("a", first.plan().tensor_bytes(Tensor::Out), storage);
    let b = buffer("b", second.plan().tensor_bytes(Tensor::Out), storage);
    let sum = buffer("sum", b.size(), storage);
    let tables = buffer("tables", first.plan().tables().bytes(), storage);
    let stats = buffer("stats", second.plan().stats_bytes(), storage);
    let step = buffer("step", 16, wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST);

    // ---- bound once
    let first_bound = first.bind(&Buffers::new(&q, &k, &v, &a).tables(&tables))?;
    let second_bound = second.bind(&Buffers::new(&a, &k, &v, &b).stats(&stats))?;
    let fill = Pass::new(&device, &fill_source(&first_bound)?, "fill", &[&step, &q, &k, &v, &tables]);
    let add = Pass::new(&device, ADD, "add", &[&a, &b, &sum]);

    // ---- recorded many times, in the app's own encoder
    for number in 0..STEPS {
        queue.write_buffer(&step, 0, &number.to_le_bytes());
        let mut encoder =
            device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("step") });
        fill.encode(&mut encoder, q.size() / 4);
        first_bound.encode(&mut encoder);
        second_bound.encode(&mut encoder);
        add.encode(&mut encoder, sum.size() / 4);
        queue.submit([encoder.finish()]);
    }
    println!("{STEPS} steps submitted, {} shaders compiled", attention.compiled());

    // ---- is it right? Everything comes back, the float64 reference says
    let read = |buffer| read(&device, &queue, buffer);
    let (q, k, v, a, b, sum) = (read(&q)?, read(&k)?, read(&v)?, read(&a)?, read(&b)?, read(&sum)?);
    let (tables, stats) = (read(&tables)?, read(&stats)?);
    let words = |table| -> Vec<u32> {
        let range = first.plan().tables().range(table).unwrap_or_default();
        tables[range.start as usize / 4..range.end as usize / 4].iter().map(|x| x.to_bits()).collect()
    };
    let lengths = words(Table::KvLen);
    let temperatures: Vec<f32> = words(Table::Temperature).into_iter().map(f32::from_bits).collect();
    println!("made on the device: lengths {lengths:?}, temperatures {temperatures:?}");

    let inputs = Inputs::new(&q, &k, &v).kv_len(&lengths).temperature(&temperatures);
    let first_error = truth(&causal, &inputs)?.compare(&Outputs { out: a.clone(), ..Outputs::default() });
    let range = second.plan().stats_range(Stat::Entropy).unwrap_or_default();
    let entropy = Some(stats[range.start as usize / 4..range.end as usize / 4].to_vec());
    let second_error = truth(&all, &Inputs::new(&a, &k, &v))?.compare(&Outputs {
        out: b.clone(),
        entropy,
        ..Outputs::default()
    });
    for (name, error) in [("causal", first_error), ("all keys", second_error)] {
        println!("{name}: largest error {:.1e}, {:.3} of its bound", error.max_abs, error.worst);
        if !error.passes() {
            return Err(format!("{name}: the error at {} is beyond its bound", error.at).into());
        }
    }
    if sum.iter().zip(a.iter().zip(&b)).any(|(sum, (a, b))| *sum != a + b) {
        return Err("the app's own pass did not see what attention wrote".into());
    }
    Ok(())
}

/// A device as an app might open it: no features, WebGPU's default limits (or what an old adapter has of them).
async fn open() -> Result<(wgpu::Device, wgpu::Queue), Box<dyn Error>> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle().with_env());
    let adapter = instance.request_adapter(&wgpu::RequestAdapterOptions::default()).await?;
    println!("on {}\n", adapter.get_info().name);
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("app"),
        required_limits: wgpu::Limits::default().or_worse_values_from(&adapter.limits()),
        ..Default::default()
    };
    Ok(adapter.request_device(&descriptor).await?)
}

/// The app's first shader. Where the tables lie is what the plan says.
fn fill_source(bound: &Bound) -> Result<String, Box<dyn Error>> {
    let tables = bound.plan().tables();
    let start = |table| tables.range(table).map(|range| range.start / 4).ok_or("the plan has no such table");
    Ok(format!(
        "const KV_LEN = {}u; const TEMPERATURE = {}u; const BATCH = {}u; const HEADS = {}u; const KEYS = {}u;\n{FILL}",
        start(Table::KvLen)?,
        start(Table::Temperature)?,
        SHAPE.batch,
        SHAPE.q_heads,
        SHAPE.seq_k,
    ))
}

const FILL: &str = "
@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> k: array<f32>;
@group(0) @binding(3) var<storage, read_write> v: array<f32>;
@group(0) @binding(4) var<storage, read_write> tables: array<u32>;

// A number from -2 to 2 that looks random.
fn number(seed: u32) -> f32 {
    var x = seed * 747796405u + 2891336453u;
    x = ((x >> ((x >> 28u) + 4u)) ^ x) * 277803737u;
    x = (x >> 22u) ^ x;
    return f32(x >> 8u) / 4194304.0 - 2.0;
}

@compute @workgroup_size(64)
fn fill(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = id.x;
    let seed = 4u * (n + 1000000u * step.x);
    if (n < arrayLength(&q)) {
        q[n] = number(seed);
    }
    if (n < arrayLength(&k)) {
        k[n] = number(seed + 1u);
        v[n] = number(seed + 2u);
    }
    if (n < BATCH) {
        tables[KV_LEN + n] = KEYS - 10u * n - step.x;
    }
    if (n < HEADS) {
        tables[TEMPERATURE + n] = bitcast<u32>(0.5 + 0.25 * f32(n));
    }
}
";

const ADD: &str = "
@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> sum: array<f32>;

@compute @workgroup_size(64)
fn add(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&sum)) {
        sum[id.x] = a[id.x] + b[id.x];
    }
}
";

/// A compute pass of the app's.
struct Pass {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
}

impl Pass {
    fn new(device: &wgpu::Device, source: &str, entry_point: &str, buffers: &[&wgpu::Buffer]) -> Self {
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(entry_point),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(entry_point),
            layout: None,
            module: &module,
            entry_point: Some(entry_point),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let entries: Vec<_> = (0..)
            .zip(buffers)
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(entry_point),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        Pass { pipeline, group }
    }

    fn encode(&self, encoder: &mut wgpu::CommandEncoder, threads: u64) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(threads.div_ceil(64) as u32, 1, 1);
    }
}

/// Copies a buffer to the host and waits for it.
fn read(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    buffer: &wgpu::Buffer,
) -> Result<Vec<f32>, Box<dyn Error>> {
    let target = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("readback"),
        size: buffer.size(),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(buffer, 0, &target, 0, buffer.size());
    queue.submit([encoder.finish()]);
    let (sender, receiver) = mpsc::channel();
    target.map_async(wgpu::MapMode::Read, .., move |result| {
        // Only a program that no longer waits has dropped the receiver.
        let _ = sender.send(result);
    });
    device.poll(wgpu::PollType::wait_indefinitely())?;
    receiver.recv()??;
    let bytes = target.get_mapped_range(..)?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
