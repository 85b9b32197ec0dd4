// How sharp the softmax is: one factor for each row of q, scale / temperature * log2(e).
//
// softmax(scale * x / temperature) and softmax(x / tau) are one operation, so the attention scale, a temperature, a
// temperature for each head or for each row all meet here and cost one multiplication for each number of q.
// log2(e) is folded in so that exp2, which is what the hardware has, gives the natural exponential.

fn row_factor(seq: Sequence, h: u32, i: u32) -> f32 {
    let factor = params.factor * length_scale(seq, h, i);
    if (TEMPERATURE_PER_HEAD) {
        return factor / table_f32(params.temperature + params.first_head + h);
    }
    if (TEMPERATURE_PER_ROW) {
        return factor / table_f32(params.temperature + row_number(seq, h, i));
    }
    return factor;
}

// What makes the softmax sharper as the context grows. n is the number of keys that the row sees.
fn length_scale(seq: Sequence, h: u32, i: u32) -> f32 {
    if (SSMAX) {
        return table_f32(params.ssmax + params.first_head + h) * log(f32(visible_keys(seq, i)));
    }
    if (LOG_TRAIN_LEN) {
        // length_coef is 1 / ln(train_len).
        return max(1.0, log(f32(visible_keys(seq, i))) * params.length_coef);
    }
    if (LLAMA4) {
        let position = max(i32(i) + seq.offset, 0);
        return 1.0 + params.length_coef * log(f32(u32(position + 1) / params.length_floor + 1u));
    }
    return 1.0;
}
