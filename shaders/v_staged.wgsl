// v by way of workgroup memory: for tiles in which several row groups read the same value.

const V_STAGED = true;

// Keys first_key .. + V_CHUNK - 1, below end, of one block of v's columns.
fn stage_v(seq: Sequence, h: u32, first_key: u32, end: u32, v_block: u32, lane: u32) {
    for (var at = lane; at < V_CHUNK * V_BLOCK; at += THREADS) {
        let column = at % V_BLOCK;
        let key = at / V_BLOCK;
        var v = vec4<f32>(0.0);
        if (first_key + key < end && is_own_column(column, v_block)) {
            v = load_v(row_start(params.v, seq.b, h, seq.first_k + first_key + key), v_block * V_BLOCK + column);
        }
        pool[V_STAGE + key * V_BLOCK + column] = v;
    }
}

fn value(seq: Sequence, h: u32, first_key: u32, key: u32, column: u32, v_block: u32) -> vec4<f32> {
    // Threads beyond the last column read the last one and store nothing.
    return pool[V_STAGE + key * V_BLOCK + min(column, V_BLOCK - 1u)];
}
