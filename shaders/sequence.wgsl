// One batch entry: where its rows and keys are, how many there are, and where its rows stand among its keys.
//
// Padded sequences lie each in a batch of its own. Packed ones lie one after the other, as one batch: sequence b has the rows from
// cu_seqlens[b] to before cu_seqlens[b + 1].

// No length reaches beyond this.
const MAX_SEQ = 1073741824;

struct Sequence {
    b: u32, // its number, from the start of the slice
    first_q: u32, // what to add to the number of a row of this slice to get its row in q and out
    first_k: u32, // what to add to the number of a key to get its row in k and v
    count: u32, // rows of this slice that there are: these are written
    rows: u32, // those of them that are valid. The others are written as 0, and nothing of them is loaded
    keys: u32, // that are valid. The others may hold anything, NaN too
    key_count: u32, // that there are, valid or not
    offset: i32, // what to add to the number of a row of this slice to get its position
}

// Rows start .. end - 1 of a packed tensor.
struct Part {
    start: u32,
    end: u32,
}

// The tables are the caller's memory: whatever they hold, no row and no key that is not there is ever touched.
fn part(starts: u32, batch: u32, total: u32, longest: u32) -> Part {
    let start = u32(clamp(table_i32(starts + batch), 0, i32(total)));
    let end = u32(clamp(table_i32(starts + batch + 1u), 0, i32(total)));
    return Part(start, clamp(end, start, start + longest));
}

fn sequence(b: u32) -> Sequence {
    let batch = params.first_batch + b;
    var queries = params.seq_q;
    var keys = params.seq_k;
    var first_q = 0u;
    var first_k = 0u;
    var count = params.rows;
    if (PACKED_Q) {
        let rows = part(params.cu_seqlens_q, batch, params.total_q, params.seq_q);
        queries = rows.end - rows.start;
        first_q = rows.start + params.first_row;
        count = rows_here(queries);
    }
    if (PACKED_K) {
        let rows = part(params.cu_seqlens_k, batch, params.total_k, params.seq_k);
        keys = rows.end - rows.start;
        first_k = rows.start;
    }
    let key_count = keys;
    var offset = params.offset;
    if (OFFSET_OF_LENGTHS) {
        offset = i32(keys) - i32(queries);
    }
    if (Q_LEN) {
        queries = u32(clamp(table_i32(params.q_len + batch), 0, i32(queries)));
    }
    if (KV_LEN) {
        keys = u32(clamp(table_i32(params.kv_len + batch), 0, i32(keys)));
    }
    if (OFFSET_PER_BATCH) {
        // Beyond these an offset changes nothing more, and position + 1 stays within i32.
        offset = clamp(table_i32(params.offsets + batch), -MAX_SEQ, MAX_SEQ - 1);
    }
    if (OFFSET_OF_VALID) {
        offset = i32(keys) - i32(queries);
    }
    return Sequence(b, first_q, first_k, count, rows_here(queries), keys, key_count, offset + i32(params.first_row));
}

// How many of the first rows of a sequence are in this slice.
fn rows_here(queries: u32) -> u32 {
    return min(max(queries, params.first_row) - params.first_row, params.rows);
}
