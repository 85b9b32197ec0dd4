// Weights of a softmax: powers of the distance to the largest score, which grows as keys go by.

// Weights are in terms of a running maximum.
const ONLINE = true;
// Weights are divided by their sum at the end.
const NORMALISED = true;

// What weights depend on beside scores and maximum: nothing.
fn row_level(seq: Sequence, i: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}

// 2^(s - m), in the unit of scores.
fn weight(s: vec4<f32>, m: vec4<f32>, level: vec4<f32>) -> vec4<f32> {
    return weight_of(s - m);
}

// The term that a key of weight p adds to u.
fn entropy_term(s: vec4<f32>, m: vec4<f32>, p: vec4<f32>) -> vec4<f32> {
    return p * max(s - m, vec4<f32>(FLOOR));
}
