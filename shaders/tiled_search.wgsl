// What the threads of a row have gathered in a pass over the keys, put together.

// The same in each of them.
fn merge(lane: u32, row_group: u32) {
    var maxima = search.maxima;
    for (var n = 0u; n < MAXIMA; n++) { // unroll
        partial[lane] = maxima[n];
        workgroupBarrier();
        maxima[n] = row_max(row_group, maxima[n]);
        workgroupBarrier();
    }
    in_terms_of(maxima);
    for (var n = 0u; n < SUMS; n++) { // unroll
        partial[lane] = search.sums[n];
        workgroupBarrier();
        search.sums[n] = row_sum(row_group);
        workgroupBarrier();
    }
}

// Whether any row of the workgroup is still searched for; the same for all threads.
fn goes_on(lane: u32, row_group: u32) -> bool {
    if (lane % KEY_LANES == 0u) {
        partial[row_group] = select(vec4<f32>(1.0), vec4<f32>(0.0), search.done);
    }
    workgroupBarrier();
    if (lane == 0u) {
        var open = partial[0];
        for (var other = 1u; other < ROW_GROUPS; other++) {
            open += partial[other];
        }
        partial[0] = open;
    }
    return any(workgroupUniformLoad(&partial[0]) > vec4<f32>(0.0));
}
