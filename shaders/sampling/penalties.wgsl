// Penalties on the tokens of a row's history, over which each token's count goes:
//   repetition  l < 0: l r, else l / r      (Keskar and others 2019)
//   frequency   l - count f
//   presence    l - p
// The thread of a token's first place in the history does all of it, so that each is done once.

@group(0) @binding(4) var<storage, read> history: array<u32>;

@compute @workgroup_size(THREADS)
fn penalties(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let start = (params.first_row + row) * params.history;
    for (var n = thread; n < params.history; n += THREADS) {
        let token = history[start + n];
        if (token >= params.vocab) {
            continue; // no token
        }
        var count = 0u;
        var first = true;
        for (var other = 0u; other < params.history; other++) {
            if (history[start + other] == token) {
                count++;
                first = first && other >= n;
            }
        }
        let bits = work[at(row, token)];
        if (!first || bits == NOTHING) {
            continue;
        }
        // Cleaned after each operation: what is rounded once cannot be fused.
        let by = bitcast<f32>(select(setting(row, 1u), setting(row, 0u), bits >= 0x80000000u));
        let repeated = clean(bitcast<u32>(bitcast<f32>(bits) * by));
        let often = clean(bitcast<u32>(f32(count) * bitcast<f32>(setting(row, 2u))));
        let lower = clean(bitcast<u32>(bitcast<f32>(repeated) - bitcast<f32>(often)));
        work[at(row, token)] = clean(bitcast<u32>(bitcast<f32>(lower) - bitcast<f32>(setting(row, 3u))));
    }
}
