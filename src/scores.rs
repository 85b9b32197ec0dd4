//! The scores themselves, on demand: for pictures, debugging and what else needs attention weights.
//!
//! A fused kernel never has them all at once. So this is a slow path, and says so: the naive kernel's first passes, one head at a
//! time, with as much memory as there are scores.

use crate::attention::Attention;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::host::Inputs;
use crate::kernel::Kernel;
use crate::layout::{Layout, Strides, View};
use crate::mask::{Alignment, MaskFormat};
use crate::normalizer::{Normalizer, SigmoidBias};
use crate::plan::{Plan, PlanOptions, TableData};
use crate::problem::Problem;
use crate::qk_norm::{NormGains, QkNorm};
use crate::readback;
use crate::reference;
use crate::score::{Broadcast, Sink};
use crate::sequences::Sequences;
use crate::shape::{Shape, Stats};
use crate::sharpness::{LengthScale, Temperature};
use crate::tensor::Tensor;
use core::ops::Range;

/// How far a score has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScoreStage {
    /// `q.k * scale / temperature`, of every pair whether it is visible or not (`-inf` for rows beyond
    /// [`q_len`](crate::Problem::with_q_len), which are none).
    Raw,
    /// After the soft cap, of every pair. As [`ScoreStage::Raw`] where there is none.
    Capped,
    /// After [`Problem::score_mod`](crate::Problem::score_mod()), bias, ALiBi and masks: `-inf` where the row does not see the key. What the softmax is taken of, but for adaptive
    /// temperature and top-k, which come after.
    Biased,
    /// After the softmax (and its sink) or another [`Normalizer`]: the attention weights, 0 where the row does not see the key. Before
    /// dropout.
    Probs,
}

impl ScoreStage {
    /// All stages, in order.
    pub const ALL: [ScoreStage; 4] =
        [ScoreStage::Raw, ScoreStage::Capped, ScoreStage::Biased, ScoreStage::Probs];

    /// `raw`, `capped`, `biased` or `probs`: the name in case files.
    pub fn name(self) -> &'static str {
        match self {
            ScoreStage::Raw => "raw",
            ScoreStage::Capped => "capped",
            ScoreStage::Biased => "biased",
            ScoreStage::Probs => "probs",
        }
    }
}

/// One head of a problem as a problem of its own, with copies of the small inputs that belong to it.
struct Head<'a> {
    problem: Problem,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    bias: Option<Vec<f32>>,
    mask: Option<Vec<u8>>,
    /// As many of the part as are valid.
    q_len: Option<[u32; 1]>,
    kv_len: Option<[u32; 1]>,
    tables: TableData<'a>,
}

