// Over all threads of a workgroup that is one subgroup: no memory, no barrier.

fn add_all(mine: Sums, thread: u32, count: u32) -> Sums {
    var all = Sums();
    for (var c = 0u; c < 7u; c++) { // unroll
        if (c < count) {
            // In parts whose sums have room: a subgroup has at most 128 threads.
            let parts = subgroupAdd(vec3<u32>(mine.each[c].x & 0xffffu, mine.each[c].x >> 16u, mine.each[c].y));
            let middle = parts.y + (parts.x >> 16u);
            all.each[c] = vec2<u32>((middle << 16u) | (parts.x & 0xffffu), parts.z + (middle >> 16u));
        }
    }
    return all;
}

// The larger x, and of equal ones the smaller y.
fn best_of(mine: vec2<u32>, thread: u32) -> vec2<u32> {
    let most = subgroupMax(mine.x);
    return vec2<u32>(most, subgroupMin(select(NO_TOKEN, mine.y, mine.x == most)));
}
