// Over all threads of a workgroup, which has one row. Every thread must come here; all get the result. add_all and best_of are in reduce_*.wgsl.

// Seven 64-bit sums. Whole numbers: any order gives the same.
struct Sums {
    each: array<vec2<u32>, 7>,
}

fn add_one(mine: vec2<u32>, thread: u32) -> vec2<u32> {
    var sums = Sums();
    sums.each[0] = mine;
    return add_all(sums, thread, 1u).each[0];
}

// The largest logit of a row and its token, the lowest of equal ones: (order, token). (OUT, NO_TOKEN) where all are out.
fn largest(row: u32, thread: u32) -> vec2<u32> {
    var best = vec2<u32>(OUT, NO_TOKEN);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let place = order(work[at(row, token)]);
        // A list has no order.
        if (place > best.x || (place == best.x && place > OUT && token < best.y)) {
            best = vec2<u32>(place, token);
        }
    }
    return best_of(best, thread);
}
