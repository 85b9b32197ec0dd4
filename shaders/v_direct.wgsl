// v straight from its buffer: for wide heads, where each value is read by one thread only and a row of v would fill
// the workgroup memory.

const V_STAGED = false;

fn stage_v(seq: Sequence, h: u32, first_key: u32, end: u32, v_block: u32, lane: u32) {}

fn value(seq: Sequence, h: u32, first_key: u32, key: u32, column: u32, v_block: u32) -> vec4<f32> {
    if (!is_own_column(column, v_block)) {
        return vec4<f32>(0.0);
    }
    return load_v(row_start(params.v, seq.b, kv_head(h), seq.first_k + first_key + key), v_block * V_BLOCK + column);
}
