//! How much there is to compute.

use super::Problem;
use crate::mask::Alignment;

impl Problem {
    /// (query, key) pairs that the masks known on the host leave visible, over all heads and batches: what
    /// operation counts are made of. Causal masks and windows are counted, without the first keys that a window keeps. Per-batch
    /// and packed lengths and offsets, dense masks and user code live on the device, so they count as if every key were valid, the offset 0
    /// and every pair visible.
    pub fn visible_pairs(&self) -> u64 {
        let heads = u128::from(self.shape.batch) * u128::from(self.shape.q_heads);
        let pairs = u128::from(self.visible_pairs_of(0, self.shape.seq_q)) * heads;
        pairs.min(u128::from(u64::MAX)) as u64
    }

    /// The same, for some rows of one head.
    pub(crate) fn visible_pairs_of(&self, first_row: u32, rows: u32) -> u64 {
        let s = &self.shape;
        let (sq, sk) = (i128::from(rows), i128::from(s.seq_k));
        let offset = match self.alignment {
            // As if all were valid.
            Alignment::BottomRightValid => sk - i128::from(s.seq_q),
            alignment => i128::from(alignment.offset(s.seq_q, s.seq_k).unwrap_or(0)),
        };
        let offset = offset + i128::from(first_row);
        let (min, max) = self.distances();
        // Of the first n keys those up to a distance, over all rows: a series that is clipped to 0..=n at both ends.
        let up_to = |distance: i128, n: i128| -> i128 {
            let reach = offset + distance + 1; // of row 0
            let first = (-reach + 1).clamp(0, sq); // first row that sees a key
            let full = (n - reach).clamp(first, sq); // first row that sees them all
            let ramp = full - first;
            ramp * (2 * (first + reach) + ramp - 1) / 2 + (sq - full) * n
        };
        let below = |max: Option<i32>, n: i128| max.map_or(sq * n, |max| up_to(max.into(), n));
        let within = |n| below(max, n) - min.map_or(0, |min| up_to(i128::from(min) - 1, n));
        // The first keys, wherever the window is.
        let keep = i128::from(self.window.map_or(0, |w| w.keep_first)).min(sk);
        let kept = below(self.causal.then_some(0), keep);
        // At most 2^30 rows and keys.
        (within(sk) + kept - within(keep)).max(0) as u64
    }

    /// Floating-point operations of the two products, an fma counted as two: `2 (head_dim_qk + head_dim_v)` for
    /// each visible pair.
    pub fn flops(&self) -> u64 {
        let per_pair = 2 * (u64::from(self.shape.head_dim_qk) + u64::from(self.shape.head_dim_v));
        self.visible_pairs().saturating_mul(per_pair)
    }
}
