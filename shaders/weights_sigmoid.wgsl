// Weights of sigmoid attention: each key by itself, p = 1 / (1 + 2^-(s + b)), with b the level of the row.

const ONLINE = false;
const NORMALISED = false;

// The bias of rows i .. i + 3, in the unit of scores.
fn row_level(seq: Sequence, i: u32) -> vec4<f32> {
    if (SIGMOID_VISIBLE) {
        var n = vec4<f32>(0.0);
        for (var r = 0u; r < 4u; r++) { // unroll
            n[r] = f32(visible_keys(seq, i + r));
        }
        return -log2(n) * LOG2_UNIT;
    }
    return vec4<f32>(params.sigmoid_bias * UNIT);
}

// Cut off where 2^x would leave f32; a weight there is 2^-126.
fn weight(s: vec4<f32>, m: vec4<f32>, level: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp2(min((s + level) * (-LOG2_E / UNIT), vec4<f32>(126.0))));
}

// There is no entropy. Never called.
fn entropy_term(s: vec4<f32>, m: vec4<f32>, p: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(0.0);
}
