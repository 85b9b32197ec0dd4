// Softmax and log-softmax of long rows: a workgroup for each chunk writes, once the state of its row is there.

@compute @workgroup_size(THREADS)
fn write_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group_number(group);
    let row = number / params.chunks;
    if (row >= params.rows) {
        return;
    }
    let first = (number % params.chunks) * params.chunk;
    let end = min(first + params.chunk, params.len);
    let by = inverse_tau(row);
    let lens = lens_of(by);
    let state = load_state(final_place(row));
    let start = row_start(params.x, row);
    let norm = norm_of(state);
    let out_start = row_start(params.out, row);
    for (var i = first + thread; i < end; i += THREADS) {
        out[out_start + i * params.out.step] = result(load_x(start + i * params.x.step), norm, lens, by);
    }
}
