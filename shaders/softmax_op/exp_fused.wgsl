// Softmax and log-softmax in one dispatch: LANES threads for each row, THREADS / LANES rows for each workgroup.

fn do_row(row: u32, thread: u32) {
    // Threads beyond the last row go along, with nothing to read or write.
    let end = select(0u, params.len, FULL || row < params.rows);
    let by = inverse_tau(min(row, params.rows - 1u));
    let lens = lens_of(by);
    let state = state_of(row_start(params.x, row), 0u, end, lens, thread);
    if (ONE_TILE) {
        let norm = norm_of(state);
        for (var v = 0u; v < VECS; v++) { // unroll
            store_out4(row_start(params.out, row), 0u, v, thread % LANES, end, kept_result(own[v], norm, lens, by));
        }
    } else {
        rewrite(row, 0u, end, thread % LANES, state, lens, by);
    }
    if (thread % LANES == 0u && row < params.rows) {
        store_stats(row, state, by);
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
