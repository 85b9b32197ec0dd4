// log-softmax: (x - m) / tau - ln l, and -inf for -inf. In natural units and not cut off, because small probabilities are what it is for.

// What all elements of a row share: half the maximum, and ln l.
struct Norm {
    half_m: f32,
    by: f32,
}

fn norm_of(state: State) -> Norm {
    return Norm(state.m * 0.5, log2(max(state.l, 1.0)) * LN_2);
}

fn result(bits: vec4<u32>, norm: Norm, lens: Lens, inverse_tau: f32) -> vec4<u32> {
    let half = numbers(bits) * 0.5 - norm.half_m;
    let log_p = max(times(half, 2.0 * inverse_tau), vec4<f32>(0.99 * LOWEST)) - norm.by;
    return select(bitcast<vec4<u32>>(log_p), vec4<u32>(MINUS_INFINITY_BITS), is_out(bits));
}

// Of a tile that was kept as it is.
fn kept_result(bits: vec4<u32>, norm: Norm, lens: Lens, inverse_tau: f32) -> vec4<u32> {
    return result(bits, norm, lens, inverse_tau);
}
