// softmax: p = 2^d / l, and 0 for -inf.

// What all elements of a row share: half the maximum, and 1 / l.
struct Norm {
    half_m: f32,
    by: f32,
}

fn norm_of(state: State) -> Norm {
    return Norm(state.m * 0.5, 1.0 / max(state.l, 1.0));
}

fn result(bits: vec4<u32>, norm: Norm, lens: Lens, inverse_tau: f32) -> vec4<u32> {
    let p = exp2(log_weights(numbers(bits), norm.half_m, lens)) * norm.by;
    return select(bitcast<vec4<u32>>(p), vec4<u32>(0u), is_out(bits));
}

// Of a tile that was kept, with 2^d in the place of its elements.
fn kept_result(bits: vec4<u32>, norm: Norm, lens: Lens, inverse_tau: f32) -> vec4<u32> {
    return bitcast<vec4<u32>>(numbers(bits) * norm.by);
}
