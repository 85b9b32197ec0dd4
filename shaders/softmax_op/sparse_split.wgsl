// Sparsemax and entmax of long rows: after the maximum is known (state_split.wgsl), each round of the search is a
// dispatch over chunks and one over rows.

fn load_threshold(row: u32) -> Threshold {
    let at = final_place(row);
    return Threshold(
        bitcast<f32>(partials[at]),
        bitcast<f32>(partials[at + 4u]),
        bitcast<f32>(partials[at + 5u]),
        bitcast<f32>(partials[at + 6u]),
    );
}

fn store_threshold(row: u32, threshold: Threshold) {
    let at = final_place(row);
    partials[at + 4u] = bitcast<u32>(threshold.lo);
    partials[at + 5u] = bitcast<u32>(threshold.width);
    partials[at + 6u] = bitcast<u32>(threshold.rest);
}

// The interval before the first round.
@compute @workgroup_size(THREADS)
fn start_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group) * THREADS + thread;
    if (row < params.rows) {
        store_threshold(row, start_threshold(bitcast<f32>(partials[final_place(row)])));
    }
}

fn add_chunk(group: vec3<u32>, thread: u32, last: bool) {
    let number = group_number(group);
    let row = number / params.chunks;
    let chunk = number % params.chunks;
    let first = chunk * params.chunk;
    let end = select(0u, min(first + params.chunk, params.len), row < params.rows);
    let by = inverse_tau(min(row, params.rows - 1u));
    let threshold = load_threshold(min(row, params.rows - 1u));
    let sums = add_lanes(sums_of(row_start(params.x, row), first + thread, end, threshold, sparse_lens(by), last), thread);
    if (thread == 0u && row < params.rows) {
        let at = chunk_place(row, chunk);
        for (var e = 0u; e < 4u; e++) {
            partials[at + e] = bitcast<u32>(sums.a[e]);
            partials[at + 4u + e] = bitcast<u32>(sums.b[e]);
        }
    }
}

fn chunk_sums(row: u32, thread: u32) -> Sums {
    let chunks = select(0u, params.chunks, row < params.rows);
    var mine = Sums(vec4<f32>(0.0), vec4<f32>(0.0));
    for (var chunk = thread; chunk < chunks; chunk += THREADS) {
        let at = chunk_place(row, chunk);
        for (var e = 0u; e < 4u; e++) { // unroll
            mine.a[e] += bitcast<f32>(partials[at + e]);
            mine.b[e] += bitcast<f32>(partials[at + 4u + e]);
        }
    }
    return add_lanes(mine, thread);
}

@compute @workgroup_size(THREADS)
fn round_chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    add_chunk(group, thread, false);
}

@compute @workgroup_size(THREADS)
fn last_chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    add_chunk(group, thread, true);
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
    let number = group_number(group);
    let row = number / params.chunks;
    if (row >= params.rows) {
        return;
    }
    let first = (number % params.chunks) * params.chunk;
    let end = min(first + params.chunk, params.len);
    let sparse = sparse_lens(inverse_tau(row));
    let threshold = load_threshold(row);
    let start = row_start(params.x, row);
    let out_start = row_start(params.out, row);
    for (var i = first + thread; i < end; i += THREADS) {
        out[out_start + i * params.out.step] = result_sparse(load_x(start + i * params.x.step), threshold, sparse);
    }
}
