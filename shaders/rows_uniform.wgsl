// Keys and values loaded by all lanes from their buffers, at the same address.

@compute @workgroup_size(THREADS)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    attend(group, held(lane));
}

// A vec4 of a key and of a value: key `key` of a sequence, number c of its tile.
fn key4(seq: Sequence, kv: u32, c: u32, key: u32, d: u32) -> vec4<f32> {
    return load_k(row_start(params.k, seq.b, kv, seq.first_k + key), d);
}

fn value4(seq: Sequence, kv: u32, c: u32, key: u32, d: u32) -> vec4<f32> {
    return load_v(row_start(params.v, seq.b, kv, seq.first_k + key), d);
}

// Who loads a value sees by itself whether it is finite.
fn spoilt_value(c: u32) -> bool {
    return false;
}
