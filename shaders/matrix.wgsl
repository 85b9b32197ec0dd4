// Attention on cooperative matrices (naga's extension wgpu_cooperative_matrix): f16 in, f32 sums, an online softmax. The score matrix is
// never stored.
//
// A workgroup takes ROWS query rows of one head and goes through the keys KEYS at a time. A subgroup multiplies for one block of SIZE rows
// after the other; which number of a matrix lies in which of its threads is not told. So whatever is done to single numbers goes
// through workgroup memory. For each tile of keys
//   1. scores:  s = q k^T in matrices, from q and k in f16 as they were given, summed in f32; stored as f32.
//   2. softmax: the same text as the tiled kernel's, by all threads; each has KEYS_PER_THREAD keys of four rows. The factor of a row goes
//               onto its scores here, so that nothing is rounded before the product. Weights are stored as f16, see half_weight.
//   3. output:  p v in matrices, summed in f32 for this tile alone and stored as f32. The threads add it to what they have of o, in f32
//               registers: o = o * alpha + p v. So rows are rescaled where their numbers can be told apart, and o never is in f16.
// k and v take turns in one array of workgroup memory, scores and products p v in another.

// The names of a matrix's roles, A, B and C, are taken in a module with this extension: no name of ours is one of them.

var<workgroup> q_halves: array<f16, ROWS * QK_STRIDE>;
var<workgroup> kv_halves: array<f16, KEYS * KV_STRIDE>;
// [key][row], as matrices by columns.
var<workgroup> weights: array<f16, KEYS * WEIGHT_STRIDE>;
// Scores [key][row], then p v [row][column].
var<workgroup> exchange: array<f32, PRODUCTS>;
// One vec4 (four rows) from each thread: maxima, then sums.
var<workgroup> partial: array<vec4<f32>, THREADS>;
// What the rows of o are multiplied by: 2^(m_old - m_new) at each tile, 1 / l at the end.
var<workgroup> row_scale: array<vec4<f32>, ROW_GROUPS>;
// 1 / |k| of the tile's keys, with normalised q and k; and which of them have a number in v that is not finite.
var<workgroup> key_norms: array<f32, KEYS>;
var<workgroup> spoilt_keys: array<atomic<u32>, KEYS>;

// Whether a row may not see, or not choose, a key that another row of the workgroup does.
const HIDES = POSITIONS || CONTENTS || BIAS || TOP_K;

