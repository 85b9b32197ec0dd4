// What the passes of the gradient keep, in one binding so that each of them has at most eight: a copy of the tables, and three numbers
// for each row,
//   lse    in natural units, 0 for a row that sees no key
//   d      dout . out, less the gradient of lse where there is one (see row_sums.wgsl)
//   t      what the row adds to the gradient of the temperature

const KEPT_LSE = 0u;
const KEPT_D = 1u;
const KEPT_T = 2u;

fn kept_at(row: u32, which: u32) -> u32 {
    return params.tables + 3u * row + which;
}

fn kept_f32(row: u32, which: u32) -> f32 {
    return bitcast<f32>(kept[kept_at(row, which)]);
}

fn table_i32(at: u32) -> i32 {
    return bitcast<i32>(kept[at]);
}

fn table_f32(at: u32) -> f32 {
    return bitcast<f32>(kept[at]);
}

// Item number of a dispatch that is one of several.
fn item_number(group: vec3<u32>) -> u32 {
    return params.start + group_number(group, params.groups_x);
}

// Splits a number that counts (batch, head, x).
struct Item {
    b: u32,
    h: u32,
    x: u32,
}

fn item(number: u32, heads: u32, width: u32) -> Item {
    return Item(number / width / heads, number / width % heads, number % width);
}
