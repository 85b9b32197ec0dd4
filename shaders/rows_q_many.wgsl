// q of a lane that has two to four rows: a vec4 of them for each dim.

alias Q = vec4<f32>;

// With the number of row r of the lane.
fn with_row(q: Q, r: u32, number: f32) -> Q {
    return select(q, vec4<f32>(number), vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(r));
}

fn q_products(q0: Q, q1: Q, q2: Q, q3: Q, k: vec4<f32>) -> vec4<f32> {
    return products(q0, q1, q2, q3, k);
}

fn add_q_products(sum: vec4<f32>, q0: Q, q1: Q, q2: Q, q3: Q, k: vec4<f32>) -> vec4<f32> {
    return add_products(sum, q0, q1, q2, q3, k);
}
