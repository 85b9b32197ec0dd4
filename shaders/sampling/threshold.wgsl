// The k-th largest of the shares' maxima, and the shares that reach it, see shares.wgsl. The list of shares has no order.

// Of a row: tokens that are listed; behind those of all rows, shares that are chosen.
@group(0) @binding(8) var<storage, read_write> counts: array<atomic<u32>>;

@compute @workgroup_size(THREADS)
fn threshold(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let k = setting(row, 0u);
    let shares = row * params.shares;
    var threshold = 0u;
    if (k > 0u && k <= params.shares) {
        // The largest number that k maxima reach, three bits at a time as in select.wgsl.
        for (var round = 0u; round < 11u; round++) {
            let shift = select(29u - 3u * round, 0u, round == 10u);
            let most = select(8u, 4u, round == 10u);
            var sums = Sums();
            for (var n = thread; n < params.shares; n += THREADS) {
                let key = work[params.maxima + shares + n];
                if (key >= threshold) {
                    let upto = min((key - threshold) >> shift, most - 1u);
                    for (var c = 0u; c < 7u; c++) { // unroll
                        sums.each[c].x += select(0u, 1u, c < upto);
                    }
                }
            }
            sums = add_all(sums, thread, 7u);
            var passed = 0u;
            for (var c = 0u; c < 7u; c++) { // unroll
                if (c + 1u < most && sums.each[c].x >= k) {
                    passed = c + 1u;
                }
            }
            threshold += passed << shift;
        }
    }
    // Tokens that are out are at OUT.
    threshold = max(threshold, OUT + 1u);
    for (var n = thread; n < params.shares; n += THREADS) {
        if (work[params.maxima + shares + n] >= threshold) {
            work[params.chosen + shares + atomicAdd(&counts[params.rows + row], 1u)] = n;
        }
    }
    if (thread == 0u) {
        atomicStore(&counts[row], 0u);
        work[params.thresholds + row] = threshold;
    }
}