impl Attention {
    /// The scores of some rows of one (batch, query head): (rows, seq_k), f32, in natural units; of a packed sequence, as many rows and
    /// keys as it has. **Submits to `queue`** and reads
    /// back.
    ///
    /// A fused kernel never has all scores at once. So this is a slow path: the naive kernel's first passes, with as much device
    /// memory as there are scores. The float64 counterpart is [`reference::scores`].
    ///
    /// # Errors
    /// As [`Attention::run`]; [`Error::Value`] for a batch, head or row that the problem does not have;
    /// [`Error::Incompatible`] for a stage before the masks of a problem with a [`LengthScale`] that counts visible keys.
    ///
    /// ```
    /// # #[cfg(not(target_arch = "wasm32"))]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use wgpu_attention::{Alignment, Attention, Inputs, Problem, ScoreStage, Shape, headless};
    /// let gpu = headless::open_blocking(&headless::Options::default())?;
    /// let attention = Attention::new(&gpu.device);
    /// let problem = Problem::new(Shape::self_attention(1, 1, 2, 1)).causal(Alignment::BottomRight);
    /// let inputs = Inputs::new(&[0.0, 0.0], &[1.0, 2.0], &[10.0, 20.0]);
    /// let probs = attention.scores_blocking(&gpu.queue, &problem, &inputs, ScoreStage::Probs, [0, 0], 0..2)?;
    /// assert_eq!(probs, [1.0, 0.0, 0.5, 0.5]);
    /// # Ok(())
    /// # }
    /// # #[cfg(target_arch = "wasm32")]
    /// # fn main() {}
    /// ```
    pub async fn scores(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        inputs: &Inputs<'_>,
        stage: ScoreStage,
        [batch, head]: [u32; 2],
        rows: Range<u32>,
    ) -> Result<Vec<f32>> {
        let Some((head, plan)) = self.plan_scores(problem, inputs, stage, [batch, head], rows)? else {
            return Ok(Vec::new());
        };
        let inputs = Inputs {
            q: head.q,
            k: head.k,
            v: head.v,
            bias: head.bias.as_deref(),
            mask: head.mask.as_deref(),
            tables: TableData {
                q_len: head.q_len.as_ref().map(<[u32; 1]>::as_slice),
                kv_len: head.kv_len.as_ref().map(<[u32; 1]>::as_slice),
                ..head.tables
            },
        };
        let bound = self.bind_host(&plan, &inputs).await?;
        let passes = if stage == ScoreStage::Probs { 2 } else { 1 };
        let bytes = u64::from(head.problem.shape.seq_q) * u64::from(head.problem.shape.seq_k) * 4;
        let target = readback::Target::new(self.context(), bytes).await?;
        let mut encoder = self
            .device()
            .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("attention scores") });
        bound.bound.encode_scores(&mut encoder, passes, target.buffer());
        let submission = queue.submit([encoder.finish()]);
        let mut scores = DType::F32.decode(&target.map(self.context(), submission)?.read().await?);
        if stage != ScoreStage::Probs {
            // From the unit of scores, and from the finite number that stands for "not seen".
            let natural = if plan.key().softcap { 1.0 } else { core::f32::consts::LN_2 };
            for s in &mut scores {
                *s = if *s < -2.9e38 { f32::NEG_INFINITY } else { *s * natural };
            }
        }
        Ok(scores)
    }

    /// Says what [`Attention::scores`] would refuse, and computes nothing.
    ///
    /// # Errors
    /// As [`Attention::scores`], but for those of the device.
    pub fn check_scores(
        &self,
        problem: &Problem,
        inputs: &Inputs<'_>,
        stage: ScoreStage,
        at: [u32; 2],
        rows: Range<u32>,
    ) -> Result<()> {
        self.plan_scores(problem, inputs, stage, at, rows).map(drop)
    }

    /// The part and its plan; None where there are no scores.
    fn plan_scores<'a>(
        &self,
        problem: &Problem,
        inputs: &Inputs<'a>,
        stage: ScoreStage,
        [batch, head]: [u32; 2],
        rows: Range<u32>,
    ) -> Result<Option<(Head<'a>, Plan)>> {
        inputs.check(problem)?;
        let sequences = Sequences::new(problem, &inputs.tables);
        check_place(problem, &sequences, [batch, head], &rows)?;
        if rows.is_empty() || sequences.keys(batch) == 0 {
            return Ok(None);
        }
        // User code is given the whole problem's indices, and this is a part of it.
        let origin = [batch, head, rows.start];
        let head = Head::new(problem, inputs, [batch, head], rows)?.at(stage)?;
        let plan = self.plan_with(&head.problem, &PlanOptions::kernel(Kernel::Naive))?.part_from(origin);
        Ok(Some((head, plan)))
    }

    /// [`Attention::scores`] for code that is not async: waits for the device.
    ///
    /// # Errors
    /// As [`Attention::scores`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn scores_blocking(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        inputs: &Inputs<'_>,
        stage: ScoreStage,
        at: [u32; 2],
        rows: Range<u32>,
    ) -> Result<Vec<f32>> {
        pollster::block_on(self.scores(queue, problem, inputs, stage, at, rows))
    }
}

fn check_place(
    problem: &Problem,
    sequences: &Sequences<'_>,
    [b, h]: [u32; 2],
    rows: &Range<u32>,
) -> Result<()> {
    let s = &problem.shape;
    for (field, at, size) in [("batch", b, s.batch), ("head", h, s.q_heads)] {
        if at >= size {
            return Err(Error::value(field, at, "within the problem's shape"));
        }
    }
    if rows.start > rows.end || rows.end > sequences.queries(b) {
        let rows = format!("{}..{}", rows.start, rows.end);
        return Err(Error::value("rows", rows, "a range within the problem's shape"));
    }
    Ok(())
}

