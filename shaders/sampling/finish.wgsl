// Draws a token of each row: the largest of l + g, g Gumbel noise of the token's own, which has the probabilities of the softmax (Gumbel
// 1954; Maddison and others 2014); or the largest of l. Both take the lowest token of equal ones.

@group(0) @binding(7) var<storage, read_write> drawn: array<u32>;

// Below the noise of any token that is not out, and its logit.
const LOWEST_SCORE = 0u;

@compute @workgroup_size(THREADS)
fn finish(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    var best = largest(row, thread);
    let highest = number(best.x);
    if (GUMBEL) {
        let key = vec2<u32>(draw_setting(row, 0u), draw_setting(row, 1u));
        let offset = draw_setting(row, 2u);
        var mine = vec2<u32>(LOWEST_SCORE, NO_TOKEN);
        for (var n = thread; n < live; n += THREADS) {
            let token = token_at(row, n);
            let bits = work[at(row, token)];
            if (bits != NOTHING) {
                // In units of 2^-20, moved so that it is above 0: noise is from -3.1 to 45, d from 0 to 60.
                let d = below(highest, bitcast<f32>(bits)) >> 4u;
                let score = u32(gumbel(threefry2x32(key, vec2<u32>(token, offset))) + (100 << 20u)) - d;
                if (score > mine.x) {
                    mine = vec2<u32>(score, token);
                }
            }
        }
        best = best_of(mine, thread);
    }
    if (LOG_PROBS) {
        var log_prob = NOTHING;
        let total = spread_of(row, thread, highest).log2_total;
        if (best.y != NO_TOKEN) {
            // -(d + ln W), in units of 2^-17, which f32 has exactly.
            let d = below(highest, bitcast<f32>(work[at(row, best.y)]));
            let surprise = (d >> 7u) + (mul_high(total, 0xb17217f8u) >> 7u);
            log_prob = bitcast<u32>(f32(surprise) * -7.62939453125e-6);
        }
        if (thread == 0u) {
            drawn[params.total_rows + params.first_row + row] = log_prob;
        }
    }
    if (thread == 0u) {
        drawn[params.first_row + row] = best.y;
    }
}
