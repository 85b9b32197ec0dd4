// What most steps ask of a row: its largest logit with its token, the lowest of equal ones, and its smallest logit. A pass that goes through
// all logits leaves them for the next.

struct Facts {
    // As (order, token); (OUT, NO_TOKEN) where all are out.
    best: vec2<u32>,
    // The order turned round; 0 where all are out.
    lowest: u32,
}

var<private> seen: Facts = Facts(vec2<u32>(OUT, NO_TOKEN), 0u);

// Tokens of a thread come in their order.
fn see(token: u32, bits: u32) {
    let place = order(bits);
    if (place > seen.best.x) {
        seen.best = vec2<u32>(place, token);
    }
    if (bits != NOTHING) {
        seen.lowest = max(seen.lowest, ~place);
    }
}

fn leave_facts(row: u32, thread: u32) {
    let lowest = best_of(vec2<u32>(seen.lowest, 0u), thread).x;
    if (thread == 0u) {
        work[part_at(params.next_notes, row, part)] = lowest;
    }
    leave_best(row, thread, seen.best);
}

fn facts_of(row: u32, thread: u32) -> Facts {
    var mine = vec2<u32>(0u);
    for (var n = thread; n < params.groups; n += THREADS) {
        mine.x = max(mine.x, work[part_at(params.notes, row, n)]);
    }
    let lowest = best_of(mine, thread).x;
    return Facts(best_of_parts(row, thread, vec2<u32>(OUT, NO_TOKEN)), lowest);
}
