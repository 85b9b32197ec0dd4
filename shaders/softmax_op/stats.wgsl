// The statistics of a row. -inf is written by its bits.

@group(0) @binding(4) var<storage, read_write> stats: array<u32>;

fn store_stats(row: u32, state: State, inverse_tau: f32) {
    let at = params.first_row + row;
    let empty = state.l == 0.0;
    let l = max(state.l, 1.0);
    if (LSE) {
        let lse = clamp(times(vec4<f32>(state.m), inverse_tau).x, 0.99 * LOWEST, -0.99 * LOWEST) + log2(l) * LN_2;
        stats[params.lse + at] = select(bitcast<u32>(lse), MINUS_INFINITY_BITS, empty);
    }
    if (ENTROPY) {
        // H = -sum p ln p with ln p = (d - log2 l) ln 2. Both terms are of the size of H; rounding may take a one-hot row below 0.
        let entropy = max((log2(l) - state.u / l) * LN_2, 0.0);
        stats[params.entropy + at] = select(bitcast<u32>(entropy), 0u, empty);
    }
    if (ARGMAX) {
        stats[params.argmax + at] = state.at;
    }
}
