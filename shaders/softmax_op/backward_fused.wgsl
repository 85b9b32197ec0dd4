// Gradients in one dispatch, shared out as in exp_fused.wgsl.

fn do_row(row: u32, thread: u32) {
    let lane = thread % LANES;
    let end = select(0u, params.len, FULL || row < params.rows);
    let by = inverse_tau(min(row, params.rows - 1u));
    let c = centre(collect(row, 0u, end, thread));
    var sum = 0.0;
    if (ONE_TILE) {
        sum = write_tile(row, 0u, end, lane, c, by);
    } else {
        sum = rewrite(row, 0u, end, lane, c, by);
    }
    if (DTAU) {
        let all = add_lanes2(vec2<f32>(sum, 0.0), thread).x;
        if (lane == 0u && row < params.rows) {
            store_dtau(row, all, by);
        }
    }
}

@compute @workgroup_size(THREADS)
fn rows_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    if (FULL) {
        // Here a workgroup has one row at a time, and no row in vain.
        let first = group_number(group) * params.lots;
        for (var row = first; row < min(first + params.lots, params.rows); row++) {
            do_row(row, thread);
        }
        return;
    }
    for (var lot = 0u; lot < params.lots; lot++) {
        do_row((group_number(group) * params.lots + lot) * (THREADS / LANES) + thread / LANES, thread);
    }
}
