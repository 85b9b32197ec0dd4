// Adds a row's biases, pairs of a token and a number; -inf takes the token out. Of a token that is there more than once, the thread of its
// first place adds all, in their order.

@group(0) @binding(5) var<storage, read> bias: array<vec2<u32>>;

@compute @workgroup_size(THREADS)
fn logit_bias(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let start = (params.first_row + row) * params.bias;
    for (var n = thread; n < params.bias; n += THREADS) {
        let token = bias[start + n].x;
        if (token >= params.vocab) {
            continue; // no token
        }
        var bits = work[at(row, token)];
        var first = true;
        for (var other = 0u; other < params.bias; other++) {
            let entry = bias[start + other];
            if (entry.x == token) {
                first = first && other >= n;
                let by = clean(entry.y);
                if (by == NOTHING) {
                    bits = NOTHING;
                } else if (bits != NOTHING) {
                    bits = clean(bitcast<u32>(bitcast<f32>(bits) + bitcast<f32>(by)));
                }
            }
        }
        if (first) {
            work[at(row, token)] = bits;
        }
    }
}
