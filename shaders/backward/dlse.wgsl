// The gradient of lse, (batch, q_heads, seq_q).

@group(0) @binding(14) var<storage, read> dlse: array<f32>;

fn dlse_of(row: u32) -> f32 {
    return dlse[row];
}
