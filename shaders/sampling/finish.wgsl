// A draw by one workgroup.

@compute @workgroup_size(THREADS)
fn finish(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    var best = largest(row, thread);
    let highest = number(best.x);
    if (GUMBEL) {
        best = best_of(best_score(row, thread, highest), thread);
    }
    if (LOG_PROBS) {
        let total = spread_of(row, thread, highest).log2_total;
        if (thread == 0u) {
            write_log_prob(row, best.y, highest, total);
        }
    }
    if (thread == 0u) {
        write_draw(row, best.y);
    }
}
