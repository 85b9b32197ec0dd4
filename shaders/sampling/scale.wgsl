// Divides a row's logits by its temperature, given as 1 / T. Where that would leave LARGEST, the largest logit becomes 0 first: a softmax
// does not mind.

struct Scale {
    shifted: bool,
    highest: f32,
    inverse: f32,
    limit: f32,
}

fn leaves(best: vec2<u32>, highest: f32, lowest: f32, limit: f32) -> bool {
    return best.y != NO_TOKEN && max(abs(highest), abs(lowest)) > limit;
}

fn scaled(bits: u32, by: Scale) -> u32 {
    if (bits == NOTHING) {
        return NOTHING;
    }
    var logit = bitcast<f32>(bits);
    if (by.shifted) {
        logit = max(bitcast<f32>(clean(bitcast<u32>(logit - by.highest))), -by.limit);
    }
    return clean(bitcast<u32>(logit * by.inverse));
}

fn scale_row(row: u32, thread: u32, inverse: f32, limit: f32) {
    let best = largest(row, thread);
    let highest = number(best.x);
    // The lowest, by the order turned round.
    var mine = vec2<u32>(0u, 0u);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        if (bits != NOTHING) {
            mine.x = max(mine.x, ~order(bits));
        }
    }
    let lowest = number(~best_of(mine, thread).x);
    let by = Scale(leaves(best, highest, lowest, limit), highest, inverse, limit);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        work[at(row, token)] = scaled(work[at(row, token)], by);
    }
}

// Temperature 0: only the largest stays, the lowest token of equal ones.
fn keep_largest(row: u32, thread: u32) {
    let best = largest(row, thread);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        if (token != best.y) {
            work[at(row, token)] = NOTHING;
        }
    }
}
