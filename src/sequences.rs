//! Where the rows and keys of each batch are, in padded and in packed tensors.

use crate::layout::View;
use crate::plan::TableData;
use crate::problem::Problem;

/// The sequences of a problem with the host's tables: how long each is, and where its rows and keys are.
///
/// In a padded problem all are as long as the [`Shape`](crate::Shape) says. In a packed one
/// ([`Problem::packed`]) sequence b has `cu_seqlens[b + 1] - cu_seqlens[b]` rows, from row `cu_seqlens[b]` of the tensor on.
///
/// ```
/// use wgpu_attention::{Problem, Sequences, Shape, TableData};
/// // Sequences of 2, 0 and 3 tokens.
/// let problem = Problem::new(Shape::self_attention(3, 1, 3, 4)).packed(5, 5);
/// let starts = [0, 2, 2, 5];
/// let tables = TableData { cu_seqlens_q: Some(&starts), cu_seqlens_k: Some(&starts), ..TableData::default() };
/// let sequences = Sequences::new(&problem, &tables);
/// assert_eq!([0, 1, 2].map(|b| sequences.queries(b)), [2, 0, 3]);
/// assert_eq!(sequences.row_number([2, 0, 1]), 3);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Sequences<'a> {
    problem: &'a Problem,
    q: Option<&'a [u32]>,
    k: Option<&'a [u32]>,
}

impl<'a> Sequences<'a> {
    /// Of tables that fit the problem ([`Inputs::check`](crate::Inputs::check)); a sequence of which they say nothing has no row.
    pub fn new(problem: &'a Problem, tables: &TableData<'a>) -> Self {
        let starts =
            |packed: Option<u32>, table: Option<&'a [u32]>| packed.map(|_| table.unwrap_or_default());
        Sequences {
            problem,
            q: starts(problem.packed_q, tables.cu_seqlens_q),
            k: starts(problem.packed_k, tables.cu_seqlens_k),
        }
    }

    /// Query rows of a batch.
    pub fn queries(&self, batch: u32) -> u32 {
        self.q.map_or(self.problem.shape.seq_q, |starts| length(starts, batch))
    }

    /// Keys of a batch.
    pub fn keys(&self, batch: u32) -> u32 {
        self.k.map_or(self.problem.shape.seq_k, |starts| length(starts, batch))
    }

    /// Where a row is in a (batch, q_heads, seq_q) array of statistics, or (q_heads, total_q) of a packed problem.
    pub fn row_number(&self, [b, h, i]: [u32; 3]) -> usize {
        let s = &self.problem.shape;
        match (self.q, self.problem.packed_q) {
            (Some(starts), Some(total)) => h as usize * total as usize + (start(starts, b) + i) as usize,
            _ => (b as usize * s.q_heads as usize + h as usize) * s.seq_q as usize + i as usize,
        }
    }

    /// Where a query is in a (batch, seq_q) array, or (total_q) of a packed problem.
    pub(crate) fn query_number(&self, b: u32, i: u32) -> usize {
        number(self.q, self.problem.shape.seq_q, b, i)
    }

    /// Where a key is in a (batch, seq_k) array, or (total_k) of a packed problem.
    pub(crate) fn key_number(&self, b: u32, j: u32) -> usize {
        number(self.k, self.problem.shape.seq_k, b, j)
    }

    /// Where a number of a row is in q or out.
    pub(crate) fn in_q(&self, view: &View, at: [u32; 4]) -> usize {
        index(view, self.q, at)
    }

    /// Where a number of a key is in k or v.
    pub(crate) fn in_k(&self, view: &View, at: [u32; 4]) -> usize {
        index(view, self.k, at)
    }
}

fn start(starts: &[u32], b: u32) -> u32 {
    starts.get(b as usize).copied().unwrap_or_default()
}

fn length(starts: &[u32], b: u32) -> u32 {
    match starts.get(b as usize..) {
        Some([first, next, ..]) => next.saturating_sub(*first),
        _ => 0,
    }
}

fn number(starts: Option<&[u32]>, longest: u32, b: u32, n: u32) -> usize {
    match starts {
        None => b as usize * longest as usize + n as usize,
        Some(starts) => start(starts, b) as usize + n as usize,
    }
}

fn index(view: &View, starts: Option<&[u32]>, [b, h, s, d]: [u32; 4]) -> usize {
    match starts {
        None => view.index([b, h, s, d]) as usize,
        // All sequences one after the other, as one batch.
        Some(starts) => view.index([0, h, start(starts, b) + s, d]) as usize,
    }
}
