// The input in a buffer of its own. Elements are words, because -inf is told by its bits.

@group(0) @binding(1) var<storage, read> x: array<u32>;

fn load_x(at: u32) -> u32 {
    return x[at];
}
