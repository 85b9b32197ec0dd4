// What the distribution of a row says about itself, in whole numbers.

struct Spread {
    // Of e^-d, in units of 2^-31, d as below() gives it.
    total: vec2<u32>,
    // Mean of d, in units of 2^-24.
    mean: u32,
    // log2 of the total as a number, in units of 2^-24.
    log2_total: u32,
    // Tokens that are not out.
    tokens: u32,
}

// Three sums of which it is made, of a thread.
fn spread_sums(row: u32, thread: u32, largest: f32) -> Sums {
    var sums = Sums();
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        if (bits != NOTHING) {
            let d = below(largest, bitcast<f32>(bits));
            let w = shr64(weight_of(d), 9u).x;
            sums.each[0] = add64(sums.each[0], vec2<u32>(w, 0u));
            // Room for as many as there are tokens.
            sums.each[1] = add64(sums.each[1], shr64(mul64(w, d), params.bits));
            sums.each[2] = add64(sums.each[2], vec2<u32>(1u, 0u));
        }
    }
    return sums;
}

fn spread_of(row: u32, thread: u32, largest: f32) -> Spread {
    return spread_from(add_all(spread_sums(row, thread, largest), thread, 3u));
}

fn spread_from(sums: Sums) -> Spread {
    var spread = Spread(sums.each[0], 0u, 0u, sums.each[2].x);
    if (spread.tokens > 0u) {
        // The total in 31 bits: then the quotient fits as well.
        let shift = max(bits64(spread.total), 31u) - 31u;
        let short_total = shr64(spread.total, shift).x;
        var weighted = sums.each[1];
        if (params.bits >= shift) {
            weighted = shl64(weighted, params.bits - shift);
        } else {
            weighted = shr64(weighted, shift - params.bits);
        }
        spread.mean = div64(weighted, short_total).x;
        // The largest alone makes 2^31, within the error of its weight.
        let log2_all = (log2_fixed(short_total) >> 3u) + (shift << 24u);
        spread.log2_total = max(log2_all, 31u << 24u) - (31u << 24u);
    }
    return spread;
}
