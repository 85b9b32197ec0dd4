// Classes of mask tiles: what dense mask, documents, the user's mask and -inf in the bias say of a tile of ROWS rows and KEYS keys.
// Lengths and positions are not in them (key_range knows these), so that they stay right while a cache grows.
//
// A word holds 16 key tiles of one row tile. Bit t says that some row sees some key of tile t; bit 16 + t that some row does
// not see some key. So 0 in the lower half is a tile that nobody sees, and 0 in the upper half one that needs no mask.

@group(0) @binding(10) var<storage, read> classes: array<u32>;
@group(0) @binding(11) var<storage, read_write> new_classes: array<u32>;

const TILES_PER_WORD = 16u;

struct TileClass {
    seen: bool,
    hidden: bool,
}

// Where the words of a row tile start. Rows of tiles count from the start of the problem, as batches and heads do; what all batches or
// heads have in common is there once.
fn class_row(b: u32, h: u32, first_row: u32) -> u32 {
    return (params.first_batch + b) * params.class_batch + (params.first_head + h) * params.class_head
        + (params.first_row + first_row) / ROWS * params.class_words;
}

fn tile_class(seq: Sequence, h: u32, first_row: u32, first_key: u32) -> TileClass {
    let tile = first_key / KEYS;
    let bits = classes[class_row(seq.b, h, first_row) + tile / TILES_PER_WORD] >> (tile % TILES_PER_WORD);
    return TileClass((bits & 1u) != 0u, (bits & 0x10000u) != 0u);
}

var<workgroup> found: atomic<u32>;

// A workgroup for each word.
@compute @workgroup_size(THREADS)
fn classify(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = group_number(group, params.groups_x_classes);
    let heads = select(params.heads, 1u, params.class_head == 0u);
    let batches = select(params.batches, 1u, params.class_batch == 0u);
    let of_head = params.row_tiles * params.class_words;
    if (number >= of_head * heads * batches) {
        return;
    }
    let word = number % params.class_words;
    let first_row = (number / params.class_words) % params.row_tiles * ROWS;
    let h = (number / of_head) % heads;
    let seq = sequence(number / (of_head * heads));
    // What sequences have in common is asked of the longest.
    let own = params.class_batch != 0u;
    let rows = select(params.rows, seq.count, own);
    let keys = select(params.seq_k, seq.key_count, own);

    if (lane == 0u) {
        atomicStore(&found, 0u);
    }
    workgroupBarrier();
    var bits = 0u;
    for (var at = lane; at < TILES_PER_WORD * KEYS * ROW_GROUPS; at += THREADS) {
        let key = at % (TILES_PER_WORD * KEYS);
        let i = first_row + 4u * (at / (TILES_PER_WORD * KEYS));
        let j = word * TILES_PER_WORD * KEYS + key;
        if (i < rows && j < keys) {
            let allowed = allowed4(seq, h, i, j) & not_hidden_by_bias4(seq, h, i, j);
            let tile = key / KEYS;
            bits |= (u32(any(allowed)) | (u32(!all(allowed)) << 16u)) << tile;
        }
    }
    atomicOr(&found, bits);
    workgroupBarrier();
    if (lane == 0u) {
        new_classes[class_row(seq.b, h, first_row) + word] = atomicLoad(&found);
    }
}

fn not_hidden_by_bias4(seq: Sequence, h: u32, i: u32, j: u32) -> vec4<bool> {
    var seen = vec4<bool>(true);
    if (BIAS) {
        for (var r = 0u; r < 4u; r++) { // unroll
            let row = row_start(params.bias, seq.b, h, min(i + r, params.rows - 1u));
            seen[r] = load_bias(row + j * params.bias_key) != 0xff800000u;
        }
    }
    return seen;
}
