// Stands in for a dense mask where a problem has none. Never called.

fn mask_keeps(b: u32, h: u32, i: u32, j: u32) -> bool {
    return true;
}
