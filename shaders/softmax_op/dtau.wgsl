// The gradient of each row's temperature.

@group(0) @binding(4) var<storage, read_write> dtau: array<f32>;

fn store_dtau(row: u32, sum: f32, inverse_tau: f32) {
    dtau[params.first_row + row] = -sum * inverse_tau;
}
