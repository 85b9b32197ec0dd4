// Keeps the tokens with the largest keys until their weights make a target: a key and a weight for each token, whole numbers, so that sums are
// the same in any order. No sort: the key at the threshold is found three bits at a time, from the sums above seven candidates; the
// place among equal keys, lowest token first, in the same way.

// The first bit that a round is about: bits 29..31, 26..28, ..., 2..4, and the last two; and how many values they have.
fn shift_of(round: u32) -> u32 {
    return select(29u - 3u * round, 0u, round == 10u);
}

fn values_of(round: u32) -> u32 {
    return select(8u, 4u, round == 10u);
}

// A thread's sums over keys from seven candidates on, threshold + c 2^shift.
fn round_sums(row: u32, thread: u32, threshold: u32, round: u32, context: Context) -> Sums {
    let shift = shift_of(round);
    let most = values_of(round);
    var sums = Sums();
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        let key = key_of(bits, context);
        // This token counts for all candidates up to its own.
        if (bits != NOTHING && key >= threshold) {
            let upto = min((key - threshold) >> shift, most - 1u);
            let w = share_of(bits, context);
            for (var c = 0u; c < 7u; c++) { // unroll
                sums.each[c] = add64(sums.each[c], select(vec2<u32>(0u), w, c < upto));
            }
        }
    }
    return sums;
}

// The largest candidate whose sum reaches the target.
fn passed(threshold: u32, round: u32, sums: Sums, target_sum: vec2<u32>) -> u32 {
    var most = 0u;
    for (var c = 0u; c < 7u; c++) { // unroll
        if (c + 1u < values_of(round) && !less64(sums.each[c], target_sum)) {
            most = c + 1u;
        }
    }
    return threshold + (most << shift_of(round));
}

// The largest key for which the sum over keys from there on reaches the target, 0 if none does; and the last token of those that have it and
// stay.
struct Found {
    threshold: u32,
    last: u32,
}

// By one workgroup, from a round on: `above` is the sum of keys beyond those that the threshold may be among, where its tokens are not
// gone through.
fn search(row: u32, thread: u32, so_far: u32, first_round: u32, above: vec2<u32>, target_sum: vec2<u32>, context: Context) -> Found {
    var threshold = so_far;
    for (var round = first_round; round < 11u; round++) {
        var sums = add_all(round_sums(row, thread, threshold, round, context), thread, 7u);
        for (var c = 0u; c < 7u; c++) { // unroll
            sums.each[c] = add64(sums.each[c], above);
        }
        threshold = passed(threshold, round, sums, target_sum);
    }

    // The sum above the threshold, and how many tokens are at it.
    var found = Sums();
    for (var n = first + thread; n < live; n += THREADS) {
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
    let before = add64(found.each[0], above);

    // The largest J for which those at the threshold before token J do not reach the target: token J is the last one that stays.
    var last = NO_TOKEN;
    if (workgroup_value(found.each[1].x, thread) > 1u) {
        last = 0u;
        for (var round = 0u; round < 8u; round++) {
            let shift = 21u - 3u * round;
            var sums = Sums();
            for (var n = first + thread; n < live; n += THREADS) {
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
            var most = 0u;
            for (var c = 0u; c < 7u; c++) { // unroll
                if (less64(add64(before, sums.each[c]), target_sum)) {
                    most = c + 1u;
                }
            }
            last += most << shift;
        }
    }
    return Found(threshold, last);
}

// A number that all threads have, in a form that a compiler knows all have.
var<workgroup> shared_value: u32;

fn workgroup_value(mine: u32, thread: u32) -> u32 {
    if (thread == 0u) {
        shared_value = mine;
    }
    return workgroupUniformLoad(&shared_value);
}
