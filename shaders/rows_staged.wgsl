// Keys and values of a tile staged in workgroup memory, from where all lanes load them at the same address.
//
// What it costs to fetch a number from a buffer, a lane at a time where a processor cannot gather, is shared by all rows of the workgroup.

var<workgroup> staged_k: array<array<vec4<f32>, QK_DIM4>, KEYS>;
var<workgroup> staged_v: array<array<vec4<f32>, V_DIM4>, KEYS>;

// Whether numbers of a value were not finite, by vec4: each is written by one thread.
var<workgroup> staged_spoilt: array<array<u32, V_DIM4>, KEYS>;

const K_VECS = KEYS * QK_DIM4;
const V_VECS = KEYS * V_DIM4;

@compute @workgroup_size(THREADS)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    attend(group, held(lane));
}

// By all lanes together. (Branches, that lanes with nothing to do skip: a loop would have them go through its body.)
fn stage(seq: Sequence, kv: u32, tile: u32, last_key: u32, boundary: bool, lane: u32) {
    workgroupBarrier();
    for (var first = 0u; first < rounds(K_VECS + V_VECS); first += THREADS) {
        let n = first + lane;
        if (n < K_VECS) {
            let c = n / QK_DIM4;
            let d = n % QK_DIM4;
            staged_k[c][d] = load_k(row_start(params.k, seq.b, kv, seq.first_k + min(tile + c, last_key)), d);
        } else if (n < K_VECS + V_VECS) {
            let c = (n - K_VECS) / V_DIM4;
            let d = (n - K_VECS) % V_DIM4;
            var v = load_v(row_start(params.v, seq.b, kv, seq.first_k + min(tile + c, last_key)), d);
            if (HIDES) {
                let bad = not_finite(v) & vec4<bool>(boundary);
                staged_spoilt[c][d] = u32(any(bad));
                v = select(v, vec4<f32>(0.0), bad);
            }
            staged_v[c][d] = v;
        }
    }
    workgroupBarrier();
}

// A vec4 of a key and of a value: number c of the tile.
fn key4(seq: Sequence, kv: u32, c: u32, key: u32, d: u32) -> vec4<f32> {
    return staged_k[c][d];
}

fn value4(seq: Sequence, kv: u32, c: u32, key: u32, d: u32) -> vec4<f32> {
    return staged_v[c][d];
}

fn spoilt_value(c: u32) -> bool {
    var spoilt = 0u;
    for (var d = 0u; d < V_DIM4; d++) { // unroll
        spoilt |= staged_spoilt[c][d];
    }
    return spoilt != 0u;
}
