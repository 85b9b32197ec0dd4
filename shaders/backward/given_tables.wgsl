// The caller's tables, which are copied to what is kept.

@group(0) @binding(15) var<storage, read> tables: array<u32>;

fn given_table(at: u32) -> u32 {
    return tables[at];
}
