// Keeps the largest logits until their probabilities make p, the one that crosses it included (Holtzman and others 2019). Setting: p in units
// of 2^-32, 0 for all.

struct Context {
    largest: f32,
}

fn key_of(bits: u32, context: Context) -> u32 {
    return order(bits);
}

fn share_of(bits: u32, context: Context) -> vec2<u32> {
    return weight_of(below(context.largest, bitcast<f32>(bits)));
}

@compute @workgroup_size(THREADS)
fn top_p(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let p = setting(row, 0u);
    if (p > 0u) {
        let context = Context(number(largest(row, thread).x));
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
