// How many operations of products of matrices a second, f16 in and f32 sums: CHAINS independent sums of one subgroup, so that none
// waits for another. Left, Right and Sums are declared before, with what they need of the language.

@group(0) @binding(0) var<storage, read> seed: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> sink: array<vec4<f32>>;

var<workgroup> halves: array<f16, SIZE * SIZE>;
var<workgroup> sums: array<f32, SIZE * SIZE>;

@compute @workgroup_size(THREADS)
fn roof(@builtin(local_invocation_index) lane: u32, @builtin(subgroup_id) subgroup: u32) {
    for (var at = lane; at < SIZE * SIZE; at += THREADS) {
        halves[at] = f16(seed[1].x);
    }
    workgroupBarrier();
    let a = coopLoad<Left>(&halves[0], SIZE);
    let b = coopLoad<Right>(&halves[0], SIZE);
    var x = array<Sums, CHAINS>();
    for (var round = 0u; round < ROUNDS; round++) {
        for (var step = 0u; step < STEPS; step++) { // unroll
            for (var c = 0u; c < CHAINS; c++) { // unroll
                x[c] = coopMultiplyAdd(a, b, x[c]);
            }
        }
    }
    var sum = Sums();
    for (var c = 0u; c < CHAINS; c++) { // unroll
        sum = sum + x[c];
    }
    // Where a workgroup is more than one subgroup, all have the same.
    if (subgroup == 0u) {
        coopStore(sum, &sums[0], SIZE);
    }
    workgroupBarrier();
    // Never true, which no compiler can know.
    if (sums[lane % (SIZE * SIZE)] == -1.0) {
        sink[0] = seed[0];
    }
}
