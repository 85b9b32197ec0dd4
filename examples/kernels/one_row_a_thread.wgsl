// An example for `wgpu-attention bench --kernel`: attention with one query row for each thread, for head dims that are multiples of
// four. docs/benchmarking.md has the contract. Before this text stand `const HEAD_DIM`, `const HEAD_DIM_V`, `const CAUSAL`,
// `struct Params` and `params` at binding 0.
//
// The softmax is the online one (Milakov and Gimelshein 2018, arXiv 1805.02867): m is the largest score so far,
// l = sum 2^(s - m), o = sum 2^(s - m) v.

const ROWS: u32 = 32u;
const NONE = -3.0e38;
const QK4 = HEAD_DIM / 4u;
const V4 = HEAD_DIM_V / 4u;

@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(ROWS)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let batch = params.first_batch + group.z;
    let head = params.first_head + group.y;
    let row = params.first_row + group.x * ROWS + lane;
    if (row >= params.end_row) {
        return;
    }
    let kv_head = head / (params.q_heads / params.kv_heads);
    let q_row = (batch * params.q_heads + head) * params.seq_q + row;
    let k_row = (batch * params.kv_heads + kv_head) * params.seq_k;

    var keys = params.seq_k;
    if (CAUSAL) {
        keys = u32(clamp(i32(row) + params.offset + 1, 0, i32(params.seq_k)));
    }
    let factor = params.scale * 1.4426950408889634; // log2(e), so that exp2 serves
    var o: array<vec4<f32>, V4>;
    var m = NONE;
    var l = 0.0;
    for (var j = 0u; j < keys; j++) {
        var sums = vec4<f32>(0.0);
        for (var d = 0u; d < QK4; d++) {
            sums = fma(q[q_row * QK4 + d], k[(k_row + j) * QK4 + d], sums);
        }
        let s = factor * ((sums.x + sums.y) + (sums.z + sums.w));
        let larger = max(m, s);
        let old = exp2(m - larger);
        let p = exp2(s - larger);
        l = l * old + p;
        for (var d = 0u; d < V4; d++) {
            o[d] = fma(vec4<f32>(p), v[(k_row + j) * V4 + d], o[d] * old);
        }
        m = larger;
    }
    // A row that sees no key gives 0.
    let scale = select(0.0, 1.0 / l, l > 0.0);
    for (var d = 0u; d < V4; d++) {
        out[q_row * V4 + d] = o[d] * scale;
    }
}
