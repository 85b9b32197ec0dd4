// A dense mask of one bit for each pair, lowest bit first: 1 means that the row attends to the key.

@group(0) @binding(8) var<storage, read> mask: array<u32>;

fn mask_keeps(b: u32, h: u32, i: u32, j: u32) -> bool {
    let at = row_start(params.mask, b, h, i) + j * params.mask_key;
    return ((mask[at >> 5u] >> (at & 31u)) & 1u) != 0u;
}
