// Steps that keep tokens until their probabilities make a share p of all.

fn share_of(bits: u32, context: Context) -> vec2<u32> {
    return weight_of(below(context.largest, bitcast<f32>(bits)));
}

fn total_sums(row: u32, thread: u32, context: Context) -> Sums {
    var sums = Sums();
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let bits = work[at(row, token)];
        if (bits != NOTHING) {
            sums.each[0] = add64(sums.each[0], share_of(bits, context));
        }
    }
    return sums;
}
