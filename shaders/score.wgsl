// From q.k to what the softmax sees, in the unit of scores. The twin of src/score.rs.
//
//   s = mod(cap(q.k * factor)) + bias - slope * |position - j|,   NOTHING where the row does not see the key
//
// The cap comes before everything that can hide a key: capping a hidden score would bring it back.

const LOG2_E = 1.4426950408889634;
const LN_2 = 0.6931471805599453;

// The unit of scores. Normally it is log2, because exp2 is what the hardware has: the factor of a row, which q is multiplied by anyway,
// brings the scores there, and a weight is 2^(s - m) with no multiplication of its own. A soft cap comes between factor and
// score, and pushes scores up to the cap, where f32 knows them to some 2^-24 of the cap: natural units are 1.44 times smaller, so
// that weights are that much more exact, for a multiplication at each of them.
//   UNIT      how much of the unit a natural unit is: log2(e), or 1 with a soft cap
//   LOG2_UNIT how much of the unit a log2 is: 1, or ln(2) with a soft cap
// Both come with the header. Conversions back divide these constants by one another, so that what is 1 is exactly 1.

// 2^x for a difference of two scores.
fn weight_of(difference: vec4<f32>) -> vec4<f32> {
    return exp2(difference * (LOG2_E / UNIT));
}

// Bias and sinks beyond this are cut off, so that a "very negative" finite number, as some programs use for -inf, cannot overflow.
const MAX_BIAS = 1.0e38;

// cap * tanh(x), in the form that loses least: near 0, where most scores are, the Taylor series of tanh, whose first term left out is
// below 2^-26 of the sum; elsewhere cap less what is missing to it, so that rounding errors shrink as the cap
// is approached. (The built-in tanh overflows on some implementations.)
fn capped(x: vec4<f32>, cap: f32) -> vec4<f32> {
    let e = exp2(-2.0 * LOG2_E * abs(x));
    let z = x * x;
    let series = x + x * z * (-1.0 / 3.0 + z * (2.0 / 15.0 + z * (-17.0 / 315.0 + z * (62.0 / 2835.0))));
    return select(sign(x) * (cap - cap * (2.0 * e / (1.0 + e))), cap * series, z < vec4<f32>(0.0625));
}

// The products of four dims, for four rows (a dim of theirs in each q) and one key, summed.
fn products(q0: vec4<f32>, q1: vec4<f32>, q2: vec4<f32>, q3: vec4<f32>, k: vec4<f32>) -> vec4<f32> {
    return fma(q3, vec4<f32>(k.w), fma(q2, vec4<f32>(k.z), fma(q1, vec4<f32>(k.y), q0 * k.x)));
}

// Adds them to what other dims gave.
fn add_products(
    sum: vec4<f32>,
    q0: vec4<f32>,
    q1: vec4<f32>,
    q2: vec4<f32>,
    q3: vec4<f32>,
    k: vec4<f32>,
) -> vec4<f32> {
    if (SOFTCAP) {
        // Scores near a cap are large, and so are their partial sums: four products are summed before they meet them.
        return sum + products(q0, q1, q2, q3, k);
    }
    return fma(q3, vec4<f32>(k.w), fma(q2, vec4<f32>(k.z), fma(q1, vec4<f32>(k.y), fma(q0, vec4<f32>(k.x), sum))));
}

// Scores of rows i .. i + 3 and key j from their products with q already multiplied by the factor.
fn finish_scores(products: vec4<f32>, seq: Sequence, h: u32, i: u32, j: u32) -> vec4<f32> {
    var s = products;
    if (SOFTCAP) {
        s = capped(products, params.softcap);
    }
    if (SCORE_MOD) {
        for (var r = 0u; r < 4u; r++) { // unroll
            let score = user_score_mod(s[r] * (LN_2 / LOG2_UNIT), params.user_batch + seq.b, params.user_head + h,
                params.user_row + min(i + r, params.rows - 1u), j);
            s[r] = clamp(score, -MAX_BIAS, MAX_BIAS) * UNIT;
        }
    }
    if (ALIBI) {
        let slope = table_f32(params.alibi_slopes + params.first_head + h) * UNIT;
        let position = vec4<i32>(i32(i) + seq.offset) + vec4<i32>(0, 1, 2, 3);
        s -= slope * vec4<f32>(abs(position - vec4<i32>(i32(j))));
    }
    if (BIAS) {
        for (var r = 0u; r < 4u; r++) { // unroll
            let bits = load_bias(row_start(params.bias, seq.b, h, min(i + r, params.rows - 1u)) + j * params.bias_key);
            // By its bits, because a compiler may assume that no float is infinite.
            s[r] = select(s[r] + clamp(bitcast<f32>(bits), -MAX_BIAS, MAX_BIAS) * UNIT, NOTHING, bits == 0xff800000u);
        }
    }
    return s;
}
