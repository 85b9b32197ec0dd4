// The weight of a pair, once more: p = exp(s - lse), from what the forward pass left.

struct Weight {
    p: f32, // 0 where the row does not see the key
    x: f32, // the product of q and k with the factor, what a soft cap takes the tanh of
}

// From x to natural units, and from the factor of a row to its part of the gradient.
fn natural_factor(seq: Sequence, h: u32, i: u32) -> f32 {
    let factor = row_factor(seq, h, i);
    if (SOFTCAP) {
        return factor * params.softcap;
    }
    return factor * LN_2;
}

fn pair_weight(seq: Sequence, h: u32, i: u32, j: u32) -> Weight {
    if (i >= seq.rows || !visible4(seq, h, i, j).x) {
        return Weight(0.0, 0.0);
    }
    let q_row = row_start(params.q, seq.b, h, i);
    let k_row = row_start(params.k, seq.b, kv_head(h), j);
    // Four sums side by side: short sums round less than one long one.
    var sums = vec4<f32>(0.0);
    for (var d = 0u; d < QK_DIM4; d++) {
        sums = fma(load_q(q_row, d), load_k(k_row, d), sums);
    }
    let x = ((sums.x + sums.y) + (sums.z + sums.w)) * row_factor(seq, h, i);
    let s = finish_scores(vec4<f32>(x), seq, h, i, j).x;
    if (s == NOTHING) {
        return Weight(0.0, 0.0);
    }
    let lse = kept_f32(row_number(seq, h, i), KEPT_LSE) * UNIT;
    return Weight(weight_of(vec4<f32>(max(s - lse, FLOOR))).x, x);
}
