// min_p.wgsl by parts, in one pass.

@compute @workgroup_size(THREADS)
fn min_p(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let highest = number(facts_of(row, thread).best.x);
    let lowest = order(clean(bitcast<u32>(highest + bitcast<f32>(setting(row, 0u)))));
    let on = setting(row, 1u) > 0u;
    for (var n = first + thread; n < live; n += THREADS) {
        var bits = work[at(row, n)];
        if (on && order(bits) < lowest) {
            bits = NOTHING;
            work[at(row, n)] = bits;
        }
        see(n, bits);
    }
    leave_facts(row, thread);
}
