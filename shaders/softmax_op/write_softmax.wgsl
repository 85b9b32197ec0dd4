// softmax: p = 2^d / l, and 0 for -inf.

fn result(bits: u32, state: State, lens: Lens, inverse_tau: f32) -> u32 {
    if (bits == MINUS_INFINITY_BITS) {
        return 0u;
    }
    return bitcast<u32>(exp2(log_weight(bitcast<f32>(bits), state.m, lens)) / state.l);
}
