// What each row adds to the gradient of the temperature: the score is q.k over the temperature, so that it is -q.dq / temperature. See
// terms_*.wgsl for where it goes.

@compute @workgroup_size(THREADS)
fn temperature_rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = params.start + group_number(group, params.groups_x) * THREADS + lane;
    if (row >= params.end) {
        return;
    }
    let at = item(row, params.q_heads, params.seq_q);
    var term = 0.0;
    // q of a row that is none may hold anything.
    if (at.x < sequence(at.b).rows) {
        let q_row = row_start(params.q, at.b, at.h, at.x);
        let dq_row = row_start(params.grad, at.b, at.h, at.x);
        var sums = vec4<f32>(0.0);
        for (var d = 0u; d < QK_DIM4; d++) {
            sums = fma(load_q(q_row, d), load_grad(dq_row, d), sums);
        }
        term = -((sums.x + sums.y) + (sums.z + sums.w));
        if (TEMPERATURE_PER_HEAD) {
            term /= table_f32(params.temperature + at.h);
        } else if (TEMPERATURE_PER_ROW) {
            term /= table_f32(params.temperature + row);
        } else {
            term *= params.inverse_temperature;
        }
    }
    store_term(row, term);
}
