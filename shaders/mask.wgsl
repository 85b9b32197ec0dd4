// Which keys a row sees. The twin of src/mask.rs.
//
// A row i sees key j when all of these hold:
//   j < kv_len(batch)                 (the rest may hold anything, NaN too)
//   j <= i + causal_offset(batch)     (when CAUSAL)

// No length reaches beyond this.
const MAX_SEQ = 1073741824;

fn valid_keys(b: u32) -> u32 {
    if (KV_LEN) {
        // The table is the caller's memory: whatever it holds, no key beyond seq_k is ever read.
        return u32(clamp(table_i32(params.kv_len + params.first_batch + b), 0, i32(params.seq_k)));
    }
    return params.seq_k;
}

fn causal_offset(b: u32) -> i32 {
    if (CAUSAL_PER_BATCH) {
        let offset = table_i32(params.causal_offsets + params.first_batch + b);
        // Beyond these an offset changes nothing more, and i + offset + 1 stays within i32.
        return clamp(offset, -MAX_SEQ, MAX_SEQ - 1);
    }
    return params.causal_offset;
}

// Keys [0, end) are seen by at least one row of a block of rows, keys [0, full) by every one of them.
// Between the two, the mask has to be asked; before full it need not be, and from end on nothing is loaded.
struct KeyRange {
    end: u32,
    full: u32,
}

// first_row and last_row count from the start of the slice.
fn key_range(b: u32, first_row: u32, last_row: u32) -> KeyRange {
    let valid = valid_keys(b);
    var range = KeyRange(valid, valid);
    if (CAUSAL) {
        let past = i32(params.first_row) + causal_offset(b) + 1;
        range.end = min(valid, u32(max(i32(last_row) + past, 0)));
        range.full = min(valid, u32(max(i32(first_row) + past, 0)));
    }
    return range;
}

// Whether rows i, i + 1, i + 2, i + 3 see key j; valid is valid_keys(b), offset is causal_offset(b).
fn visible4(i: u32, j: u32, valid: u32, offset: i32) -> vec4<bool> {
    var seen = vec4<bool>(j < valid);
    if (CAUSAL) {
        let rows = vec4<i32>(i32(params.first_row + i)) + vec4<i32>(0, 1, 2, 3);
        seen = seen & (vec4<i32>(i32(j)) <= rows + vec4<i32>(offset));
    }
    return seen;
}
