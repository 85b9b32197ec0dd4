// Attention with whole rows in the lanes of a workgroup: online softmax. The score matrix is never stored.
//
// Each lane owns ROWS_PER_LANE query rows, q and o in registers with the head dim written out. All lanes go through the same keys, KEYS at
// a time, so that a number of k or v is the same for all of them. There are three ways to it (plan/rows.rs tells when which):
//   BROADCAST: a workgroup is one subgroup. Lane n loads a part of key n % KEYS, and subgroupBroadcast hands it to the others. WGSL wants
//              the lane to be a constant there, which the loops that the host writes out give.
//   STAGED:    the lanes of a workgroup, of many subgroups, copy the tile to workgroup memory, and load it from there, all at one address.
//   otherwise: every lane loads it from its buffer at the same address, which some drivers turn into one load for all.
// The last two need no feature.
//
// For each tile of keys
//   1. scores:  s = q k^T, KEYS_AT_ONCE keys at a time: ROWS_PER_LANE * KEYS_AT_ONCE sums, which with what they are made from should fit the
//               registers of the processor.
//   2. softmax: a lane has all scores of its rows. Nothing is exchanged.
//   3. output:  o = o * alpha + p v, a vec4 of columns after the other with all keys of the tile.
//               (With LAZY o = o + p v, see below.)
// This order is what keeps values in registers on processors that play a GPU, for which the kernel was made: there a subgroup is a vector
// register, and q and o lie in the stack, from where they are read once a tile (o) or once KEYS_AT_ONCE keys (q).
//
// With FENCED nobody waits for anything at the barriers between stretches of STRETCH vec4s of a head. They are there because a compiler orders what
// stands between two of them by itself: left to order all of a tile, it has more under way than there are registers, and takes longer to say so.

// Tiles whose weights are summed before they meet the sum of those before.
const BLOCK = 64u;

// How far the largest score of a row may lie above the maximum that its sums are in terms of, with LAZY. (In the unit of scores, which is log2 but with a
// soft cap, and this kernel takes none.)
const SLACK = 8.0;

// Whether a row may not see a key that another row of the workgroup sees.
const HIDES = POSITIONS || CONTENTS || BIAS;

// Whether every lane looks for values that are not finite by itself: staged ones have been looked at.
const LOOKS = HIDES && !STAGED;

// A lane's registers, at most the 8192 bytes that WGSL promises for all of them. They belong to no function, so that there can be several: what naga does
// to one grows with the square of its text.
//   q_rows  by dim, times its factor: of all rows of the lane, see rows_q_*.wgsl. Rows beyond the end repeat the last one
//   s       by key: scores, then weights. A vec4 holds four rows, of which ROWS_PER_LANE are this lane's
//   o       by row, then by vec4 of columns
var<private> q_rows: array<Q, 4u * PART * QK_PARTS> = array<Q, 4u * PART * QK_PARTS>();
var<private> s: array<vec4<f32>, KEYS> = array<vec4<f32>, KEYS>();
var<private> o: array<vec4<f32>, ROWS_PER_LANE * PART * V_PARTS> = array<vec4<f32>, ROWS_PER_LANE * PART * V_PARTS>();

// By key, with norms: the squared length of k.
var<private> key_squares: array<f32, KEYS> = array<f32, KEYS>();

// NaN in rows that see a value that is not finite.
var<private> spoilt_rows: vec4<f32> = vec4<f32>(0.0);

