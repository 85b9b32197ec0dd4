// Weights of sparsemax and 1.5-entmax: p = [(a - 1) (s - max) - t]_+^(1 / (a - 1)) for a = 2 and 1.5, exactly 0 for all keys that are
// not near enough to the largest. t is the level of the row, which search_threshold.wgsl finds.

const ONLINE = false;
const NORMALISED = true;

fn row_level(seq: Sequence, i: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}

// (a - 1) (s - m), at most 0. Weights begin at -1, far above the cut-off.
fn distance_below(s: vec4<f32>, m: vec4<f32>) -> vec4<f32> {
    var scale = LN_2 / LOG2_UNIT;
    if (ENTMAX15) {
        scale *= 0.5;
    }
    return max(s - m, vec4<f32>(FLOOR)) * scale;
}

fn weight(s: vec4<f32>, m: vec4<f32>, level: vec4<f32>) -> vec4<f32> {
    let x = max(distance_below(s, m) - level, vec4<f32>(0.0));
    if (ENTMAX15) {
        return x * x;
    }
    return x;
}

// p log p, so that the entropy comes of the sums as that of a softmax does: ln l - u / l.
fn entropy_term(s: vec4<f32>, m: vec4<f32>, p: vec4<f32>) -> vec4<f32> {
    let some = p > vec4<f32>(0.0);
    return select(vec4<f32>(0.0), p * (log2(select(vec4<f32>(1.0), p, some)) * LOG2_UNIT), some);
}
