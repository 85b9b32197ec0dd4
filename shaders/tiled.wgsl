// Tiled attention with an online softmax, at WebGPU's default limits: no subgroups, no f16, at most 16 KiB of workgroup
// memory. The score matrix is never stored.
//
// A workgroup takes ROWS query rows of one head and goes through the keys KEYS at a time. For each tile of keys
//   1. scores:  s = q k^T. q and k are staged in workgroup memory DIM_CHUNK vec4s at a time; a thread keeps the
//               scores of 4 rows and KEYS_PER_THREAD keys in registers, so that a number read from workgroup memory
//               is used 4 or KEYS_PER_THREAD times.
//   2. softmax: the threads of a row exchange their maxima; each turns its scores into weights.
//      (Where something has to be known of the whole row first, passes over all keys that compute scores only go before.)
//   3. output:  o = o * alpha + p v. The weights go through workgroup memory, because a thread now owns
//               other things: 4 * OUT_ROW_GROUPS rows and OUT_COLUMNS_PER_THREAD vec4s of v's columns.
// Staged q and k, and later weights and staged v, take turns in one pool of workgroup memory.
//
// Loops marked "unroll" are written out by the host before compilation, so that the register arrays are only ever indexed
// by literals and every compiler keeps them in registers.

var<workgroup> pool: array<vec4<f32>, POOL>;
// One vec4 (four rows) from each thread: maxima, then sums.
var<workgroup> partial: array<vec4<f32>, THREADS>;
// What the rows of o are multiplied by: 2^(m_old - m_new) at each tile, 1 / l at the end.
var<workgroup> row_scale: array<vec4<f32>, ROW_GROUPS>;

// Staged q lies [dim][group of four rows], a vec4 holding four rows: multiplied by one number of k it gives four
// scores. Staged k lies [key][vec4 of dims], with a gap of one vec4 so that neighbouring threads, which read
// neighbouring keys, do not meet in one memory bank.
const K_STAGE = 4u * DIM_CHUNK * ROW_GROUPS;
const K_STRIDE = DIM_CHUNK + 1u;
// Weights lie [key][group of four rows], staged v lies [key][vec4 of columns].
const V_STAGE = KEYS * ROW_GROUPS;

