// Lists the tokens that may be among the k largest, so that the steps from here on go through those alone.
//
// maxima.wgsl has left the largest logit of each of many shares of the row. The k-th largest of these is not above the k-th largest of all: k
// tokens, one in each of k shares, are not below it. So tokens below it are not among the k largest, and few others are left. The list has
// no order, and none is needed: steps tell equal logits apart by their tokens.

@group(0) @binding(8) var<storage, read_write> counts: array<atomic<u32>>;

@compute @workgroup_size(THREADS)
fn narrow(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group_number(group);
    let row = number / params.groups;
    if (row >= params.rows) {
        return;
    }
    let shares = params.groups * THREADS;
    let k = setting(row, 0u);
    var threshold = 0u;
    if (k > 0u && k <= shares) {
        // The largest number that k maxima reach, three bits at a time as in select.wgsl.
        for (var round = 0u; round < 11u; round++) {
            let shift = select(29u - 3u * round, 0u, round == 10u);
            let most = select(8u, 4u, round == 10u);
            var sums = Sums();
            for (var n = thread; n < shares; n += THREADS) {
                let key = work[params.maxima + row * shares + n];
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
    for (var token = number % params.groups * THREADS + thread; token < params.vocab; token += shares) {
        if (order(work[at(row, token)]) >= threshold) {
            work[params.list + row * params.vocab + atomicAdd(&counts[row], 1u)] = token;
        }
    }
}
