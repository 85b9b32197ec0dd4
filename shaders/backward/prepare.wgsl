// Before all else: copies the tables, and finds d = dout . out - dlse of each row.

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
    let row = number;
    if (row >= params.batches * params.q_heads * params.seq_q) {
        return;
    }
    let at = item(row, params.q_heads, params.seq_q);
    // A row without a key has out = 0, and whatever dout is there it must not count.
    let empty = lse[row] == MINUS_INFINITY_BITS;
    var sums = vec4<f32>(0.0);
    if (!empty) {
        let out_row = row_start(params.out, at.b, at.h, at.x);
        let dout_row = row_start(params.dout, at.b, at.h, at.x);
        for (var d = 0u; d < V_DIM4; d++) {
            sums = fma(load_out(out_row, d), load_dout(dout_row, d), sums);
        }
    }
    let d = (sums.x + sums.y) + (sums.z + sums.w) - dlse_of(row);
    kept[kept_at(row, KEPT_LSE)] = select(lse[row], 0u, empty);
    kept[kept_at(row, KEPT_D)] = select(bitcast<u32>(d), 0u, empty);
}
