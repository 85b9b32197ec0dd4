// What the LANES threads that share a row have, put together; all of them get it. Every thread of the workgroup must come here. In two
// steps, over FIRST neighbours and over what those have left, each by all threads at once: two barriers, and always the same order.

var<workgroup> pool_best: array<vec2<u32>, THREADS>;
var<workgroup> parts_best: array<vec2<u32>, PARTS>;
var<workgroup> pool: array<vec4<f32>, THREADS>;
var<workgroup> parts: array<vec4<f32>, PARTS>;

fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

// The larger x, and of equal ones the smaller y.
fn best_of_lanes(mine: vec2<u32>, thread: u32) -> vec2<u32> {
    pool_best[thread] = mine;
    workgroupBarrier();
    let first = thread - thread % FIRST;
    var best = mine;
    for (var n = 0u; n < FIRST; n++) {
        best = better(best, pool_best[first + n]);
    }
    if (LANES > FIRST && thread == first) {
        parts_best[thread / FIRST] = best;
    }
    // The next call writes to the pool again.
    workgroupBarrier();
    if (LANES > FIRST) {
        let row = (thread - thread % LANES) / FIRST;
        for (var n = 0u; n < LANES / FIRST; n++) {
            best = better(best, parts_best[row + n]);
        }
    }
    return best;
}

fn add_lanes4(mine: vec4<f32>, thread: u32) -> vec4<f32> {
    pool[thread] = mine;
    workgroupBarrier();
    let first = thread - thread % FIRST;
    var sum = vec4<f32>(0.0);
    for (var n = 0u; n < FIRST; n++) {
        sum += pool[first + n];
    }
    if (LANES > FIRST && thread == first) {
        parts[thread / FIRST] = sum;
    }
    workgroupBarrier();
    if (LANES > FIRST) {
        let row = (thread - thread % LANES) / FIRST;
        sum = vec4<f32>(0.0);
        for (var n = 0u; n < LANES / FIRST; n++) {
            sum += parts[row + n];
        }
    }
    return sum;
}

fn add_lanes2(mine: vec2<f32>, thread: u32) -> vec2<f32> {
    return add_lanes4(vec4<f32>(mine, 0.0, 0.0), thread).xy;
}