@compute @workgroup_size(THREADS)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let lane = held(index);
    let number = group_number(group, params.groups_x);
    let tiles = V_BLOCKS * params.row_tiles;
    if (number >= tiles * params.heads * params.batches) {
        return;
    }
    let v_block = number % V_BLOCKS;
    // Last rows first: with a causal mask they are the longest, and a long one left to the end would run alone.
    let first_row = (params.row_tiles - 1u - (number % tiles) / V_BLOCKS) * ROWS;
    let h = (number / tiles) % params.heads;
    let seq = sequence(number / (tiles * params.heads));
    // There are workgroups for the longest of packed sequences.
    if (PACKED_Q && first_row >= seq.count) {
        return;
    }

    var range = key_range(seq, first_row, max(min(first_row + ROWS, seq.rows), 1u) - 1u);
    if (Q_LEN && first_row >= seq.rows) {
        range.end = 0u;
    }

    // Scores: this thread's rows are first_row + 4 row_group .. + 3, its keys key_lane + KEY_LANES c.
    let key_lane = lane % KEY_LANES;
    let row_group = lane / KEY_LANES;
    // Output: this thread's columns are column + OUT_COLUMNS j, its row groups out_group .. + OUT_ROW_GROUPS - 1.
    let column = lane % OUT_COLUMNS;
    let out_group = (lane / OUT_COLUMNS) * OUT_ROW_GROUPS;

    // What passes over the keys before the last one look for, see search_*.wgsl.
    var searching = SEARCH;
    var again = false; // from the first tile
    var passes = 0u;
    let row_numbers = vec4<u32>(first_row + 4u * row_group) + vec4<u32>(0u, 1u, 2u, 3u);
    if (SEARCH) {
        start_search(row_numbers < vec4<u32>(seq.rows));
    }

    var row_norms = vec4<f32>(1.0);
    if (QK_NORM) {
        row_norms = inverse_row_norms(seq, h, first_row + 4u * row_group, key_lane, row_group, lane);
    }

    var level = row_level(seq, first_row + 4u * row_group);
    var state = empty_state();
    var o = array<vec4<f32>, OUT_REGISTERS>();

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
        // ---- scores
        var s = array<vec4<f32>, KEYS_PER_THREAD>();
        var key_squares = array<f32, KEYS_PER_THREAD>();
        for (var chunk = 0u; chunk < DIM_CHUNKS; chunk++) {
            stage_q(seq, h, first_row, chunk * DIM_CHUNK, lane);
            stage_k(seq, kv_head(h), tile, range.end, chunk * DIM_CHUNK, lane);
            workgroupBarrier();
            // A sum of its own for each chunk: rounding errors grow with the length of a sum, so that the sum of a few short
            // ones is closer to the truth than one long one.
            var part = array<vec4<f32>, KEYS_PER_THREAD>();
            for (var d = 0u; d < DIM_CHUNK; d++) {
                let q_at = 4u * d * ROW_GROUPS + row_group;
                let q0 = pool[q_at];
                let q1 = pool[q_at + ROW_GROUPS];
                let q2 = pool[q_at + 2u * ROW_GROUPS];
                let q3 = pool[q_at + 3u * ROW_GROUPS];
                for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                    let k = pool[K_STAGE + (c * KEY_LANES + key_lane) * K_STRIDE + d];
                    if (QK_NORM) {
                        key_squares[c] += dot(k, k);
                    }
                    part[c] = add_products(part[c], q0, q1, q2, q3, k);
                }
            }
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                s[c] += part[c];
            }
            workgroupBarrier();
        }

        if (QK_NORM) {
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                s[c] *= row_norms * inverse_norm(vec4<f32>(key_squares[c]));
            }
        }

        // ---- softmax
        if (SCORED) {
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                let j = min(tile + c * KEY_LANES + key_lane, range.end - 1u);
                s[c] = finish_scores(s[c], seq, h, first_row + 4u * row_group, j);
            }
        }
        // A tile in which every row sees every key needs no mask.
        let boundary = hidden || TOP_K || tile < range.full_start || tile + KEYS > range.full_end;
        if (boundary) {
            for (var c = 0u; c < KEYS_PER_THREAD; c++) { // unroll
                let j = tile + c * KEY_LANES + key_lane;
                let seen = visible4(seq, h, first_row + 4u * row_group, j);
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
        if (ONLINE) {
            partial[lane] = m;
            workgroupBarrier();
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
                p = select(vec4<f32>(0.0), p, dropout_keeps(seq.b, h, first_row + 4u * row_group, j));
            }
            pool[(c * KEY_LANES + key_lane) * ROW_GROUPS + row_group] = p;
        }
        workgroupBarrier();

        // ---- output
        if (ONLINE) {
            for (var g = 0u; g < OUT_ROW_GROUPS; g++) { // unroll
                let alpha = row_scale[out_group + g];
                for (var j = 0u; j < OUT_COLUMNS_PER_THREAD; j++) { // unroll
                    for (var r = 0u; r < 4u; r++) { // unroll
                        o[(g * OUT_COLUMNS_PER_THREAD + j) * 4u + r] *= alpha[r];
                    }
                }
            }
        }
        let tile_end = min(KEYS, range.end - tile);
        for (var first = 0u; first < tile_end; first += V_CHUNK) {
            if (V_STAGED) {
                stage_v(seq, kv_head(h), tile + first, range.end, v_block, lane);
                workgroupBarrier();
            }
            let last = min(V_CHUNK, tile_end - first);
            if (boundary) {
                // Some rows do not see some keys, which have weight 0 there: whatever v holds, NaN too, must not
                // reach those rows, and 0 * NaN would.
                for (var key = 0u; key < last; key++) {
                    let p_at = (first + key) * ROW_GROUPS + out_group;
                    for (var j = 0u; j < OUT_COLUMNS_PER_THREAD; j++) { // unroll
                        let v = value(seq, h, tile + first, key, column + j * OUT_COLUMNS, v_block);
                        for (var g = 0u; g < OUT_ROW_GROUPS; g++) { // unroll
                            let p = pool[p_at + g];
                            for (var r = 0u; r < 4u; r++) { // unroll
                                let at = (g * OUT_COLUMNS_PER_THREAD + j) * 4u + r;
                                o[at] = fma(vec4<f32>(p[r]), select(v, vec4<f32>(0.0), p[r] == 0.0), o[at]);
                            }
                        }
                    }
                }
            } else {
                for (var key = 0u; key < last; key++) {
                    let p_at = (first + key) * ROW_GROUPS + out_group;
                    for (var j = 0u; j < OUT_COLUMNS_PER_THREAD; j++) { // unroll
                        let v = value(seq, h, tile + first, key, column + j * OUT_COLUMNS, v_block);
                        for (var g = 0u; g < OUT_ROW_GROUPS; g++) { // unroll
                            let p = pool[p_at + g];
                            for (var r = 0u; r < 4u; r++) { // unroll
                                let at = (g * OUT_COLUMNS_PER_THREAD + j) * 4u + r;
                                o[at] = fma(vec4<f32>(p[r]), v, o[at]);
                            }
                        }
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
    if (key_lane == 0u) {
        var row_totals = totals(state, h);
        if (Q_LEN) {
            let valid = row_numbers < vec4<u32>(seq.rows);
            row_totals = of_valid_rows(row_totals, valid);
            state.m = select(vec4<f32>(NOTHING), state.m, valid);
        }
        row_scale[row_group] = normaliser(state, row_totals);
        if (v_block == 0u) {
            for (var r = 0u; r < 4u; r++) { // unroll
                let i = first_row + 4u * row_group + r;
                if (i < seq.count) {
                    store_stats(row_number(seq, h, i), row_totals, state.m, r);
                }
            }
        }
    }
    workgroupBarrier();
    // The vec4s take turns in place 0, so that one piece of text stores all of them: compilers are slow with places that load and store.
    for (var turn = 0u; turn < rounds(OUT_REGISTERS); turn++) {
        let r = turn % 4u;
        let row_group = out_group + turn / 4u / OUT_COLUMNS_PER_THREAD;
        let own_column = column + turn / 4u % OUT_COLUMNS_PER_THREAD * OUT_COLUMNS;
        let i = first_row + 4u * row_group + r;
        if (i < seq.count && is_own_column(own_column, v_block)) {
            var row = o[0u] * row_scale[row_group][r];
            if (Q_LEN) {
                // Not by a factor of 0: a key that other rows see may have left NaN in a row that is not there.
                row = select(row, vec4<f32>(0.0), i >= seq.rows);
            }
            store_out(row_start(params.out, seq.b, h, seq.first_q + i), v_block * V_BLOCK + own_column, row);
        }
        for (var n = 0u; n < OUT_REGISTERS; n++) { // unroll
            o[n] = o[(n + 1u) % OUT_REGISTERS];
        }
    }
}

// Whether a column of a block of v's columns exists. Blocks and threads are rounded up.
fn is_own_column(column: u32, v_block: u32) -> bool {
    return column < V_BLOCK && v_block * V_BLOCK + column < V_DIM4;
}

// Rows first_row .. + ROWS - 1 of q, times their factor, dims first_dim .. + DIM_CHUNK - 1 (in vec4s). Rows and
// dims beyond the end become 0.
fn stage_q(seq: Sequence, h: u32, first_row: u32, first_dim: u32, lane: u32) {
    for (var at = lane; at < ROW_GROUPS * DIM_CHUNK; at += THREADS) {
        let d = at % DIM_CHUNK;
        let row_group = at / DIM_CHUNK;
        var rows = array<vec4<f32>, 4>();
        for (var r = 0u; r < 4u; r++) { // unroll
            let i = first_row + 4u * row_group + r;
            if (i < seq.rows && first_dim + d < QK_DIM4) {
                rows[r] = load_q(row_start(params.q, seq.b, h, seq.first_q + i), first_dim + d) * row_factor(seq, h, i);
                if (QK_GAIN) {
                    rows[r] *= qk_gain(h, first_dim + d);
                }
            }
        }
        let to = 4u * d * ROW_GROUPS + row_group;
        for (var e = 0u; e < 4u; e++) { // unroll
            pool[to + e * ROW_GROUPS] = vec4<f32>(rows[0][e], rows[1][e], rows[2][e], rows[3][e]);
        }
    }
}

// Keys first_key .. + KEYS - 1, below end, of k. The rest becomes 0.
fn stage_k(seq: Sequence, h: u32, first_key: u32, end: u32, first_dim: u32, lane: u32) {
    for (var at = lane; at < KEYS * DIM_CHUNK; at += THREADS) {
        let d = at % DIM_CHUNK;
        let key = at / DIM_CHUNK;
        var k = vec4<f32>(0.0);
        if (first_key + key < end && first_dim + d < QK_DIM4) {
            k = load_k(row_start(params.k, seq.b, h, seq.first_k + first_key + key), first_dim + d);
        }
        pool[K_STAGE + key * K_STRIDE + d] = k;
    }
}
