// A draw by parts: the best of each, and the best of those.

@compute @workgroup_size(THREADS)
fn draw_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let best = facts_of(row, thread).best;
    let highest = number(best.x);
    leave_note(row, thread, 0u, best.x);
    leave_note(row, thread, 1u, best.y);
    if (GUMBEL) {
        leave_best(row, thread, best_score(row, thread, highest));
    }
    if (LOG_PROBS) {
        leave_sums(row, thread, spread_sums(row, thread, highest), 3u);
    }
}

// By one workgroup for each row.
@compute @workgroup_size(THREADS)
fn merge_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group_number(group);
    if (row >= params.rows) {
        return;
    }
    var token = 0u;
    if (GUMBEL) {
        token = best_of_parts(row, thread, vec2<u32>(LOWEST_SCORE, NO_TOKEN)).y;
    } else if (LOG_PROBS) {
        token = note(row, 1u);
    } else {
        token = facts_of(row, thread).best.y;
    }
    if (LOG_PROBS) {
        let total = spread_from(sums_of(row, thread, 3u)).log2_total;
        if (thread == 0u) {
            write_log_prob(row, token, number(note(row, 0u)), total);
        }
    }
    if (thread == 0u) {
        write_draw(row, token);
    }
}
