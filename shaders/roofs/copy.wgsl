// How many bytes a second a copy reads and writes: STEPS Words of 16 bytes a thread, neighbours by neighbouring threads.

@group(0) @binding(0) var<storage, read> seed: array<Words>;
@group(0) @binding(1) var<storage, read_write> sink: array<Words>;

@compute @workgroup_size(THREADS)
fn roof(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * THREADS * STEPS + lane;
    for (var step = 0u; step < STEPS; step++) { // unroll
        sink[first + step * THREADS] = seed[first + step * THREADS];
    }
}
