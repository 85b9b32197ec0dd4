// Long rows: a workgroup for each chunk of a row leaves a state, one for each row merges them. Here LANES = THREADS.

@compute @workgroup_size(THREADS)
fn chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group_number(group);
    let row = number / params.chunks;
    let chunk = number % params.chunks;
    let first = chunk * params.chunk;
    let end = select(0u, min(first + params.chunk, params.len), row < params.rows);
    let lens = lens_of(inverse_tau(min(row, params.rows - 1u)));
    let start = row_start(params.x, row);
    let state = merge_lanes(collect(start, first + thread, end, lens), thread, lens);
    if (thread == 0u && row < params.rows) {
        store_state(chunk_place(row, chunk), state);
    }
}

@compute @workgroup_size(THREADS)
fn merge_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group);
    let chunks = select(0u, params.chunks, row < params.rows);
    let by = inverse_tau(min(row, params.rows - 1u));
    let lens = lens_of(by);
    var mine = empty_state();
    for (var chunk = thread; chunk < chunks; chunk += THREADS) {
        mine = merge(mine, load_state(chunk_place(row, chunk)), lens);
    }
    let state = merge_lanes(mine, thread, lens);
    if (thread == 0u && row < params.rows) {
        store_state(final_place(row), state);
        store_stats(row, state, by);
    }
}
