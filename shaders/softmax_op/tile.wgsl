// A tile is what the LANES threads of a row hold of it at a time, VECS times four elements each. A row that fits one (ONE_TILE) is loaded
// once and stays in registers; longer ones are gone through tile by tile, and once more to be written. Elements are words, because -inf is
// told by its bits; those beyond the end are -inf. Where every tile is full and every workgroup has a row (FULL), nothing is asked.

var<private> own: array<vec4<u32>, VECS> = array<vec4<u32>, VECS>();

fn load_tile(start: u32, tile: u32, end: u32, lane: u32) {
    for (var v = 0u; v < VECS; v++) { // unroll
        own[v] = load_x4(start, tile, v, lane, end);
    }
}

fn is_out(bits: vec4<u32>) -> vec4<bool> {
    return bits == vec4<u32>(MINUS_INFINITY_BITS);
}

fn numbers(bits: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bits);
}
