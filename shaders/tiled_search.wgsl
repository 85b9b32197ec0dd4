// What the threads of a row have gathered in a pass over the keys, put together.
//
// Maxima and sums take turns in place 0, so that one piece of text exchanges all of them: what compilers are slow with is places that
// load and store.

// The same in each of them.
fn merge(lane: u32, row_group: u32) {
    var maxima = search.maxima;
    for (var turn = 0u; turn < rounds(MAXIMA); turn++) {
        partial[lane] = maxima[0u];
        workgroupBarrier();
        let largest = row_max(row_group, maxima[0u]);
        workgroupBarrier();
        for (var n = 0u; n < MAXIMA; n++) { // unroll
            maxima[n] = maxima[(n + 1u) % MAXIMA];
        }
        maxima[MAXIMA - 1u] = largest;
    }
    in_terms_of(maxima);
    for (var turn = 0u; turn < rounds(SUMS); turn++) {
        partial[lane] = search.sums[0u];
        workgroupBarrier();
        let sum = row_sum(row_group);
        workgroupBarrier();
        for (var n = 0u; n < SUMS; n++) { // unroll
            search.sums[n] = search.sums[(n + 1u) % SUMS];
        }
        search.sums[SUMS - 1u] = sum;
    }
}

// Whether any row of the workgroup is still searched for; the same for all threads.
fn goes_on(lane: u32, row_group: u32) -> bool {
    if (lane % KEY_LANES == 0u) {
        partial[row_group].x = select(1.0, 0.0, all(search.done));
    }
    workgroupBarrier();
    if (lane == 0u) {
        var open = partial[0].x;
        for (var other = 1u; other < rounds(ROW_GROUPS); other++) {
            open += partial[other].x;
        }
        partial[0].x = open;
    }
    return workgroupUniformLoad(&partial[0]).x > 0.0;
}
