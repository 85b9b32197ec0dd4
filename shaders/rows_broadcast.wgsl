// Keys and values handed round within the subgroup that a workgroup is.

@compute @workgroup_size(THREADS)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {
    attend(group, lane);
}
