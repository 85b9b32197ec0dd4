// The facts of a row whose logits were changed in some places.

@compute @workgroup_size(THREADS)
fn facts(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    for (var n = first + thread; n < live; n += THREADS) {
        see(n, work[at(row, n)]);
    }
    leave_facts(row, thread);
}
