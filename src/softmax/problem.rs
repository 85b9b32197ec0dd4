//! What is to be computed: kind, rows, temperature, memory order, statistics.

use crate::dtype::DType;
use crate::error::{Error, Result};

/// Which function of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Kind {
    /// p_i = exp(x_i / tau) / sum_j exp(x_j / tau).
    #[default]
    Softmax,
    /// ln p_i = x_i / tau - lse.
    LogSoftmax,
    /// The point of the simplex that is nearest to x / tau: max(x_i / tau - t, 0) (Martins and Astudillo 2016, arXiv 1602.02068).
    Sparsemax,
    /// alpha-entmax with alpha = 1.5: max(x_i / (2 tau) - t, 0)^2 (Peters, Niculae and Martins 2019, arXiv 1905.05702).
    Entmax15,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Softmax, Kind::LogSoftmax, Kind::Sparsemax, Kind::Entmax15];

    /// `softmax`, `log_softmax`, `sparsemax` or `entmax15`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Softmax => "softmax",
            Kind::LogSoftmax => "log_softmax",
            Kind::Sparsemax => "sparsemax",
            Kind::Entmax15 => "entmax15",
        }
    }

    /// Whether it gives exact zeros below a threshold.
    pub fn is_sparse(self) -> bool {
        matches!(self, Kind::Sparsemax | Kind::Entmax15)
    }
}

/// The temperature: x is divided by it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RowTemperature {
    /// One for all rows: a normal f32 above 0.
    Value(f32),
    /// One for each row, f32, from a buffer that the device may have written. One that is not above 0 spoils its own row.
    PerRow,
}

/// Where rows are, in elements: element i of row (o, n) is at `offset + o * outer + n * inner + i * step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowLayout {
    /// The first element.
    pub offset: u64,
    /// From one outer row to the next.
    pub outer: u64,
    /// From one inner row to the next.
    pub inner: u64,
    /// From one element of a row to the next.
    pub step: u64,
}

/// A softmax as plain data.
///
/// Rows are numbered (outer, inner), so that a softmax along any axis of a tensor is one problem ([`Problem::along_axis`]).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// Which function.
    pub kind: Kind,
    /// Rows: outer and inner.
    pub rows: [u32; 2],
    /// Elements of a row: at least 1.
    pub len: u32,
    /// What x is divided by.
    pub temperature: RowTemperature,
    /// Where x is.
    pub x_layout: RowLayout,
    /// How x is stored; the result is f32, and so are gradients.
    pub x_type: DType,
    /// Where the result goes.
    pub out_layout: RowLayout,
    /// The result takes the place of x.
    pub in_place: bool,
    /// Natural log of the sum of exp(x / tau) of each row; softmax and log-softmax only.
    pub lse: bool,
    /// Entropy of each row in nats; softmax and log-softmax only.
    pub entropy: bool,
    /// The place of each row's largest element, the lowest of equal ones.
    pub argmax: bool,
}

/// Rows beyond this are not numbered.
const MAX_ROWS: u64 = 1 << 31;
/// Elements of a row.
const MAX_LEN: u32 = 1 << 30;

impl Problem {
    /// `rows` rows of `len` elements, one after the other.
    pub fn new(rows: u32, len: u32) -> Self {
        let len64 = u64::from(len);
        let packed = RowLayout { offset: 0, outer: len64 * u64::from(rows), inner: len64, step: 1 };
        Problem {
            kind: Kind::Softmax,
            rows: [1, rows],
            len,
            temperature: RowTemperature::Value(1.0),
            x_layout: packed,
            x_type: DType::F32,
            out_layout: packed,
            in_place: false,
            lse: false,
            entropy: false,
            argmax: false,
        }
    }

    /// Along one axis of a packed tensor. Rows are numbered by the other axes, in their order.
    ///
    /// # Errors
    /// [`Error::Value`] for an axis that the shape does not have, and for a tensor of more elements than can be numbered.
    pub fn along_axis(shape: &[u32], axis: usize) -> Result<Self> {
        let Some(&len) = shape.get(axis) else {
            return Err(Error::value("axis", axis, "below the number of axes"));
        };
        let product = |sizes: &[u32]| sizes.iter().try_fold(1u32, |n, &s| n.checked_mul(s));
        let (Some(outer), Some(inner)) = (product(&shape[..axis]), product(&shape[axis + 1..])) else {
            return Err(Error::value("shape", format!("{shape:?}"), "below 2^32 rows"));
        };
        let step = u64::from(inner);
        let layout = RowLayout { offset: 0, outer: u64::from(len) * step, inner: 1, step };
        Ok(Problem { rows: [outer, inner], x_layout: layout, out_layout: layout, ..Self::new(0, len) })
    }

