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

fn logit(bits: u32, half_m: f32, lens: Lens) -> f32 {
    return select(log_weight(bitcast<f32>(bits), half_m, lens), -4.0, bits == MINUS_INFINITY_BITS);
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

fn sums_of(start: u32, first: u32, end: u32, row: Threshold, lens: Lens, last: bool) -> Sums {
    var sums = Sums(vec4<f32>(0.0), vec4<f32>(0.0));
    let half_m = row.m * 0.5;
    let eighth = row.width * 0.125;
    let low = vec4<f32>(1.0, 2.0, 3.0, 4.0) * eighth;
    let high = vec4<f32>(5.0, 6.0, 7.0, 8.0) * eighth;
    for (var i = first; i < end; i += LANES) {
        let v = logit(load_x(start + i * params.x.step), half_m, lens) - row.lo;
        if (last) {
            sums.a += select(vec4<f32>(0.0), vec4<f32>(1.0, v, v * v, 0.0), v > 0.0);
        } else {
            sums.a += raised(vec4<f32>(v) - low);
            sums.b += raised(vec4<f32>(v) - high);
        }
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

fn result_sparse(bits: u32, row: Threshold, lens: Lens) -> u32 {
    let v = logit(bits, row.m * 0.5, lens) - row.lo - row.rest;
    return bitcast<u32>(raised(vec4<f32>(v)).x);
}

// The sums of the LANES threads that share a row; all of them get it. Every thread of the workgroup must come here.
var<workgroup> pool: array<Sums, THREADS>;

fn add_lanes(mine: Sums, thread: u32) -> Sums {
    pool[thread] = mine;
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (thread % LANES < step) {
            pool[thread].a += pool[thread + step].a;
            pool[thread].b += pool[thread + step].b;
        }
    }
    workgroupBarrier();
    let all = pool[thread - thread % LANES];
    workgroupBarrier();
    return all;
}
