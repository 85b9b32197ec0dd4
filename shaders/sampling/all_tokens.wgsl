// A workgroup has a row, and every token of it may be left: a step goes through the whole vocabulary.

const first = 0u;
const part = 0u;
var<private> live: u32 = 0u;

// The workgroup's row, in the dispatch.
fn row_of(group: vec3<u32>) -> u32 {
    live = params.vocab;
    return group_number(group);
}

fn token_at(row: u32, n: u32) -> u32 {
    return n;
}
