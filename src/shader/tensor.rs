//! The accessors of a tensor: the binding and the function by which kernels load or store four numbers of a row.
//!
//! This is where storage formats differ, so it is text made for each tensor and not a file. All give the same
//! function: `load_q(row, d4)`, with `row` from `row_start` and `d4` counting vec4s, and the dims beyond the end 0.

use crate::dtype::DType;
use crate::tensor::Tensor;
use core::fmt;

/// How four numbers of a row are loaded and stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// As one load or store of words of 32 bits: rows are contiguous and start and end at multiples of four numbers.
    Vec4,
    /// The same as words of 64 bits, which needs the device's feature `SHADER_INT64`. What plays a GPU on a processor loads and stores each word
    /// of each lane by itself, whatever its width: half as many words are half the work.
    Wide,
    /// As four, each guarded against the end of the row: any head dim, offset and strides.
    Scalar,
}

impl Access {
    /// Whether four numbers lie side by side, and are one load or store.
    pub(crate) fn in_fours(self) -> bool {
        self != Access::Scalar
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Vec4 => "vec4",
            Access::Wide => "wide",
            Access::Scalar => "scalar",
        })
    }
}

/// The WGSL type of which four numbers side by side are one.
pub(crate) fn four(access: Access, dtype: DType) -> &'static str {
    match (access == Access::Wide, dtype) {
        (false, DType::F32) => "vec4<u32>",
        (false, _) => "vec2<u32>",
        (true, DType::F32) => "vec2<u64>",
        (true, _) => "u64",
    }
}

/// The words of 32 bits of four numbers, as WGSL, in place of one of the binding's elements: four of f32, two of 16 bits.
pub(crate) fn words_of(access: Access, dtype: DType, element: &str) -> String {
    match (access == Access::Wide, dtype) {
        (false, _) => format!("    let words = {element};\n"),
        (true, DType::F32) => format!(
            "    let pairs = {element};
    let low = vec2<u32>(pairs);
    let high = vec2<u32>(pairs >> vec2<u32>(32u));
    let words = vec4<u32>(low.x, high.x, low.y, high.y);
"
        ),
        (true, _) => {
            format!("    let four = {element};\n    let words = vec2<u32>(u32(four), u32(four >> 32u));\n")
        }
    }
}

/// And one of the binding's elements in place of such words.
pub(crate) fn element_of(access: Access, dtype: DType, words: &str) -> String {
    match (access == Access::Wide, dtype) {
        (false, _) => words.to_owned(),
        (true, DType::F32) => {
            format!("vec2<u64>({words}.xz) | (vec2<u64>({words}.yw) << vec2<u32>(32u))")
        }
        (true, _) => format!("u64({words}.x) | (u64({words}.y) << 32u)"),
    }
}

/// The WGSL of the binding and accessor of q, k, v or out. With `native`, f16 is a type of the shader's own where rows are aligned.
pub(crate) fn module(tensor: Tensor, access: Access, dtype: DType, dim: u32, native: bool) -> String {
    let (name, binding) = (tensor.name(), tensor.binding());
    if native && access == Access::Vec4 && dtype == DType::F16 {
        let (space, accessor) = if tensor == Tensor::Out {
            ("read_write", native_store(name))
        } else {
            ("read", native_load(name))
        };
        return declare(name, binding, space, access, dtype, ("vec4<f16>", accessor));
    }
    if tensor == Tensor::Out {
        written(name, binding, access, dtype, dim)
    } else {
        read(name, binding, access, dtype, dim)
    }
}

/// A binding with its function `load_NAME(row, d4)`; its places are `params.NAME` and `params.NAME_dim`.
pub(crate) fn read(name: &str, binding: u32, access: Access, dtype: DType, dim: u32) -> String {
    declare(name, binding, "read", access, dtype, load(name, access, dtype, dim))
}

/// A binding with its function `store_NAME(row, d4, value)`.
pub(crate) fn written(name: &str, binding: u32, access: Access, dtype: DType, dim: u32) -> String {
    declare(name, binding, "read_write", access, dtype, store(name, access, dtype, dim))
}

