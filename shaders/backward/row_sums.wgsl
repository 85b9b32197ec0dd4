// d = sum_j p_ij dp_ij, less the gradient of lse: a workgroup for each row, its threads adding up every THREADS-th key.
//
// It equals dout . out. Summed from the very weights that the gradients are made of, their errors cancel, however out was rounded or
// stored; divided by what these weights (and the sink's) add up to, which is 1 but for the rounding of lse, so does that of lse.

@compute @workgroup_size(THREADS)
fn row_sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = item_number(group);
    if (number >= params.end) {
        return;
    }
    let at = item(number, params.q_heads, params.seq_q);
    let seq = sequence(at.b);
    var weights = 0.0;
    var products = 0.0;
    for (var j = lane; j < params.seq_k; j += THREADS) {
        let weight = pair_weight(seq, at.h, at.x, j);
        if (weight.p != 0.0) {
            weights += weight.p;
            products += weight.p * weight_gradient(seq, at.h, at.x, j);
        }
    }
    let product = sum_of_threads(lane, products);
    workgroupBarrier();
    let weight = sum_of_threads(lane, weights);
    if (lane == 0u && weight > 0.0) {
        let total = weight + sink_weight(at.h, number);
        kept[kept_at(number, KEPT_D)] = bitcast<u32>(kept_f32(number, KEPT_D) + product / total);
    }
}
