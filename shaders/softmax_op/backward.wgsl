// Gradients, from the result y and the gradient dy that comes in. With z = x / tau, each kind has a weight w for each element and one number
// c for each row such that dz = w (dy - c), and a function g of y that differs from z by a constant of the row:
//   softmax      w = y             c = sum w dy          g = ln y
//   log-softmax  dz = dy - e^y c   c = sum dy            g = y
//   sparsemax    w = [y > 0]       c = sum w dy / sum w  g = y
//   entmax 1.5   w = sqrt y        c = sum w dy / sum w  g = 2 sqrt y
// dx = dz / tau and, because dz sums to 0 over a row, dtau = -(sum dz z) / tau = -(sum dz g) / tau. Elements that were -inf take no part: their
// dx is 0 and their dy may hold anything.

@group(0) @binding(1) var<storage, read> y: array<u32>;
@group(0) @binding(6) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read_write> dx: array<f32>;

fn visible(bits: u32) -> bool {
    if (KIND == LOG_SOFTMAX) {
        return bits != MINUS_INFINITY_BITS;
    }
    // +0 and -0.
    return (bits << 1u) != 0u;
}

fn weight(y: f32) -> f32 {
    switch (KIND) {
        case SOFTMAX: { return y; }
        case ENTMAX15: { return sqrt(y); }
        default: { return 1.0; }
    }
}

// dz of a visible element.
fn gradient(y: f32, dy: f32, c: f32) -> f32 {
    if (KIND == LOG_SOFTMAX) {
        return dy - exp2(y * LOG2_E) * c;
    }
    return weight(y) * (dy - c);
}

fn place(y: f32) -> f32 {
    switch (KIND) {
        case SOFTMAX: { return log2(y) * LN_2; }
        case ENTMAX15: { return 2.0 * sqrt(y); }
        default: { return y; }
    }
}

// sum w dy and sum w over a part of a row.
fn collect(row: u32, first: u32, end: u32) -> vec2<f32> {
    let start = row_start(params.x, row);
    let dy_start = row_start(params.dy, row);
    var sums = vec2<f32>(0.0);
    for (var i = first; i < end; i += LANES) {
        let bits = y[start + i * params.x.step];
        if (visible(bits)) {
            let w = weight(bitcast<f32>(bits));
            sums += vec2<f32>(w * dy[dy_start + i * params.dy.step], w);
        }
    }
    return sums;
}

fn centre(sums: vec2<f32>) -> f32 {
    if (KIND == SOFTMAX || KIND == LOG_SOFTMAX) {
        return sums.x;
    }
    return sums.x / max(sums.y, 1e-30);
}

// Writes dx of a part of a row; gives its sum of dz g.
fn write(row: u32, first: u32, end: u32, c: f32, inverse_tau: f32) -> f32 {
    let start = row_start(params.x, row);
    let dy_start = row_start(params.dy, row);
    let dx_start = row_start(params.out, row);
    var sum = 0.0;
    for (var i = first; i < end; i += LANES) {
        let bits = y[start + i * params.x.step];
        var dz = 0.0;
        if (visible(bits)) {
            let number = bitcast<f32>(bits);
            dz = gradient(number, dy[dy_start + i * params.dy.step], c);
            if (DTAU) {
                sum += dz * place(number);
            }
        }
        dx[dx_start + i * params.out.step] = dz * inverse_tau;
    }
    return sum;
}

// Sums of the LANES threads that share a row; all of them get it. Every thread of the workgroup must come here.
var<workgroup> pool: array<vec2<f32>, THREADS>;

fn add_lanes(mine: vec2<f32>, thread: u32) -> vec2<f32> {
    pool[thread] = mine;
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (thread % LANES < step) {
            pool[thread] += pool[thread + step];
        }
    }
    workgroupBarrier();
    let all = pool[thread - thread % LANES];
    workgroupBarrier();
    return all;
}