@compute @workgroup_size(THREADS)
fn attention(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    let lane = held(index);
    let number = group_number(group, params.groups_x);
    if (number >= params.row_tiles * params.heads * params.batches) {
        return;
    }
    // Last rows first: with a causal mask they are the longest, and a long one left to the end would run alone.
    let first_row = (params.row_tiles - 1u - number % params.row_tiles) * ROWS;
    let h = (number / params.row_tiles) % params.heads;
    let seq = sequence(number / (params.row_tiles * params.heads));
    // There are workgroups for the longest of packed sequences.
    if (PACKED_Q && first_row >= seq.count) {
        return;
    }

    var range = key_range(seq, first_row, max(min(first_row + ROWS, seq.rows), 1u) - 1u);
    if (Q_LEN && first_row >= seq.rows) {
        range.end = 0u;
    }

    // Softmax: this thread's rows are first_row + 4 row_group .. + 3, its keys key_lane + KEY_LANES c.
    let key_lane = lane % KEY_LANES;
    let row_group = lane / KEY_LANES;
    let own_row = first_row + 4u * row_group;

    // What passes over the keys before the last one look for, see search_*.wgsl.
    var searching = SEARCH;
    var again = false; // from the first tile
    var passes = 0u;
    let row_numbers = vec4<u32>(own_row) + vec4<u32>(0u, 1u, 2u, 3u);
    if (SEARCH) {
        start_search(row_numbers < vec4<u32>(seq.rows));
    }

    // What scores of these rows are multiplied by.
    var row_factors = vec4<f32>(0.0);
    for (var r = 0u; r < 4u; r++) { // unroll
        if (own_row + r < seq.rows) {
            row_factors[r] = row_factor(seq, h, own_row + r);
        }
    }
    if (QK_NORM) {
        row_factors *= inverse_row_norms(seq, h, own_row, key_lane, row_group, lane);
    }

    var level = row_level(seq, own_row);
    var state = empty_state();
    var spoilt_rows = vec4<f32>(0.0);
    // vec4s of columns: OWNED of each part of the columns, see own_output.
    var o = array<vec4<f32>, OUT_PARTS * OWNED>();

    stage_q(seq, h, first_row, lane);
    for (var tile = first_tile(range); tile < range.end; tile = following_tile(tile, range, again)) {
        // What a tile hides beside lengths and positions; not known without classes.
        var hidden = CONTENTS || BIAS;
        if (TILE_CLASSES) {
            let of_tile = tile_class(seq, h, first_row, tile);
            // With its last tile a search ends its pass, seen or not.
            let ends_search = SEARCH && searching && next_tile(tile, range) >= range.end;
            if (!of_tile.seen && !ends_search) {
                again = false;
                continue;
            }
            hidden = of_tile.hidden;
        }
        // A tile in which every row sees every key needs no mask.
        let boundary = hidden || TOP_K || tile < range.full_start || tile + KEYS > range.full_end;

        // ---- scores
        stage_k(seq, kv_head(h), tile, range.end, lane);
        workgroupBarrier();
        if (QK_NORM) {
            // Before the next barrier, which is the one that they are read after.
            find_key_norms(lane);
        }
        multiply_scores(subgroup, subgroups);
        workgroupBarrier();

        // ---- softmax
        var s = array<vec4<f32>, KEYS_PER_THREAD>();
        for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
            let key = c * KEY_LANES + key_lane;
            let at = key * SCORE_STRIDE + 4u * row_group;
            s[c] = vec4<f32>(exchange[at], exchange[at + 1u], exchange[at + 2u], exchange[at + 3u]) * row_factors;
            if (QK_NORM) {
                s[c] *= key_norms[key];
            }
        }
        if (SCORED) {
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                let j = min(tile + c * KEY_LANES + key_lane, range.end - 1u);
                s[c] = finish_scores(s[c], seq, h, own_row, j);
            }
        }
        if (boundary) {
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                let seen = visible4(seq, h, own_row, tile + c * KEY_LANES + key_lane);
                s[c] = select(vec4<f32>(NOTHING), s[c], seen);
            }
        }
        if (SEARCH) {
            again = false;
            if (searching) {
                for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                    gather(s[c], tile + c * KEY_LANES + key_lane);
                }
                if (next_tile(tile, range) >= range.end) {
                    again = true;
                    passes++;
                    merge(lane, row_group);
                    advance();
                    searching = goes_on(lane, row_group) && passes < params.passes;
                    level = found_level();
                    state.m = found_max();
                }
                continue;
            }
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                s[c] = found_score(s[c], tile + c * KEY_LANES + key_lane);
            }
        }
        var m = state.m;
        if (ONLINE || ROW_MAX) {
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                m = max(m, s[c]);
            }
        }
        if (HIDES) {
            for (var key = lane; key < KEYS; key += THREADS) {
                atomicStore(&spoilt_keys[key], 0u);
            }
        }
        if (ONLINE) {
            partial[lane] = m;
        }
        workgroupBarrier();
        if (ONLINE) {
            m = row_max(row_group, m);
            let by = shift(state, m);
            state = rebase(state, m, by);
            if (key_lane == 0u) {
                row_scale[row_group] = weight_of(by);
            }
        }
        state.m = m;
        for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
            var p = vec4<f32>(0.0);
            if (boundary) {
                p = weight_masked(s[c], m, level);
            } else {
                p = weight(s[c], m, level);
            }
            state.l += p;
            if (ENTROPY) {
                state.u += entropy_term(s[c], m, p);
            }
            if (DROPOUT) {
                let j = tile + c * KEY_LANES + key_lane;
                p = select(vec4<f32>(0.0), p, dropout_keeps(seq.b, h, own_row, j));
            }
            let half = half_weight(p);
            let at = (c * KEY_LANES + key_lane) * WEIGHT_STRIDE + 4u * row_group;
            for (var r = 0u; r < 4u; r++) { // unroll
                weights[at + r] = half[r];
            }
            s[c] = p;
        }
        stage_v(seq, kv_head(h), tile, range.end, boundary, lane);
        workgroupBarrier();

        // ---- output
        if (HIDES && boundary) {
            // The rows that do see what stage_v left out become NaN at the end.
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                let spoils = vec4<f32>(nan_if(atomicLoad(&spoilt_keys[c * KEY_LANES + key_lane]) != 0u));
                spoilt_rows += select(spoils, vec4<f32>(0.0), s[c] == vec4<f32>(0.0));
            }
        }
        for (var part = 0u; part < OUT_PARTS; part++) { // unroll
            multiply_values(part, subgroup, subgroups);
            workgroupBarrier();
            for (var n = 0u; n < OWNED; n++) { // unroll
                let own = own_output(n, lane);
                if (own.row < ROWS) {
                    let at = own.row * OUT_STRIDE + 4u * own.column;
                    let pv = vec4<f32>(exchange[at], exchange[at + 1u], exchange[at + 2u], exchange[at + 3u]);
                    if (ONLINE) {
                        o[part * OWNED + n] = fma(o[part * OWNED + n], vec4<f32>(row_scale[own.row / 4u][own.row % 4u]), pv);
                    } else {
                        o[part * OWNED + n] += pv;
                    }
                }
            }
            workgroupBarrier();
        }
    }

    // ---- the sums of all threads of a row
    if (NORMALISED) {
        partial[lane] = state.l;
        workgroupBarrier();
        state.l = row_sum(row_group);
    }
    if (ENTROPY) {
        workgroupBarrier();
        partial[lane] = state.u;
        workgroupBarrier();
        state.u = row_sum(row_group);
    }
    if (ROW_MAX && !ONLINE) {
        workgroupBarrier();
        partial[lane] = state.m;
        workgroupBarrier();
        state.m = row_max(row_group, state.m);
    }
    if (HIDES) {
        workgroupBarrier();
        partial[lane] = spoilt_rows;
        workgroupBarrier();
        spoilt_rows = row_sum(row_group);
    }
    workgroupBarrier();
    if (key_lane == 0u) {
        var row_totals = totals(state, h);
        if (Q_LEN) {
            let valid = row_numbers < vec4<u32>(seq.rows);
            row_totals = of_valid_rows(row_totals, valid);
            state.m = select(vec4<f32>(NOTHING), state.m, valid);
        }
        row_scale[row_group] = normaliser(state, row_totals) * (1.0 / WEIGHT_SCALE) + spoilt_rows;
        for (var r = 0u; r < 4u; r++) { // unroll
            let i = own_row + r;
            if (i < seq.count) {
                store_stats(row_number(seq, h, i), row_totals, state.m, r);
            }
        }
    }
    workgroupBarrier();
    for (var part = 0u; part < OUT_PARTS; part++) { // unroll
        for (var n = 0u; n < OWNED; n++) { // unroll
            let own = own_output(n, lane);
            let d = part * OUT_COLUMNS4 + own.column;
            let i = first_row + own.row;
            if (own.row < ROWS && d < V_DIM4 && i < seq.count) {
                var row = o[part * OWNED + n] * row_scale[own.row / 4u][own.row % 4u];
                if (Q_LEN) {
                    // Not by a factor of 0: a key that other rows see may have left NaN in a row that is not there.
                    row = select(row, vec4<f32>(0.0), i >= seq.rows);
                }
                store_out(row_start(params.out, seq.b, h, seq.first_q + i), d, row);
            }
        }
    }
}

