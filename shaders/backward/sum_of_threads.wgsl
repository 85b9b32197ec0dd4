// What the threads of a workgroup have, added up in a fixed order.

var<workgroup> partial: array<f32, THREADS>;

fn sum_of_threads(lane: u32, own: f32) -> f32 {
    partial[lane] = own;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    return partial[0];
}
