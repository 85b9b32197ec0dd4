// Keeps the tokens whose surprise -ln p is nearest to the entropy, until their probabilities make p (Meister and others 2022). As -ln p = d +
// ln W and H = mean d + ln W, that is by |d - mean d|. Setting: p in units of 2^-32, 0 for all.

struct Context {
    largest: f32,
    mean: u32,
}

fn key_of(bits: u32, context: Context) -> u32 {
    if (bits == NOTHING) {
        return 0u;
    }
    let d = below(context.largest, bitcast<f32>(bits));
    return ~select(context.mean - d, d - context.mean, d >= context.mean);
}

fn share_of(bits: u32, context: Context) -> vec2<u32> {
    return weight_of(below(context.largest, bitcast<f32>(bits)));
}

@compute @workgroup_size(THREADS)
fn typical(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let p = setting(row, 0u);
    if (p > 0u) {
        let highest = number(largest(row, thread).x);
        let context = Context(highest, spread_of(row, thread, highest).mean);
        var mine = vec2<u32>(0u);
        for (var n = thread; n < live; n += THREADS) {
            let token = token_at(row, n);
            let bits = work[at(row, token)];
            if (bits != NOTHING) {
                mine = add64(mine, share_of(bits, context));
            }
        }
        select_row(row, thread, share_of_sum(add_one(mine, thread), p), context);
    }
}
