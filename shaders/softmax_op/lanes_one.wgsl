// A thread has a row of its own: there is nothing to share.

fn best_of_lanes(mine: vec2<u32>, thread: u32) -> vec2<u32> {
    return mine;
}

fn add_lanes2(mine: vec2<f32>, thread: u32) -> vec2<f32> {
    return mine;
}

fn add_lanes4(mine: vec4<f32>, thread: u32) -> vec4<f32> {
    return mine;
}
