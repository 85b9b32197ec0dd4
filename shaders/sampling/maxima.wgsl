// The largest logit of each share, where steps before the first top-k have changed what was there at the beginning. See shares.wgsl.

@compute @workgroup_size(THREADS)
fn maxima(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    var most = OUT;
    for (var token = first + thread; token < live; token += THREADS) {
        most = max(most, order(work[at(row, token)]));
    }
    leave_maximum(row, thread, most);
}
