// Lists the tokens that may be among the k largest, so that the steps from here on go through those alone: of the shares that threshold.wgsl has
// chosen, the tokens from the threshold on. They are few. The list has no order, and none is needed: steps tell equal logits apart by
// their tokens.

// Of a row: tokens that are listed; behind those of all rows, shares that are chosen.
@group(0) @binding(8) var<storage, read_write> counts: array<atomic<u32>>;

@compute @workgroup_size(THREADS)
fn narrow(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let threshold = work[params.thresholds + row];
    let chosen = atomicLoad(&counts[params.rows + row]);
    for (var n = part; n < chosen; n += params.groups) {
        // A share is every THREADS-th token of a part: here all threads have their share of that.
        let share = work[params.chosen + row * params.shares + n];
        let end = part_end(share / THREADS);
        for (var token = share / THREADS * params.part + share % THREADS + thread * THREADS; token < end; token += THREADS * THREADS) {
            if (order(work[at(row, token)]) >= threshold) {
                work[params.list + row * params.vocab + atomicAdd(&counts[row], 1u)] = token;
            }
        }
    }
}