fn attend(group: vec3<u32>, lane: u32) {
    let number = group_number(group, params.groups_x);
    // With GROUPED the rows of all heads that share a key head lie one after the other.
    var heads_together = 1u;
    if (GROUPED) {
        heads_together = min(params.group, params.heads);
    }
    let head_groups = params.heads / heads_together;
    if (number >= params.row_tiles * head_groups * params.batches) {
        return;
    }
    let block = block_in_turn(number % params.row_tiles, params.row_tiles);
    let first_head = (number / params.row_tiles) % head_groups * heads_together;
    let seq = sequence(number / (params.row_tiles * head_groups));
    let kv = kv_head(first_head);

    // This lane's rows: i .. i + ROWS_PER_LANE - 1 of head h.
    var h = first_head;
    var i = (block * THREADS + lane) * ROWS_PER_LANE;
    var first_row = block * THREADS * ROWS_PER_LANE;
    var end_row = min(first_row + THREADS * ROWS_PER_LANE, seq.rows);
    var exists = true;
    if (GROUPED) {
        let lanes_per_head = (params.rows + ROWS_PER_LANE - 1u) / ROWS_PER_LANE;
        let unit = block * THREADS + lane;
        exists = unit < lanes_per_head * heads_together;
        h = min(first_head + unit / lanes_per_head, params.heads - 1u);
        i = unit % lanes_per_head * ROWS_PER_LANE;
        first_row = 0u;
        end_row = seq.rows;
    }

    if (PACKED_Q && first_row >= seq.count) {
        return;
    }
    var range = key_range(seq, first_row, max(end_row, 1u) - 1u);
    if (Q_LEN && first_row >= end_row) {
        range.end = 0u;
    }
    let level = row_level(seq, i);

    let row_squares = load_rows(seq, h, i);
    var row_norms = vec4<f32>(1.0);
    if (QK_NORM) {
        row_norms = inverse_norm(row_squares);
    }

    // The weights of BLOCK tiles are summed by themselves first: in one sum over all keys, small numbers would meet a large one all the way.
    //
    // With LAZY all sums are in terms of a maximum (state.m) that follows the largest score (row_max) only where it has fallen back by more than
    // SLACK, as in FlashAttention-4: then o is scaled now and then, under a branch, and not once a tile. Weights reach 2^SLACK.
    var state = empty_state();
    var recent = empty_state();
    var row_max = state.m;

    // The keys that this lane's rows may see: with STAGED a workgroup has so many rows that some of its subgroups are often done before others.
    var own_range = range;
    if (STAGED && POSITIONS && !GROUPED) {
        own_range = key_range(seq, i, min(i + ROWS_PER_LANE, max(end_row, 1u)) - 1u);
    }

    for (var tile = first_tile(range); tile < range.end; tile = next_tile(tile, range)) {
        // Keys beyond the end repeat the last one and are masked.
        let last_key = range.end - 1u;
        // A tile in which every row sees every key needs no mask; a dense mask or bias may hide a key anywhere.
        let boundary = CONTENTS || BIAS || tile < range.full_start || tile + KEYS > range.full_end;
        if (STAGED) { // choose
            stage(seq, kv, tile, last_key, boundary, lane);
        }
        // Where it is always so, no compiler sees the choice (the host takes the branch).
        let takes_part = tile < own_range.end && (tile + KEYS > own_range.start || tile < own_range.keep);

        // ---- scores
        score_tile(seq, kv, tile, last_key, takes_part, lane);

        // ---- softmax
        var alpha = vec4<f32>(1.0);
        if (takes_part) { // choose
            if (QK_NORM) { // choose
                for (var c = 0u; c < KEYS; c++) { // unroll
                    s[c] *= row_norms * inverse_norm(vec4<f32>(key_squares[c]));
                }
            }
            if (SCORED) {
                for (var c = 0u; c < KEYS; c++) { // unroll
                    s[c] = finish_scores(s[c], seq, h, i, min(tile + c, last_key));
                }
            }
            var masked = boundary;
            if (STAGED && !(CONTENTS || BIAS || GROUPED)) {
                masked = tile < own_range.full_start || tile + KEYS > own_range.full_end;
            }
            if (masked) {
                for (var c = 0u; c < KEYS; c++) { // unroll
                    let seen = visible4(seq, h, i, tile + c);
                    s[c] = select(vec4<f32>(NOTHING), s[c], seen);
                }
            }
            if (ONLINE || ROW_MAX) {
                for (var c = 0u; c < KEYS; c++) { // unroll
                    row_max = max(row_max, s[c]);
                }
            }
            if (LAZY) { // choose
                let grew = row_max > state.m + SLACK;
                if (any(grew)) {
                    let m = select(state.m, row_max, grew);
                    let by = shift(state, m);
                    state = rebase(state, m, by);
                    recent = rebase(recent, m, by);
                    alpha = weight_of(by);
                    for (var d = 0u; d < V_DIM4; d++) { // unroll
                        for (var r = 0u; r < ROWS_PER_LANE; r++) { // unroll
                            o[r * PART * V_PARTS + d] *= alpha[r];
                        }
                    }
                }
            } else {
                if (ONLINE) {
                    let by = shift(state, row_max);
                    state = rebase(state, row_max, by);
                    recent = rebase(recent, row_max, by);
                    alpha = weight_of(by);
                }
                state.m = row_max;
            }
            let m = state.m;
            for (var c = 0u; c < KEYS; c++) { // unroll
                var p = weight_masked(s[c], m, level);
                recent.l += p;
                if (ENTROPY) {
                    recent.u += entropy_term(s[c], m, p);
                }
                if (DROPOUT) {
                    // The four rows of a draw are this lane's: ROWS_PER_LANE is 4 then.
                    p = select(vec4<f32>(0.0), p, dropout_keeps(seq.b, h, i, tile + c));
                }
                s[c] = p;
            }
            if (tile / KEYS % BLOCK == BLOCK - 1u) {
                state = join(state, recent);
                recent = empty_state();
            }
        }

        // ---- output
        add_values(seq, kv, tile, last_key, takes_part, boundary, alpha, lane);
    }

    state = join(state, recent);
    var whole = state;
    if (LAZY) {
        // What is told of a row is in terms of its largest score; o stays in those of state.m, which normaliser() looks after.
        whole = rebase(state, row_max, shift(state, row_max));
    }
    var row_totals = totals(whole, h);
    if (Q_LEN) {
        let valid = vec4<u32>(i) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(seq.rows);
        row_totals = of_valid_rows(row_totals, valid);
        row_max = select(vec4<f32>(NOTHING), row_max, valid);
    }
    // Rows that this lane has not get 0, which a compiler can tell: so it keeps nothing for them, all the way from q.
    let is_own = vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(ROWS_PER_LANE);
    let inverse = select(vec4<f32>(0.0), normaliser(state, row_totals) + spoilt_rows, is_own);
    for (var r = 0u; r < ROWS_PER_LANE; r++) { // unroll
        if (exists && i + r < seq.count) {
            store_stats(row_number(seq, h, i + r), row_totals, row_max, r);
        }
    }
    store_rows(seq, h, i, exists, inverse);
}

