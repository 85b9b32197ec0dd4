// Takes out the tokens whose bit is not set in the row's mask.

@group(0) @binding(6) var<storage, read> allowed: array<u32>;

@compute @workgroup_size(THREADS)
fn allowed_tokens(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let start = (params.first_row + row) * ((params.vocab + 31u) / 32u);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        if (((allowed[start + token / 32u] >> (token % 32u)) & 1u) == 0u) {
            work[at(row, token)] = NOTHING;
        }
    }
}
