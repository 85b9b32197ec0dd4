// The statistics of a row, from its softmax state. Written as bits, because WGSL has no literal for -inf.

@group(0) @binding(5) var<storage, read_write> stats: array<u32>;

const MINUS_INFINITY_BITS = 0xff800000u;

// All in one component r of the row's totals; key_max is the largest score of a key.
fn store_stats(row: u32, totals: Totals, key_max: vec4<f32>, r: u32) {
    let m = totals.m[r];
    let l = totals.l[r];
    let empty = l == 0.0;
    if (LSE) {
        let lse = (m + log2(l) * LOG2_UNIT) * (LN_2 / LOG2_UNIT);
        stats[params.lse + row] = select(bitcast<u32>(lse), MINUS_INFINITY_BITS, empty);
    }
    if (ENTROPY) {
        // H = sum p (lse - s) = (keys ln l - u) / l in natural units. Both terms are of the size of H, so that scores in the
        // thousands cancel nothing. Rounding may take a one-hot row a hair below 0.
        let entropy = max((totals.keys[r] * (log2(l) * LOG2_UNIT) - totals.u[r]) / l * (LN_2 / LOG2_UNIT), 0.0);
        stats[params.entropy + row] = select(bitcast<u32>(entropy), 0u, empty);
    }
    if (ROW_MAX) {
        stats[params.row_max + row] =
            select(bitcast<u32>(key_max[r] * (LN_2 / LOG2_UNIT)), MINUS_INFINITY_BITS, key_max[r] == NOTHING);
    }
}
