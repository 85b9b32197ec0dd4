// Copies the logits, cleaned.

@group(0) @binding(1) var<storage, read> logits: array<u32>;

@compute @workgroup_size(THREADS)
fn begin(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    for (var token = thread; token < params.vocab; token += THREADS) {
        work[at(row, token)] = clean(logits[params.logits + row * params.stride + token]);
    }
}
