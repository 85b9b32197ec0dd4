// Keeps the k largest logits, exactly, the lowest tokens of equal ones. Setting: k, 0 for all.

struct Context {
    unused: u32,
}

fn key_of(bits: u32, context: Context) -> u32 {
    return order(bits);
}

fn share_of(bits: u32, context: Context) -> vec2<u32> {
    return vec2<u32>(1u, 0u);
}

@compute @workgroup_size(THREADS)
fn top_k(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let k = setting(row, 0u);
    if (k > 0u && k < params.vocab) {
        select_row(row, thread, vec2<u32>(k, 0u), Context(0u));
    }
}
