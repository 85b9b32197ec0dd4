// Gradients of long rows: a workgroup for each chunk of a row, and one for each row to add up.

fn store_sums(thread: u32, chunk: Chunk, sums: vec2<f32>) {
    if (thread == 0u && chunk.row < params.rows) {
        store_partial(chunk_place(chunk.row, chunk.number), vec4<f32>(sums, 0.0, 0.0));
    }
}

fn add_chunks(row: u32, thread: u32) -> vec2<f32> {
    var mine = vec2<f32>(0.0);
    for (var chunk = thread; chunk < chunks_of(row); chunk += THREADS) {
        mine += load_partial(chunk_place(row, chunk)).xy;
    }
    return add_lanes2(mine, thread);
}

@compute @workgroup_size(THREADS)
fn chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let chunk = chunk_of(group);
    store_sums(thread, chunk, collect(chunk.row, chunk.first, chunk.end, thread));
}

@compute @workgroup_size(THREADS)
fn merge_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group);
    let sums = add_chunks(row, thread);
    if (thread == 0u && row < params.rows) {
        partials[final_place(row)] = bitcast<u32>(centre(sums));
    }
}

@compute @workgroup_size(THREADS)
fn write_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let chunk = chunk_of(group);
    let row = min(chunk.row, params.rows - 1u);
    let c = bitcast<f32>(partials[final_place(row)]);
    let sum = rewrite(chunk.row, chunk.first, chunk.end, thread, c, inverse_tau(row));
    if (DTAU) {
        store_sums(thread, chunk, add_lanes2(vec2<f32>(sum, 0.0), thread));
    }
}

@compute @workgroup_size(THREADS)
fn dtau_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group);
    let sums = add_chunks(row, thread);
    if (thread == 0u && row < params.rows) {
        store_dtau(row, sums.x, inverse_tau(row));
    }
}
