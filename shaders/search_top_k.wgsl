// Top-k attention: which score of a row is the smallest of its k largest, equal ones in the order of their keys.
//
// Scores are compared as integers that have the same order (`ordered`), so that the answer is exact. The first pass counts the keys
// and finds the smallest and largest score; each later one counts how many are at or above each of eight cuts within [low, high):
//   more than k of them are at or above low, fewer than k at or above high
// A cut with exactly k ends the search. Half of the cuts share out the range by value, which is quick for scores that are spread
// evenly; half by the integers, which brings the range to a fifth each time whatever the scores are. When low and high are
// neighbours, low is a score that several keys share: of these the first are taken, found in the same way by key number.

struct Search {
    maxima: array<vec4<f32>, MAXIMA>, // of the scores, and of their negatives
    sums: array<vec4<f32>, SUMS>, // how many are at or above each cut
    cuts: array<vec4<u32>, SUMS>,
    low: vec4<u32>,
    high: vec4<u32>,
    above: vec4<f32>, // how many are at or above high
    wanted: vec4<f32>, // how many have to be at or above a cut
    cut: vec4<u32>, // what is found: scores from here on are kept
    tie: vec4<u32>, // and of this score
    tie_cut: vec4<u32>, // the keys whose number, counted downwards, is from here on
    among_ties: vec4<bool>,
    first: bool,
    done: vec4<bool>,
}

// Private to the thread, and not handed from function to function: compilers are slow to take copies of it apart.
var<private> search: Search = Search();

fn is_found() -> vec4<bool> {
    return search.done;
}

const ORDERED_NOTHING = 10374681u; // ordered(NOTHING), below every score
const NONE = 4294967295u;
// Keys are counted downwards from here, so that earlier ones are larger.
const FIRST_KEY = 2147483647u;

// Integers in the order of the scores. 0 has two signs, and one place.
fn ordered(s: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(select(s, vec4<f32>(0.0), s == vec4<f32>(0.0)));
    return select(bits | vec4<u32>(0x80000000u), ~bits, bits >= vec4<u32>(0x80000000u));
}

fn unordered(x: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(select(~x, x & vec4<u32>(0x7fffffffu), x >= vec4<u32>(0x80000000u)));
}

fn start_search(live: vec4<bool>) {
    for (var n = 0u; n < SUMS; n++) { // unroll
        search.sums[n] = vec4<f32>(0.0);
        search.cuts[n] = vec4<u32>(NONE);
    }
    // The first cut counts the keys that are seen.
    search.cuts[0u] = vec4<u32>(ORDERED_NOTHING + 1u);
    search.maxima[0u] = vec4<f32>(NOTHING);
    search.maxima[1u] = vec4<f32>(NOTHING);
    search.low = vec4<u32>(0u);
    search.high = vec4<u32>(NONE);
    search.above = vec4<f32>(0.0);
    search.wanted = vec4<f32>(f32(params.top_k));
    search.cut = vec4<u32>(ORDERED_NOTHING + 1u);
    search.tie = vec4<u32>(0u);
    search.tie_cut = vec4<u32>(NONE);
    search.among_ties = vec4<bool>(false);
    search.first = true;
    search.done = !live;
}

fn gather(s: vec4<f32>, j: u32) {
    if (search.first) {
        search.maxima[0u] = max(search.maxima[0u], s);
        search.maxima[1u] = max(search.maxima[1u], select(-s, vec4<f32>(NOTHING), s == vec4<f32>(NOTHING)));
    }
    var x = ordered(s);
    let key = select(vec4<u32>(0u), vec4<u32>(FIRST_KEY - j), x == search.tie);
    x = select(x, key, search.among_ties);
    for (var n = 0u; n < SUMS; n++) { // unroll
        search.sums[n] += select(vec4<f32>(0.0), vec4<f32>(1.0), x >= search.cuts[n]);
    }
}

fn in_terms_of(maxima: array<vec4<f32>, MAXIMA>) {
    search.maxima[0u] = maxima[0u];
    search.maxima[1u] = maxima[1u];
}

fn advance() {
    if (search.first) {
        search.first = false;
        // No more keys than are wanted: the cut that keeps all of them stays.
        search.done = search.done | (search.sums[0u] <= search.wanted);
        search.low = ordered(-search.maxima[1u]);
        search.high = ordered(search.maxima[0u]) + 1u;
    } else {
        var exact = vec4<bool>(false);
        var cut = search.cut;
        for (var n = 0u; n < SUMS; n++) { // unroll
            let c = search.cuts[n];
            let count = search.sums[n];
            let hit = count == search.wanted;
            exact = exact | hit;
            cut = select(cut, c, hit);
            search.low = select(search.low, max(search.low, c), count > search.wanted);
            let lower = (count < search.wanted) & (c < search.high);
            search.high = select(search.high, c, lower);
            search.above = select(search.above, count, lower);
        }
        exact = exact & !search.done;
        search.cut = select(search.cut, cut, exact & !search.among_ties);
        search.tie_cut = select(search.tie_cut, cut, exact & search.among_ties);
        search.done = search.done | exact;
        let tied = !search.done & !search.among_ties & (search.high - search.low == vec4<u32>(1u));
        search.among_ties = search.among_ties | tied;
        search.cut = select(search.cut, search.high, tied);
        search.tie = select(search.tie, search.low, tied);
        search.wanted = select(search.wanted, search.wanted - search.above, tied);
        search.low = select(search.low, vec4<u32>(FIRST_KEY + 1u - params.seq_k), tied);
        search.high = select(search.high, vec4<u32>(FIRST_KEY + 1u), tied);
        search.above = select(search.above, vec4<f32>(0.0), tied);
    }
    // New cuts, within low + 1 .. high - 1.
    let width = search.high - search.low;
    let a = unordered(search.low);
    let b = unordered(search.high);
    for (var n = 0u; n < SUMS; n++) { // unroll
        let by_key = search.low + share_of(width, n + 1u, 9u);
        var by_score = search.low;
        if (n < 4u) {
            by_score += share_of(width, n + 1u, 5u);
        } else {
            let share = (f32(n) - 3.0) * 0.2;
            by_score = ordered(a * (1.0 - share) + b * share);
        }
        let c = select(by_score, by_key, search.among_ties);
        search.cuts[n] = clamp(c, search.low + 1u, max(search.high, search.low + 2u) - 1u);
        search.sums[n] = vec4<f32>(0.0);
    }
}

// n / parts of a width, rounded so that small widths are shared out too.
fn share_of(width: vec4<u32>, n: u32, parts: u32) -> vec4<u32> {
    return width / parts * n + min(vec4<u32>(n), width % parts);
}

// The score that the weights are made of: none, of a key that is not among the k.
fn found_score(s: vec4<f32>, j: u32) -> vec4<f32> {
    let x = ordered(s);
    let among = search.among_ties & (x == search.tie) & (vec4<u32>(FIRST_KEY - j) >= search.tie_cut);
    return select(vec4<f32>(NOTHING), s, (x >= search.cut) | among);
}

fn found_max() -> vec4<f32> {
    return vec4<f32>(NOTHING);
}

fn found_level() -> vec4<f32> {
    return vec4<f32>(0.0);
}
