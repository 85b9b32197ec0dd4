// Draws a token of each row: the largest of l + g, g Gumbel noise of the token's own, which has the probabilities of the softmax (Gumbel
// 1954; Maddison and others 2014); or the largest of l. Both take the lowest token of equal ones.

@group(0) @binding(7) var<storage, read_write> drawn: array<u32>;

// Below the noise of any token that is not out, and its logit.
const LOWEST_SCORE = 0u;

// A thread's best of l + g and its token.
fn best_score(row: u32, thread: u32, highest: f32) -> vec2<u32> {
    let key = vec2<u32>(draw_setting(row, 0u), draw_setting(row, 1u));
    let offset = draw_setting(row, 2u);
    var mine = vec2<u32>(LOWEST_SCORE, NO_TOKEN);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        if (bits != NOTHING) {
            // In units of 2^-20, moved so that it is above 0: noise is from -3.1 to 45, d from 0 to 60.
            let d = below(highest, bitcast<f32>(bits)) >> 4u;
            let score = u32(gumbel(threefry2x32(key, vec2<u32>(token, offset))) + (100 << 20u)) - d;
            if (score > mine.x || (score == mine.x && token < mine.y)) {
                mine = vec2<u32>(score, token);
            }
        }
    }
    return mine;
}

// By one thread.
fn write_draw(row: u32, token: u32) {
    drawn[params.first_row + row] = token;
}

fn write_log_prob(row: u32, token: u32, highest: f32, log2_total: u32) {
    var log_prob = NOTHING;
    if (token != NO_TOKEN) {
        // -(d + ln W), in units of 2^-17, which f32 has exactly.
        let d = below(highest, bitcast<f32>(work[at(row, token)]));
        let surprise = (d >> 7u) + (mul_high(log2_total, 0xb17217f8u) >> 7u);
        log_prob = bitcast<u32>(f32(surprise) * -7.62939453125e-6);
    }
    drawn[params.total_rows + params.first_row + row] = log_prob;
}
