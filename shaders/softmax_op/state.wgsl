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
fn log_weight(x: f32, m: f32, lens: Lens) -> f32 {
    return max(x * 0.5 - m * 0.5, lens.floor) * lens.factor;
}

fn rebase(state: State, m: f32, lens: Lens) -> State {
    let by = log_weight(state.m, m, lens);
    let alpha = exp2(by);
    return State(m, alpha * state.l, alpha * (state.u + state.l * by), state.at);
}

// Numbers in their order, as integers: a device may take subnormal numbers for 0, and the largest of them would not be found.
fn order(bits: u32) -> u32 {
    if (bits == 0x80000000u) {
        return 0x80000000u; // -0 is 0
    }
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn merge(a: State, b: State, lens: Lens) -> State {
    // An empty state has the lowest maximum there is, and no place.
    let a_order = order(bitcast<u32>(a.m));
    let b_order = order(bitcast<u32>(b.m));
    let b_wins = b_order > a_order || (b_order == a_order && b.at < a.at);
    let m = select(a.m, b.m, b_wins);
    let x = rebase(a, m, lens);
    let y = rebase(b, m, lens);
    return State(m, x.l + y.l, x.u + y.u, select(a.at, b.at, b_wins));
}

// Elements first, first + LANES, ... before end of a row that starts at start. Eight at a time, so that there is one maximum, and
// one change of it, for each eight.
fn collect(start: u32, first: u32, end: u32, lens: Lens) -> State {
    var state = empty_state();
    for (var i = first; i < end; i += 8u * LANES) {
        var bits: array<u32, 8>;
        var m = state.m;
        var at = state.at;
        for (var e = 0u; e < 8u; e++) { // unroll
            let place = i + e * LANES;
            bits[e] = MINUS_INFINITY_BITS;
            if (place < end) {
                bits[e] = load_x(start + place * params.x.step);
            }
            let higher = order(bits[e]) > order(bitcast<u32>(m)) || at == NOWHERE;
            if (bits[e] != MINUS_INFINITY_BITS && higher) {
                m = bitcast<f32>(bits[e]);
                at = place;
            }
        }
        state = rebase(state, m, lens);
        state.at = at;
        if (SUMS) {
            for (var e = 0u; e < 8u; e++) { // unroll
                if (bits[e] != MINUS_INFINITY_BITS) {
                    let d = log_weight(bitcast<f32>(bits[e]), m, lens);
                    let p = exp2(d);
                    state.l += p;
                    state.u += p * d;
                }
            }
        } else {
            state.l = select(0.0, 1.0, at != NOWHERE);
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
        var merged: State;
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
