// How a workgroup that goes through the keys KEYS at a time finds its way: which tiles there are, and which of them no row sees.

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
