// Before a top-k: the largest logit of each thread's share, in params.groups workgroups for each row. See narrow.wgsl.

@compute @workgroup_size(THREADS)
fn maxima(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group_number(group);
    let row = number / params.groups;
    if (row >= params.rows) {
        return;
    }
    let place = number % params.groups * THREADS + thread;
    var most = OUT;
    for (var token = place; token < params.vocab; token += THREADS * params.groups) {
        most = max(most, order(work[at(row, token)]));
    }
    work[params.maxima + row * params.groups * THREADS + place] = most;
    if (place == 0u) {
        work[params.counts + row] = 0u;
    }
}
