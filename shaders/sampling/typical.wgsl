// Keeps the tokens whose surprise -ln p is nearest to the entropy, until their probabilities make p (Meister and others 2022). As -ln p = d +
// ln W and H = mean d + ln W, that is by |d - mean d|. Setting: p in units of 2^-32, 0 for all.

struct Context {
    largest: f32,
    mean: u32,
}

fn make_context(largest: f32, mean: u32) -> Context {
    return Context(largest, mean);
}

fn key_of(bits: u32, context: Context) -> u32 {
    if (bits == NOTHING) {
        return 0u;
    }
    let d = below(context.largest, bitcast<f32>(bits));
    return ~select(context.mean - d, d - context.mean, d >= context.mean);
}

// Three of which the mean is made, and that of which the target is a share.
const TARGET_SUMS = 4u;

fn target_sums(row: u32, thread: u32, largest: f32) -> Sums {
    var sums = spread_sums(row, thread, largest);
    sums.each[3] = total_sums(row, thread, Context(largest, 0u)).each[0];
    return sums;
}

fn mean_of(sums: Sums) -> u32 {
    return spread_from(sums).mean;
}
