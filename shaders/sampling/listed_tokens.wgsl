// A workgroup has a row, of which only listed tokens are left, see narrow.wgsl: a step goes through the list. Others may have any logit, and
// are out.

const first = 0u;
const part = 0u;
var<private> live: u32 = 0u;

fn row_of(group: vec3<u32>) -> u32 {
    let row = group_number(group);
    live = work[params.counts + min(row, params.rows - 1u)];
    return row;
}

fn token_at(row: u32, n: u32) -> u32 {
    return work[params.list + row * params.vocab + n];
}
