// dk_j = sum_i factor_i dz_ij q_i, over the rows of all query heads that read the key: a workgroup for each key. Its threads take a row
// each, then a few columns each.

var<workgroup> weights: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn dk(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = item_number(group);
    if (number >= params.end) {
        return;
    }
    let at = item(number, params.q_heads / params.group, params.seq_k);
    let seq = sequence(at.b);
    let first = first_row_of(seq, at.x);
    var sums = array<vec4<f32>, QK_COLUMNS>();
    for (var member = 0u; member < params.group; member++) {
        let h = at.h * params.group + member;
        for (var tile = first; tile < seq.rows && at.x < seq.keys; tile += THREADS) {
            var weight = 0.0;
            let i = tile + lane;
            if (i < seq.rows) {
                weight = score_gradient(seq, h, i, at.x).dz;
                if (weight != 0.0) {
                    weight *= natural_factor(seq, h, i);
                }
            }
            weights[lane] = weight;
            workgroupBarrier();
            let count = min(THREADS, seq.rows - tile);
            for (var c = 0u; c < QK_COLUMNS; c++) { // unroll
                let d = c * THREADS + lane;
                if (d < QK_DIM4) {
                    var part = vec4<f32>(0.0);
                    for (var n = 0u; n < count; n++) {
                        if (weights[n] != 0.0) {
                            part = fma(vec4<f32>(weights[n]), load_q(row_start(params.q, at.b, h, tile + n), d), part);
                        }
                    }
                    sums[c] += part;
                }
            }
            workgroupBarrier();
        }
    }
    for (var c = 0u; c < QK_COLUMNS; c++) { // unroll
        let d = c * THREADS + lane;
        if (d < QK_DIM4) {
            store_grad(row_start(params.grad, at.b, at.h, at.x), d, sums[c]);
        }
    }
}
