// The numbers that the user's functions may read: theirs, and nothing else of the tables. Beyond the last there are zeros.

fn param_u32(n: u32) -> u32 {
    if (USER_PARAMS && n < params.user_params) {
        return u32(table_i32(params.user + n));
    }
    return 0u;
}

fn param_f32(n: u32) -> f32 {
    return bitcast<f32>(param_u32(n));
}
