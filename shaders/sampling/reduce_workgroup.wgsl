// Over all threads of a workgroup, through workgroup memory.

var<workgroup> pool: array<vec2<u32>, 7u * THREADS>;

fn add_all(mine: Sums, thread: u32, count: u32) -> Sums {
    for (var c = 0u; c < 7u; c++) { // unroll
        if (c < count) {
            pool[c * THREADS + thread] = mine.each[c];
        }
    }
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (thread < step) {
            for (var c = 0u; c < count; c++) {
                let mine_at = c * THREADS + thread;
                pool[mine_at] = add64(pool[mine_at], pool[mine_at + step]);
            }
        }
    }
    workgroupBarrier();
    var all = Sums();
    for (var c = 0u; c < 7u; c++) { // unroll
        if (c < count) {
            all.each[c] = pool[c * THREADS];
        }
    }
    workgroupBarrier();
    return all;
}

// The larger x, and of equal ones the smaller y.
fn best_of(mine: vec2<u32>, thread: u32) -> vec2<u32> {
    pool[thread] = mine;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (thread < step) {
            let a = pool[thread];
            let b = pool[thread + step];
            if (b.x > a.x || (b.x == a.x && b.y < a.y)) {
                pool[thread] = b;
            }
        }
    }
    workgroupBarrier();
    let all = pool[0];
    workgroupBarrier();
    return all;
}
