// Dropout: which weights stay. The twin of src/dropout.rs, which says the same in words.

// Of the four rows that row i is one of, which keep the weight of key j. (Rows count from the start of the slice; the four are those whose
// number in the whole problem has the same quotient by four.)
fn dropout_keeps(b: u32, h: u32, i: u32, j: u32) -> vec4<bool> {
    let head = (params.first_batch + b) * params.q_heads + params.first_head + h;
    let block = head * ((params.seq_q + 3u) / 4u) + (params.first_row + i) / 4u;
    let key = vec2<u32>(u32(table_i32(params.dropout)), u32(table_i32(params.dropout + 1u)));
    let words = threefry2x32(key, vec2<u32>(block, j));
    let draws = vec4<u32>(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u);
    return draws < vec4<u32>(params.dropout_kept);
}
