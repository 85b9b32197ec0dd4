// Normalised q and k. The twin of src/qk_norm.rs.
//
//   score = (gain_q q / |q|) . (gain_k k / |k|) = ((gain_q gain_k q) . k) / (|q| |k|)
//
// So the gains of both go onto q where it is loaded, and the two lengths onto the product: those of rows once for a workgroup, those of
// keys beside the product, from numbers that are at hand there.

// Keeps 1 / |x| finite where x is 0, and the product with it.
const SMALLEST_SQUARE = 1.2e-38;

// 1 / |x| from the sum of squares of x.
fn inverse_norm(squares: vec4<f32>) -> vec4<f32> {
    if (QK_RMS) {
        return inverseSqrt(max(squares * (1.0 / f32(QK_DIM)) + params.norm_eps, vec4<f32>(SMALLEST_SQUARE)));
    }
    // norm_eps is the square of eps.
    return inverseSqrt(max(squares, vec4<f32>(max(params.norm_eps, SMALLEST_SQUARE))));
}

// The gains of q and k for four dims of query head h, multiplied; 0 beyond the last dim.
fn qk_gain(h: u32, d4: u32) -> vec4<f32> {
    var q_row = params.q_gain;
    var k_row = params.k_gain;
    if (QK_GAIN_PER_HEAD) {
        let head = params.first_head + h;
        q_row += head * QK_DIM;
        k_row += head / params.group * QK_DIM;
    }
    var gain = vec4<f32>(0.0);
    for (var e = 0u; e < 4u; e++) { // unroll
        let d = 4u * d4 + e;
        if (d < QK_DIM) {
            gain[e] = table_f32(q_row + d) * table_f32(k_row + d);
        }
    }
    return gain;
}
