// The weight of the sink of a row, 0 where there is none.

fn sink_weight(h: u32, row: u32) -> f32 {
    var sink = 0.0;
    if (SINK_PER_HEAD) {
        sink = clamp(table_f32(params.sinks + h), -MAX_BIAS, MAX_BIAS);
    }
    if (SINK) {
        return exp2(max((sink - kept_f32(row, KEPT_LSE)) * LOG2_E, FLOOR));
    }
    return 0.0;
}
