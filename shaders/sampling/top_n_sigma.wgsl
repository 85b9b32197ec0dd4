// Keeps the tokens with l >= max l - n sigma, sigma the deviation of all logits that are left (Tang and others 2024). Setting: n in units of
// 2^-16, 0 for all.

// max l - l in 20 bits: a power of two makes the widest difference fill them.
fn steps_below(highest: f32, bits: u32, unit: f32) -> u32 {
    return u32(min((highest - bitcast<f32>(bits)) * unit, 1048575.0));
}

@compute @workgroup_size(THREADS)
fn top_n_sigma(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let n_sigma = setting(row, 0u);
    if (n_sigma == 0u) {
        return;
    }
    let highest = number(largest(row, thread).x);
    var mine = vec2<u32>(0u);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        if (bits != NOTHING) {
            mine.x = max(mine.x, clean(bitcast<u32>(highest - bitcast<f32>(bits))));
        }
    }
    // The exponent of the widest difference, as its bits have it; at most 127 + 120.
    let exponent = clamp(best_of(mine, thread).x >> 23u, 20u, 250u);
    // 2^(19 - (exponent - 127)), within what f32 has.
    let unit = bitcast<f32>(clamp(273u - exponent, 1u, 253u) << 23u);

    var sums = Sums();
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        if (bits != NOTHING) {
            sums.each[0] = add64(sums.each[0], vec2<u32>(steps_below(highest, bits, unit), 0u));
            sums.each[1].x += 1u;
        }
    }
    sums = add_all(sums, thread, 2u);
    let tokens = max(sums.each[1].x, 1u);
    // Four bits after the point from here on.
    let mean = div64(shl64(sums.each[0], 4u), tokens).x;
    var squares = vec2<u32>(0u);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        if (bits != NOTHING) {
            let steps = steps_below(highest, bits, unit) << 4u;
            let off = select(mean - steps, steps - mean, steps >= mean);
            // Below 2^48; room for as many as there are tokens, of which there are at most 2^23.
            squares = add64(squares, shr64(mul64(off, off), 7u));
        }
    }
    let variance = div64(add_one(squares, thread), tokens);
    let sigma = sqrt64(shl64(variance, 7u));
    let most = shr64(mul64(sigma, n_sigma), 16u);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        if (bits != NOTHING && less64(most, vec2<u32>(steps_below(highest, bits, unit) << 4u, 0u))) {
            work[at(row, token)] = NOTHING;
        }
    }
}