// Rows i .. of a head to q_rows. Returns their squared lengths, with norms.
fn load_rows(seq: Sequence, h: u32, i: u32) -> vec4<f32> {
    // A round loads a part of one row, PART vec4s, and puts it where it belongs: every load that is written out costs a compiler as much as
    // many multiplications or choices. The choices stand in a branch for each part, because what LLVM takes for a stretch of text without
    // branches grows with the square of its loads and stores.
    var row_squares = vec4<f32>(0.0);
    // (Row and part are counted: with n % ROWS_PER_LANE and n / ROWS_PER_LANE SwiftShader loads a wrong q where there is one row in a lane.)
    var r = 0u;
    var part = 0u;
    for (var n = 0u; n < rounds(ROWS_PER_LANE * QK_PARTS); n++) {
        let row = min(i + r, seq.count - 1u);
        let start = row_start(params.q, seq.b, h, seq.first_q + row);
        let factor = row_factor(seq, h, row);
        var numbers = array<vec4<f32>, PART>();
        for (var x = 0u; x < PART; x++) { // unroll
            // Dims beyond the last repeat it, and are not used.
            let d = min(part * PART + x, QK_DIM4 - 1u);
            numbers[x] = load_q(start, d);
            if (QK_NORM) {
                let here = vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(r);
                let counts = here & vec4<bool>(part * PART + x < QK_DIM4);
                row_squares += select(vec4<f32>(0.0), vec4<f32>(dot(numbers[x], numbers[x])), counts);
            }
            numbers[x] *= factor;
            if (QK_GAIN) {
                numbers[x] *= qk_gain(h, d);
            }
        }
        for (var p = 0u; p < QK_PARTS; p++) { // unroll
            if (part == p) {
                for (var x = 0u; x < PART; x++) { // unroll
                    for (var e = 0u; e < 4u; e++) { // unroll
                        q_rows[4u * (p * PART + x) + e] = with_row(q_rows[4u * (p * PART + x) + e], r, numbers[x][e]);
                    }
                }
            }
        }
        r = select(r + 1u, 0u, r + 1u == ROWS_PER_LANE);
        part += select(0u, 1u, r == 0u);
    }
    return row_squares;
}

// The key of which a lane loads a part, where keys are handed round. Keys beyond the end repeat the last one and are masked.
fn own_key(tile: u32, last_key: u32, lane: u32) -> u32 {
    return min(tile + lane % KEYS, last_key);
}

