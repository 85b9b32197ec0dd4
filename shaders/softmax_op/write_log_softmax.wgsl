// log-softmax: (x - m) / tau - ln l, and -inf for -inf. In natural units and not cut off, because small probabilities are what it is for.

fn result(bits: u32, state: State, lens: Lens, inverse_tau: f32) -> u32 {
    if (bits == MINUS_INFINITY_BITS) {
        return MINUS_INFINITY_BITS;
    }
    let half = bitcast<f32>(bits) * 0.5 - state.m * 0.5;
    return bitcast<u32>(max(times(half, 2.0 * inverse_tau), 0.99 * LOWEST) - log2(state.l) * LN_2);
}
