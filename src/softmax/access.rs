//! The accessors of a tensor: its binding and the function by which a thread loads or stores four elements of a row.
//!
//! `load_NAME4(start, tile, v, lane, end)` gives the words of four f32, -inf beyond the end; `store_NAME4` stores what is before the end. Which
//! four, says `places` of `shaders/softmax_op/places_*.wgsl`; `start` and `end` count elements.

use crate::dtype::DType;
use crate::shader::tensor::{Access, element_of, four, widened, words_of};

fn binding(name: &str, number: u32, space: &str, access: Access, dtype: DType) -> String {
    let element = if access.in_fours() { four(access, dtype) } else { "u32" };
    format!("@group(0) @binding({number}) var<storage, {space}> {name}: array<{element}>;\n")
}

/// A binding that is read, with its accessor; the member of the params of its name has its step.
pub(super) fn read(name: &str, number: u32, access: Access, dtype: DType) -> String {
    binding(name, number, "read", access, dtype) + &load(name, name, access, dtype)
}

/// A binding of f32 that is written, with its accessor; and read too, as x, where the result takes its place.
pub(super) fn written(number: u32, access: Access, in_place: bool) -> String {
    let store = if access.in_fours() {
        format!(
            "    let at = places(tile, v, lane).x;
    if (FULL || at < end) {{
        out[(start + at) >> 2u] = {};
    }}
",
            element_of(access, DType::F32, "words")
        )
    } else {
        "    let at = places(tile, v, lane);
    for (var e = 0u; e < 4u; e++) { // unroll
        if (FULL || at[e] < end) {
            out[start + at[e] * params.out.step] = words[e];
        }
    }
"
        .to_owned()
    };
    let text = format!(
        "{}
fn store_out4(start: u32, tile: u32, v: u32, lane: u32, end: u32, words: vec4<u32>) {{
{store}}}
",
        binding("out", number, "read_write", access, DType::F32)
    );
    if in_place { text + &load("x", "out", access, DType::F32) } else { text }
}

fn load(name: &str, binding: &str, access: Access, dtype: DType) -> String {
    let body = match (access.in_fours(), dtype) {
        (true, _) => {
            let words = words_of(access, dtype, &format!("{binding}[(start + at.x) >> 2u]"));
            match dtype {
                DType::F32 => words + "    let fetched = words;\n",
                _ => format!(
                    "{words}    let halves = vec4<u32>(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u);
    var fetched = vec4<u32>();
    for (var e = 0u; e < 4u; e++) {{ // unroll
        fetched[e] = {};
    }}
",
                    widened(dtype, "halves[e]")
                ),
            }
        }
        (false, DType::F32) => format!(
            "    var fetched = vec4<u32>();
    for (var e = 0u; e < 4u; e++) {{ // unroll
        fetched[e] = {binding}[start + at[e] * params.{name}.step];
    }}
"
        ),
        (false, _) => format!(
            "    var fetched = vec4<u32>();
    for (var e = 0u; e < 4u; e++) {{ // unroll
        let place = start + at[e] * params.{name}.step;
        let half = ({binding}[place >> 1u] >> (16u * (place & 1u))) & 0xffffu;
        fetched[e] = {};
    }}
",
            widened(dtype, "half")
        ),
    };
    // In fours, all four are before the end or none is. Beyond it the last place is read, so that no load stands in a branch.
    let last = if access.in_fours() { "max(end, 4u) - 4u" } else { "max(end, 1u) - 1u" };
    format!(
        "
fn load_{name}4(start: u32, tile: u32, v: u32, lane: u32, end: u32) -> vec4<u32> {{
    let places = places(tile, v, lane);
    var at = places;
    if (!FULL) {{
        at = min(places, vec4<u32>({last}));
    }}
{body}    if (FULL) {{
        return fetched;
    }}
    return select(vec4<u32>(MINUS_INFINITY_BITS), fetched, places < vec4<u32>(end));
}}
"
    )
}