// ---- products

// All scores of the tile, row block by row block. (What is written out is what sums stand side by side, and no more: a product of two
// matrices is one instruction on a graphics card, and hundreds on a processor.)
fn multiply_scores(subgroup: u32, subgroups: u32) {
    for (var block = subgroup; block < ROW_BLOCKS; block += subgroups) {
        for (var first = 0u; first < KEY_BLOCKS; first += KEYS_ABREAST) {
            var sums = array<Sums, KEYS_ABREAST>();
            for (var d = 0u; d < QK_BLOCKS; d++) {
                let q = coopLoadT<Left>(&q_halves[block * SIZE * QK_STRIDE + d * SIZE], QK_STRIDE);
                for (var n = 0u; n < KEYS_ABREAST; n++) { // unroll
                    // A key is a column of k^T.
                    let k = coopLoad<Right>(&kv_halves[(first + n) * SIZE * QK_STRIDE + d * SIZE], QK_STRIDE);
                    sums[n] = coopMultiplyAdd(q, k, sums[n]);
                }
            }
            for (var n = 0u; n < KEYS_ABREAST; n++) { // unroll
                coopStore(sums[n], &exchange[(first + n) * SIZE * SCORE_STRIDE + block * SIZE], SCORE_STRIDE);
            }
        }
    }
}

// p v of the tile, for one part of v's columns.
fn multiply_values(part: u32, subgroup: u32, subgroups: u32) {
    for (var block = subgroup; block < ROW_BLOCKS; block += subgroups) {
        for (var first = 0u; first < OUT_BLOCKS; first += COLUMNS_ABREAST) {
            var sums = array<Sums, COLUMNS_ABREAST>();
            for (var key = 0u; key < KEY_BLOCKS; key++) {
                let p = coopLoad<Left>(&weights[key * SIZE * WEIGHT_STRIDE + block * SIZE], WEIGHT_STRIDE);
                for (var n = 0u; n < COLUMNS_ABREAST; n++) { // unroll
                    let column = (part * OUT_BLOCKS + first + n) * SIZE;
                    let v = coopLoadT<Right>(&kv_halves[key * SIZE * V_STRIDE + column], V_STRIDE);
                    sums[n] = coopMultiplyAdd(p, v, sums[n]);
                }
            }
            for (var n = 0u; n < COLUMNS_ABREAST; n++) { // unroll
                coopStoreT(sums[n], &exchange[block * SIZE * OUT_STRIDE + (first + n) * SIZE], OUT_STRIDE);
            }
        }
    }
}

