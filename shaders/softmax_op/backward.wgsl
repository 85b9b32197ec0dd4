// Gradients, from the result y and the gradient dy that comes in. With z = x / tau, each kind has a weight w for each element and one number
// c for each row such that dz = w (dy - c), and a function g of y that differs from z by a constant of the row:
//   softmax      w = y             c = sum w dy          g = ln y
//   log-softmax  dz = dy - e^y c   c = sum dy            g = y
//   sparsemax    w = [y > 0]       c = sum w dy / sum w  g = y
//   entmax 1.5   w = sqrt y        c = sum w dy / sum w  g = 2 sqrt y
// dx = dz / tau and, because dz sums to 0 over a row, dtau = -(sum dz z) / tau = -(sum dz g) / tau. Elements that were -inf take no part: their
// dx is 0 and their dy may hold anything.
//
// A tile holds y in `own` and dy in `given`. The binding of x has y, that of the result dx.

var<private> given: array<vec4<f32>, VECS> = array<vec4<f32>, VECS>();

fn load_pair(row: u32, tile: u32, end: u32, lane: u32) {
    let start = row_start(params.x, row);
    let dy_start = row_start(params.dy, row);
    for (var v = 0u; v < VECS; v++) { // unroll
        own[v] = load_x4(start, tile, v, lane, end);
        given[v] = numbers(load_dy4(dy_start, tile, v, lane, end));
    }
}

fn visible(bits: vec4<u32>) -> vec4<bool> {
    if (LOG_SOFTMAX) {
        return bits != vec4<u32>(MINUS_INFINITY_BITS);
    }
    // +0 and -0, and what lies beyond the end.
    return ((bits << vec4<u32>(1u)) != vec4<u32>(0u)) & !is_out(bits);
}

fn weights(y: vec4<f32>) -> vec4<f32> {
    if (SOFTMAX) {
        return y;
    }
    if (ENTMAX15) {
        return sqrt(y);
    }
    return vec4<f32>(1.0);
}

// dz of visible elements.
fn gradients(y: vec4<f32>, dy: vec4<f32>, c: f32) -> vec4<f32> {
    if (LOG_SOFTMAX) {
        return dy - exp2(y * LOG2_E) * c;
    }
    return weights(y) * (dy - c);
}

fn heights(y: vec4<f32>) -> vec4<f32> {
    if (SOFTMAX) {
        return log2(y) * LN_2;
    }
    if (ENTMAX15) {
        return 2.0 * sqrt(y);
    }
    return y;
}

fn sum4(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

fn collect_tile() -> vec2<f32> {
    var products = vec4<f32>(0.0);
    var all = vec4<f32>(0.0);
    for (var v = 0u; v < VECS; v++) { // unroll
        let seen = visible(own[v]);
        let w = weights(numbers(own[v]));
        products += select(vec4<f32>(0.0), w * given[v], seen);
        all += select(vec4<f32>(0.0), w, seen);
    }
    return vec2<f32>(sum4(products), sum4(all));
}

// sum w dy and sum w over a part of a row, by all threads of the row.
fn collect(row: u32, first: u32, end: u32, thread: u32) -> vec2<f32> {
    let lane = thread % LANES;
    if (ONE_TILE) {
        load_pair(row, first, end, lane);
        return add_lanes2(collect_tile(), thread);
    }
    var sums = vec2<f32>(0.0);
    for (var tile = first; tile < end; tile += TILE) {
        load_pair(row, tile, end, lane);
        sums += collect_tile();
    }
    return add_lanes2(sums, thread);
}

fn centre(sums: vec2<f32>) -> f32 {
    if (SOFTMAX || LOG_SOFTMAX) {
        return sums.x;
    }
    return sums.x / max(sums.y, 1e-30);
}

// Writes dx of a tile; gives the thread's sum of dz g.
fn write_tile(row: u32, tile: u32, end: u32, lane: u32, c: f32, inverse_tau: f32) -> f32 {
    let dx_start = row_start(params.out, row);
    var sums = vec4<f32>(0.0);
    for (var v = 0u; v < VECS; v++) { // unroll
        let y = numbers(own[v]);
        let seen = visible(own[v]);
        let dz = select(vec4<f32>(0.0), gradients(y, given[v], c), seen);
        if (DTAU) {
            sums += select(vec4<f32>(0.0), dz * heights(y), seen);
        }
        store_out4(dx_start, tile, v, lane, end, bitcast<vec4<u32>>(dz * inverse_tau));
    }
    return sum4(sums);
}

// The same of a part of a row, whose tiles are not there any more.
fn rewrite(row: u32, first: u32, end: u32, lane: u32, c: f32, inverse_tau: f32) -> f32 {
    var sum = 0.0;
    if (ONE_TILE) {
        load_pair(row, first, end, lane);
        return write_tile(row, first, end, lane, c, inverse_tau);
    }
    for (var tile = first; tile < end; tile += TILE) {
        load_pair(row, tile, end, lane);
        sum += write_tile(row, tile, end, lane, c, inverse_tau);
    }
    return sum;
}
