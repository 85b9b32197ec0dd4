// What is kept of a row, or a part of it, while its elements go by. With tau the temperature, and over the elements so far that are not
// -inf,
//   m  = max x, at the lowest place `at` that has it
//   l  = sum 2^d,   d = (x - m) log2(e) / tau     (so 1 <= l)
//   u  = sum 2^d d                                (only for the entropy)
// Two states merge into one of their common maximum; an empty one, l = 0, changes nothing.

struct State {
    m: f32,
    l: f32,
    u: f32,
    at: u32,
}

fn empty_state() -> State {
    return State(LOWEST, 0.0, 0.0, NOWHERE);
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

// d of an element: halves first, so that the difference of any two numbers is finite. Never below -1000, where 2^d is 0.
fn log_weight(x: f32, half_m: f32, lens: Lens) -> f32 {
    return max(x * 0.5 - half_m, lens.floor) * lens.factor;
}

fn rebase(state: State, m: f32, lens: Lens) -> State {
    let by = log_weight(state.m, m * 0.5, lens);
    let alpha = exp2(by);
    var u = 0.0;
    if (ENTROPY) {
        u = alpha * (state.u + state.l * by);
    }
    return State(m, alpha * state.l, u, state.at);
}

// Numbers in their order, as integers: a device may take subnormal numbers for 0, and the largest of them would not be found. -inf
// is below all others.
fn order(bits: u32) -> u32 {
    if (bits == 0x80000000u) {
        return 0x80000000u; // -0 is 0
    }
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn merge(a: State, b: State, lens: Lens) -> State {
    // An empty state has the lowest maximum there is, and no place.
    var m = max(a.m, b.m);
    var at = NOWHERE;
    if (ARGMAX) {
        let a_order = order(bitcast<u32>(a.m));
        let b_order = order(bitcast<u32>(b.m));
        let b_wins = b_order > a_order || (b_order == a_order && b.at < a.at);
        m = select(a.m, b.m, b_wins);
        at = select(a.at, b.at, b_wins);
    }
    let x = rebase(a, m, lens);
    let y = rebase(b, m, lens);
    return State(m, x.l + y.l, x.u + y.u, at);
}

// Elements first, first + LANES, ... before end of a row that starts at start. Eight at a time, so that there is one maximum, and
// one change of it, for each eight.
fn collect(start: u32, first: u32, end: u32, lens: Lens) -> State {
    var state = empty_state();
    for (var i = first; i < end; i += 8u * LANES) {
        var bits = array<u32, 8>();
        var m = state.m;
        var at = state.at;
        for (var e = 0u; e < 8u; e++) { // unroll
            let place = i + e * LANES;
            let word = load_x(start + min(place, end - 1u) * params.x.step);
            bits[e] = select(MINUS_INFINITY_BITS, word, place < end);
            if (ARGMAX) {
                let higher = order(bits[e]) > order(bitcast<u32>(m)) || at == NOWHERE;
                let taken = higher && bits[e] != MINUS_INFINITY_BITS;
                m = select(m, bitcast<f32>(bits[e]), taken);
                at = select(at, place, taken);
            } else {
                m = max(m, select(bitcast<f32>(bits[e]), LOWEST, bits[e] == MINUS_INFINITY_BITS));
            }
        }
        state = rebase(state, m, lens);
        state.at = at;
        let half_m = m * 0.5;
        for (var e = 0u; e < 8u; e++) { // unroll
            let out_of_it = bits[e] == MINUS_INFINITY_BITS;
            if (SUMS) {
                let d = log_weight(bitcast<f32>(bits[e]), half_m, lens);
                let p = select(exp2(d), 0.0, out_of_it);
                state.l += p;
                if (ENTROPY) {
                    // Where p is 0, d may be anything.
                    state.u += select(p * d, 0.0, out_of_it);
                }
            } else {
                state.l = select(1.0, state.l, out_of_it);
            }
        }
    }
    return state;
}

// The states of the LANES threads that share a row, merged; all of them get it. Every thread of the workgroup must come here.
var<workgroup> states: array<State, THREADS>;

fn merge_lanes(mine: State, thread: u32, lens: Lens) -> State {
    states[thread] = mine;
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        var merged = State();
        if (thread % LANES < step) {
            merged = merge(states[thread], states[thread + step], lens);
        }
        workgroupBarrier();
        if (thread % LANES < step) {
            states[thread] = merged;
        }
    }
    workgroupBarrier();
    let all = states[thread - thread % LANES];
    workgroupBarrier();
    return all;
}