impl<'a> Head<'a> {
    /// Of at least one row, which is there, and with at least one key.
    fn new(problem: &Problem, inputs: &Inputs<'a>, [b, h]: [u32; 2], rows: Range<u32>) -> Result<Self> {
        let s = &problem.shape;
        let sequences = Sequences::new(problem, &inputs.tables);
        let (seq_q, seq_k) = (rows.len() as u32, sequences.keys(b));
        let mut one = Problem::new(Shape { batch: 1, q_heads: 1, kv_heads: 1, seq_q, seq_k, ..*s });
        one.scale = problem.scale;
        one.length_scale = problem.length_scale;
        one.qk_norm = problem.qk_norm;
        one.dtypes = problem.dtypes;
        one.causal = problem.causal;
        one.window = problem.window;
        one.documents = problem.documents;
        one.q_len = problem.q_len;
        one.kv_len = problem.kv_len;
        one.softcap = problem.softcap;
        one.alibi = problem.alibi;
        one.sink = problem.sink;
        (one.adaptive_temperature, one.top_k) = (problem.adaptive_temperature, problem.top_k);
        one.normalizer = match problem.normalizer {
            // Of the whole problem's seq_k, which a packed sequence does not have.
            Normalizer::Sigmoid { bias: SigmoidBias::MinusLogSeqK } => {
                let bias = problem.normalizer.constant_bias(s.seq_k) as f32;
                Normalizer::Sigmoid { bias: SigmoidBias::Value(bias) }
            }
            normalizer => normalizer,
        };
        (one.score_mod, one.mask_mod) = (problem.score_mod.clone(), problem.mask_mod.clone());
        one.user_params = problem.user_params;
        if problem.uses_positions() {
            // Row 0 of the part stands where its first row stood.
            let position =
                reference::Cpu { problem, inputs, mods: reference::Mods::default() }.position(b, rows.start);
            one.alignment = Alignment::Offset(i32::try_from(position).unwrap_or(i32::MAX));
        }

        let part = |tensor, slice: &'a [f32], origin: [u32; 4]| -> Result<(&'a [f32], Layout)> {
            let view = problem.view(tensor)?;
            let start = match tensor {
                Tensor::Q => sequences.in_q(&view, origin),
                _ => sequences.in_k(&view, origin),
            };
            let Strides { seq, dim, .. } = view.strides();
            let layout = Layout::Strided(Strides { offset: 0, batch: 0, head: 0, seq, dim });
            Ok((&slice[start..], layout))
        };
        let kv = h / s.group();
        let (q, q_layout) = part(Tensor::Q, inputs.q, [b, h, rows.start, 0])?;
        let (k, k_layout) = part(Tensor::K, inputs.k, [b, kv, 0, 0])?;
        let (v, v_layout) = part(Tensor::V, inputs.v, [b, kv, 0, 0])?;
        (one.q_layout, one.k_layout, one.v_layout) = (q_layout, k_layout, v_layout);
        // No more of the slices than the part reaches: the rest would be uploaded in vain.
        let reach = |tensor| one.view(tensor).map(|v: View| v.extent() as usize);
        let (q, k, v) = (&q[..reach(Tensor::Q)?], &k[..reach(Tensor::K)?], &v[..reach(Tensor::V)?]);

