// temperature.wgsl by parts, in one pass.

@compute @workgroup_size(THREADS)
fn temperature(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let what = setting(row, 0u);
    let known = facts_of(row, thread);
    let highest = number(known.best.x);
    let limit = bitcast<f32>(setting(row, 2u));
    let by = Scale(leaves(known.best, highest, number(~known.lowest), limit), highest, bitcast<f32>(setting(row, 1u)), limit);
    for (var n = first + thread; n < live; n += THREADS) {
        var bits = work[at(row, n)];
        if (what == 0u && n != known.best.y) {
            bits = NOTHING;
        } else if (what == 1u) {
            bits = scaled(bits, by);
        }
        work[at(row, n)] = bits;
        see(n, bits);
    }
    leave_facts(row, thread);
}
