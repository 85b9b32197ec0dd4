// Where rows start. Batches, heads and rows count from the start of the slice.

// The workgroup's number in a dispatch that is folded into two dimensions.
fn group_number(group: vec3<u32>, groups_x: u32) -> u32 {
    return group.x + group.y * groups_x;
}

// The block of rows that the n-th workgroup of a head takes: the last, the first, the last but one, the second and so on. With a causal
// mask the last see most keys, so that any two neighbours together take as long as any other two. Drivers that give each thread of a
// processor an equal run of workgroups (llvmpipe) then give each an equal part of the work.
fn block_in_turn(n: u32, blocks: u32) -> u32 {
    return select(n / 2u, blocks - 1u - n / 2u, n % 2u == 0u);
}

fn row_start(view: View, b: u32, h: u32, s: u32) -> u32 {
    return view.base + b * view.batch + h * view.head + s * view.seq;
}

// Grouped heads: query head h reads key/value head h / group. The slice starts at a multiple of the group or
// stays within one.
fn kv_head(h: u32) -> u32 {
    return (params.first_head + h) / params.group - params.first_head / params.group;
}

// Position of a row in a (batch, seq_q) array of the whole problem, or (total_q) of packed sequences.
fn query_number(seq: Sequence, i: u32) -> u32 {
    if (PACKED_Q) {
        return seq.first_q + i;
    }
    return (params.first_batch + seq.b) * params.seq_q + params.first_row + i;
}

// Position of a key in a (batch, seq_k) array, or (total_k) of packed sequences.
fn key_number(seq: Sequence, j: u32) -> u32 {
    if (PACKED_K) {
        return seq.first_k + j;
    }
    return (params.first_batch + seq.b) * params.seq_k + j;
}

// Position of a row in a (batch, q_heads, seq_q) array of the whole problem, or (q_heads, total_q) of packed sequences.
fn row_number(seq: Sequence, h: u32, i: u32) -> u32 {
    if (PACKED_Q) {
        return (params.first_head + h) * params.total_q + query_number(seq, i);
    }
    return ((params.first_batch + seq.b) * params.q_heads + params.first_head + h) * params.seq_q
        + params.first_row + i;
}
