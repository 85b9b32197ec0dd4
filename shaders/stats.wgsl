// The statistics of a row, from its softmax state. Written as bits, because WGSL has no literal for -inf.

@group(0) @binding(5) var<storage, read_write> stats: array<u32>;

const MINUS_INFINITY_BITS = 0xff800000u;
const LN_2 = 0.6931471805599453;

// m, l and u as in softmax.wgsl, after all keys of the row.
fn store_stats(row: u32, m: f32, l: f32, u: f32) {
    let empty = is_empty(l);
    if (LSE) {
        stats[params.lse + row] = select(bitcast<u32>((m + log2(l)) * LN_2), MINUS_INFINITY_BITS, empty);
    }
    if (ENTROPY) {
        // H = lse - sum p s = ln 2 (log2 l - u / l). Both terms are of the size of H, so that scores in the
        // thousands cancel nothing. Rounding may take a one-hot row a hair below 0.
        stats[params.entropy + row] = select(bitcast<u32>(max((log2(l) - u / l) * LN_2, 0.0)), 0u, empty);
    }
    if (ROW_MAX) {
        stats[params.row_max + row] = select(bitcast<u32>(m * LN_2), MINUS_INFINITY_BITS, empty);
    }
}
