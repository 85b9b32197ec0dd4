// Arithmetic of whole numbers only, so that every device gets the same bits: WGSL lets devices round exp, log and division as
// they like, and fuse a product with a sum. The twin of this file is src/sampling/fixed.rs.
//
// 64-bit numbers are vec2(low, high).

// The upper half of a product.
fn mul_high(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let low = a0 * b0;
    let mid = a1 * b0 + (low >> 16u);
    let mid2 = a0 * b1 + (mid & 0xffffu);
    return a1 * b1 + (mid >> 16u) + (mid2 >> 16u);
}

fn mul64(a: u32, b: u32) -> vec2<u32> {
    return vec2<u32>(a * b, mul_high(a, b));
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn shr64(a: vec2<u32>, by: u32) -> vec2<u32> {
    if (by == 0u) {
        return a;
    }
    if (by >= 64u) {
        return vec2<u32>(0u);
    }
    if (by >= 32u) {
        return vec2<u32>(a.y >> (by - 32u), 0u);
    }
    return vec2<u32>((a.x >> by) | (a.y << (32u - by)), a.y >> by);
}

fn shl64(a: vec2<u32>, by: u32) -> vec2<u32> {
    if (by == 0u) {
        return a;
    }
    if (by >= 64u) {
        return vec2<u32>(0u);
    }
    if (by >= 32u) {
        return vec2<u32>(0u, a.x << (by - 32u));
    }
    return vec2<u32>(a.x << by, (a.y << by) | (a.x >> (32u - by)));
}

// The number of bits up to the highest one.
fn bits64(a: vec2<u32>) -> u32 {
    return select(32u - countLeadingZeros(a.x), 64u - countLeadingZeros(a.y), a.y != 0u);
}

// a / b for b below 2^31, rounded down.
fn div64(a: vec2<u32>, b: u32) -> vec2<u32> {
    var quotient = vec2<u32>(0u);
    var rest = 0u;
    for (var n = 0u; n < 64u; n++) {
        let bit = 63u - n;
        let word = select(a.x, a.y, bit >= 32u);
        rest = (rest << 1u) | ((word >> (bit & 31u)) & 1u);
        quotient = shl64(quotient, 1u);
        if (rest >= b) {
            rest -= b;
            quotient.x |= 1u;
        }
    }
    return quotient;
}

// The square root of a number below 2^62, rounded down.
fn sqrt64(a: vec2<u32>) -> u32 {
    var root = 0u;
    for (var n = 0u; n < 31u; n++) {
        let candidate = root | (1u << (30u - n));
        if (!less64(a, mul64(candidate, candidate))) {
            root = candidate;
        }
    }
    return root;
}

// 2^-f for f in [0, 1) as 32 bits after the point: in units of 2^-31, within 2^-28. A polynomial in f by Horner's rule, whose
// coefficients have alternating signs.
fn exp2_fraction(f: u32) -> u32 {
    var r = 0x0003951eu;
    r = 0x0029cc02u - mul_high(r, f);
    r = 0x0139e9b1u - mul_high(r, f);
    r = 0x071a53adu - mul_high(r, f);
    r = 0x1ebfabbfu - mul_high(r, f);
    r = 0x58b90ad9u - mul_high(r, f);
    return 0x7ffffffdu - mul_high(r, f);
}

// log2 of a number from 1, in units of 2^-27, within 2^-26.
fn log2_fixed(n: u32) -> u32 {
    let whole = 31u - countLeadingZeros(n);
    // n is 2^whole (1 + t).
    let t = (n << (31u - whole)) << 1u;
    var r = 0x0096254au;
    r = 0x039bdba3u - mul_high(r, t);
    r = 0x0a6904eau - mul_high(r, t);
    r = 0x13786ac6u - mul_high(r, t);
    r = 0x1c329e22u - mul_high(r, t);
    r = 0x244fa966u - mul_high(r, t);
    r = 0x2e13af4bu - mul_high(r, t);
    r = 0x3d8c5d47u - mul_high(r, t);
    r = 0x5c551097u - mul_high(r, t);
    r = 0xb8aa3b19u - mul_high(r, t);
    return (whole << 27u) + (mul_high(r, t) >> 4u);
}

// How far a logit is below the largest, in units of 2^-24, cut off at 60. The difference is rounded once, the rest is exact.
fn below(largest: f32, logit: f32) -> u32 {
    return u32(min(largest - logit, 60.0) * 16777216.0);
}

// e^-d for d from below(), in units of 2^-40: so that a token may have a millionth of a millionth of the largest's share.
fn weight_of(d: u32) -> vec2<u32> {
    // log2(e) in units of 2^-31: the product is in units of 2^-24 again.
    let x = mul_high(d << 1u, 0xb8aa3b29u);
    let m = exp2_fraction(x << 8u);
    // m 2^9 / 2^by, without a branch.
    let by = x >> 24u;
    let low = vec2<u32>(((m << 9u) >> (by & 31u)) | select((m >> 23u) << ((32u - by) & 31u), 0u, by == 0u), (m >> 23u) >> (by & 31u));
    return select(select(vec2<u32>(0u), vec2<u32>(low.y, 0u), by < 64u), low, by < 32u);
}

// -ln(-ln u) for a uniform u, in units of 2^-20: Gumbel noise from 64 random bits, from -3.1 to 44.7.
fn gumbel(words: vec2<u32>) -> i32 {
    // With v = words / 2^64 and u = 1 - v: first log2(-log2(1 - v)) in units of 2^-24.
    var l = i32();
    if (words.x >= 0x04000000u) {
        // 1 - v with its highest bit in front; its logarithm, and the logarithm of that.
        var n = max(~words.x, 2u);
        let zeros = countLeadingZeros(n);
        n = n << zeros;
        if (zeros > 0u) {
            n |= ~words.y >> (32u - zeros);
        }
        // 32 + zeros less log2 n, which is below 32: in units of 2^-27 the first 32 is 2^32.
        let e = (zeros << 27u) - log2_fixed(n);
        l = i32(log2_fixed(e) >> 3u) - (27 << 24u);
    } else {
        // -log2(1 - v) = log2(e) v (1 + v/2 + v^2/3 + ...), and the logarithm of the bracket is log2(e) (v/2 + 5 v^2/24 + v^3/8).
        var n = words.x;
        var zeros = 0u;
        if (n == 0u) {
            n = max(words.y, 1u);
            zeros = 32u;
        } else {
            zeros = countLeadingZeros(n);
            n = (n << zeros) | (words.y >> (32u - zeros));
        }
        let v = words.x;
        let v2 = mul_high(v, v);
        let bracket = (v >> 1u) + mul_high(v2, 0x35555555u) + (mul_high(v2, v) >> 3u);
        let log_bracket = mul_high(bracket, 0xb8aa3b29u) >> 7u;
        let log_v = i32(log2_fixed(n) >> 3u) - i32((32u + zeros) << 24u);
        // log2(log2 e) is 0.528766.
        l = log_v + 8871228 + i32(log_bracket);
    }
    // ln(-ln u) = ln 2 (l + log2(ln 2)), and log2(ln 2) is -0.528766.
    let t = 8871228 - l;
    let magnitude = mul_high(u32(abs(t)), 0xb17217f8u) >> 4u;
    return select(i32(magnitude), -i32(magnitude), t < 0);
}
