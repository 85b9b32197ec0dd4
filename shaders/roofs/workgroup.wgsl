// How many bytes a second come out of workgroup memory: each thread reads vec4s of its own, side by side.

@group(0) @binding(0) var<storage, read> seed: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> sink: array<vec4<f32>>;

const TILE = THREADS * (STEPS + 1u);
var<workgroup> tile: array<vec4<f32>, TILE>;

@compute @workgroup_size(THREADS)
fn roof(@builtin(local_invocation_index) lane: u32) {
    for (var at = lane; at < TILE; at += THREADS) {
        tile[at] = seed[2] + f32(at);
    }
    workgroupBarrier();
    var x = array<vec4<f32>, CHAINS>();
    for (var c = 0u; c < CHAINS; c++) { // unroll
        x[c] = vec4<f32>(0.0);
    }
    for (var round = 0u; round < ROUNDS; round++) {
        let first = lane + (round & (THREADS - 1u));
        for (var step = 0u; step < STEPS; step++) { // unroll
            x[step % CHAINS] += tile[first + step * THREADS];
        }
    }
    var sum = vec4<f32>(0.0);
    for (var c = 0u; c < CHAINS; c++) { // unroll
        sum += x[c];
    }
    // Never true, which no compiler can know.
    if (sum.x == -1.0) {
        sink[0] = sum;
    }
}
