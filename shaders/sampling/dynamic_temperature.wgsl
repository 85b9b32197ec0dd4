// l / T with T = low + (high - low) (H / ln n)^e, H the entropy of the n tokens that are left. Settings: low and high in units of
// 2^-22, e in units of 2^-16.

@compute @workgroup_size(THREADS)
fn dynamic_temperature(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let spread = spread_of(row, thread, number(largest(row, thread).x));
    let low = setting(row, 0u);
    var t = low;
    // Entropies in units of log2: ln W + mean d, times log2(e).
    let entropy = spread.log2_total + mul_high(spread.mean << 1u, 0xb8aa3b29u);
    let most = log2_fixed(max(spread.tokens, 1u)) >> 3u;
    if (entropy > 0u && most > 0u) {
        // (H / most)^e = 2^(-e (log2 most - log2 H)).
        let ratio = log2_fixed(most) - min(log2_fixed(entropy), log2_fixed(most));
        let x = shr64(mul64(ratio, setting(row, 2u)), 19u);
        if (x.y == 0u && (x.x >> 24u) < 31u) {
            let share = exp2_fraction(x.x << 8u) >> (x.x >> 24u);
            t = low + (mul_high(setting(row, 1u) - low, share) << 1u);
        }
    }
    // 1 / T: T is m 2^(k - 22) with m of 31 bits, and 2^61 / m has 31 bits too, of which a float takes 24.
    t = max(t, 64u);
    let zeros = i32(countLeadingZeros(t)) - 1;
    let m = select(t << u32(max(zeros, 0)), t >> 1u, zeros < 0);
    let quotient = div64(vec2<u32>(0u, 0x20000000u), m).x >> 7u;
    // quotient 2^7 = 2^61 / (t 2^zeros), so 1 / T = 2^22 / t = quotient 2^(7 + zeros + 22 - 61).
    let exponent = zeros - 32;
    let inverse = f32(quotient) * bitcast<f32>(u32(exponent + 127) << 23u);
    // At most 2^16.
    scale_row(row, thread, inverse, 1e31);
}
