//! The accessors of a tensor: its binding and the function by which a thread loads or stores four elements of a row.
//!
//! `load_NAME4(start, tile, v, lane, end)` gives the words of four f32, -inf beyond the end; `store_NAME4` stores what is before the end. Which
//! four, says `places` of `shaders/softmax_op/places_*.wgsl`; `start` and `end` count elements.

use crate::dtype::DType;
use crate::shader::tensor::widened;

/// The WGSL type of the words that a binding is made of.
fn element(vec4: bool, dtype: DType) -> &'static str {
    match (vec4, dtype) {
        (true, DType::F32) => "vec4<u32>",
        (true, _) => "vec2<u32>",
        (false, _) => "u32",
    }
}

fn binding(name: &str, number: u32, space: &str, element: &str) -> String {
    format!("@group(0) @binding({number}) var<storage, {space}> {name}: array<{element}>;\n")
}

/// A binding that is read, with its accessor; the member of the params of its name has its step.
pub(super) fn read(name: &str, number: u32, vec4: bool, dtype: DType) -> String {
    binding(name, number, "read", element(vec4, dtype)) + &load(name, name, vec4, dtype)
}

/// A binding of f32 that is written, with its accessor; and read too, as x, where the result takes its place.
pub(super) fn written(number: u32, vec4: bool, in_place: bool) -> String {
    let store = if vec4 {
        "    let at = places(tile, v, lane).x;
    if (FULL || at < end) {
        out[(start + at) >> 2u] = words;
    }
"
    } else {
        "    let at = places(tile, v, lane);
    for (var e = 0u; e < 4u; e++) { // unroll
        if (FULL || at[e] < end) {
            out[start + at[e] * params.out.step] = words[e];
        }
    }
"
    };
    let text = format!(
        "{}
fn store_out4(start: u32, tile: u32, v: u32, lane: u32, end: u32, words: vec4<u32>) {{
{store}}}
",
        binding("out", number, "read_write", element(vec4, DType::F32))
    );
    if in_place { text + &load("x", "out", vec4, DType::F32) } else { text }
}

fn load(name: &str, binding: &str, vec4: bool, dtype: DType) -> String {
    let body = match (vec4, dtype) {
        (true, DType::F32) => format!("    words = {binding}[(start + at.x) >> 2u];\n"),
        (true, _) => format!(
            "    let pairs = {binding}[(start + at.x) >> 2u];
    let halves = vec4<u32>(pairs.x & 0xffffu, pairs.x >> 16u, pairs.y & 0xffffu, pairs.y >> 16u);
    for (var e = 0u; e < 4u; e++) {{ // unroll
        words[e] = {};
    }}
",
            widened(dtype, "halves[e]")
        ),
        (false, DType::F32) => format!(
            "    for (var e = 0u; e < 4u; e++) {{ // unroll
        words[e] = {binding}[start + at[e] * params.{name}.step];
    }}
"
        ),
        (false, _) => format!(
            "    for (var e = 0u; e < 4u; e++) {{ // unroll
        let place = start + at[e] * params.{name}.step;
        let half = ({binding}[place >> 1u] >> (16u * (place & 1u))) & 0xffffu;
        words[e] = {};
    }}
",
            widened(dtype, "half")
        ),
    };
    // In fours, all four are before the end or none is. Beyond it the last place is read, so that no load stands in a branch.
    let last = if vec4 { "max(end, 4u) - 4u" } else { "max(end, 1u) - 1u" };
    format!(
        "
fn load_{name}4(start: u32, tile: u32, v: u32, lane: u32, end: u32) -> vec4<u32> {{
    let places = places(tile, v, lane);
    var at = places;
    if (!FULL) {{
        at = min(places, vec4<u32>({last}));
    }}
    var words = vec4<u32>();
{body}    if (FULL) {{
        return words;
    }}
    return select(vec4<u32>(MINUS_INFINITY_BITS), words, places < vec4<u32>(end));
}}
"
    )
}
