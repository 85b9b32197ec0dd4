// Before all else: copies the tables, and lse and its gradient of each row.

@group(0) @binding(13) var<storage, read> lse: array<u32>;

const MINUS_INFINITY_BITS = 0xff800000u;

@compute @workgroup_size(THREADS)
fn prepare(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = params.start + group_number(group, params.groups_x) * THREADS + lane;
    if (number >= params.end) {
        return;
    }
    if (number < params.tables) {
        kept[number] = given_table(number);
    }
    if (number < params.batches * params.q_heads * params.seq_q) {
        // A row without a key has no gradient, whatever comes in there.
        let empty = lse[number] == MINUS_INFINITY_BITS;
        kept[kept_at(number, KEPT_LSE)] = select(lse[number], 0u, empty);
        kept[kept_at(number, KEPT_D)] = select(bitcast<u32>(-dlse_of(number)), 0u, empty);
    }
}
