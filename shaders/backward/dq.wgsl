// dq_i = factor_i sum_j dz_ij k_j: a workgroup for each row. Its threads take a key each, then a few columns each.

var<workgroup> weights: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn dq(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = item_number(group);
    if (number >= params.end) {
        return;
    }
    let at = item(number, params.q_heads, params.seq_q);
    let seq = sequence(at.b);
    var range = key_range(seq, at.x, at.x);
    if (at.x >= seq.rows) {
        range.end = 0u;
    }
    let first = select(range.start, 0u, KEEP_FIRST);
    var sums = array<vec4<f32>, COLUMNS>();
    for (var tile = first; tile < range.end; tile += THREADS) {
        var weight = 0.0;
        if (tile + lane < range.end) {
            weight = score_gradient(seq, at.h, at.x, tile + lane).dz;
        }
        weights[lane] = weight;
        workgroupBarrier();
        let count = min(THREADS, range.end - tile);
        for (var c = 0u; c < COLUMNS; c++) { // unroll
            let d = c * THREADS + lane;
            if (d < DIM4) {
                var part = vec4<f32>(0.0);
                for (var n = 0u; n < count; n++) {
                    // A key of weight 0 may be one that is not seen, and then k may hold anything.
                    if (weights[n] != 0.0) {
                        part = fma(vec4<f32>(weights[n]), load_k(row_start(params.k, at.b, kv_head(at.h), tile + n), d), part);
                    }
                }
                sums[c] += part;
            }
        }
        workgroupBarrier();
    }
    var factor = 0.0;
    if (at.x < seq.rows) {
        factor = natural_factor(seq, at.h, at.x);
    }
    for (var c = 0u; c < COLUMNS; c++) { // unroll
        let d = c * THREADS + lane;
        if (d < DIM4) {
            store_grad(row_start(params.grad, at.b, at.h, at.x), d, sums[c] * factor);
        }
    }
}
