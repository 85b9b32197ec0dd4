// The logits of each row as the chain has made them so far: a token that is out has -inf, and every other a number within LARGEST, where
// subnormal numbers and -0 are 0. So their order is that of their bits, and no device sees anything else.

@group(0) @binding(3) var<storage, read_write> work: array<u32>;

const LARGEST: f32 = 1e36;

fn at(row: u32, token: u32) -> u32 {
    return row * params.vocab + token;
}

// The bits of any number as this buffer has them. NaN is out.
fn clean(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u || bits == NOTHING) {
        return NOTHING;
    }
    if (magnitude < 0x00800000u) {
        return 0u;
    }
    let most = bitcast<u32>(LARGEST);
    return select(bits, (bits & 0x80000000u) | most, magnitude > most);
}

// Numbers in the order of their size; tokens that are out come below all others, at 0x007fffff.
const OUT = 0x007fffffu;

fn order(bits: u32) -> u32 {
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn number(order_bits: u32) -> f32 {
    return bitcast<f32>(select(~order_bits, order_bits & 0x7fffffffu, order_bits >= 0x80000000u));
}
