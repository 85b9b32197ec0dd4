// Stands in for tables.wgsl where a problem has no table, so that no binding is asked for. Never called.

fn table_i32(at: u32) -> i32 {
    return 0;
}

fn table_f32(at: u32) -> f32 {
    return 1.0;
}
