// Gradients of short rows in one dispatch, shared out as in exp_fused.wgsl.

@compute @workgroup_size(THREADS)
fn rows_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group) * (THREADS / LANES) + thread / LANES;
    let lane = thread % LANES;
    let end = select(0u, params.len, row < params.rows);
    let by = inverse_tau(min(row, params.rows - 1u));
    let c = centre(add_lanes(collect(row, lane, end), thread));
    let sum = write(row, lane, end, c, by);
    if (DTAU) {
        let all = add_lanes(vec2<f32>(sum, 0.0), thread).x;
        if (lane == 0u && row < params.rows) {
            store_dtau(row, all, by);
        }
    }
}
