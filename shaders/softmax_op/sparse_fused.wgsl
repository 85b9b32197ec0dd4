// Sparsemax and entmax of short rows in one dispatch, shared out as in exp_fused.wgsl.

@compute @workgroup_size(THREADS)
fn rows_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group) * (THREADS / LANES) + thread / LANES;
    let lane = thread % LANES;
    let end = select(0u, params.len, row < params.rows);
    let by = inverse_tau(min(row, params.rows - 1u));
    let lens = lens_of(by);
    let start = row_start(params.x, row);
    let state = merge_lanes(collect(start, lane, end, lens), thread, lens);

    let sparse = sparse_lens(by);
    var threshold = start_threshold(state.m);
    for (var round = 0u; round < ROUNDS; round++) {
        threshold = narrow(threshold, add_lanes(sums_of(start, lane, end, threshold, sparse, false), thread));
    }
    threshold = finish(threshold, add_lanes(sums_of(start, lane, end, threshold, sparse, true), thread));

    let out_start = row_start(params.out, row);
    for (var i = lane; i < end; i += LANES) {
        out[out_start + i * params.out.step] = result_sparse(load_x(start + i * params.x.step), threshold, sparse);
    }
    if (lane == 0u && row < params.rows) {
        store_stats(row, state, by);
    }
}
