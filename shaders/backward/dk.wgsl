// dk_j = sum_i factor_i dz_ij q_i

fn share_of(seq: Sequence, h: u32, i: u32, j: u32) -> f32 {
    let dz = score_gradient(seq, h, i, j).dz;
    if (dz == 0.0) {
        // The factor of a row that sees nothing may be anything.
        return 0.0;
    }
    return dz * natural_factor(seq, h, i);
}

fn load_share(b: u32, h: u32, i: u32, d: u32) -> vec4<f32> {
    return load_q(row_start(params.q, b, h, i), d);
}
