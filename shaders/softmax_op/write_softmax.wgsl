// softmax: p = 2^d / l, and 0 for -inf.

// What all elements of a row share: half the maximum, and 1 / l.
struct Norm {
    half_m: f32,
    by: f32,
}

fn norm_of(state: State) -> Norm {
    return Norm(state.m * 0.5, 1.0 / max(state.l, 1.0));
}

fn result(bits: u32, norm: Norm, lens: Lens, inverse_tau: f32) -> u32 {
    let p = exp2(log_weight(bitcast<f32>(bits), norm.half_m, lens)) * norm.by;
    return select(bitcast<u32>(p), 0u, bits == MINUS_INFINITY_BITS);
}
