// The largest element of a row and its place, and how elements are looked at from there.

// What is known of a row, or a part of it. With tau the temperature, and over the elements that are not -inf,
//   m  = max x, at the lowest place `at` that has it
//   l  = sum 2^d,   d = (x - m) log2(e) / tau     (so 1 <= l)
//   u  = sum 2^d d                                (only for the entropy)
struct State {
    m: f32,
    l: f32,
    u: f32,
    at: u32,
}

// As (order, place), for whole numbers compare alike everywhere: a device may take subnormal numbers for 0, and the largest of
// them would not be found. -inf is below all others, and never the largest.
const NO_TOP = vec2<u32>(0x007fffffu, NOWHERE);

fn orders(bits: vec4<u32>) -> vec4<u32> {
    // -0 is 0.
    let plain = select(bits, vec4<u32>(0u), bits == vec4<u32>(0x80000000u));
    return select(plain | vec4<u32>(0x80000000u), ~plain, plain >= vec4<u32>(0x80000000u));
}

// The number of an order; the lowest there is where there was none.
fn number_of(order: u32) -> f32 {
    if (order == NO_TOP.x) {
        return LOWEST;
    }
    return bitcast<f32>(select(~order, order & 0x7fffffffu, order >= 0x80000000u));
}

// Of equal ones the first: elements of a thread come in the order of their places.
fn first_top(before: vec2<u32>, tile: u32, lane: u32) -> vec2<u32> {
    var top = before;
    for (var v = 0u; v < VECS; v++) { // unroll
        let order = orders(own[v]);
        let place = places(tile, v, lane);
        for (var e = 0u; e < 4u; e++) { // unroll
            top = select(top, vec2<u32>(order[e], place[e]), order[e] > top.x);
        }
    }
    return top;
}

// Where nobody asks for the place, two comparisons do: as signed numbers, the words of what is not negative are above all others and in order;
// where there is none, the largest has the smallest word.
fn largest() -> u32 {
    var high = bitcast<vec4<i32>>(own[0]);
    var low = own[0];
    for (var v = 0u; v < VECS; v++) { // unroll
        high = max(high, bitcast<vec4<i32>>(own[v]));
        low = min(low, own[v]);
    }
    let most = max(max(high.x, high.y), max(high.z, high.w));
    let least = min(min(low.x, low.y), min(low.z, low.w));
    return select(least, bitcast<u32>(most), most >= 0);
}

fn top_of_tile(before: vec2<u32>, tile: u32, lane: u32) -> vec2<u32> {
    if (ARGMAX) {
        return first_top(before, tile, lane);
    }
    return vec2<u32>(max(before.x, orders(vec4<u32>(largest())).x), NOWHERE);
}

// How x is looked at: factor is log2(e) / tau, and differences below floor have the weight 0.
struct Lens {
    factor: f32,
    floor: f32,
}

fn lens_of(inverse_tau: f32) -> Lens {
    // 1 / tau is at most 2^126, so that the product stays finite.
    let factor = inverse_tau * LOG2_E;
    let floor = select(LOWEST, -500.0 / max(factor, 1e-35), factor > 1e-35);
    return Lens(2.0 * factor, floor);
}

// d of elements: halves first, so that the difference of any two numbers is finite. Never below -1000, where 2^d is 0.
fn log_weights(x: vec4<f32>, half_m: f32, lens: Lens) -> vec4<f32> {
    return max(x * 0.5 - half_m, vec4<f32>(lens.floor)) * lens.factor;
}
