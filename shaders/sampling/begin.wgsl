// Copies the logits, cleaned: params.groups workgroups for each row.

@compute @workgroup_size(THREADS)
fn begin(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group_number(group);
    let row = number / params.groups;
    if (row >= params.rows) {
        return;
    }
    for (var token = number % params.groups * THREADS + thread; token < params.vocab; token += THREADS * params.groups) {
        work[at(row, token)] = clean(load_logit(params.logits + row * params.stride + token));
    }
}
