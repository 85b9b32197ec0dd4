// Keeps the tokens with the largest keys until their weights make a target: a key and a weight for each token, whole numbers, so that sums are
// the same in any order. No sort: the key at the threshold is found three bits at a time, from the sums above seven candidates; the
// place among equal keys, lowest token first, in the same way.

fn select_row(row: u32, thread: u32, target_sum: vec2<u32>, context: Context) {
    // The largest key K for which the sum over keys >= K reaches the target; 0 if none does.
    var threshold = 0u;
    for (var round = 0u; round < 11u; round++) {
        // Bits 29..31, 26..28, ..., 2..4, and the last two.
        let shift = select(29u - 3u * round, 0u, round == 10u);
        let most = select(8u, 4u, round == 10u);
        var sums = Sums();
        for (var n = thread; n < live; n += THREADS) {
            let token = token_at(row, n);
            let bits = work[at(row, token)];
            let key = key_of(bits, context);
            // Candidates are threshold + c 2^shift: this token counts for all up to its own.
            if (bits != NOTHING && key >= threshold) {
                let upto = min((key - threshold) >> shift, most - 1u);
                let w = share_of(bits, context);
                for (var c = 0u; c < 7u; c++) { // unroll
                    if (c < upto) {
                        sums.each[c] = add64(sums.each[c], w);
                    }
                }
            }
        }
        sums = add_all(sums, thread, 7u);
        var passed = 0u;
        for (var c = 0u; c < 7u; c++) { // unroll
            if (c + 1u < most && !less64(sums.each[c], target_sum)) {
                passed = c + 1u;
            }
        }
        threshold += passed << shift;
    }

    // The sum above the threshold, and how many tokens are at it.
    var found = Sums();
    for (var n = thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        let key = key_of(bits, context);
        if (bits != NOTHING && key > threshold) {
            found.each[0] = add64(found.each[0], share_of(bits, context));
        }
        if (bits != NOTHING && key == threshold) {
            found.each[1] = add64(found.each[1], vec2<u32>(1u, 0u));
        }
    }
    found = add_all(found, thread, 2u);

    // The largest J for which those at the threshold before token J do not reach the target: token J is the last one that stays.
    var last = 0u;
    if (workgroup_value(found.each[1].x, thread) > 1u) {
        for (var round = 0u; round < 8u; round++) {
            let shift = 21u - 3u * round;
            var sums = Sums();
            for (var n = thread; n < live; n += THREADS) {
                let token = token_at(row, n);
                let bits = work[at(row, token)];
                if (bits != NOTHING && key_of(bits, context) == threshold) {
                    let w = share_of(bits, context);
                    for (var c = 0u; c < 7u; c++) { // unroll
                        if (token < last + ((c + 1u) << shift)) {
                            sums.each[c] = add64(sums.each[c], w);
                        }
                    }
                }
            }
            sums = add_all(sums, thread, 7u);
            var passed = 0u;
            for (var c = 0u; c < 7u; c++) { // unroll
                if (less64(add64(found.each[0], sums.each[c]), target_sum)) {
                    passed = c + 1u;
                }
            }
            last += passed << shift;
        }
    } else {
        last = NO_TOKEN;
    }

    for (var n = thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let key = key_of(work[at(row, token)], context);
        if (key < threshold || (key == threshold && token > last)) {
            work[at(row, token)] = NOTHING;
        }
    }
}

// A number that all threads have, in a form that a compiler knows all have.
var<workgroup> shared_value: u32;

fn workgroup_value(mine: u32, thread: u32) -> u32 {
    if (thread == 0u) {
        shared_value = mine;
    }
    return workgroupUniformLoad(&shared_value);
}
