// Keeps the tokens whose probability is at least p times the largest: l >= max l + ln p (Nguyen and others 2024). Settings: ln p, and
// whether it is on.

@compute @workgroup_size(THREADS)
fn min_p(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    if (setting(row, 1u) > 0u) {
        let highest = number(largest(row, thread).x);
        let lowest = order(clean(bitcast<u32>(highest + bitcast<f32>(setting(row, 0u)))));
        for (var n = first + thread; n < live; n += THREADS) {
            let token = token_at(row, n);
            if (order(work[at(row, token)]) < lowest) {
                work[at(row, token)] = NOTHING;
            }
        }
    }
}
