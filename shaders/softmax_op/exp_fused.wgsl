// Softmax and log-softmax of short rows in one dispatch: LANES threads for each row, THREADS / LANES rows for each workgroup.

@compute @workgroup_size(THREADS)
fn rows_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group) * (THREADS / LANES) + thread / LANES;
    let lane = thread % LANES;
    // Threads beyond the last row go along, with nothing to read or write.
    let end = select(0u, params.len, row < params.rows);
    let by = inverse_tau(min(row, params.rows - 1u));
    let lens = lens_of(by);
    let start = row_start(params.x, row);
    let state = merge_lanes(collect(start, lane, end, lens), thread, lens);

    let norm = norm_of(state);
    let out_start = row_start(params.out, row);
    for (var i = lane; i < end; i += LANES) {
        out[out_start + i * params.out.step] = result(load_x(start + i * params.x.step), norm, lens, by);
    }
    if (lane == 0u && row < params.rows) {
        store_stats(row, state, by);
    }
}
