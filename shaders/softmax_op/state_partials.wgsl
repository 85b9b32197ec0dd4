// States among the partial results.

fn store_state(at: u32, state: State) {
    partials[at] = bitcast<u32>(state.m);
    partials[at + 1u] = bitcast<u32>(state.l);
    partials[at + 2u] = bitcast<u32>(state.u);
    partials[at + 3u] = state.at;
}

fn load_state(at: u32) -> State {
    return State(
        bitcast<f32>(partials[at]),
        bitcast<f32>(partials[at + 1u]),
        bitcast<f32>(partials[at + 2u]),
        partials[at + 3u],
    );
}
