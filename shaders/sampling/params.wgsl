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
    // Of a row, in the passes that share one: workgroups, tokens of each, and threads of all.
    groups: u32,
    part: u32,
    shares: u32,
    // Sections of the scratch behind the logits, in words: see shares.wgsl and narrow.wgsl.
    list: u32,
    maxima: u32,
    chosen: u32,
    thresholds: u32,
    counts: u32,
    // What passes that share a row leave each other, see notes.wgsl: where it is read, where it is written, and the round of a search.
    notes: u32,
    next_notes: u32,
    round: u32,
    unused: u32, // up to a multiple of 16 bytes, in which uniform bindings are counted
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> settings: array<u32>;

const NOTHING = 0xff800000u; // the bits of -inf: a token that is out
const NO_TOKEN = 0xffffffffu;

fn group_number(group: vec3<u32>) -> u32 {
    return group.x + group.y * params.groups_x;
}

// Where a part of a row ends.
fn part_end(number: u32) -> u32 {
    return min((number + 1u) * params.part, params.vocab);
}

fn setting(row: u32, number: u32) -> u32 {
    return settings[(params.first_row + row) * params.settings + params.step + number];
}

// A row's seed and offset.
fn draw_setting(row: u32, number: u32) -> u32 {
    return settings[(params.first_row + row) * params.settings + number];
}
