// One batch entry: how many of its rows and keys are valid, and where its rows stand among its keys.

// No length reaches beyond this.
const MAX_SEQ = 1073741824;

struct Sequence {
    b: u32, // its number, from the start of the slice
    rows: u32, // of this slice, those that are valid. The others are written as 0, and nothing of them is loaded
    keys: u32, // that are valid. The others may hold anything, NaN too
    offset: i32, // what to add to the number of a row of this slice to get its position
}

fn sequence(b: u32) -> Sequence {
    let batch = params.first_batch + b;
    var queries = params.seq_q;
    var keys = params.seq_k;
    // The tables are the caller's memory: whatever they hold, no row and no key that is not there is ever touched.
    if (Q_LEN) {
        queries = u32(clamp(table_i32(params.q_len + batch), 0, i32(queries)));
    }
    if (KV_LEN) {
        keys = u32(clamp(table_i32(params.kv_len + batch), 0, i32(keys)));
    }
    var offset = params.offset;
    if (OFFSET_PER_BATCH) {
        // Beyond these an offset changes nothing more, and position + 1 stays within i32.
        offset = clamp(table_i32(params.offsets + batch), -MAX_SEQ, MAX_SEQ - 1);
    }
    if (OFFSET_OF_VALID) {
        offset = i32(keys) - i32(queries);
    }
    let rows = min(max(queries, params.first_row) - params.first_row, params.rows);
    return Sequence(b, rows, keys, offset + i32(params.first_row));
}
