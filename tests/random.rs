//! The generator on the device gives the words that it gives on the CPU.

#[path = "common/mod.rs"]
mod common;

use common::{Guarded, Rng};
use wgpu_attention::random::{threefry2x32, uniform_open};
use wgpu_attention::wgpu;

const ENTRY: &str = "
@group(0) @binding(0) var<storage, read> places: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> words: array<vec4<u32>>;

@compute @workgroup_size(64)
fn draw(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&places)) {
        let place = places[id.x];
        let drawn = threefry2x32(place.xy, place.zw);
        words[id.x] = vec4<u32>(drawn, bitcast<u32>(uniform_open(drawn.x)), bitcast<u32>(uniform_open(drawn.y)));
    }
}
";

#[test]
fn the_device_draws_what_the_cpu_draws() {
    let gpu = gpu!();
    let mut places = vec![[0; 4], [u32::MAX; 4], [0x1319_8a2e, 0x0370_7344, 0x243f_6a88, 0x85a3_08d3]];
    let mut rng = Rng::new(1);
    places.extend((0..997).map(|n| [rng.next() as u32, (rng.next() >> 32) as u32, n, 0]));
    places.extend((0..1000).map(|_| [(); 4].map(|()| rng.next() as u32)));

    let source = [include_str!("../shaders/random.wgsl"), ENTRY].concat();
    let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("random"),
        source: wgpu::ShaderSource::Wgsl(source.into()),
    });
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("random"),
        layout: None,
        module: &module,
        entry_point: Some("draw"),
        compilation_options: Default::default(),
        cache: None,
    });
    let input = Guarded::exact(gpu, "places", places.as_flattened());
    let output = Guarded::exact(gpu, "words", &vec![0; 4 * places.len()]);
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("random"),
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: input.buffer.as_entire_binding() },
            wgpu::BindGroupEntry { binding: 1, resource: output.buffer.as_entire_binding() },
        ],
    });
    let mut encoder = common::encoder(gpu);
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(places.len().div_ceil(64) as u32, 1, 1);
    }
    gpu.queue.submit([encoder.finish()]);

    let words = output.read(gpu, "words");
    for (n, place) in places.iter().enumerate() {
        let [a, b] = threefry2x32([place[0], place[1]], [place[2], place[3]]);
        let want = [a, b, uniform_open(a).to_bits(), uniform_open(b).to_bits()];
        assert_eq!(words[4 * n..4 * n + 4], want, "{place:x?} on {}", gpu.name);
    }
}
