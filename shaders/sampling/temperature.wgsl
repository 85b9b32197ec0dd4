// l / T. Settings: what to do (0: keep the largest, 1: scale, 2: nothing), 1 / T, LARGEST T.

@compute @workgroup_size(THREADS)
fn temperature(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let what = setting(row, 0u);
    if (what == 0u) {
        keep_largest(row, thread);
    } else if (what == 1u) {
        scale_row(row, thread, bitcast<f32>(setting(row, 1u)), bitcast<f32>(setting(row, 2u)));
    }
}
