// The result, as words: -inf is written by its bits.

@group(0) @binding(2) var<storage, read_write> out: array<u32>;
