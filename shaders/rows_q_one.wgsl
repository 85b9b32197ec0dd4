// q of a lane that has one row: a number for each dim, a quarter of what the vec4 of four rows takes.

alias Q = f32;

// With the number of row r of the lane.
fn with_row(q: Q, r: u32, number: f32) -> Q {
    return number;
}

// The shared modules work on four rows. Nothing is asked of the other three.
fn q_products(q0: Q, q1: Q, q2: Q, q3: Q, k: vec4<f32>) -> vec4<f32> {
    return products(vec4<f32>(q0), vec4<f32>(q1), vec4<f32>(q2), vec4<f32>(q3), k);
}

fn add_q_products(sum: vec4<f32>, q0: Q, q1: Q, q2: Q, q3: Q, k: vec4<f32>) -> vec4<f32> {
    return add_products(sum, vec4<f32>(q0), vec4<f32>(q1), vec4<f32>(q2), vec4<f32>(q3), k);
}
