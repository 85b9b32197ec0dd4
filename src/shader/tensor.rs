//! The accessors of a tensor: the binding and the function by which kernels load or store four numbers of a row.
//!
//! This is where storage formats differ, so it is text made for each tensor and not a file. All give the same
//! function: `load_q(row, d4)`, with `row` from `row_start` and `d4` counting vec4s, and the dims beyond the end 0.

use crate::problem::Tensor;

/// How four numbers of a row are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// One 16-byte load: rows are contiguous and start and end at multiples of four.
    Vec4,
    /// Four loads, each guarded against the end of the row: any head dim, offset and strides.
    Scalar,
}

/// The WGSL of one tensor's binding and accessor.
pub(crate) fn module(tensor: Tensor, access: Access, dim: u32) -> String {
    let name = tensor.name();
    let binding = tensor as u32 + 1;
    let (kind, mode) = match access {
        Access::Vec4 => ("vec4<f32>", "vec4"),
        Access::Scalar => ("f32", "scalar"),
    };
    let writes = tensor == Tensor::Out;
    let address_space = if writes { "read_write" } else { "read" };
    let body = match (writes, access) {
        (false, Access::Vec4) => format!(
            "fn load_{name}(row: u32, d4: u32) -> vec4<f32> {{
    return {name}[(row >> 2u) + d4];
}}
"
        ),
        (true, Access::Vec4) => format!(
            "fn store_{name}(row: u32, d4: u32, value: vec4<f32>) {{
    {name}[(row >> 2u) + d4] = value;
}}
"
        ),
        (false, Access::Scalar) => format!(
            "fn {name}_at(row: u32, d: u32) -> f32 {{
    if (d < {dim}u) {{
        return {name}[row + d * params.{name}_dim];
    }}
    return 0.0;
}}

fn load_{name}(row: u32, d4: u32) -> vec4<f32> {{
    let d = 4u * d4;
    return vec4<f32>({name}_at(row, d), {name}_at(row, d + 1u), {name}_at(row, d + 2u), {name}_at(row, d + 3u));
}}
"
        ),
        (true, Access::Scalar) => format!(
            "fn set_{name}(row: u32, d: u32, value: f32) {{
    if (d < {dim}u) {{
        {name}[row + d * params.{name}_dim] = value;
    }}
}}

fn store_{name}(row: u32, d4: u32, value: vec4<f32>) {{
    let d = 4u * d4;
    set_{name}(row, d, value.x);
    set_{name}(row, d + 1u, value.y);
    set_{name}(row, d + 2u, value.z);
    set_{name}(row, d + 3u, value.w);
}}
"
        ),
    };
    format!(
        "// {name}: {mode} access.
@group(0) @binding({binding}) var<storage, {address_space}> {name}: array<{kind}>;

{body}"
    )
}
