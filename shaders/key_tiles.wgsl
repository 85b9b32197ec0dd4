// How a workgroup that goes through the keys KEYS at a time finds its way: which tiles there are, which of them no row sees, loops that
// stay loops, and the number of a thread.

// The tile of keys that follows one, leaving out those that nobody sees.
fn next_tile(tile: u32, range: KeyRange) -> u32 {
    let next = tile + KEYS;
    if (KEEP_FIRST && next >= range.keep) {
        return max(next, range.start / KEYS * KEYS);
    }
    return next;
}

fn first_tile(range: KeyRange) -> u32 {
    if (KEEP_FIRST && range.keep > 0u) {
        return 0u;
    }
    return range.start / KEYS * KEYS;
}

// n, told so that no compiler knows it: a loop of so many rounds stays a loop. For what is done once for many keys or
// once a row, and is text that loads and stores: written out, it takes Mesa longer to compile than all the rest.
fn rounds(n: u32) -> u32 {
    return select(n, 0u, params.heads == 0u);
}

// The number of a thread, told so that it is computed once. On llvmpipe it is the remainder of a division by the size of the workgroup, and after
// each barrier LLVM computes again what is plain arithmetic, down to that division, thread by thread. What a function like floor returns is
// kept. (Exact up to 2^22.)
fn held(number: u32) -> u32 {
    return u32(floor(f32(number) + 0.5));
}
