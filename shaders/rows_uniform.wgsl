// Keys and values loaded by all lanes at the same address.

@compute @workgroup_size(THREADS)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    attend(group, lane);
}
