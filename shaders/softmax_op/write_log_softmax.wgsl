// log-softmax: (x - m) / tau - ln l, and -inf for -inf. In natural units and not cut off, because small probabilities are what it is for.

// What all elements of a row share: half the maximum, and ln l.
struct Norm {
    half_m: f32,
    by: f32,
}

fn norm_of(state: State) -> Norm {
    return Norm(state.m * 0.5, log2(max(state.l, 1.0)) * LN_2);
}

fn result(bits: u32, norm: Norm, lens: Lens, inverse_tau: f32) -> u32 {
    let half = bitcast<f32>(bits) * 0.5 - norm.half_m;
    let log_p = max(times(half, 2.0 * inverse_tau), 0.99 * LOWEST) - norm.by;
    return select(bitcast<u32>(log_p), MINUS_INFINITY_BITS, bits == MINUS_INFINITY_BITS);
}