    /// Outer and inner rows of `len` elements, anywhere.
    pub fn strided(rows: [u32; 2], len: u32, x: RowLayout, out: RowLayout) -> Self {
        Problem { rows, ..Self::new(0, len) }.layouts(x, out)
    }

    /// Another function.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// With a temperature.
    pub fn temperature(mut self, temperature: RowTemperature) -> Self {
        self.temperature = temperature;
        self
    }

    /// With x stored otherwise than as f32, such as the f16 logits of a model.
    pub fn x_type(mut self, dtype: DType) -> Self {
        self.x_type = dtype;
        self
    }

    /// With other memory orders.
    pub fn layouts(mut self, x: RowLayout, out: RowLayout) -> Self {
        (self.x_layout, self.out_layout) = (x, out);
        self
    }

    /// Result in the place of x.
    pub fn in_place(mut self) -> Self {
        self.in_place = true;
        self
    }

    /// With the log-sum-exp of each row.
    pub fn with_lse(mut self) -> Self {
        self.lse = true;
        self
    }

    /// With the entropy of each row.
    pub fn with_entropy(mut self) -> Self {
        self.entropy = true;
        self
    }

    /// With the place of each row's largest element.
    pub fn with_argmax(mut self) -> Self {
        self.argmax = true;
        self
    }

    /// All rows.
    pub fn row_count(&self) -> u64 {
        u64::from(self.rows[0]) * u64::from(self.rows[1])
    }

    /// Elements from the start of a buffer to behind the last one of a layout.
    pub fn extent(&self, layout: &RowLayout) -> u64 {
        if self.row_count() == 0 {
            return 0;
        }
        // Checked to fit.
        layout.offset.saturating_add(self.reach(layout, self.rows))
    }

    /// Elements between the first and the last of some rows.
    pub(super) fn reach(&self, layout: &RowLayout, rows: [u32; 2]) -> u64 {
        let far = |n: u32, step: u64| u64::from(n.max(1) - 1).saturating_mul(step);
        far(rows[0], layout.outer)
            .saturating_add(far(rows[1], layout.inner))
            .saturating_add(far(self.len, layout.step))
            .saturating_add(1)
    }

    /// The number of a row's element.
    pub(super) fn index(&self, layout: &RowLayout, row: u64, i: u64) -> usize {
        let inner = u64::from(self.rows[1].max(1));
        (layout.offset + row / inner * layout.outer + row % inner * layout.inner + i * layout.step) as usize
    }

    /// Checks all that can be known without a device.
    ///
    /// # Errors
    /// [`Error::Value`] with the field and its rule.
    pub fn check(&self) -> Result<()> {
        if self.len == 0 || self.len > MAX_LEN {
            return Err(Error::value("len", self.len, "from 1 to 2^30"));
        }
        if self.row_count() > MAX_ROWS {
            return Err(Error::value("rows", self.row_count(), "at most 2^31 in all"));
        }
        if let RowTemperature::Value(tau) = self.temperature
            && !(tau.is_normal() && tau > 0.0)
        {
            return Err(Error::value("temperature", tau, "a normal number above 0"));
        }
        if self.kind.is_sparse() {
            for (field, on) in [("lse", self.lse), ("entropy", self.entropy)] {
                if on {
                    let rule = "off for sparsemax and entmax, whose results are no exponentials";
                    return Err(Error::value(field, on, rule));
                }
            }
        }
        for (field, layout) in [("x_layout", &self.x_layout), ("out_layout", &self.out_layout)] {
            if layout.offset.saturating_add(self.reach(layout, self.rows)) >= 1 << 62 {
                return Err(Error::value(field, format!("{layout:?}"), "within 2^62 elements"));
            }
        }
        if self.in_place && self.x_layout != self.out_layout {
            return Err(Error::value("out_layout", format!("{:?}", self.out_layout), "that of x, in place"));
        }
        if self.in_place && self.x_type != DType::F32 {
            return Err(Error::value("x_type", self.x_type.name(), "f32 in place, as the result is"));
        }
        self.check_apart()
    }

    /// What is written is written once.
    fn check_apart(&self) -> Result<()> {
        let out = &self.out_layout;
        let mut steps = [(out.outer, self.rows[0]), (out.inner, self.rows[1]), (out.step, self.len)];
        steps.sort_unstable();
        if steps.iter().any(|&(_, count)| count == 0) {
            return Ok(());
        }
        let mut within = 0u64;
        for (step, count) in steps {
            if count > 1 {
                if step <= within {
                    let rule = "such that no two elements are in one place";
                    return Err(Error::value("out_layout", format!("{out:?}"), rule));
                }
                within = within.saturating_add(step.saturating_mul(u64::from(count) - 1));
            }
        }
        Ok(())
    }
}
