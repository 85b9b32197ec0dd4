// What one dispatch of the softmax operation is told. Its twin is Params in src/softmax/shader.rs; a test compares the two.

// Where rows are, in elements from the start of the binding: element i of row (o, n) is at
// base + o * outer + n * inner + i * step. Rows are numbered o * params.inner + n.
struct Rows {
    base: u32,
    outer: u32,
    inner: u32,
    step: u32,
}

struct Params {
    x: Rows,
    out: Rows,
    dy: Rows,
    inner: u32,
    len: u32,
    rows: u32,      // of this dispatch
    first_row: u32, // their place in the problem
    groups_x: u32,  // workgroups are folded into x and y
    chunks: u32,    // workgroups that share a row
    chunk: u32,     // elements of a row that one of them has
    // Temperature as a number: 1 / tau.
    inverse_tau: f32,
    // Sections of the stats binding, in elements.
    lse: u32,
    entropy: u32,
    argmax: u32,
    // Rounds of a workgroup of short rows: it takes as many lots of rows.
    lots: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

const MINUS_INFINITY_BITS = 0xff800000u;
const NOWHERE = 0xffffffffu;
const LOWEST = -3.4028234e38;
const LOG2_E = 1.4426950408889634;
const LN_2 = 0.6931471805599453;

fn group_number(group: vec3<u32>) -> u32 {
    return group.x + group.y * params.groups_x;
}

// A row beyond the last is read as the last, and not written.
fn row_start(rows: Rows, row: u32) -> u32 {
    let n = min(row, params.rows - 1u);
    return rows.base + (n / params.inner) * rows.outer + (n % params.inner) * rows.inner;
}

// v * by, cut off where it would leave f32. by is above 0.
fn times(v: vec4<f32>, by: f32) -> vec4<f32> {
    let most = vec4<f32>(select(-LOWEST / max(by, 1.0), -LOWEST, by <= 1.0));
    return clamp(v, -most, most) * by;
}
