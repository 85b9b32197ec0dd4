//! What a problem costs at least, by formulas that say what they count.

use super::roofs::Roofs;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::problem::Problem;
use crate::tensor::Tensor;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Work that no kernel can avoid, counted from what is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// (query, key) pairs that causal mask and window leave visible, over all batches and heads: [`Problem::visible_pairs`]. Each
    /// needs one exponential.
    pub pairs: u64,
    /// `2 (head_dim_qk + head_dim_v)` for each visible pair: [`Problem::flops`]. With one head dim D this is the `4 B H Sq Sk D` of the
    /// papers where every key is visible, and about half of it for a causal square.
    pub flops: u64,
    /// Bytes of q, out and statistics, of bias and mask as they are stored, and of the rows of k and v that some query sees: each
    /// moved once.
    pub bytes: u64,
    /// Of these, the bytes of k and v.
    pub kv_bytes: u64,
}

impl Cost {
    /// Counts a problem.
    ///
    /// # Errors
    /// What [`Problem::check`] finds.
    pub fn of(problem: &Problem) -> Result<Cost> {
        problem.check()?;
        let s = &problem.shape;
        let row_bits = |tensor: Tensor, dim: u32| u64::from(problem.bits(tensor)) * u64::from(dim);
        let queries = problem.rows();
        let keys = match problem.packed_k {
            Some(total) => u64::from(total),
            None => u64::from(s.batch).saturating_mul(seen_keys(problem)),
        };
        let keys = keys.saturating_mul(s.kv_heads.into());
        let bytes = |rows: u64, bits: u64| rows.saturating_mul(bits).div_ceil(8);
        let kv_bytes = bytes(keys, row_bits(Tensor::K, s.head_dim_qk) + row_bits(Tensor::V, s.head_dim_v));
        let q_out = bytes(queries, row_bits(Tensor::Q, s.head_dim_qk) + row_bits(Tensor::Out, s.head_dim_v));
        let stats = queries.saturating_mul(4 * u64::from(problem.stats.count()));
        let dense = problem.bytes(Tensor::Bias)?.saturating_add(problem.bytes(Tensor::Mask)?);
        Ok(Cost {
            pairs: problem.visible_pairs(),
            flops: problem.flops(),
            bytes: kv_bytes.saturating_add(q_out).saturating_add(stats).saturating_add(dense),
            kv_bytes,
        })
    }

    /// Operations for each byte.
    pub fn intensity(&self) -> f64 {
        self.flops as f64 / self.bytes.max(1) as f64
    }

    /// The time that the adapter's lowest roof allows, in seconds, and which roof that is.
    pub fn floor(&self, roofs: &Roofs) -> (f64, Limit) {
        self.floor_of(roofs, Kernel::Tiled)
    }

    /// [`Cost::floor`] for one kernel: products on matrices have a roof of their own.
    pub fn floor_of(&self, roofs: &Roofs, kernel: Kernel) -> (f64, Limit) {
        let on_matrices = kernel == Kernel::Matrix && roofs.matrix.is_some();
        let compute = if on_matrices { Limit::Matrix } else { Limit::Compute };
        [
            (self.flops as f64 / roofs.compute_of(kernel), compute),
            (self.pairs as f64 / roofs.exp2, Limit::Exp2),
            (self.bytes as f64 / roofs.memory(), Limit::Memory),
        ]
        .into_iter()
        .fold((0.0, compute), |most, next| if next.0 > most.0 { next } else { most })
    }
}

/// The roof that is lowest for a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Limit {
    /// Multiplications and additions.
    Compute,
    /// Multiplications and additions of matrices.
    Matrix,
    /// Exponentials.
    Exp2,
    /// Bytes from and to device memory.
    Memory,
}

