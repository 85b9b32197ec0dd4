// Softmax and log-softmax of long rows: each chunk leaves its state, those of a row are put together, and each chunk is written.

@compute @workgroup_size(THREADS)
fn chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let chunk = chunk_of(group);
    let lens = lens_of(inverse_tau(min(chunk.row, params.rows - 1u)));
    let state = state_of(row_start(params.x, chunk.row), chunk.first, chunk.end, lens, thread);
    if (thread == 0u && chunk.row < params.rows) {
        store_state(chunk_place(chunk.row, chunk.number), state);
    }
}

@compute @workgroup_size(THREADS)
fn merge_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group);
    let by = inverse_tau(min(row, params.rows - 1u));
    let lens = lens_of(by);
    let best = best_of_chunks(row, thread);
    let m = number_of(best.x);
    var sums = vec2<f32>(0.0);
    for (var chunk = thread; chunk < chunks_of(row); chunk += THREADS) {
        let state = load_state(chunk_place(row, chunk));
        sums += rebase(vec2<f32>(state.l, state.u), state.m, m, lens);
    }
    sums = add_lanes2(sums, thread);
    if (thread == 0u && row < params.rows) {
        let state = State(m, sums.x, sums.y, best.y);
        store_state(final_place(row), state);
        store_stats(row, state, by);
    }
}

@compute @workgroup_size(THREADS)
fn write_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let chunk = chunk_of(group);
    let row = min(chunk.row, params.rows - 1u);
    let by = inverse_tau(row);
    rewrite(chunk.row, chunk.first, chunk.end, thread, load_state(final_place(row)), lens_of(by), by);
}
