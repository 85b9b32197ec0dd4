// Four elements of a thread lie side by side, and are one load: rows are contiguous, and begin and end at multiples of four.

fn places(tile: u32, v: u32, lane: u32) -> vec4<u32> {
    return vec4<u32>(tile + 4u * (v * LANES + lane)) + vec4<u32>(0u, 1u, 2u, 3u);
}