impl Limit {
    /// `compute`, `matrix`, `exp2` or `memory`.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Compute => "compute",
            Limit::Matrix => "matrix",
            Limit::Exp2 => "exp2",
            Limit::Memory => "memory",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Keys of a head that at least one row sees: a range from the first row's window to the last row's, and the first keys that a
/// window keeps. Like [`Problem::visible_pairs`], it takes device-side lengths, offsets and masks to hide nothing.
fn seen_keys(problem: &Problem) -> u64 {
    let s = &problem.shape;
    let (rows, keys) = (i64::from(s.seq_q), i64::from(s.seq_k));
    if rows == 0 {
        return 0;
    }
    let offset = i64::from(problem.alignment.offset(s.seq_q, s.seq_k).unwrap_or(0));
    let (min, max) = problem.distances();
    let first = min.map_or(0, |d| (offset + i64::from(d)).clamp(0, keys));
    let end = max.map_or(keys, |d| (offset + rows + i64::from(d)).clamp(0, keys));
    // Kept first keys lie under the causal mask.
    let causal_end = if problem.causal { (offset + rows).clamp(0, keys) } else { keys };
    let kept = problem.window.map_or(0, |w| i64::from(w.keep_first)).min(causal_end);
    let window = (end - first).max(0);
    let shared = if window > 0 { (kept.min(end) - first).clamp(0, window) } else { 0 };
    (window + kept - shared) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::{Alignment, Window};
    use crate::shape::Shape;

    /// Pairs and keys by looking at each pair, against the formulas.
    #[test]
    fn counts_are_those_of_brute_force() {
        let ends = [None, Some(0), Some(2), Some(9)];
        let alignments =
            [Alignment::TopLeft, Alignment::BottomRight, Alignment::Offset(-3), Alignment::Offset(4)];
        for (rows, keys) in [(1, 1), (1, 7), (5, 7), (7, 5), (8, 8), (3, 0)] {
            for (left, right, keep) in ends
                .iter()
                .flat_map(|l| ends.iter().map(move |r| (*l, *r)))
                .flat_map(|(l, r)| [0, 2].map(|keep| (l, r, keep)))
            {
                for (causal, alignment) in
                    [true, false].iter().flat_map(|c| alignments.iter().map(move |a| (*c, *a)))
                {
                    let shape = Shape { seq_q: rows, seq_k: keys, ..Shape::self_attention(2, 4, 1, 8) };
                    let mut problem = Problem::new(Shape { kv_heads: 2, ..shape });
                    let windowed = left.is_some() || right.is_some() || keep > 0;
                    if windowed {
                        problem = problem.window(Window { left, right, keep_first: keep });
                    }
                    if windowed || causal {
                        problem = problem.align(alignment);
                    }
                    problem.causal = causal;
                    let offset = problem.alignment.offset(rows, keys).unwrap();
                    let sees = |i: u32, j: u32| {
                        let distance = j as i32 - (i as i32 + offset);
                        let within = left.is_none_or(|l| distance >= -(l as i32))
                            && right.is_none_or(|r| distance <= r as i32);
                        (!causal || distance <= 0) && (within || j < keep)
                    };
                    let pairs = (0..rows).flat_map(|i| (0..keys).map(move |j| (i, j)));
                    let visible = pairs.filter(|&(i, j)| sees(i, j)).count() as u64;
                    let seen = (0..keys).filter(|&j| (0..rows).any(|i| sees(i, j))).count() as u64;
                    let cost = Cost::of(&problem).unwrap();
                    let what = format!("{problem:?}");
                    assert_eq!(cost.pairs, visible * 8, "{what}");
                    assert_eq!(cost.flops, visible * 8 * 4 * 8, "{what}");
                    // A window with a gap before the kept keys may leave keys between that no row sees.
                    assert_eq!(cost.kv_bytes, seen * 4 * 2 * 8 * 4, "{what}");
                    assert_eq!(cost.bytes, cost.kv_bytes + u64::from(rows) * 8 * 2 * 8 * 4, "{what}");
                }
            }
        }
    }

    #[test]
    fn the_lowest_roof_is_found() {
        let roofs = Roofs {
            fma: 1e9,
            dot: 2e9,
            exp2: 1e9,
            copy: 5e8,
            wide_copy: None,
            read: 1e9,
            workgroup: 1e9,
            matrix: Some(4e9),
        };
        let shape = Shape::self_attention(1, 1, 1000, 64);
        let (seconds, limit) = Cost::of(&Problem::new(shape)).unwrap().floor(&roofs);
        assert_eq!((seconds, limit), (4.0 * 64.0 * 1e6 / 2e9, Limit::Compute));
        // Only a kernel that multiplies matrices is held against what matrices reach.
        let on_matrices = Cost::of(&Problem::new(shape)).unwrap().floor_of(&roofs, Kernel::Matrix);
        assert_eq!(on_matrices, (4.0 * 64.0 * 1e6 / 4e9, Limit::Matrix));
        let none = Roofs { matrix: None, ..roofs };
        let without = Cost::of(&Problem::new(shape)).unwrap().floor_of(&none, Kernel::Matrix);
        assert_eq!(without, (seconds, Limit::Compute));
        let decode = Cost::of(&Problem::new(Shape { seq_q: 1, ..shape })).unwrap();
        assert_eq!(decode.floor(&roofs), ((2 * 1000 + 2) as f64 * 64.0 * 4.0 / 1e9, Limit::Memory));
        let narrow = Cost::of(&Problem::new(Shape::self_attention(1, 1, 1000, 1))).unwrap();
        assert_eq!(narrow.floor(&Roofs { exp2: 1e8, ..roofs }), (1e6 / 1e8, Limit::Exp2));
    }
}
