// A temperature for each row, which the device may have written itself. One that is not above 0 counts as the smallest normal
// number, and spoils only its own row.

@group(0) @binding(3) var<storage, read> temperature: array<f32>;

fn inverse_tau(row: u32) -> f32 {
    return 1.0 / max(temperature[params.first_row + row], 1.1754944e-38);
}
