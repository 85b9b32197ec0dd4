// Sums over the rows of a head, or over all rows: a workgroup for each sum, its threads adding up every THREADS-th row.
//   temperature  sum t
//   sink         dsink = sum -p d,  p = exp(sink - lse) being the weight of the sink

@group(0) @binding(12) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(THREADS)
fn temperature_sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = item_number(group);
    if (number >= params.end) {
        return;
    }
    var sum = 0.0;
    let width = params.seq_q;
    let heads = select(params.q_heads, 1u, TEMPERATURE_PER_HEAD);
    // Rows of head `number` in all batches, or all rows.
    for (var n = lane; n < params.batches * heads * width; n += THREADS) {
        var row = n;
        if (TEMPERATURE_PER_HEAD) {
            row = (n / width * params.q_heads + number) * width + n % width;
        }
        sum += kept_f32(row, KEPT_T);
    }
    let total = sum_of_threads(lane, sum);
    if (lane == 0u) {
        result[number] = total;
    }
}

@compute @workgroup_size(THREADS)
fn sink_sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let h = item_number(group);
    if (h >= params.end) {
        return;
    }
    let width = params.seq_q;
    var sum = 0.0;
    for (var n = lane; n < params.batches * width; n += THREADS) {
        let row = (n / width * params.q_heads + h) * width + n % width;
        if (n % width < sequence(n / width).rows) {
            sum -= sink_weight(h, row) * kept_f32(row, KEPT_D);
        }
    }
    let total = sum_of_threads(lane, sum);
    if (lane == 0u) {
        result[h] = total;
    }
}
