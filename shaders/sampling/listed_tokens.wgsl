// Only listed tokens are left, see narrow.wgsl: a step goes through the list of its row. Others may have any logit, and are out.

var<private> live: u32 = 0u;

fn tokens_of(row: u32) -> u32 {
    return work[params.counts + row];
}

fn token_at(row: u32, n: u32) -> u32 {
    return work[params.list + row * params.vocab + n];
}
