// Keeps the largest logits until their probabilities make p, the one that crosses it included (Holtzman and others 2019). Setting: p in units
// of 2^-32, 0 for all.

struct Context {
    largest: f32,
}

fn make_context(largest: f32, mean: u32) -> Context {
    return Context(largest);
}

fn key_of(bits: u32, context: Context) -> u32 {
    return order(bits);
}

// Of what the target is a share.
const TARGET_SUMS = 1u;

fn target_sums(row: u32, thread: u32, largest: f32) -> Sums {
    return total_sums(row, thread, Context(largest));
}

fn mean_of(sums: Sums) -> u32 {
    return 0u;
}
