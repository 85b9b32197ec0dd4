// The first row that may see key j: with a causal mask those before its position do not.

fn first_row_of(seq: Sequence, j: u32) -> u32 {
    if (CAUSAL) {
        return u32(max(i32(j) - seq.offset, 0));
    }
    return 0u;
}
