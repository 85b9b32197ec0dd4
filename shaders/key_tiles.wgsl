// How a workgroup that goes through the keys KEYS at a time finds its way: which tiles there are, which of them no row sees, and loops that
// stay loops.

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
