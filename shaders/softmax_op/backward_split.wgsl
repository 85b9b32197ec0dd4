// Gradients of long rows: a workgroup for each chunk of a row, and one for each row to add up. Here LANES = THREADS.

struct Chunk {
    row: u32,
    number: u32,
    first: u32,
    end: u32,
}

fn chunk_of(group: vec3<u32>) -> Chunk {
    let number = group_number(group);
    let row = number / params.chunks;
    let chunk = number % params.chunks;
    let first = chunk * params.chunk;
    return Chunk(row, chunk, first, select(0u, min(first + params.chunk, params.len), row < params.rows));
}

fn store_sums(thread: u32, chunk: Chunk, sums: vec2<f32>) {
    if (thread == 0u && chunk.row < params.rows) {
        let at = chunk_place(chunk.row, chunk.number);
        partials[at] = bitcast<u32>(sums.x);
        partials[at + 1u] = bitcast<u32>(sums.y);
    }
}

fn add_chunks(row: u32, thread: u32) -> vec2<f32> {
    let chunks = select(0u, params.chunks, row < params.rows);
    var mine = vec2<f32>(0.0);
    for (var chunk = thread; chunk < chunks; chunk += THREADS) {
        let at = chunk_place(row, chunk);
        mine += vec2<f32>(bitcast<f32>(partials[at]), bitcast<f32>(partials[at + 1u]));
    }
    return add_lanes(mine, thread);
}

@compute @workgroup_size(THREADS)
fn chunk_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let chunk = chunk_of(group);
    store_sums(thread, chunk, add_lanes(collect(chunk.row, chunk.first + thread, chunk.end), thread));
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
    let sum = write(chunk.row, chunk.first + thread, chunk.end, c, inverse_tau(row));
    if (DTAU) {
        store_sums(thread, chunk, add_lanes(vec2<f32>(sum, 0.0), thread));
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