// s = q k^T of a tile.
fn score_tile(seq: Sequence, kv: u32, tile: u32, last_key: u32, takes_part: bool, lane: u32) {
    s = array<vec4<f32>, KEYS>();
    key_squares = array<f32, KEYS>();
    if (BROADCAST) { // choose
        let own_start = row_start(params.k, seq.b, kv, seq.first_k + own_key(tile, last_key, lane));
        var own = array<vec4<f32>, OWN_K>();
        var own_squares = 0.0;
        for (var d = 0u; d < OWN_K; d++) { // unroll
            own[d] = load_k(own_start, min(d * SPREAD + lane / KEYS, QK_DIM4 - 1u));
            if (QK_NORM) {
                // Lanes beyond the last dim repeat it.
                own_squares += select(0.0, dot(own[d], own[d]), d * SPREAD + lane / KEYS < QK_DIM4);
            }
        }
        for (var g = 0u; g < KEY_STEPS; g++) { // unroll
            for (var p = 0u; p < QK_STRETCHES; p++) { // unroll
                if (0u < FENCED * g + FENCED * p) { // choose
                    workgroupBarrier();
                }
                for (var x = 0u; x < STRETCH; x++) { // unroll
                    if (p * STRETCH + x < QK_DIM4) { // choose
                        const d = p * STRETCH + x;
                        for (var c = 0u; c < KEYS_AT_ONCE; c++) { // unroll
                            let k = subgroupBroadcast(own[d / SPREAD], g * KEYS_AT_ONCE + c + d % SPREAD * KEYS);
                            s[g * KEYS_AT_ONCE + c] += q_products(q_rows[4u * d], q_rows[4u * d + 1u], q_rows[4u * d + 2u], q_rows[4u * d + 3u], k);
                        }
                    }
                }
            }
        }
        if (QK_NORM) {
            for (var c = 0u; c < KEYS; c++) { // unroll
                for (var n = 0u; n < SPREAD; n++) { // unroll
                    key_squares[c] += subgroupBroadcast(own_squares, c + n * KEYS);
                }
            }
        }
    } else {
        // One sum over all dims for each score: with the sums of four that handing round has, more is alive than 16 registers hold,
        // and processors with 32 hand round.
        for (var g = 0u; g < KEY_STEPS; g++) { // unroll
            for (var p = 0u; p < QK_STRETCHES; p++) { // unroll
                if (0u < FENCED * g + FENCED * p) { // choose
                    workgroupBarrier();
                }
                if (takes_part) { // choose
                    for (var x = 0u; x < STRETCH; x++) { // unroll
                        if (p * STRETCH + x < QK_DIM4) { // choose
                            const d = p * STRETCH + x;
                            var k = array<vec4<f32>, KEYS_AT_ONCE>();
                            for (var c = 0u; c < KEYS_AT_ONCE; c++) { // unroll
                                k[c] = key4(seq, kv, g * KEYS_AT_ONCE + c, min(tile + g * KEYS_AT_ONCE + c, last_key), d);
                                if (QK_NORM) {
                                    key_squares[g * KEYS_AT_ONCE + c] += dot(k[c], k[c]);
                                }
                            }
                            for (var c = 0u; c < KEYS_AT_ONCE; c++) { // unroll
                                let sum = s[g * KEYS_AT_ONCE + c];
                                s[g * KEYS_AT_ONCE + c] =
                                    add_q_products(sum, q_rows[4u * d], q_rows[4u * d + 1u], q_rows[4u * d + 2u], q_rows[4u * d + 3u], k[c]);
                            }
                        }
                    }
                }
            }
        }
    }
}

