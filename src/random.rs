//! Random numbers without a state: a function of a key and a counter, the same on every device and here.
//!
//! Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"; the
//! generator of Random123, and what JAX calls `threefry2x32`). It takes additions, rotations and xor of 32-bit words and nothing else,
//! so that no device rounds it or computes it otherwise. Who needs a number names it by its place (which batch, head, row and
//! key, say) and asks for that: no order of evaluation, no tiling and no number of threads changes it.
//!
//! The shaders' twin of this file is `shaders/random.wgsl`.
//!
//! ```
//! use wgpu_attention::random::{threefry2x32, uniform_open};
//! let seed = [42, 0];
//! let [a, b] = threefry2x32(seed, [7, 0]);
//! assert_eq!(threefry2x32(seed, [7, 0]), [a, b]); // the same place, the same words
//! assert_ne!(threefry2x32(seed, [8, 0]), [a, b]);
//! assert!(0.0 < uniform_open(a) && uniform_open(a) < 1.0);
//! ```

/// Of the key schedule, so that a key of zeros is none of the words that are added.
const PARITY: u32 = 0x1bd1_1bda;

/// Two random words for a key (the seed) and a counter (the place): Threefry-2x32, 20 rounds.
///
/// For one key it is a permutation of the 2^64 counters, so different counters never give the same two words.
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let schedule = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
    let mut x = counter[0].wrapping_add(schedule[0]);
    let mut y = counter[1].wrapping_add(schedule[1]);
    for (four, number) in (0..5).zip(1u32..) {
        for rotation in ROTATIONS[four % 2] {
            x = x.wrapping_add(y);
            y = y.rotate_left(rotation) ^ x;
        }
        x = x.wrapping_add(schedule[(four + 1) % 3]);
        y = y.wrapping_add(schedule[(four + 2) % 3]).wrapping_add(number);
    }
    [x, y]
}

/// A number in (0, 1), never one of the two ends, from the upper 23 bits of a word: an odd multiple of 2^-24, exact in f32. Its
/// logarithm, and that of its logarithm, are finite, as Gumbel noise needs them.
pub fn uniform_open(word: u32) -> f32 {
    ((word >> 8) | 1) as f32 * (1.0 / (1 << 24) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that Random123 publishes (`kat_vectors`, threefry2x32 with 20 rounds).
    #[test]
    fn published_vectors() {
        assert_eq!(threefry2x32([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry2x32([u32::MAX; 2], [u32::MAX; 2]), [0x1cb9_96fc, 0xbb00_2be7]);
        let (counter, key) = ([0x243f_6a88, 0x85a3_08d3], [0x1319_8a2e, 0x0370_7344]);
        assert_eq!(threefry2x32(key, counter), [0xc492_3a9c, 0x483d_f7a0]);
    }

    #[test]
    fn uniform_numbers_are_within_their_ends() {
        assert_eq!(uniform_open(0), 2f32.powi(-24));
        assert_eq!(uniform_open(u32::MAX), 1.0 - 2f32.powi(-24));
        assert_eq!(uniform_open(1 << 31), 0.5 + 2f32.powi(-24));
    }
}
