// The gradient of a row of k or v, a sum over the rows of all query heads that read it: a workgroup for each key. Its threads take a row
// each, of which they make the weight (share_of), then a few columns each, of which they add up what the rows have (load_share).

var<workgroup> weights: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn of_key(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = item_number(group);
    if (number >= params.end) {
        return;
    }
    let at = item(number, params.q_heads / params.group, params.seq_k);
    let seq = sequence(at.b);
    let first = first_row_of(seq, at.x);
    var sums = array<vec4<f32>, COLUMNS>();
    for (var member = 0u; member < params.group; member++) {
        let h = at.h * params.group + member;
        for (var tile = first; tile < seq.rows && at.x < seq.keys; tile += THREADS) {
            var weight = 0.0;
            if (tile + lane < seq.rows) {
                weight = share_of(seq, h, tile + lane, at.x);
            }
            weights[lane] = weight;
            workgroupBarrier();
            let count = min(THREADS, seq.rows - tile);
            for (var c = 0u; c < COLUMNS; c++) { // unroll
                let d = c * THREADS + lane;
                if (d < DIM4) {
                    var part = vec4<f32>(0.0);
                    for (var n = 0u; n < count; n++) {
                        // A row of weight 0 may be one that does not see the key, and then it may hold anything.
                        if (weights[n] != 0.0) {
                            part = fma(vec4<f32>(weights[n]), load_share(at.b, h, tile + n, d), part);
                        }
                    }
                    sums[c] += part;
                }
            }
            workgroupBarrier();
        }
    }
    for (var c = 0u; c < COLUMNS; c++) { // unroll
        let d = c * THREADS + lane;
        if (d < DIM4) {
            store_grad(row_start(params.grad, at.b, at.h, at.x), d, sums[c]);
        }
    }
}