        let one_of = |table: Option<&'a [f32]>| table.map(|t| &t[h as usize..=h as usize]);
        let q_len = inputs.tables.q_len.map(|t| [t[b as usize].clamp(rows.start, rows.end) - rows.start]);
        let kv_len = inputs.tables.kv_len.map(|t| [t[b as usize].min(seq_k)]);
        let gains_of = |table: Option<&'a [f32]>, head: u32| match problem.qk_norm {
            Some(QkNorm { gains: NormGains::PerHead, .. }) => {
                let dim = s.head_dim_qk as usize;
                table.map(|t| &t[head as usize * dim..(head as usize + 1) * dim])
            }
            _ => table,
        };
        let mut tables = TableData {
            documents_q: inputs.tables.documents_q.map(|t| {
                let first = sequences.query_number(b, rows.start);
                &t[first..first + rows.len()]
            }),
            documents_k: inputs.tables.documents_k.map(|t| {
                let first = sequences.key_number(b, 0);
                &t[first..first + seq_k as usize]
            }),
            alibi_slopes: one_of(inputs.tables.alibi_slopes),
            sinks: one_of(inputs.tables.sinks),
            ssmax: one_of(inputs.tables.ssmax),
            q_gain: gains_of(inputs.tables.q_gain, h),
            k_gain: gains_of(inputs.tables.k_gain, kv),
            user: inputs.tables.user,
            ..TableData::default()
        };
        one.temperature = problem.temperature;
        match problem.temperature {
            Temperature::Value(_) => {}
            Temperature::PerHead => tables.temperature = one_of(inputs.tables.temperature),
            Temperature::PerRow => {
                let first = sequences.row_number([b, h, rows.start]);
                let range = first..first + rows.len();
                tables.temperature = inputs.tables.temperature.map(|t| &t[range]);
            }
        }

        // Dense inputs of one head: rows or one row, keys or one key.
        let dense = |sizes: Broadcast| {
            let [_, _, row, key] = sizes.0;
            let row_count = if row == 1 { 1 } else { rows.len() as u32 };
            let key = key.min(seq_k);
            let strides = sizes.strides();
            let pairs: Vec<usize> = (0..row_count)
                .flat_map(|r| (0..key).map(move |j| [b, h, if row == 1 { 0 } else { rows.start + r }, j]))
                .map(|at| reference::dense_index(strides, at))
                .collect();
            (Broadcast([1, 1, row_count, key]), pairs)
        };
        let mut bias = None;
        if let (Some((dtype, sizes)), Some(data)) = (problem.bias, inputs.bias) {
            let (sizes, pairs) = dense(sizes);
            bias = Some(pairs.into_iter().map(|at| data[at]).collect());
            one.bias = Some((dtype, sizes));
        }
        let mut mask = None;
        if let (Some((format, sizes)), Some(data)) = (problem.mask, inputs.mask) {
            let (sizes, pairs) = dense(sizes);
            let keeps = |at| u8::from(reference::mask_keeps(format, data, at));
            mask = Some(pairs.into_iter().map(keeps).collect());
            one.mask = Some((MaskFormat::Bytes, sizes));
        }
        one.stats = Stats::default();
        Ok(Head { problem: one, q, k, v, bias, mask, q_len, kv_len, tables })
    }

    /// Leaves out what comes after a stage. What is left are the scores of a simpler problem.
    fn at(mut self, stage: ScoreStage) -> Result<Self> {
        if matches!(stage, ScoreStage::Biased | ScoreStage::Probs) {
            return Ok(self);
        }
        let p = &mut self.problem;
        if matches!(p.length_scale, LengthScale::Ssmax | LengthScale::LogTrainLen { .. }) {
            return Err(Error::Incompatible {
                option: "length_scale",
                other: "scores before the masks",
                why: "it counts the keys that the masks leave visible",
            });
        }
        if stage == ScoreStage::Raw {
            p.softcap = None;
        }
        (p.causal, p.window, p.kv_len, p.mask, p.bias, p.alibi) = (false, None, false, None, None, false);
        (p.sink, p.normalizer) = (Sink::None, Normalizer::Softmax);
        (p.adaptive_temperature, p.top_k) = (None, None);
        p.documents = false;
        (p.score_mod, p.mask_mod, p.user_params) = (None, None, 0);
        if !p.uses_positions() {
            p.alignment = Alignment::default();
        }
        (self.bias, self.mask, self.kv_len) = (None, None, None);
        let TableData { temperature, q_gain, k_gain, .. } = self.tables;
        self.tables = TableData { temperature, q_gain, k_gain, ..TableData::default() };
        Ok(self)
    }
}
