// What workgroups that share rows leave for each other. First the final numbers of each row, then those of each chunk: eight words for
// either.

@group(0) @binding(5) var<storage, read_write> partials: array<u32>;

const WORDS = 8u;

fn final_place(row: u32) -> u32 {
    return row * WORDS;
}

fn chunk_place(row: u32, chunk: u32) -> u32 {
    return (params.rows + row * params.chunks + chunk) * WORDS;
}
