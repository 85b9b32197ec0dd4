// Sparsemax and entmax in one dispatch, shared out as in exp_fused.wgsl.

fn do_row(row: u32, thread: u32) {
    let end = select(0u, params.len, FULL || row < params.rows);
    let by = inverse_tau(min(row, params.rows - 1u));
    let lens = sparse_lens(by);
    let start = row_start(params.x, row);
    let state = state_of(start, 0u, end, thread);
    if (ONE_TILE) {
        make_logits(state.m, lens);
    }
    var threshold = start_threshold(state.m);
    for (var round = 0u; round < ROUNDS; round++) {
        threshold = narrow(threshold, sums_of(start, 0u, end, threshold, lens, false, thread));
    }
    threshold = finish(threshold, sums_of(start, 0u, end, threshold, lens, true, thread));
    if (ONE_TILE) {
        write_tile(row_start(params.out, row), 0u, end, thread % LANES, threshold);
    } else {
        rewrite(row, 0u, end, thread % LANES, threshold, lens);
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
