// A workgroup has a part of a row: params.groups of them share it, and each has tokens side by side.

var<private> part: u32 = 0u;
var<private> first: u32 = 0u;
var<private> live: u32 = 0u;

fn row_of(group: vec3<u32>) -> u32 {
    let number = group_number(group);
    part = number % params.groups;
    first = part * params.part;
    live = part_end(part);
    return number / params.groups;
}

fn token_at(row: u32, n: u32) -> u32 {
    return n;
}
