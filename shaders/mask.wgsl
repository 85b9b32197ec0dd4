// Which keys a row sees. The twin of src/mask.rs.
//
// Row i stands at position p = i + offset. It sees key j when all of these hold (offset and keys: see sequence.wgsl):
//   j < keys                                                 (the rest may hold anything, NaN too)
//   min_distance <= j - p <= max_distance, or j < keep_first  (when POSITIONS)
//   j <= p                                                   (when CAUSAL; then max_distance is at most 0)
//   the dense mask says so                                   (when MASK, see dense_mask_*.wgsl)
//   both are of one document                                 (when DOCUMENTS)
//   the user's function says so                              (when MASK_MOD)

// Distances that stand for "unbounded".
const NO_MIN = -2147483647 - 1;
const NO_MAX = 2147483647;

// What a block of rows sees, as far as positions and lengths tell. Keys outside [0, keep) and [start, end) are seen by no row
// of the block: nothing is loaded of them. Keys in [full_start, full_end) are seen by all rows: there
// the mask need not be asked.
struct KeyRange {
    keep: u32,
    start: u32,
    end: u32,
    full_start: u32,
    full_end: u32,
}

fn key_range(seq: Sequence, first_row: u32, last_row: u32) -> KeyRange {
    let valid = seq.keys;
    var range = KeyRange(0u, 0u, valid, 0u, valid);
    if (POSITIONS) {
        let first = i32(first_row) + seq.offset;
        let last = i32(last_row) + seq.offset;
        if (params.max_distance != NO_MAX) {
            range.end = min(valid, past(last, params.max_distance));
            range.full_end = min(valid, past(first, params.max_distance));
        }
        if (params.min_distance != NO_MIN) {
            range.start = min(valid, first_within(first, params.min_distance));
            range.full_start = min(valid, first_within(last, params.min_distance));
        }
        if (KEEP_FIRST) {
            range.keep = min(valid, params.keep_first);
            if (CAUSAL) {
                range.keep = min(range.keep, past(last, 0));
            }
            // One end for the loop: past it there is nothing in either part.
            range.end = max(range.end, range.keep);
        }
    }
    return range;
}

// One past the last key within a distance of a position, without leaving i32: both may be as large as they come.
fn past(position: i32, distance: i32) -> u32 {
    if (distance >= MAX_SEQ - max(position, 0)) {
        return u32(MAX_SEQ);
    }
    return u32(max(position + distance + 1, 0));
}

// The first key at a distance (not above 0) from a position.
fn first_within(position: i32, distance: i32) -> u32 {
    return u32(max(max(position, 0) + distance, 0));
}

// How many keys lengths and positions let a row see; at least 1, so that its logarithm is a number.
fn visible_keys(seq: Sequence, i: u32) -> u32 {
    let range = key_range(seq, i, i);
    let near = max(range.end, range.start) - range.start;
    if (KEEP_FIRST) {
        // The two parts may overlap, and range.end covers both.
        let own_end = select(range.full_end, range.start, range.full_end < range.start);
        let overlap = min(range.keep, own_end) - min(range.keep, range.start);
        return max(own_end - range.start + range.keep - overlap, 1u);
    }
    return max(near, 1u);
}

// Whether rows i, i + 1, i + 2, i + 3 see key j.
fn visible4(seq: Sequence, h: u32, i: u32, j: u32) -> vec4<bool> {
    var seen = vec4<bool>(j < seq.keys);
    if (POSITIONS) {
        let position = vec4<i32>(i32(i) + seq.offset) + vec4<i32>(0, 1, 2, 3);
        let distance = vec4<i32>(i32(j)) - position;
        var near = (distance >= vec4<i32>(params.min_distance)) & (distance <= vec4<i32>(params.max_distance));
        if (KEEP_FIRST) {
            near = near | vec4<bool>(j < params.keep_first);
        }
        if (CAUSAL) {
            near = near & (distance <= vec4<i32>(0));
        }
        seen = seen & near;
    }
    if (CONTENTS && j < seq.keys) {
        seen = seen & allowed4(seq, h, i, j);
    }
    return seen;
}

// Whether what is known of each pair by itself lets rows i, i + 1, i + 2, i + 3 see key j, which is one of the sequence's.
fn allowed4(seq: Sequence, h: u32, i: u32, j: u32) -> vec4<bool> {
    var seen = vec4<bool>(true);
    if (DOCUMENTS) {
        let document = table_i32(params.documents_k + key_number(seq, j));
        for (var r = 0u; r < 4u; r++) { // unroll
            seen[r] = table_i32(params.documents_q + query_number(seq, min(i + r, seq.count - 1u))) == document;
        }
    }
    if (MASK) {
        for (var r = 0u; r < 4u; r++) { // unroll
            seen[r] = seen[r] && mask_keeps(seq.b, h, min(i + r, params.rows - 1u), j);
        }
    }
    if (MASK_MOD) {
        for (var r = 0u; r < 4u; r++) { // unroll
            seen[r] = seen[r] && user_mask_mod(params.user_batch + seq.b, params.user_head + h,
                params.user_row + min(i + r, params.rows - 1u), j);
        }
    }
    return seen;
}
