// Sparsemax and entmax of long rows: the maximum first, then each round of the search is a dispatch over chunks and one over rows. Of a row is
// kept the state in its first four words and (lo, width, rest, -) in the others.

fn load_threshold(row: u32) -> Threshold {
    let at = final_place(row);
    let words = load_partial(at + 4u);
    return Threshold(bitcast<f32>(partials[at]), words.x, words.y, words.z);
}

fn store_threshold(row: u32, threshold: Threshold) {
    store_partial(final_place(row) + 4u, vec4<f32>(threshold.lo, threshold.width, threshold.rest, 0.0));
}

@compute @workgroup_size(THREADS)
fn chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let chunk = chunk_of(group);
    let state = state_of(row_start(params.x, chunk.row), chunk.first, chunk.end, thread);
    if (thread == 0u && chunk.row < params.rows) {
        store_state(chunk_place(chunk.row, chunk.number), state);
    }
}

@compute @workgroup_size(THREADS)
fn merge_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group);
    let best = best_of_chunks(row, thread);
    if (thread == 0u && row < params.rows) {
        let state = found(best);
        store_state(final_place(row), state);
        store_threshold(row, start_threshold(state.m));
        store_stats(row, state, inverse_tau(row));
    }
}

fn add_chunk(group: vec3<u32>, last: bool, thread: u32) {
    let chunk = chunk_of(group);
    let row = min(chunk.row, params.rows - 1u);
    let start = row_start(params.x, chunk.row);
    let lens = sparse_lens(inverse_tau(row));
    let threshold = load_threshold(row);
    if (ONE_TILE) {
        load_tile(start, chunk.first, chunk.end, thread);
        make_logits(threshold.m, lens);
    }
    let sums = sums_of(start, chunk.first, chunk.end, threshold, lens, last, thread);
    if (thread == 0u && chunk.row < params.rows) {
        let at = chunk_place(chunk.row, chunk.number);
        store_partial(at, sums.a);
        store_partial(at + 4u, sums.b);
    }
}

fn chunk_sums(row: u32, thread: u32) -> Sums {
    var mine = Sums(vec4<f32>(0.0), vec4<f32>(0.0));
    for (var chunk = thread; chunk < chunks_of(row); chunk += THREADS) {
        let at = chunk_place(row, chunk);
        mine = Sums(mine.a + load_partial(at), mine.b + load_partial(at + 4u));
    }
    let a = add_lanes4(mine.a, thread);
    return Sums(a, add_lanes4(mine.b, thread));
}

@compute @workgroup_size(THREADS)
fn round_chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    add_chunk(group, false, thread);
}

@compute @workgroup_size(THREADS)
fn last_chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    add_chunk(group, true, thread);
}

@compute @workgroup_size(THREADS)
fn round_merge_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group);
    let sums = chunk_sums(row, thread);
    if (thread == 0u && row < params.rows) {
        store_threshold(row, narrow(load_threshold(row), sums));
    }
}

@compute @workgroup_size(THREADS)
fn last_merge_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group);
    let sums = chunk_sums(row, thread);
    if (thread == 0u && row < params.rows) {
        store_threshold(row, finish(load_threshold(row), sums));
    }
}

@compute @workgroup_size(THREADS)
fn write_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let chunk = chunk_of(group);
    let row = min(chunk.row, params.rows - 1u);
    rewrite(chunk.row, chunk.first, chunk.end, thread, load_threshold(row), sparse_lens(inverse_tau(row)));
}
