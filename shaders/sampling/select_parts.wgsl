// select.wgsl by parts: a pass for what the target is made of; PART_ROUNDS rounds of the search, a pass each; one that lists the tokens whose keys
// may still be the threshold, which are few unless many are nearly equal; the rest of the search through that list by one workgroup; and a
// pass that keeps. Of a row is noted: 0 the largest logit, 1 the last token that stays, 2 the mean of a context, 3 the threshold,
// 4, 5 the target.

// Of a row: tokens that are listed. Behind those of all rows are the shares of a top-k.
@group(0) @binding(8) var<storage, read_write> counts: array<atomic<u32>>;

fn noted_context(row: u32) -> Context {
    return make_context(number(note(row, 0u)), note(row, 2u));
}

fn noted_target(row: u32) -> vec2<u32> {
    return vec2<u32>(note(row, 4u), note(row, 5u));
}

fn leave_row(row: u32, thread: u32, mean: u32, threshold: u32, target_sum: vec2<u32>) {
    leave_note(row, thread, 0u, note(row, 0u));
    leave_note(row, thread, 2u, mean);
    leave_note(row, thread, 3u, threshold);
    leave_note(row, thread, 4u, target_sum.x);
    leave_note(row, thread, 5u, target_sum.y);
}

@compute @workgroup_size(THREADS)
fn target_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows || setting(row, 0u) == 0u) {
        return;
    }
    let best = facts_of(row, thread).best;
    leave_note(row, thread, 0u, best.x);
    leave_sums(row, thread, target_sums(row, thread, number(best.x)), TARGET_SUMS);
}

@compute @workgroup_size(THREADS)
fn round_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows || setting(row, 0u) == 0u) {
        return;
    }
    var mean = 0u;
    var threshold = 0u;
    var target_sum = vec2<u32>(0u);
    if (params.round == 0u) {
        let sums = sums_of(row, thread, TARGET_SUMS);
        mean = mean_of(sums);
        target_sum = share_of_sum(sums.each[TARGET_SUMS - 1u], setting(row, 0u));
        if (part == 0u && thread == 0u) {
            atomicStore(&counts[row], 0u);
        }
    } else {
        mean = note(row, 2u);
        target_sum = noted_target(row);
        threshold = passed(note(row, 3u), params.round - 1u, sums_of(row, thread, 7u), target_sum);
    }
    leave_row(row, thread, mean, threshold, target_sum);
    let context = make_context(number(note(row, 0u)), mean);
    leave_sums(row, thread, round_sums(row, thread, threshold, params.round, context), 7u);
}

@compute @workgroup_size(THREADS)
fn list_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows || setting(row, 0u) == 0u) {
        return;
    }
    let threshold = passed(note(row, 3u), PART_ROUNDS - 1u, sums_of(row, thread, 7u), noted_target(row));
    leave_row(row, thread, note(row, 2u), threshold, noted_target(row));
    let context = noted_context(row);
    let width = values_of(PART_ROUNDS) << shift_of(PART_ROUNDS);
    var above = Sums();
    for (var n = first + thread; n < live; n += THREADS) {
        let bits = work[at(row, n)];
        let key = key_of(bits, context);
        if (bits != NOTHING && key >= threshold) {
            if (key - threshold < width) {
                work[params.list + row * params.vocab + atomicAdd(&counts[row], 1u)] = n;
            } else {
                above.each[0] = add64(above.each[0], share_of(bits, context));
            }
        }
    }
    leave_sums(row, thread, above, 1u);
}

@compute @workgroup_size(THREADS)
fn search_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows || setting(row, 0u) == 0u) {
        return;
    }
    let context = noted_context(row);
    let above = sums_of(row, thread, 1u).each[0];
    let found = search(row, thread, note(row, 3u), PART_ROUNDS, above, noted_target(row), context);
    leave_note(row, thread, 0u, note(row, 0u));
    leave_note(row, thread, 1u, found.last);
    leave_note(row, thread, 2u, note(row, 2u));
    leave_note(row, thread, 3u, found.threshold);
}

@compute @workgroup_size(THREADS)
fn keep_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    // Off, it leaves all.
    let on = setting(row, 0u) > 0u;
    let context = noted_context(row);
    let threshold = note(row, 3u);
    let last = note(row, 1u);
    for (var n = first + thread; n < live; n += THREADS) {
        var bits = work[at(row, n)];
        let key = key_of(bits, context);
        if (on && (key < threshold || (key == threshold && n > last))) {
            bits = NOTHING;
            work[at(row, n)] = bits;
        }
        see(n, bits);
    }
    leave_facts(row, thread);
}
