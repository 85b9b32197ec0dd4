//! Which keys a row sees.
//!
//! The shaders' twin of this file is `shaders/mask.wgsl`.

use crate::problem::MAX_SEQ;

/// Causal attention: key `j` is visible to query `i` when `j <= i + offset`.
///
/// The two corners in use are the most confused option of the field, so there is no bare `true`. With 2
/// queries and 5 keys:
///
/// ```text
/// BottomRight (offset 3)   TopLeft (offset 0)
/// x x x x .                x . . . .
/// x x x x x                x x . . .
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Causal {
    /// `offset = seq_k - seq_q`: the last query sees the last key. What decoding with a cache needs; FlashAttention
    /// since 2.1, MLX, FlashInfer. With more queries than keys the first rows are empty.
    BottomRight,
    /// `offset = 0`: the first query sees the first key. PyTorch's SDPA, JAX, ONNX without a cache.
    TopLeft,
    /// Any offset, negative too.
    Offset(i32),
    /// One offset for each batch, from the table `causal_offset` (batch).
    PerBatch,
}

impl Causal {
    /// The offset, where it is one number.
    pub fn offset(&self, seq_q: u32, seq_k: u32) -> Option<i32> {
        let offset = match *self {
            // Lengths are at most 2^30, so the difference fits.
            Causal::BottomRight => i64::from(seq_k) - i64::from(seq_q),
            Causal::TopLeft => 0,
            Causal::Offset(offset) => i64::from(offset),
            Causal::PerBatch => return None,
        };
        Some(clamp_offset(offset))
    }
}

/// Beyond the largest length an offset changes nothing more, and within it `i + offset + 1`, the number of keys that a row
/// sees, cannot leave `i32`: row and offset are each at most 2^30 - 1.
fn clamp_offset(offset: i64) -> i32 {
    let most = i64::from(MAX_SEQ) - 1;
    offset.clamp(-most - 1, most) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_row_and_offset_stay_within_i32() {
        for causal in [Causal::Offset(i32::MAX), Causal::Offset(i32::MIN), Causal::BottomRight] {
            let offset = causal.offset(1, MAX_SEQ).unwrap();
            let last_row = MAX_SEQ as i32 - 1;
            assert!(last_row.checked_add(offset).and_then(|x| x.checked_add(1)).is_some(), "{causal:?}");
        }
        // Still "sees everything" and "sees nothing".
        assert!(Causal::Offset(i32::MAX).offset(1, 1).unwrap() >= MAX_SEQ as i32 - 1);
        assert!(Causal::Offset(i32::MIN).offset(1, 1).unwrap() <= -(MAX_SEQ as i32));
    }
}
