//! Where an element is: layouts, strides and extents. All arithmetic is 64-bit and checked.

use crate::error::{Error, Result};

/// The memory order of a (batch, head, seq, dim) tensor.
///
/// The order is always spelled out, because a tensor in the other order has the same number of elements and
/// gives plausible nonsense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Layout {
    /// Packed (batch, head, seq, dim): what PyTorch's SDPA and ONNX's 4-d attention take.
    #[default]
    Bhsd,
    /// Packed (batch, seq, head, dim): what FlashAttention takes and what projections give.
    Bshd,
    /// Anything else: a slice of a packed qkv tensor, a transposed k, padded rows, a head that is broadcast
    /// (stride 0).
    Strided(Strides),
}

/// Distances in elements: element (b, h, s, d) is at
/// `offset + b * batch + h * head + s * seq + d * dim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strides {
    /// The first element.
    pub offset: u64,
    /// From one batch to the next.
    pub batch: u64,
    /// From one head to the next.
    pub head: u64,
    /// From one position to the next.
    pub seq: u64,
    /// From one number of a row to the next; 1 is what the vector loads need.
    pub dim: u64,
}

/// A layout applied to sizes: answers where an element is and how far the tensor reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    name: &'static str,
    sizes: [u32; 4],
    strides: Strides,
    extent: u64,
}

const MAX_EXTENT: u128 = 1 << 62;

impl View {
    pub(crate) fn new(name: &'static str, sizes: [u32; 4], layout: Layout) -> Result<Self> {
        let strides = packed(layout, sizes);
        let steps = [strides.batch, strides.head, strides.seq, strides.dim];
        let extent = if sizes.contains(&0) {
            0
        } else {
            // Saturating, so that even strides near 2^64 come out as "too far" and not as a small number.
            sizes.iter().zip(steps).fold(u128::from(strides.offset) + 1, |reach, (&size, step)| {
                reach.saturating_add(u128::from(size - 1) * u128::from(step))
            })
        };
        if extent > MAX_EXTENT {
            return Err(Error::Value {
                field: name,
                value: format!("spread over {extent} elements"),
                rule: "within 2^62 elements",
            });
        }
        Ok(View { name, sizes, strides, extent: extent as u64 })
    }

    /// (batch, head, seq, dim) sizes.
    pub fn sizes(&self) -> [u32; 4] {
        self.sizes
    }

    /// The strides in elements.
    pub fn strides(&self) -> Strides {
        self.strides
    }

    /// One more than the index of the last element: the length that a slice or buffer must have. 0 for a tensor
    /// without elements.
    pub fn extent(&self) -> u64 {
        self.extent
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.sizes.iter().fold(1u64, |n, &s| n.saturating_mul(s.into()))
    }

    /// Index of element (batch, head, seq, dim), each within its size.
    pub fn index(&self, [b, h, s, d]: [u32; 4]) -> u64 {
        let t = &self.strides;
        t.offset
            + u64::from(b) * t.batch
            + u64::from(h) * t.head
            + u64::from(s) * t.seq
            + u64::from(d) * t.dim
    }

    /// The elements in the order (batch, head, seq, dim), from a slice as long as the extent.
    #[cfg(feature = "case")]
    pub(crate) fn gather(&self, from: &[f32]) -> Vec<f32> {
        self.indices().map(|at| from[at]).collect()
    }

    /// A slice as long as the extent with elements that come in the order (batch, head, seq, dim). What no element is at is NaN.
    #[cfg(feature = "case")]
    pub(crate) fn scatter(&self, numbers: &[f32]) -> Vec<f32> {
        let mut to = vec![f32::NAN; self.extent as usize];
        for (at, &x) in self.indices().zip(numbers) {
            to[at] = x;
        }
        to
    }

    #[cfg(feature = "case")]
    fn indices(&self) -> impl Iterator<Item = usize> {
        let [batches, heads, seq, dims] = self.sizes;
        let view = *self;
        (0..batches)
            .flat_map(move |b| (0..heads).map(move |h| [b, h]))
            .flat_map(move |[b, h]| (0..seq).map(move |s| [b, h, s]))
            .flat_map(move |[b, h, s]| (0..dims).map(move |d| view.index([b, h, s, d]) as usize))
    }

