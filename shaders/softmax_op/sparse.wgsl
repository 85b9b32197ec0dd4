// Sparsemax and 1.5-entmax: p = max(y - t, 0)^POWER with
//   sparsemax   y = (x - m) / tau,      POWER = 1     (Martins and Astudillo 2016)
//   entmax 1.5  y = (x - m) / (2 tau),  POWER = 2     (Peters, Niculae and Martins 2019)
// and the threshold t at which p sums to 1. The largest y is 0, so t is in [-1, 0). The sum falls as t grows: seven places in the interval
// are tried at once, which leaves an eighth of it, ROUNDS times. Then the support is known but for elements next to t, and t
// follows from its sums in closed form.

// A row's numbers: its maximum, a threshold lo that is not above t, the width of the interval, and what is left from lo to t.
struct Threshold {
    m: f32,
    lo: f32,
    width: f32,
    rest: f32,
}

const ROUNDS = 8u;

// y of an element is half (x - m) times a factor; differences below floor are far from any support.
fn sparse_lens(inverse_tau: f32) -> Lens {
    let factor = inverse_tau * (2.0 / f32(POWER));
    let floor = select(LOWEST, -4.0 / max(factor, 1e-35), factor > 1e-35);
    return Lens(factor, floor);
}

// y of a tile takes the place of its elements where they stay, and is made from them each time where they do not.
fn logits(bits: vec4<u32>, half_m: f32, lens: Lens) -> vec4<f32> {
    return select(log_weights(numbers(bits), half_m, lens), vec4<f32>(-4.0), is_out(bits));
}

fn make_logits(m: f32, lens: Lens) {
    for (var v = 0u; v < VECS; v++) { // unroll
        own[v] = bitcast<vec4<u32>>(logits(own[v], m * 0.5, lens));
    }
}

// Sums over a part of a row at seven places; or of the support: its size and first two moments from lo.
struct Sums {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn raised(v: vec4<f32>) -> vec4<f32> {
    let positive = max(v, vec4<f32>(0.0));
    if (POWER == 2u) {
        return positive * positive;
    }
    return positive;
}

// Over a tile of y.
fn sums_of_tile(row: Threshold, last: bool) -> Sums {
    var sums = Sums(vec4<f32>(0.0), vec4<f32>(0.0));
    let eighth = row.width * 0.125;
    let low = vec4<f32>(1.0, 2.0, 3.0, 4.0) * eighth;
    let high = vec4<f32>(5.0, 6.0, 7.0, 8.0) * eighth;
    for (var v = 0u; v < VECS; v++) { // unroll
        let over = numbers(own[v]) - row.lo;
        for (var e = 0u; e < 4u; e++) { // unroll
            let y = over[e];
            if (last) {
                sums.a += select(vec4<f32>(0.0), vec4<f32>(1.0, y, y * y, 0.0), y > 0.0);
            } else {
                sums.a += raised(vec4<f32>(y) - low);
                sums.b += raised(vec4<f32>(y) - high);
            }
        }
    }
    return sums;
}

// Over a part of a row, by all threads of the row; of ONE_TILE the y are there.
fn sums_of(start: u32, first: u32, end: u32, row: Threshold, lens: Lens, last: bool, thread: u32) -> Sums {
    var sums = Sums(vec4<f32>(0.0), vec4<f32>(0.0));
    if (ONE_TILE) {
        sums = sums_of_tile(row, last);
    } else {
        for (var tile = first; tile < end; tile += TILE) {
            load_tile(start, tile, end, thread % LANES);
            make_logits(row.m, lens);
            let more = sums_of_tile(row, last);
            sums = Sums(sums.a + more.a, sums.b + more.b);
        }
    }
    sums.a = add_lanes4(sums.a, thread);
    if (!last) {
        sums.b = add_lanes4(sums.b, thread);
    }
    return sums;
}

fn start_threshold(m: f32) -> Threshold {
    return Threshold(m, -1.0, 1.0, 0.0);
}

// The eighth of the interval in which the sum falls below 1.
fn narrow(row: Threshold, sums: Sums) -> Threshold {
    let one = vec4<f32>(1.0);
    let low = select(vec4<f32>(0.0), one, sums.a >= one);
    let high = select(vec4<f32>(0.0), one, sums.b >= one);
    // The eighth place is the end of the interval.
    let passed = dot(low, one) + dot(high, vec4<f32>(1.0, 1.0, 1.0, 0.0));
    let width = row.width * 0.125;
    return Threshold(row.m, row.lo + passed * width, width, 0.0);
}

// With k elements above lo and the sums s1, s2 of v = y - lo over them, what is left is r with
//   sparsemax   s1 - k r = 1
//   entmax 1.5  s2 - 2 r s1 + k r^2 = 1,   the smaller root, written so that nothing cancels.
fn finish(row: Threshold, sums: Sums) -> Threshold {
    let k = max(sums.a.x, 1.0);
    var rest = (sums.a.y - 1.0) / k;
    if (POWER == 2u) {
        let s1 = sums.a.y;
        let over = sums.a.z - 1.0;
        rest = over / (s1 + sqrt(max(s1 * s1 - k * over, 0.0)));
    }
    return Threshold(row.m, row.lo, row.width, rest);
}

// Writes a tile of y.
fn write_tile(out_start: u32, tile: u32, end: u32, lane: u32, row: Threshold) {
    for (var v = 0u; v < VECS; v++) { // unroll
        let p = raised(numbers(own[v]) - row.lo - row.rest);
        store_out4(out_start, tile, v, lane, end, bitcast<vec4<u32>>(p));
    }
}

fn rewrite(row: u32, first: u32, end: u32, lane: u32, threshold: Threshold, lens: Lens) {
    if (ONE_TILE) {
        rewrite_tile(row, first, end, lane, threshold, lens);
        return;
    }
    for (var tile = first; tile < end; tile += TILE) {
        rewrite_tile(row, tile, end, lane, threshold, lens);
    }
}

fn rewrite_tile(row: u32, tile: u32, end: u32, lane: u32, threshold: Threshold, lens: Lens) {
    load_tile(row_start(params.x, row), tile, end, lane);
    make_logits(threshold.m, lens);
    write_tile(row_start(params.out, row), tile, end, lane, threshold);
}

// A state that is only the largest, of which nothing else is needed here; l says whether there is one.
fn found(best: vec2<u32>) -> State {
    return State(number_of(best.x), select(1.0, 0.0, best.x == NO_TOP.x), 0.0, best.y);
}

fn state_of(start: u32, first: u32, end: u32, thread: u32) -> State {
    var top = NO_TOP;
    if (ONE_TILE) {
        load_tile(start, first, end, thread % LANES);
        top = top_of_tile(top, first, thread % LANES);
    } else {
        for (var tile = first; tile < end; tile += TILE) {
            load_tile(start, tile, end, thread % LANES);
            top = top_of_tile(top, tile, thread % LANES);
        }
    }
    return found(best_of_lanes(top, thread));
}
