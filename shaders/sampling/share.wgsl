// A share p of a sum, rounded up: p in units of 2^-32.

fn share_of_sum(sum: vec2<u32>, p: u32) -> vec2<u32> {
    // (high 2^32 + low) p / 2^32.
    let low = mul64(sum.x, p);
    let whole = add64(mul64(sum.y, p), vec2<u32>(low.y, 0u));
    return add64(whole, vec2<u32>(select(0u, 1u, low.x > 0u), 0u));
}
