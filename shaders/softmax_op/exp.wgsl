// Softmax and log-softmax: the sums of a state, and the writing.

// 2^d of a tile, relative to m: its sum and, for the entropy, that of 2^d d.
fn weigh_tile(m: f32, lens: Lens) -> vec2<f32> {
    let half_m = m * 0.5;
    var l = vec4<f32>(0.0);
    var u = vec4<f32>(0.0);
    for (var v = 0u; v < VECS; v++) { // unroll
        let d = log_weights(numbers(own[v]), half_m, lens);
        let p = select(exp2(d), vec4<f32>(0.0), is_out(own[v]));
        l += p;
        if (ENTROPY) {
            // Where p is 0, d may be anything.
            u += select(p * d, vec4<f32>(0.0), is_out(own[v]));
        }
        if (ONE_TILE && SOFTMAX) {
            own[v] = bitcast<vec4<u32>>(p);
        }
    }
    return vec2<f32>((l.x + l.y) + (l.z + l.w), (u.x + u.y) + (u.z + u.w));
}

// Sums relative to `from` as they are relative to a maximum that is not lower.
fn rebase(sums: vec2<f32>, from_m: f32, m: f32, lens: Lens) -> vec2<f32> {
    let by = log_weights(vec4<f32>(from_m), m * 0.5, lens).x;
    let alpha = exp2(by);
    return alpha * vec2<f32>(sums.x, select(0.0, sums.y + sums.x * by, ENTROPY));
}

// Elements from first to before end of a row that starts at start, by all threads of the row.
fn state_of(start: u32, first: u32, end: u32, lens: Lens, thread: u32) -> State {
    let lane = thread % LANES;
    if (ONE_TILE) {
        load_tile(start, first, end, lane);
        let best = best_of_lanes(top_of_tile(NO_TOP, first, lane), thread);
        let m = number_of(best.x);
        let sums = add_lanes2(weigh_tile(m, lens), thread);
        return State(m, sums.x, sums.y, best.y);
    }
    var top = NO_TOP;
    var sums = vec2<f32>(0.0);
    for (var tile = first; tile < end; tile += TILE) {
        load_tile(start, tile, end, lane);
        let higher = top_of_tile(top, tile, lane);
        let m = number_of(higher.x);
        sums = rebase(sums, number_of(top.x), m, lens) + weigh_tile(m, lens);
        top = higher;
    }
    let best = best_of_lanes(top, thread);
    let m = number_of(best.x);
    sums = add_lanes2(rebase(sums, number_of(top.x), m, lens), thread);
    return State(m, sums.x, sums.y, best.y);
}

// Writes elements that were not kept.
fn rewrite(row: u32, first: u32, end: u32, lane: u32, state: State, lens: Lens, inverse_tau: f32) {
    let norm = norm_of(state);
    if (ONE_TILE) {
        rewrite_tile(row, first, end, lane, norm, lens, inverse_tau);
        return;
    }
    for (var tile = first; tile < end; tile += TILE) {
        rewrite_tile(row, tile, end, lane, norm, lens, inverse_tau);
    }
}

fn rewrite_tile(row: u32, tile: u32, end: u32, lane: u32, norm: Norm, lens: Lens, inverse_tau: f32) {
    let out_start = row_start(params.out, row);
    load_tile(row_start(params.x, row), tile, end, lane);
    for (var v = 0u; v < VECS; v++) { // unroll
        store_out4(out_start, tile, v, lane, end, result(own[v], norm, lens, inverse_tau));
    }
}