// ---- weights in f16

// Weights are at most 1. Times 2^15 they use the whole range of f16, whose normal numbers end at 2^-14: a weight is rounded by 2^-11 of
// itself down to 2^-29, and what is smaller loses at most 2^-29. The factor is undone at the end.
const WEIGHT_SCALE = 32768.0;

// To the nearest f16, to even between two, by its bits: WGSL leaves to the implementation which neighbour a conversion takes.
// (The 13 bits that f16 lacks; below its normal numbers the conversion takes what it takes.)
fn half_weight(p: vec4<f32>) -> vec4<f16> {
    let bits = bitcast<vec4<u32>>(p * WEIGHT_SCALE);
    let rounded = bits + vec4<u32>(0xfffu) + ((bits >> vec4<u32>(13u)) & vec4<u32>(1u));
    return vec4<f16>(bitcast<vec4<f32>>(rounded & vec4<u32>(0xffffe000u)));
}

// ---- places

struct OwnOutput {
    row: u32,
    column: u32, // a vec4
}

// The n-th vec4 of a part of the output that belongs to a thread; a row beyond the last one where there is none.
fn own_output(n: u32, lane: u32) -> OwnOutput {
    let at = n * THREADS + lane;
    return OwnOutput(at / OUT_COLUMNS4, at % OUT_COLUMNS4);
}

// Rows first_row .. + ROWS - 1 of q. Rows and dims beyond the end become 0.
fn stage_q(seq: Sequence, h: u32, first_row: u32, lane: u32) {
    for (var at = lane; at < ROWS * QK_PADDED4; at += THREADS) {
        let d = at % QK_PADDED4;
        let row = at / QK_PADDED4;
        var q = vec4<f32>(0.0);
        if (first_row + row < seq.rows && d < QK_DIM4) {
            q = load_q(row_start(params.q, seq.b, h, seq.first_q + first_row + row), d);
        }
        let half = vec4<f16>(q);
        for (var e = 0u; e < 4u; e++) { // unroll
            q_halves[row * QK_STRIDE + 4u * d + e] = half[e];
        }
    }
}

// Keys first_key .. + KEYS - 1, below end, of k. The rest becomes 0.
fn stage_k(seq: Sequence, h: u32, first_key: u32, end: u32, lane: u32) {
    for (var at = lane; at < KEYS * QK_PADDED4; at += THREADS) {
        let d = at % QK_PADDED4;
        let key = at / QK_PADDED4;
        var k = vec4<f32>(0.0);
        if (first_key + key < end && d < QK_DIM4) {
            k = load_k(row_start(params.k, seq.b, h, seq.first_k + first_key + key), d);
        }
        let half = vec4<f16>(k);
        for (var e = 0u; e < 4u; e++) { // unroll
            kv_halves[key * QK_STRIDE + 4u * d + e] = half[e];
        }
    }
}

// 1 / |k| of the keys that are staged.
fn find_key_norms(lane: u32) {
    for (var key = lane; key < KEYS; key += THREADS) {
        var squares = 0.0;
        for (var d = 0u; d < QK_DIM; d++) {
            let k = f32(kv_halves[key * QK_STRIDE + d]);
            squares = fma(k, k, squares);
        }
        key_norms[key] = inverse_norm(vec4<f32>(squares)).x;
    }
}

// The same of v. In a tile in which some rows do not see some keys, these have weight 0 there, and whatever v holds, NaN too, must not reach
// those rows, and 0 * NaN would. So what is not finite becomes 0 there, and spoilt_keys says so.
fn stage_v(seq: Sequence, h: u32, first_key: u32, end: u32, boundary: bool, lane: u32) {
    for (var at = lane; at < KEYS * V_PADDED4; at += THREADS) {
        let d = at % V_PADDED4;
        let key = at / V_PADDED4;
        var v = vec4<f32>(0.0);
        if (first_key + key < end && d < V_DIM4) {
            v = load_v(row_start(params.v, seq.b, h, seq.first_k + first_key + key), d);
        }
        if (HIDES && boundary) {
            let bad = not_finite(v);
            if (any(bad)) {
                v = select(v, vec4<f32>(0.0), bad);
                atomicStore(&spoilt_keys[key], 1u);
            }
        }
        let half = vec4<f16>(v);
        for (var e = 0u; e < 4u; e++) { // unroll
            kv_halves[key * V_STRIDE + 4u * d + e] = half[e];
        }
    }
}
