// The result takes the place of the input: each thread writes only what it has read, after all have read for the sums.

fn load_x(at: u32) -> u32 {
    return out[at];
}
