// The online softmax: what is kept of a row while its keys go by.
//
// With scores s in their unit (log2 unless score.wgsl says otherwise: 2^x stands for weight_of(x)) and over the keys
// seen so far,
//   m = max s                         (or a little below: the row kernel's LAZY)
//   l = sum 2^(s - m)
//   u = sum 2^(s - m) (s - m)         (only for the entropy)
//   o = sum 2^(s - m) v               (kept by the kernel)
// When a larger m' arrives, all sums are expressed in terms of it:
//   l' = l 2^(m - m'),  o' = o 2^(m - m'),  u' = (u + l (m - m')) 2^(m - m')
// The answer is o / l; dividing once at the end is all the normalisation there is.
//
// WGSL has no infinity and a compiler may assume that none occurs. So a key that a row does not see has the score NOTHING,
// a finite number below any real score, and whether something was seen is decided by comparing, never by
// arithmetic on it: the largest key of a row adds exactly 1 to l, so l = 0 means that no key was seen.

const NOTHING = -3.0e38;

// Weights are 0 in f32 from here down, in either unit, and differences are cut off there, so that sums of them stay finite.
// (NOTHING less a maximum above 4e37 is beyond f32; where that is -inf, as on all hardware known, it is cut off too.)
const FLOOR = -1000.0;

// Everything here is four rows at a time, one in each component.
struct State {
    m: vec4<f32>,
    l: vec4<f32>,
    u: vec4<f32>,
}

fn empty_state() -> State {
    return State(vec4<f32>(NOTHING), vec4<f32>(0.0), vec4<f32>(0.0));
}

// How far the sums so far shrink when the maximum becomes m: m_old - m, not below FLOOR.
fn shift(state: State, m: vec4<f32>) -> vec4<f32> {
    return max(state.m - m, vec4<f32>(FLOOR));
}

// The sums of a state in terms of a new maximum, by = shift(state, m).
fn rebase(state: State, m: vec4<f32>, by: vec4<f32>) -> State {
    let alpha = weight_of(by);
    var u = state.u;
    if (ENTROPY || ADAPTIVE) {
        u = alpha * (u + state.l * by);
    }
    return State(m, alpha * state.l, u);
}

// The sums of two states in terms of one maximum, which the first one has.
fn join(a: State, b: State) -> State {
    return State(a.m, a.l + b.l, a.u + b.u);
}

// The weight (see weights_*.wgsl) for scores at least one of which is no key at all or not seen.
fn weight_masked(s: vec4<f32>, m: vec4<f32>, level: vec4<f32>) -> vec4<f32> {
    return select(weight(s, m, level), vec4<f32>(0.0), s == vec4<f32>(NOTHING));
}

// A row's sums when all keys have gone by, in terms of one maximum m. l is the denominator, keys the part of it that is not
// the sink's. l = 0 only for a row that sees no key and has no sink.
struct Totals {
    m: vec4<f32>,
    l: vec4<f32>,
    keys: vec4<f32>,
    u: vec4<f32>,
}

// Weights that are divided by nothing are divided by 1. Adds the sink, a logit that belongs to no key: it takes its share of the denominator and brings no value.
fn totals(state: State, h: u32) -> Totals {
    if (!NORMALISED) {
        return Totals(state.m, vec4<f32>(1.0), vec4<f32>(1.0), state.u);
    }
    if (SINK) {
        var sink = 0.0;
        if (SINK_PER_HEAD) {
            sink = clamp(table_f32(params.sinks + params.first_head + h), -MAX_BIAS, MAX_BIAS) * UNIT;
        }
        let m = max(state.m, vec4<f32>(sink));
        let keys = rebase(state, m, shift(state, m));
        return Totals(m, keys.l + weight_of(max(sink - m, vec4<f32>(FLOOR))), keys.l, keys.u);
    }
    return Totals(state.m, state.l, state.l, state.u);
}

// Of rows that are not valid nothing is left, as of one that sees no key and has no sink.
fn of_valid_rows(totals: Totals, valid: vec4<bool>) -> Totals {
    return Totals(totals.m, select(vec4<f32>(0.0), totals.l, valid), totals.keys, totals.u);
}

// What a row of o is multiplied by at the end, where o is in terms of the state's maximum. A row that saw no key has o = 0, and
// is left so.
fn normaliser(state: State, totals: Totals) -> vec4<f32> {
    var factor = select(1.0 / totals.l, vec4<f32>(0.0), totals.l == vec4<f32>(0.0));
    if (SINK || LAZY) {
        factor *= weight_of(shift(state, totals.m));
    }
    if (DROPOUT) {
        // What is kept stands for what is dropped.
        factor *= params.dropout_scale;
    }
    return factor;
}
