// What one dispatch of the sampler is told. Its twin is Params in src/sampling/shader.rs; a test compares the two.

struct Params {
    vocab: u32,
    rows: u32,      // of this dispatch
    first_row: u32, // their place in the problem
    groups_x: u32,  // workgroups are folded into x and y
    logits: u32,    // first logit in its binding
    stride: u32,    // from one row's logits to the next
    settings: u32,  // words of a row's settings
    step: u32,      // where those of this step are among them
    history: u32,   // tokens of a row's history
    bias: u32,      // biases of a row
    total_rows: u32,
    bits: u32,      // of a token's number
    groups: u32,    // workgroups of a row, in the passes that share a row
    // Sections of the scratch behind the logits, in words: see narrow.wgsl.
    list: u32,
    maxima: u32,
    counts: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> settings: array<u32>;

const NOTHING = 0xff800000u; // the bits of -inf: a token that is out
const NO_TOKEN = 0xffffffffu;

fn group_number(group: vec3<u32>) -> u32 {
    return group.x + group.y * params.groups_x;
}

// The workgroup's row, in the dispatch.
fn row_of(group: vec3<u32>) -> u32 {
    let row = group_number(group);
    live = tokens_of(min(row, params.rows - 1u));
    return row;
}

fn setting(row: u32, number: u32) -> u32 {
    return settings[(params.first_row + row) * params.settings + params.step + number];
}

// A row's seed and offset.
fn draw_setting(row: u32, number: u32) -> u32 {
    return settings[(params.first_row + row) * params.settings + number];
}
