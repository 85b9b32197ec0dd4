// Workgroups that share rows: each has a chunk of one, and they leave each other numbers. First the final ones of each row, then those of
// each chunk: eight words for either. Here LANES = THREADS.

@group(0) @binding(5) var<storage, read_write> partials: array<u32>;

const WORDS = 8u;

fn final_place(row: u32) -> u32 {
    return row * WORDS;
}

fn chunk_place(row: u32, chunk: u32) -> u32 {
    return (params.rows + row * params.chunks + chunk) * WORDS;
}

struct Chunk {
    row: u32,
    number: u32,
    // Its elements; none where the row is none.
    first: u32,
    end: u32,
}

fn chunk_of(group: vec3<u32>) -> Chunk {
    let number = group_number(group);
    let row = number / params.chunks;
    let chunk = number % params.chunks;
    let first = chunk * params.chunk;
    return Chunk(row, chunk, first, select(0u, min(first + params.chunk, params.len), row < params.rows));
}

// Chunks of a row; none where the row is none.
fn chunks_of(row: u32) -> u32 {
    return select(0u, params.chunks, row < params.rows);
}

fn store_partial(at: u32, value: vec4<f32>) {
    for (var e = 0u; e < 4u; e++) { // unroll
        partials[at + e] = bitcast<u32>(value[e]);
    }
}

fn load_partial(at: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(partials[at], partials[at + 1u], partials[at + 2u], partials[at + 3u]));
}

// A place is no number: as f32 it might not come back.
fn store_state(at: u32, state: State) {
    store_partial(at, vec4<f32>(state.m, state.l, state.u, 0.0));
    partials[at + 3u] = state.at;
}

fn load_state(at: u32) -> State {
    let words = load_partial(at);
    return State(words.x, words.y, words.z, partials[at + 3u]);
}

// The largest of all chunks of a row, by the threads of a workgroup. Of equal ones the first; a chunk of nothing but -inf has l = 0.
fn best_of_chunks(row: u32, thread: u32) -> vec2<u32> {
    var top = NO_TOP;
    for (var chunk = thread; chunk < chunks_of(row); chunk += THREADS) {
        let state = load_state(chunk_place(row, chunk));
        let order = orders(vec4<u32>(bitcast<u32>(state.m))).x;
        top = select(top, vec2<u32>(order, state.at), state.l > 0.0 && order > top.x);
    }
    return best_of_lanes(top, thread);
}
