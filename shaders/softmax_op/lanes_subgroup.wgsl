// The threads that share a row are a workgroup, and that is one subgroup: no memory, no barrier.

// The larger x, and of equal ones the smaller y.
fn best_of_lanes(mine: vec2<u32>, thread: u32) -> vec2<u32> {
    let most = subgroupMax(mine.x);
    if (ARGMAX) {
        return vec2<u32>(most, subgroupMin(select(NOWHERE, mine.y, mine.x == most)));
    }
    return vec2<u32>(most, NOWHERE);
}

// A sum over lanes costs a processor as much as several elements: the second one only where somebody reads it.
fn add_lanes2(mine: vec2<f32>, thread: u32) -> vec2<f32> {
    if (TWO_SUMS) {
        return subgroupAdd(mine);
    }
    return vec2<f32>(subgroupAdd(mine.x), 0.0);
}

fn add_lanes4(mine: vec4<f32>, thread: u32) -> vec4<f32> {
    return subgroupAdd(mine);
}
