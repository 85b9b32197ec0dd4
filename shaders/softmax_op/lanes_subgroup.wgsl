// The threads that share a row are a workgroup, and that is one subgroup: no memory, no barrier.

// The larger x, and of equal ones the smaller y.
fn best_of_lanes(mine: vec2<u32>, thread: u32) -> vec2<u32> {
    let most = subgroupMax(mine.x);
    if (ARGMAX) {
        return vec2<u32>(most, subgroupMin(select(NOWHERE, mine.y, mine.x == most)));
    }
    return vec2<u32>(most, NOWHERE);
}

fn add_lanes2(mine: vec2<f32>, thread: u32) -> vec2<f32> {
    return subgroupAdd(mine);
}

fn add_lanes4(mine: vec4<f32>, thread: u32) -> vec4<f32> {
    return subgroupAdd(mine);
}
