// One temperature for all rows.

fn inverse_tau(row: u32) -> f32 {
    return params.inverse_tau;
}
