// Random numbers without a state: a function of a key and a counter. The twin of src/random.rs.
//
// Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; the generator of Random123 and JAX).
// Additions, rotations and xor of 32-bit words, which every device does alike.

const THREEFRY_PARITY = 0x1bd11bdau;

// Two random words.
fn threefry2x32(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    let parity = key.x ^ key.y ^ THREEFRY_PARITY;
    var x = counter + key;
    x = threefry_rounds(x, vec4<u32>(13u, 15u, 26u, 6u)) + vec2<u32>(key.y, parity + 1u);
    x = threefry_rounds(x, vec4<u32>(17u, 29u, 16u, 24u)) + vec2<u32>(parity, key.x + 2u);
    x = threefry_rounds(x, vec4<u32>(13u, 15u, 26u, 6u)) + vec2<u32>(key.x, key.y + 3u);
    x = threefry_rounds(x, vec4<u32>(17u, 29u, 16u, 24u)) + vec2<u32>(key.y, parity + 4u);
    return threefry_rounds(x, vec4<u32>(13u, 15u, 26u, 6u)) + vec2<u32>(parity, key.x + 5u);
}

// Four rounds: add, rotate, xor.
fn threefry_rounds(words: vec2<u32>, rotations: vec4<u32>) -> vec2<u32> {
    var x = words.x;
    var y = words.y;
    for (var r = 0u; r < 4u; r++) { // unroll
        x += y;
        y = x ^ ((y << rotations[r]) | (y >> (32u - rotations[r])));
    }
    return vec2<u32>(x, y);
}

// A number in (0, 1), never one of the two ends, from the upper 23 bits of a word: an odd multiple of 2^-24, exact in f32.
fn uniform_open(word: u32) -> f32 {
    return f32((word >> 8u) | 1u) * 5.9604644775390625e-8;
}
