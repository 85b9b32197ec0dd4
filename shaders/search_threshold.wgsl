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

// How near to 1 the sum of weights is brought, before they are divided by it.
const NEAR = 4.76837158203125e-7; // 2^-21
// Beyond this share of the threshold f32 does not know where it is.
const FINEST = 2.384185791015625e-7; // 2^-22

fn start_search(live: vec4<bool>) -> Search {
    let zero = vec4<f32>(0.0);
    return Search(array<vec4<f32>, MAXIMA>(vec4<f32>(NOTHING)), no_sums(), zero, zero, zero, -vec4<f32>(1.0), true, !live);
}

fn no_sums() -> array<vec4<f32>, SUMS> {
    return array<vec4<f32>, SUMS>();
}

fn candidate(search: Search, n: u32) -> vec4<f32> {
    return search.low + (search.high - search.low) * (f32(n) * 0.25);
}

fn gather(search: Search, s: vec4<f32>, j: u32) -> Search {
    var next = search;
    // In the first pass this is not yet the row's, and what is summed means nothing.
    let m = max(search.maxima[0u], s);
    next.maxima[0u] = m;
    let d = distance_below(s, m);
    for (var n = 0u; n < 4u; n++) { // unroll
        let t = candidate(search, n);
        let x = max(d - t, vec4<f32>(0.0));
        if (ENTMAX15) {
            next.sums[2u * n] += x * x;
            next.sums[2u * n + 1u] += x;
        } else {
            next.sums[2u * n] += x;
            next.sums[2u * n + 1u] += select(vec4<f32>(0.0), vec4<f32>(1.0), d > t);
        }
    }
    return next;
}

fn in_terms_of(search: Search, maxima: array<vec4<f32>, MAXIMA>) -> Search {
    var next = search;
    next.maxima = maxima;
    return next;
}

fn advance(search: Search) -> Search {
    var next = search;
    next.sums = no_sums();
    next.first = false;
    if (search.first) {
        next.low = vec4<f32>(-1.0);
        // A row that sees no key has no weights.
        next.done = search.done | (search.maxima[0u] == vec4<f32>(NOTHING));
        return next;
    }
    // The last candidate at which f is not below 0, and the first at which it is. Rounding may find the root a hair left of low.
    var left = search.low;
    var f_left = vec4<f32>(0.0);
    var slope = vec4<f32>(1.0);
    var right = search.right;
    var f_right = search.f_right;
    for (var n = 0u; n < 4u; n++) { // unroll
        let t = candidate(search, n);
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
    next.low = select(low, search.low, search.done);
    next.high = select(high, search.high, search.done);
    next.right = right;
    next.f_right = f_right;
    next.done = search.done | near | fine;
    return next;
}

fn found_score(search: Search, s: vec4<f32>, j: u32) -> vec4<f32> {
    return s;
}

fn found_max(search: Search) -> vec4<f32> {
    return search.maxima[0u];
}

fn found_level(search: Search) -> vec4<f32> {
    return search.low;
}
