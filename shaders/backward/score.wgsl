// The gradients of a weight, dp = dout . v, and of a score: with p the weight, of the score as the softmax sees it
//   ds = p (dp - d)
// and of the score before the soft cap, dz = ds (1 - tanh^2).

struct ScoreGradient {
    ds: f32,
    dz: f32,
}

fn weight_gradient(seq: Sequence, h: u32, i: u32, j: u32) -> f32 {
    let dout_row = row_start(params.dout, seq.b, h, i);
    let v_row = row_start(params.v, seq.b, kv_head(h), j);
    var sums = vec4<f32>(0.0);
    for (var d = 0u; d < V_DIM4; d++) {
        sums = fma(load_dout(dout_row, d), load_v(v_row, d), sums);
    }
    return (sums.x + sums.y) + (sums.z + sums.w);
}

fn score_gradient(seq: Sequence, h: u32, i: u32, j: u32) -> ScoreGradient {
    let weight = pair_weight(seq, h, i, j);
    // Whatever v and dout hold at a pair that is not seen must not matter.
    if (weight.p == 0.0) {
        return ScoreGradient(0.0, 0.0);
    }
    let ds = weight.p * (weight_gradient(seq, h, i, j) - kept_f32(row_number(seq, h, i), KEPT_D));
    if (SOFTCAP) {
        // 1 - tanh^2(x) = 4 e / (1 + e)^2 with e = exp(-2 |x|): no difference of numbers that are close.
        let e = exp2(-2.0 * LOG2_E * abs(weight.x));
        let once = 1.0 + e;
        return ScoreGradient(ds, ds * (4.0 * e / (once * once)));
    }
    return ScoreGradient(ds, ds);
}
