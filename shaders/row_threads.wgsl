// What kernels share in which KEY_LANES threads own four rows together, each with keys of its own, and exchange through partial.

// The next tile, or the first one again for another pass.
fn following_tile(tile: u32, range: KeyRange, again: bool) -> u32 {
    if (SEARCH && again) {
        return first_tile(range);
    }
    return next_tile(tile, range);
}

// The sum of what the threads of a row group left in partial.
fn row_sum(row_group: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    for (var other = 0u; other < rounds(KEY_LANES); other++) {
        sum += partial[row_group * KEY_LANES + other];
    }
    return sum;
}

// The largest of m and what the threads of a row group left in partial.
fn row_max(row_group: u32, m: vec4<f32>) -> vec4<f32> {
    var largest = m;
    for (var other = 0u; other < KEY_LANES; other++) {
        largest = max(largest, partial[row_group * KEY_LANES + other]);
    }
    return largest;
}

// 1 / |q| of rows i .. i + 3, each thread of a row group adding up a part of the squares.
fn inverse_row_norms(seq: Sequence, h: u32, i: u32, key_lane: u32, row_group: u32, lane: u32) -> vec4<f32> {
    var squares = vec4<f32>(0.0);
    for (var d = key_lane; d < QK_DIM4; d += KEY_LANES) {
        for (var r = 0u; r < 4u; r++) { // unroll
            if (i + r < seq.rows) {
                let q = load_q(row_start(params.q, seq.b, h, seq.first_q + i + r), d);
                squares[r] += dot(q, q);
            }
        }
    }
    partial[lane] = squares;
    workgroupBarrier();
    let sum = row_sum(row_group);
    workgroupBarrier();
    return inverse_norm(sum);
}