// o = o * alpha + p v of a tile, with LAZY o = o + p v.
fn add_values(seq: Sequence, kv: u32, tile: u32, last_key: u32, takes_part: bool, boundary: bool, alpha: vec4<f32>, lane: u32) {
    // Where some rows do not see some keys, these have weight 0, and whatever v holds, NaN too, must not reach those rows. So
    // numbers that are not finite become 0 there, and the rows that do see them become NaN at the end.
    var own = vec4<f32>(0.0);
    var own_spoilt = false;
    var spoilt = array<bool, KEYS>();
    for (var p = 0u; p < V_STRETCHES; p++) { // unroll
        if (FENCED) { // choose
            workgroupBarrier();
        }
        if (takes_part) { // choose
            for (var x = 0u; x < STRETCH; x++) { // unroll
                if (p * STRETCH + x < V_DIM4) { // choose
                    const d = p * STRETCH + x;
                    if (BROADCAST) { // choose
                        if (d % SPREAD == 0u) {
                            own = load_v(row_start(params.v, seq.b, kv, seq.first_k + own_key(tile, last_key, lane)), min(d + lane / KEYS, V_DIM4 - 1u));
                            if (HIDES) {
                                let bad = not_finite(own) & vec4<bool>(boundary);
                                own_spoilt = own_spoilt | any(bad);
                                own = select(own, vec4<f32>(0.0), bad);
                            }
                        }
                    }
                    var sums = array<vec4<f32>, ROWS_PER_LANE>();
                    for (var c = 0u; c < KEYS; c++) { // unroll
                        var v = vec4<f32>(0.0);
                        if (BROADCAST) { // choose
                            v = subgroupBroadcast(own, c + d % SPREAD * KEYS);
                        } else {
                            v = value4(seq, kv, c, min(tile + c, last_key), d);
                            if (LOOKS) {
                                let bad = not_finite(v) & vec4<bool>(boundary);
                                spoilt[c] = spoilt[c] | any(bad);
                                v = select(v, vec4<f32>(0.0), bad);
                            }
                        }
                        for (var r = 0u; r < ROWS_PER_LANE; r++) { // unroll
                            if (LAZY) { // choose
                                o[r * PART * V_PARTS + d] = fma(vec4<f32>(s[c][r]), v, o[r * PART * V_PARTS + d]);
                            } else {
                                if (c == 0u) { // choose
                                    // Added to nothing: with fma there would be a register to clear and to copy.
                                    sums[r] = s[c][r] * v;
                                } else {
                                    sums[r] = fma(vec4<f32>(s[c][r]), v, sums[r]);
                                }
                            }
                        }
                    }
                    if (!LAZY) { // choose
                        for (var r = 0u; r < ROWS_PER_LANE; r++) { // unroll
                            o[r * PART * V_PARTS + d] = fma(o[r * PART * V_PARTS + d], vec4<f32>(alpha[r]), sums[r]);
                        }
                    }
                }
            }
        }
    }
    if (takes_part) { // choose
        if (HIDES && boundary) {
            if (BROADCAST) { // choose
                let spoiler = nan_if(own_spoilt);
                for (var n = 0u; n < SPREAD; n++) { // unroll
                    for (var c = 0u; c < KEYS; c++) { // unroll
                        let spoils = vec4<f32>(subgroupBroadcast(spoiler, c + n * KEYS));
                        spoilt_rows += select(spoils, vec4<f32>(0.0), s[c] == vec4<f32>(0.0));
                    }
                }
            } else {
                for (var c = 0u; c < KEYS; c++) { // unroll
                    let spoils = vec4<f32>(nan_if(spoilt[c] | spoilt_value(c)));
                    spoilt_rows += select(spoils, vec4<f32>(0.0), s[c] == vec4<f32>(0.0));
                }
            }
        }
    }
}

// Rows i .. of a head from o, times their factors.
fn store_rows(seq: Sequence, h: u32, i: u32, exists: bool, inverse: vec4<f32>) {
    // A part of one row a round, as q was loaded. (Places are told by one comparison: && is a branch, and with one for each vec4 of o
    // SwiftShader compiles for minutes.)
    for (var n = 0u; n < rounds(ROWS_PER_LANE * V_PARTS); n++) {
        let r = n % ROWS_PER_LANE;
        let part = n / ROWS_PER_LANE;
        if (exists && i + r < seq.count) {
            let start = row_start(params.out, seq.b, h, seq.first_q + i + r);
            let factor = inverse[r];
            var numbers = array<vec4<f32>, PART>();
            for (var p = 0u; p < V_PARTS; p++) { // unroll
                if (part == p) {
                    for (var x = 0u; x < PART; x++) { // unroll
                        for (var other = 0u; other < ROWS_PER_LANE; other++) { // unroll
                            numbers[x] = select(numbers[x], o[other * PART * V_PARTS + p * PART + x], r == other);
                        }
                    }
                }
            }
            for (var x = 0u; x < PART; x++) { // unroll
                numbers[x] *= factor;
                if (Q_LEN) {
                    // Not by a factor of 0: a key that other rows see may have left NaN in a row that is not there.
                    numbers[x] = select(numbers[x], vec4<f32>(0.0), i + r >= seq.rows);
                }
                if (part * PART + x < V_DIM4) {
                    store_out(start, part * PART + x, numbers[x]);
                }
            }
        }
    }
}
