// dbias = the sum of ds over all pairs that share an element of the bias: a thread for each element.

@group(0) @binding(12) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(THREADS)
fn dbias(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = params.start + group_number(group, params.groups_x) * THREADS + lane;
    if (number >= params.end) {
        return;
    }
    let key = number % params.bias_keys;
    let row = number / params.bias_keys % params.bias_rows;
    let head = number / params.bias_keys / params.bias_rows % params.bias_heads;
    let batch = number / params.bias_keys / params.bias_rows / params.bias_heads;
    // Where the bias has size 1 all places share the element.
    let b_end = select(batch + 1u, params.batches, params.bias_batches == 1u);
    let h_end = select(head + 1u, params.q_heads, params.bias_heads == 1u);
    let i_end = select(row + 1u, params.seq_q, params.bias_rows == 1u);
    let j_end = select(key + 1u, params.seq_k, params.bias_keys == 1u);
    var sum = 0.0;
    for (var b = batch; b < b_end; b++) {
        let seq = sequence(b);
        for (var h = head; h < h_end; h++) {
            for (var i = row; i < min(i_end, seq.rows); i++) {
                var part = 0.0;
                for (var j = key; j < min(j_end, seq.keys); j++) {
                    part += score_gradient(seq, h, i, j).ds;
                }
                sum += part;
            }
        }
    }
    result[number] = sum;
}