    /// True where rows can be loaded four numbers at a time: rows are contiguous, a multiple of four long, and
    /// start at multiples of four.
    pub(crate) fn is_vec4(&self) -> bool {
        let t = &self.strides;
        let [b, h, s, d] = self.sizes;
        let starts = [(b, t.batch), (h, t.head), (s, t.seq)];
        (t.dim == 1 || d == 1)
            && d.is_multiple_of(4)
            && t.offset.is_multiple_of(4)
            && starts.iter().all(|&(n, step)| n <= 1 || step.is_multiple_of(4))
    }

    /// Refuses strides under which two elements of a tensor that is written would fall on one place.
    pub(crate) fn check_no_overlap(&self) -> Result<()> {
        let t = &self.strides;
        if self.extent == 0 {
            // Nothing overlaps nothing; and packed strides of a tensor without heads or rows are 0.
            return Ok(());
        }
        let mut steps: Vec<(u64, u32)> = [t.batch, t.head, t.seq, t.dim]
            .into_iter()
            .zip(self.sizes)
            .filter(|&(_, size)| size > 1)
            .collect();
        steps.sort_unstable();
        // Sorted by step, each step must be longer than all that lies within it.
        let mut reach = 0u64;
        for (step, size) in steps {
            if step <= reach {
                return Err(Error::Value {
                    field: self.name,
                    value: format!("laid out with {t:?}"),
                    rule: "laid out so that no two elements share a place",
                });
            }
            reach += u64::from(size - 1) * step;
        }
        Ok(())
    }
}

/// Strides of a (batch, head, seq, dim) tensor that is packed in bhsd or bshd order.
fn packed(layout: Layout, [_, heads, seq, dim]: [u32; 4]) -> Strides {
    let (h, s, d) = (u64::from(heads), u64::from(seq), u64::from(dim));
    match layout {
        Layout::Bhsd => Strides {
            offset: 0,
            batch: h.saturating_mul(s).saturating_mul(d),
            head: s.saturating_mul(d),
            seq: d,
            dim: 1,
        },
        Layout::Bshd => Strides {
            offset: 0,
            batch: h.saturating_mul(s).saturating_mul(d),
            head: d,
            seq: h.saturating_mul(d),
            dim: 1,
        },
        Layout::Strided(strides) => strides,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_extents_are_the_element_count() {
        for layout in [Layout::Bhsd, Layout::Bshd] {
            let v = View::new("q", [2, 3, 5, 7], layout).unwrap();
            assert_eq!(v.extent(), 2 * 3 * 5 * 7);
            assert_eq!(v.index([1, 2, 4, 6]), 2 * 3 * 5 * 7 - 1);
            v.check_no_overlap().unwrap();
        }
    }

    #[test]
    fn silly_strides_are_errors_and_not_small_numbers() {
        let strides =
            Strides { offset: u64::MAX, batch: u64::MAX, head: u64::MAX, seq: u64::MAX, dim: u64::MAX };
        assert!(View::new("q", [9, 9, 9, 9], Layout::Strided(strides)).is_err());
        let shape = [u32::MAX, u32::MAX, 1 << 30, 1 << 30];
        assert!(View::new("q", shape, Layout::Bhsd).is_err());
    }

    #[test]
    fn overlapping_output_is_refused() {
        let s = |batch, head, seq, dim| {
            let strides = Strides { offset: 0, batch, head, seq, dim };
            View::new("out", [2, 2, 4, 8], Layout::Strided(strides)).unwrap().check_no_overlap()
        };
        assert!(s(64, 32, 8, 1).is_ok());
        assert!(s(64, 8, 16, 1).is_ok());
        assert!(s(64, 32, 4, 1).is_err());
        assert!(s(0, 32, 8, 1).is_err());
        assert!(s(1, 2, 4, 16).is_ok());
    }
}