fn declare(
    name: &str,
    binding: u32,
    space: &str,
    access: Access,
    dtype: DType,
    (element, body): (&str, String),
) -> String {
    format!(
        "// {name}: {} in {access} access.
@group(0) @binding({binding}) var<storage, {space}> {name}: array<{element}>;

{body}",
        dtype.name()
    )
}

/// Two 16-bit numbers of a word, as WGSL.
fn unpack(dtype: DType, word: &str) -> String {
    match dtype {
        DType::Bf16 => format!("vec2<f32>(bitcast<f32>({word} << 16u), bitcast<f32>({word} & 0xffff0000u))"),
        _ => format!("unpack2x16float({word})"),
    }
}

/// The bits of the f32 that a 16-bit number is, given its bits in the lower half of a word: without arithmetic on -inf, which a compiler
/// may take for something that does not come.
pub(crate) fn widened(dtype: DType, half: &str) -> String {
    match dtype {
        DType::Bf16 => format!("{half} << 16u"),
        _ => format!("select(bitcast<u32>(unpack2x16float({half}).x), 0xff800000u, {half} == 0xfc00u)"),
    }
}

fn load(name: &str, access: Access, dtype: DType, dim: u32) -> (&'static str, String) {
    match (access, dtype) {
        (Access::Vec4, DType::F32) => (
            "vec4<f32>",
            format!(
                "fn load_{name}(row: u32, d4: u32) -> vec4<f32> {{
    return {name}[(row >> 2u) + d4];
}}
"
            ),
        ),
        (Access::Vec4 | Access::Wide, _) => {
            let words = words_of(access, dtype, &format!("{name}[(row >> 2u) + d4]"));
            let numbers = match dtype {
                DType::F32 => "bitcast<vec4<f32>>(words)".to_owned(),
                _ => format!("vec4<f32>({}, {})", unpack(dtype, "words.x"), unpack(dtype, "words.y")),
            };
            let text = format!(
                "fn load_{name}(row: u32, d4: u32) -> vec4<f32> {{\n{words}    return {numbers};\n}}\n"
            );
            (four(access, dtype), text)
        }
        (Access::Scalar, _) => {
            let (kind, fetch) = match dtype {
                DType::F32 => ("f32", format!("let number = {name}[at];")),
                _ => (
                    "u32",
                    format!(
                        "let pair = {};
    let number = select(pair.x, pair.y, (at & 1u) == 1u);",
                        unpack(dtype, &format!("{name}[at >> 1u]"))
                    ),
                ),
            };
            // A choice and no branch: written out hundreds of times, branches are what compilers take longest over.
            let text = format!(
                "fn {name}_at(row: u32, d: u32) -> f32 {{
    let at = row + min(d, {dim}u - 1u) * params.{name}_dim;
    {fetch}
    return select(0.0, number, d < {dim}u);
}}

fn load_{name}(row: u32, d4: u32) -> vec4<f32> {{
    let d = 4u * d4;
    return vec4<f32>({name}_at(row, d), {name}_at(row, d + 1u), {name}_at(row, d + 2u), {name}_at(row, d + 3u));
}}
"
            );
            (kind, text)
        }
    }
}

/// Four numbers of f16, each exact in f32.
fn native_load(name: &str) -> String {
    format!(
        "fn load_{name}(row: u32, d4: u32) -> vec4<f32> {{
    return vec4<f32>({name}[(row >> 2u) + d4]);
}}
"
    )
}

/// Four numbers, rounded by the device and saturated as `pack` saturates them.
fn native_store(name: &str) -> String {
    format!(
        "fn store_{name}(row: u32, d4: u32, value: vec4<f32>) {{
    {name}[(row >> 2u) + d4] = vec4<f16>(clamp(value, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
}}
"
    )
}

