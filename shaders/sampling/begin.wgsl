// Copies the logits, cleaned; each workgroup a part of a row. With MAXIMA, every thread leaves the largest that it has seen, see shares.wgsl;
// with FACTS, every workgroup, see notes.wgsl.

var<private> most: u32 = OUT;

fn take(row: u32, token: u32, bits: u32) {
    let logit = clean(bits);
    work[at(row, token)] = logit;
    if (MAXIMA) {
        most = max(most, order(logit));
    }
    see(token, logit);
}

@compute @workgroup_size(THREADS)
fn begin(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = row_of(group);
    if (row >= params.rows) {
        return;
    }
    let start = params.logits + row * params.stride;
    var token = first + thread;
    // Four loads that do not wait for each other.
    for (; token + 3u * THREADS < live; token += 4u * THREADS) {
        var bits = vec4<u32>();
        for (var e = 0u; e < 4u; e++) { // unroll
            bits[e] = load_logit(start + token + e * THREADS);
        }
        for (var e = 0u; e < 4u; e++) { // unroll
            take(row, token + e * THREADS, bits[e]);
        }
    }
    for (; token < live; token += THREADS) {
        take(row, token, load_logit(start + token));
    }
    if (MAXIMA) {
        leave_maximum(row, thread, most);
    }
    leave_facts(row, thread);
}
