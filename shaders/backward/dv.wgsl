// dv_j = sum_i p_ij dout_i

fn share_of(seq: Sequence, h: u32, i: u32, j: u32) -> f32 {
    return pair_weight(seq, h, i, j).p;
}

fn load_share(b: u32, h: u32, i: u32, d: u32) -> vec4<f32> {
    return load_dout(row_start(params.dout, b, h, i), d);
}
