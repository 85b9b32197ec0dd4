// Such a step by one workgroup.

@compute @workgroup_size(THREADS)
fn keep_share(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let p = setting(row, 0u);
    if (p > 0u) {
        let highest = number(largest(row, thread).x);
        let sums = add_all(target_sums(row, thread, highest), thread, TARGET_SUMS);
        let context = make_context(highest, mean_of(sums));
        select_row(row, thread, share_of_sum(sums.each[TARGET_SUMS - 1u], p), context);
    }
}
