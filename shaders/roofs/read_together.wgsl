// How many bytes a second come out of a buffer where all threads of a workgroup read the same vec4 at a time: what processors that
// play a GPU do best.

@group(0) @binding(0) var<storage, read> seed: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> sink: array<vec4<f32>>;

@compute @workgroup_size(THREADS)
fn roof(@builtin(workgroup_id) group: vec3<u32>) {
    let first = group.x * THREADS * STEPS;
    var sum = vec4<f32>(0.0);
    for (var round = 0u; round < THREADS; round++) {
        for (var step = 0u; step < STEPS; step++) { // unroll
            sum += seed[first + round * STEPS + step];
        }
    }
    // Never true, which no compiler can know.
    if (sum.x == -1.0) {
        sink[0] = sum;
    }
}
