// Small inputs, per batch, per head or per row, in one buffer of 32-bit words: integers and the bits of floats.
// One binding for all of them keeps every combination within WebGPU's default of eight storage buffers.

@group(0) @binding(6) var<storage, read> tables: array<u32>;

fn table_i32(at: u32) -> i32 {
    return bitcast<i32>(tables[at]);
}

fn table_f32(at: u32) -> f32 {
    return bitcast<f32>(tables[at]);
}
