// How many operations of dot products a second. Each dot product reads the four results before it, so none can be left out,
// and CHAINS of them stand side by side.

@group(0) @binding(0) var<storage, read> seed: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> sink: array<vec4<f32>>;

@compute @workgroup_size(THREADS)
fn roof(@builtin(local_invocation_index) lane: u32) {
    let w = seed[0] * 0.25;
    let b = seed[1].x;
    var x = array<vec4<f32>, CHAINS>();
    for (var c = 0u; c < CHAINS; c++) { // unroll
        x[c] = seed[2] + f32(lane + c);
    }
    for (var round = 0u; round < ROUNDS; round++) {
        for (var step = 0u; step < STEPS; step++) { // unroll
            for (var c = 0u; c < CHAINS; c++) { // unroll
                x[c] = vec4<f32>(x[c].yzw, dot(x[c], w) + b);
            }
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
