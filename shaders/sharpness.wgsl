// How sharp the softmax is: one factor for each row of q, scale / temperature * log2(e).
//
// softmax(scale * x / temperature) and softmax(x / tau) are one operation, so the attention scale, a temperature, a
// temperature for each head or for each row all meet here and cost one multiplication for each number of q.
// log2(e) is folded in so that exp2, which is what the hardware has, gives the natural exponential.

fn row_factor(b: u32, h: u32, i: u32) -> f32 {
    if (TEMPERATURE_PER_HEAD) {
        return params.factor / table_f32(params.temperature + params.first_head + h);
    }
    if (TEMPERATURE_PER_ROW) {
        return params.factor / table_f32(params.temperature + row_number(b, h, i));
    }
    return params.factor;
}
