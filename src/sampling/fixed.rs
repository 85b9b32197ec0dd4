//! Arithmetic of whole numbers only, the twin of `shaders/sampling/fixed.wgsl`: see there for what each function is. Every device
//! gets these bits.

/// The upper half of a product.
fn mul_high(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

const LOG2_E: u32 = 0xb8aa_3b29; // 2^31 log2(e)
const LN_2: u32 = 0xb172_17f8; // 2^32 ln(2)

fn horner(coefficients: &[u32], x: u32) -> u32 {
    let (first, rest) = coefficients.split_first().unwrap_or((&0, &[]));
    rest.iter().fold(*first, |r, c| c.wrapping_sub(mul_high(r, x)))
}

/// 2^-f in units of 2^-31, for 32 bits after the point.
pub(super) fn exp2_fraction(f: u32) -> u32 {
    horner(&[0x0003_951e, 0x0029_cc02, 0x0139_e9b1, 0x071a_53ad, 0x1ebf_abbf, 0x58b9_0ad9, 0x7fff_fffd], f)
}

/// log2 of a number from 1, in units of 2^-27.
pub(super) fn log2_fixed(n: u32) -> u32 {
    let whole = n.ilog2();
    let t = (n << (31 - whole)) << 1;
    let r = horner(
        &[
            0x0096_254a,
            0x039b_dba3,
            0x0a69_04ea,
            0x1378_6ac6,
            0x1c32_9e22,
            0x244f_a966,
            0x2e13_af4b,
            0x3d8c_5d47,
            0x5c55_1097,
            0xb8aa_3b19,
        ],
        t,
    );
    (whole << 27) + (mul_high(r, t) >> 4)
}

/// How far a logit is below the largest, in units of 2^-24, at most 60.
pub(super) fn below(largest: f32, logit: f32) -> u32 {
    ((largest - logit).min(60.0) * 16_777_216.0) as u32
}

/// e^-d in units of 2^-40.
pub(super) fn weight_of(d: u32) -> u64 {
    let x = mul_high(d << 1, LOG2_E);
    let m = u64::from(exp2_fraction(x << 8)) << 9;
    m.checked_shr(x >> 24).unwrap_or(0)
}

/// d log2(e), in d's units.
pub(super) fn to_log2(d: u32) -> u32 {
    mul_high(d << 1, LOG2_E)
}

/// x ln(2), in x's units.
pub(super) fn to_ln(x: u32) -> u32 {
    mul_high(x, LN_2)
}

/// A share in units of 2^-32 of a sum, rounded up.
pub(super) fn share_of_sum(sum: u64, p: u32) -> u64 {
    // A share is no more than the sum.
    (u128::from(sum) * u128::from(p)).div_ceil(1 << 32) as u64
}

/// -ln(-ln u) for a uniform u of 64 random bits, in units of 2^-20.
pub(super) fn gumbel([x, y]: [u32; 2]) -> i32 {
    /// log2(log2 e) in units of 2^-24.
    const LOG2_LOG2_E: i32 = 8_871_228;
    let l = if x >= 0x0400_0000 {
        let n = (!x).max(2);
        let zeros = n.leading_zeros();
        let n = (n << zeros) | (!y).checked_shr(32 - zeros).unwrap_or(0);
        let e = (zeros << 27).wrapping_sub(log2_fixed(n));
        (log2_fixed(e) >> 3) as i32 - (27 << 24)
    } else {
        let (n, zeros) = if x == 0 {
            (y.max(1), 32)
        } else {
            let zeros = x.leading_zeros();
            ((x << zeros) | (y >> (32 - zeros)), zeros)
        };
        let v2 = mul_high(x, x);
        let bracket = (x >> 1) + mul_high(v2, 0x3555_5555) + (mul_high(v2, x) >> 3);
        let log_bracket = mul_high(bracket, LOG2_E) >> 7;
        (log2_fixed(n) >> 3) as i32 - ((32 + zeros) << 24) as i32 + LOG2_LOG2_E + log_bracket as i32
    };
    let t = LOG2_LOG2_E - l;
    let magnitude = (mul_high(t.unsigned_abs(), LN_2) >> 4) as i32;
    if t < 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::threefry2x32;

    #[test]
    fn powers_and_logarithms_are_as_near_as_they_say() {
        for n in 0..100_000u32 {
            let f = n.wrapping_mul(2_654_435_769);
            let want = 2f64.powf(-f64::from(f) / 2f64.powi(32));
            assert!((f64::from(exp2_fraction(f)) / 2f64.powi(31) - want).abs() < 2f64.powi(-28), "2^-{f}");
            let n = f.max(1) >> (n % 32);
            let n = n.max(1);
            let got = f64::from(log2_fixed(n)) / 2f64.powi(27);
            assert!((got - f64::from(n).log2()).abs() < 2f64.powi(-26), "log2 {n}");
        }
    }

    #[test]
    fn weights_are_exponentials() {
        for n in 0..20_000 {
            let d = f64::from(n) * 0.0031;
            let got = weight_of(below(0.0, -d as f32)) as f64 / 2f64.powi(40);
            let want = (-f64::from(d as f32)).exp();
            assert!((got - want).abs() <= want * 3e-7 + 2f64.powi(-40), "e^-{d}: {got}");
        }
        assert_eq!(weight_of(below(1e36, -1e36)), 0);
    }

    /// Against float64, at random words and at the ends of both branches.
    #[test]
    fn noise_is_gumbel_noise() {
        let check = |words: [u32; 2]| {
            let v = (f64::from(words[0]) + f64::from(words[1]) / 2f64.powi(32)) / 2f64.powi(32);
            let want = -(-(-v).ln_1p()).ln();
            let got = f64::from(gumbel(words)) / 2f64.powi(20);
            assert!((got - want).abs() < 1.2e-5, "{words:x?}: {got} is not {want}");
        };
        for n in 0..200_000 {
            let words = threefry2x32([1, 2], [n, 0]);
            check([words[0] >> (n % 32), words[1]]);
        }
        for x in [1, 2, 0x03ff_ffff, 0x0400_0000, 0x0400_0001, 0x8000_0000, u32::MAX - 1000] {
            check([x, 0x8000_0000]);
        }
        for y in [1, 2, 3, 1 << 16, u32::MAX] {
            check([0, y]);
        }
        // Beyond what the words tell apart: finite and in order.
        assert!(gumbel([0, 0]) <= 45 << 20 && gumbel([u32::MAX; 2]) > -(4 << 20));
    }
}
