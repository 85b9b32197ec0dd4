// The threshold t of sparsemax and 1.5-entmax (weights_entmax.wgsl): where the weights of a row sum to 1. With distances
// d_j <= 0 to the row's largest score it is the root, in [-1, 0), of
//   f(t) = sum [d_j - t]_+^g - 1        g = 1 (sparsemax) or 2 (1.5-entmax)
// which falls and is convex. The first pass finds the largest score. Each later one evaluates f and its slope at four
// candidates in the bracket [low, high], and makes of the two beside the root a new bracket:
//   low   Newton's step from the left one: its tangent lies below f
//   high  where the chord to the right one crosses 0: it lies above f
// so the bracket shrinks to a quarter or less each time, whatever the scores are, and usually at Newton's speed.

struct Search {
    maxima: array<vec4<f32>, MAXIMA>,
    sums: array<vec4<f32>, SUMS>, // of each candidate: sum of weights, and minus the slope of f (over g)
    low: vec4<f32>,
    high: vec4<f32>,
    // A point on the right of the root, and f there.
    right: vec4<f32>,
    f_right: vec4<f32>,
    first: bool,
    done: vec4<bool>,
}

// Private to the thread, and not handed from function to function: compilers are slow to take copies of it apart.
var<private> search: Search = Search();

fn is_found() -> vec4<bool> {
    return search.done;
}

// How near to 1 the sum of weights is brought, before they are divided by it.
const NEAR = 4.76837158203125e-7; // 2^-21
// Beyond this share of the threshold f32 does not know where it is.
const FINEST = 2.384185791015625e-7; // 2^-22

fn start_search(live: vec4<bool>) {
    let zero = vec4<f32>(0.0);
    search.maxima[0u] = vec4<f32>(NOTHING);
    clear_sums();
    search.low = zero;
    search.high = zero;
    search.right = zero;
    search.f_right = -vec4<f32>(1.0);
    search.first = true;
    search.done = !live;
}

fn clear_sums() {
    for (var n = 0u; n < SUMS; n++) { // unroll
        search.sums[n] = vec4<f32>(0.0);
    }
}

fn candidate(n: u32) -> vec4<f32> {
    return search.low + (search.high - search.low) * (f32(n) * 0.25);
}

fn gather(s: vec4<f32>, j: u32) {
    // In the first pass this is not yet the row's, and what is summed means nothing.
    let m = max(search.maxima[0u], s);
    search.maxima[0u] = m;
    let d = distance_below(s, m);
    for (var n = 0u; n < 4u; n++) { // unroll
        let t = candidate(n);
        let x = max(d - t, vec4<f32>(0.0));
        if (ENTMAX15) {
            search.sums[2u * n] += x * x;
            search.sums[2u * n + 1u] += x;
        } else {
            search.sums[2u * n] += x;
            search.sums[2u * n + 1u] += select(vec4<f32>(0.0), vec4<f32>(1.0), d > t);
        }
    }
}

fn in_terms_of(maxima: array<vec4<f32>, MAXIMA>) {
    search.maxima[0u] = maxima[0u];
}

fn advance() {
    if (search.first) {
        search.first = false;
        search.low = vec4<f32>(-1.0);
        // A row that sees no key has no weights.
        search.done = search.done | (search.maxima[0u] == vec4<f32>(NOTHING));
        clear_sums();
        return;
    }
    // The last candidate at which f is not below 0, and the first at which it is. Rounding may find the root a hair left of low.
    var left = search.low;
    var f_left = vec4<f32>(0.0);
    var slope = vec4<f32>(1.0);
    var right = search.right;
    var f_right = search.f_right;
    for (var n = 0u; n < 4u; n++) { // unroll
        let t = candidate(n);
        let f = search.sums[2u * n] - 1.0;
        let is_left = f >= vec4<f32>(0.0);
        left = select(left, t, is_left);
        f_left = select(f_left, f, is_left);
        slope = select(slope, search.sums[2u * n + 1u], is_left);
        let is_right = !is_left & (t < right);
        right = select(right, t, is_right);
        f_right = select(f_right, f, is_right);
    }
    if (ENTMAX15) {
        slope *= 2.0;
    }
    let low = min(left + f_left / slope, right);
    let chord = left + (right - left) * (f_left / (f_left - f_right));
    let high = max(min(min(chord, right), search.high), low);
    let near = (high - low) * slope <= vec4<f32>(NEAR);
    let fine = high - low <= abs(low) * FINEST;
    search.low = select(low, search.low, search.done);
    search.high = select(high, search.high, search.done);
    search.right = right;
    search.f_right = f_right;
    search.done = search.done | near | fine;
    clear_sums();
}

fn found_score(s: vec4<f32>, j: u32) -> vec4<f32> {
    return s;
}

fn found_max() -> vec4<f32> {
    return search.maxima[0u];
}

fn found_level() -> vec4<f32> {
    return search.low;
}
