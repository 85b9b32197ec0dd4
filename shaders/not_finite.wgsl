// NaN and infinity, which WGSL lets a compiler assume away.

// By its bits, because a compiler may assume that all floats are finite.
fn not_finite(x: vec4<f32>) -> vec4<bool> {
    let exponent = vec4<u32>(0x7f800000u);
    return (bitcast<vec4<u32>>(x) & exponent) == exponent;
}

// NaN or 0. WGSL has no literal for NaN and no constant may be one; so its bits come by way of a number that is always smaller.
fn nan_if(yes: bool) -> f32 {
    return bitcast<f32>(select(0u, max(params.rows, 0x7fc00000u), yes));
}
