// Attention as it is written on paper, in three passes with the score matrix in memory: the baseline that tests and
// benches compare with, and what runs where no tile fits. One thread for each score, row or vec4 of output.

@group(0) @binding(9) var<storage, read_write> scores: array<f32>;

struct Element {
    b: u32,
    h: u32,
    i: u32,
    x: u32, // position within the row
}

// Splits a number that counts (batch, head, row, x).
fn element(number: u32, width: u32) -> Element {
    let row = number / width;
    return Element(
        row / (params.rows * params.heads),
        (row / params.rows) % params.heads,
        row % params.rows,
        number % width,
    );
}

fn element_count(width: u32) -> u32 {
    return params.batches * params.heads * params.rows * width;
}

// s = factor q.k, or NOTHING where the row does not see the key.
@compute @workgroup_size(THREADS)
fn scores_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = group_number(group, params.groups_x) * THREADS + lane;
    if (number >= element_count(params.seq_k)) {
        return;
    }
    let at = element(number, params.seq_k);
    let seq = sequence(at.b);
    var s = NOTHING;
    if (at.i < seq.rows && visible4(seq, at.h, at.i, at.x).x) {
        let q_row = row_start(params.q, at.b, at.h, seq.first_q + at.i);
        let k_row = row_start(params.k, at.b, kv_head(at.h), seq.first_k + at.x);
        // Four sums side by side: short sums round less than one long one.
        var sums = vec4<f32>(0.0);
        var squares = vec2<f32>(0.0);
        for (var d = 0u; d < QK_DIM4; d++) {
            var q = load_q(q_row, d);
            let k = load_k(k_row, d);
            if (QK_NORM) {
                squares += vec2<f32>(dot(q, q), dot(k, k));
            }
            if (QK_GAIN) {
                q *= qk_gain(at.h, d);
            }
            sums = fma(q, k, sums);
        }
        var product = ((sums.x + sums.y) + (sums.z + sums.w)) * row_factor(seq, at.h, at.i);
        if (QK_NORM) {
            let norms = inverse_norm(vec4<f32>(squares, squares));
            product *= norms.x * norms.y;
        }
        s = finish_scores(vec4<f32>(product), seq, at.h, at.i, at.x).x;
    }
    scores[number] = s;
}

// The weights of a whole row, divided by what they are divided by, with those that are dropped at 0.
@compute @workgroup_size(THREADS)
fn softmax_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_number(group, params.groups_x_softmax) * THREADS + lane;
    if (row >= element_count(1u)) {
        return;
    }
    let at = element(row, 1u);
    let seq = sequence(at.b);
    if (PACKED_Q && at.i >= seq.count) {
        return;
    }
    let first = row * params.seq_k;
    var level = row_level(seq, at.i);
    if (SEARCH) {
        start_search(vec4<bool>(true));
        for (var passes = 0u; passes < params.passes && !all(is_found()); passes++) {
            for (var j = 0u; j < params.seq_k; j++) {
                gather(vec4<f32>(scores[first + j]), j);
            }
            advance();
        }
        for (var j = 0u; j < params.seq_k; j++) {
            scores[first + j] = found_score(vec4<f32>(scores[first + j]), j).x;
        }
        level = found_level();
    }
    var m = NOTHING;
    for (var j = 0u; j < params.seq_k; j++) {
        m = max(m, scores[first + j]);
    }
    var state = empty_state();
    state.m = vec4<f32>(m);
    for (var j = 0u; j < params.seq_k; j++) {
        let s = vec4<f32>(scores[first + j]);
        let p = weight_masked(s, state.m, vec4<f32>(level.x));
        state.l += p;
        if (ENTROPY) {
            state.u += entropy_term(s, state.m, p);
        }
        scores[first + j] = p.x;
    }
    var row_totals = totals(state, at.h);
    if (Q_LEN) {
        row_totals = of_valid_rows(row_totals, vec4<bool>(at.i < seq.rows));
    }
    let scale = normaliser(state, row_totals).x;
    for (var j = 0u; j < params.seq_k; j++) {
        var p = scores[first + j] * scale;
        if (DROPOUT) {
            p = select(vec4<f32>(0.0), vec4<f32>(p), dropout_keeps(seq.b, at.h, at.i, j))[(params.first_row + at.i) % 4u];
        }
        scores[first + j] = p;
    }
    store_stats(row_number(seq, at.h, at.i), row_totals, state.m, 0u);
}

// out = p v, four columns for each thread.
@compute @workgroup_size(THREADS)
fn output_pass(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = group_number(group, params.groups_x_output) * THREADS + lane;
    if (number >= element_count(V_DIM4)) {
        return;
    }
    let at = element(number, V_DIM4);
    let seq = sequence(at.b);
    if (PACKED_Q && at.i >= seq.count) {
        return;
    }
    let first = (number / V_DIM4) * params.seq_k;
    var sum = vec4<f32>(0.0);
    for (var j = 0u; j < params.seq_k; j++) {
        let p = scores[first + j];
        // A key of weight 0 may be one that is not seen, and then v may hold anything.
        if (p != 0.0) {
            sum += p * load_v(row_start(params.v, at.b, kv_head(at.h), seq.first_k + j), at.x);
        }
    }
    store_out(row_start(params.out, at.b, at.h, seq.first_q + at.i), at.x, sum);
}