/// A function `pack(vec2<f32>) -> u32` for a 16-bit type.
fn pack(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "",
        // Saturates: an infinity would say that something went wrong, when a number is only too large for its storage.
        DType::F16 => {
            "fn pack(x: vec2<f32>) -> u32 {
    return pack2x16float(clamp(x, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}

"
        }
        // Round to nearest even; numbers without a finite value keep their upper half.
        DType::Bf16 => {
            "fn pack(x: vec2<f32>) -> u32 {
    let bits = bitcast<vec2<u32>>(x);
    let rounded = (bits + vec2<u32>(0x7fffu) + ((bits >> vec2<u32>(16u)) & vec2<u32>(1u))) >> vec2<u32>(16u);
    let special = (bits & vec2<u32>(0x7f800000u)) == vec2<u32>(0x7f800000u);
    let halves = select(rounded, bits >> vec2<u32>(16u), special);
    return halves.x | (halves.y << 16u);
}

"
        }
    }
}

fn store(name: &str, access: Access, dtype: DType, dim: u32) -> (&'static str, String) {
    match (access, dtype) {
        (Access::Vec4, DType::F32) => (
            "vec4<f32>",
            format!(
                "fn store_{name}(row: u32, d4: u32, value: vec4<f32>) {{
    {name}[(row >> 2u) + d4] = value;
}}
"
            ),
        ),
        (Access::Vec4 | Access::Wide, _) => {
            let words = match dtype {
                DType::F32 => "bitcast<vec4<u32>>(value)",
                _ => "vec2<u32>(pack(value.xy), pack(value.zw))",
            };
            let text = format!(
                "{}fn store_{name}(row: u32, d4: u32, value: vec4<f32>) {{
    let words = {words};
    {name}[(row >> 2u) + d4] = {};
}}
",
                pack(dtype),
                element_of(access, dtype, "words")
            );
            (four(access, dtype), text)
        }
        (Access::Scalar, _) => {
            let (kind, put) = match dtype {
                DType::F32 => ("f32", format!("{name}[at] = value;")),
                // Two numbers share a word and may belong to different threads. Each thread clears and sets its own half only,
                // so the order in which they come does not matter.
                _ => (
                    "atomic<u32>",
                    format!(
                        "let shift = 16u * (at & 1u);
        atomicAnd(&{name}[at >> 1u], ~(0xffffu << shift));
        atomicOr(&{name}[at >> 1u], (pack(vec2<f32>(value, 0.0)) & 0xffffu) << shift);"
                    ),
                ),
            };
            let text = format!(
                "{}fn set_{name}(row: u32, d: u32, value: f32) {{
    if (d < {dim}u) {{
        let at = row + d * params.{name}_dim;
        {put}
    }}
}}

fn store_{name}(row: u32, d4: u32, value: vec4<f32>) {{
    let d = 4u * d4;
    set_{name}(row, d, value.x);
    set_{name}(row, d + 1u, value.y);
    set_{name}(row, d + 2u, value.z);
    set_{name}(row, d + 3u, value.w);
}}
",
                pack(dtype)
            );
            (kind, text)
        }
    }
}

/// The WGSL of the additive bias: `load_bias(at)` gives the bits of an f32, so that -inf can be told without arithmetic.
pub(crate) fn bias(dtype: Option<DType>) -> String {
    let body = match dtype {
        None => {
            return "// No bias. Never called.
fn load_bias(at: u32) -> u32 {
    return 0u;
}
"
            .to_owned();
        }
        Some(DType::F32) => "return bias[at];".to_owned(),
        Some(dtype) => {
            let value = widened(dtype, "half");
            format!(
                "let half = (bias[at >> 1u] >> (16u * (at & 1u))) & 0xffffu;
    return {value};"
            )
        }
    };
    format!(
        "// bias: {}.
@group(0) @binding({}) var<storage, read> bias: array<u32>;

fn load_bias(at: u32) -> u32 {{
    {body}
}}
",
        dtype.map_or("", DType::name),
        Tensor::Bias.binding()
    )
}
