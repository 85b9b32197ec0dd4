//! `Problem`: what is to be computed. Plain data, checked once.

mod counts;
mod rules;

use crate::dropout::Dropout;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::Search;
use crate::layout::{Layout, Strides, View};
use crate::mask::{Alignment, MaskFormat, Window};
use crate::normalizer::Normalizer;
use crate::qk_norm::QkNorm;
use crate::score::{Broadcast, Sink};
use crate::shape::{Shape, Stats};
use crate::sharpness::{AdaptiveTemperature, LengthScale, Scale, Temperature};
use crate::tensor::Tensor;
use crate::user_code::UserCode;

/// What is to be computed: `softmax(cap(q k^T * scale / temperature) + bias + mask) v`.
///
/// Built by [`Problem::new`] and the methods named after the options; every option that is not touched costs
/// nothing in the kernel. The order in which options act is in the [crate's documentation](crate#the-order-of-a-score).
///
/// A row that sees no key gives 0. Keys that a row does not see may hold anything, NaN too. NaN or infinity at a key that a row does
/// see, or a score whose magnitude times log2(e) is not below 3e38, leaves that row unspecified, and no other.
///
/// ```
/// use wgpu_attention::{Alignment, Problem, Shape, Temperature};
/// let problem = Problem::new(Shape::self_attention(1, 12, 128, 64))
///     .causal(Alignment::BottomRight)
///     .temperature(Temperature::Value(0.7))
///     .with_lse();
/// assert!(problem.check().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// Sizes.
    pub shape: Shape,
    /// Memory order of q.
    pub q_layout: Layout,
    /// Memory order of k.
    pub k_layout: Layout,
    /// Memory order of v.
    pub v_layout: Layout,
    /// Memory order of out.
    pub out_layout: Layout,
    /// The multiplier of q.k. Default: 1/sqrt(head_dim_qk).
    pub scale: Scale,
    /// The divisor of the scaled score. Default: 1.
    pub temperature: Temperature,
    /// A multiplier of the score that grows with the context.
    pub length_scale: LengthScale,
    /// A multiplier of the score that follows from the entropy of a row.
    pub adaptive_temperature: Option<AdaptiveTemperature>,
    /// q and k are normalised before their product.
    pub qk_norm: Option<QkNorm>,
    /// Storage of q, k, v and out, in this order.
    pub dtypes: [DType; 4],
    /// A row sees no key beyond its position.
    pub causal: bool,
    /// A row sees keys near its position.
    pub window: Option<Window>,
    /// Where a row's position is; what causal masks, windows and ALiBi count from.
    pub alignment: Alignment,
    /// Rows of q and out where the sequences lie one after the other without padding, with their starts in the table
    /// `cu_seqlens_q`.
    pub packed_q: Option<u32>,
    /// Rows of k and v where the sequences lie one after the other without padding, with their starts in the table
    /// `cu_seqlens_k`.
    pub packed_k: Option<u32>,
    /// True where a table gives each batch its own number of valid queries; rows at or beyond it are written as 0 and may
    /// hold anything.
    pub q_len: bool,
    /// True where a table gives each batch its own number of valid keys; keys at or beyond it are not
    /// visible and may hold anything.
    pub kv_len: bool,
    /// True where tables give each query and each key the number of its document, and a row sees only keys of its own.
    pub documents: bool,
    /// A dense mask: which pairs may attend. Its storage and its sizes.
    pub mask: Option<(MaskFormat, Broadcast)>,
    /// The c in `c tanh(score / c)`, before bias and masks: the largest magnitude that a score can have.
    pub softcap: Option<f32>,
    /// Added to the score; -inf hides a key, whatever else it holds. Its storage and its sizes.
    pub bias: Option<(DType, Broadcast)>,
    /// Subtracts `slope |position - j|`, with slopes from the table `alibi_slopes` (q_heads).
    pub alibi: bool,
    /// How many keys a row attends to: those with the largest scores.
    pub top_k: Option<u32>,
    /// What makes weights of scores. Default: the softmax.
    pub normalizer: Normalizer,
    /// A logit in the softmax's denominator that belongs to no key.
    pub sink: Sink,
    /// Weights that are dropped at random, before they multiply v.
    pub dropout: Option<Dropout>,
    /// The user's own function of the score, after the soft cap and before bias and masks.
    pub score_mod: Option<UserCode>,
    /// The user's own mask, combined with the others by AND.
    pub mask_mod: Option<UserCode>,
    /// How many 32-bit numbers the user's functions read, from the table `user`.
    pub user_params: u32,
    /// Statistics wanted beside out.
    pub stats: Stats,
}

impl Problem {
    /// Plain attention: f32 in bhsd layout, scale `1/sqrt(head_dim_qk)`, temperature 1, every key visible, only `out`.
    pub fn new(shape: Shape) -> Self {
        Problem {
            shape,
            q_layout: Layout::Bhsd,
            k_layout: Layout::Bhsd,
            v_layout: Layout::Bhsd,
            out_layout: Layout::Bhsd,
            scale: Scale::default(),
            temperature: Temperature::default(),
            length_scale: LengthScale::None,
            adaptive_temperature: None,
            qk_norm: None,
            dtypes: [DType::F32; 4],
            causal: false,
            window: None,
            alignment: Alignment::default(),
            packed_q: None,
            packed_k: None,
            q_len: false,
            kv_len: false,
            documents: false,
            mask: None,
            softcap: None,
            bias: None,
            alibi: false,
            top_k: None,
            normalizer: Normalizer::default(),
            sink: Sink::None,
            dropout: None,
            score_mod: None,
            mask_mod: None,
            user_params: 0,
            stats: Stats::default(),
        }
    }

    /// The same layout for q, k, v and out.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.q_layout = layout;
        self.k_layout = layout;
        self.v_layout = layout;
        self.out_layout = layout;
        self
    }

    /// A layout for each tensor.
    pub fn layouts(mut self, q: Layout, k: Layout, v: Layout, out: Layout) -> Self {
        (self.q_layout, self.k_layout, self.v_layout, self.out_layout) = (q, k, v, out);
        self
    }

    /// The multiplier of q.k, finite (arXiv 1706.03762).
    pub fn scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    /// The divisor of the scaled score, finite and above 0 (arXiv 1503.02531). From the table `temperature` where it is one for
    /// each head or row.
    pub fn temperature(mut self, temperature: Temperature) -> Self {
        self.temperature = temperature;
        self
    }

    /// The same storage for q, k, v and out.
    pub fn dtype(self, dtype: DType) -> Self {
        self.dtypes(dtype, dtype, dtype, dtype)
    }

    /// A storage type for each tensor. Arithmetic and statistics are f32 whatever they are.
    pub fn dtypes(mut self, q: DType, k: DType, v: DType, out: DType) -> Self {
        self.dtypes = [q, k, v, out];
        self
    }

    /// A multiplier of the score that grows with the context.
    pub fn length_scale(mut self, length_scale: LengthScale) -> Self {
        self.length_scale = length_scale;
        self
    }

    /// Normalises q and k before their product (arXiv 2010.04245). Gains come from the tables `q_gain` and `k_gain`.
    pub fn qk_norm(mut self, norm: QkNorm) -> Self {
        self.qk_norm = Some(norm);
        self
    }

    /// Causal attention with the alignment spelled out: query i sees key j where `j <= i + offset`.
    pub fn causal(mut self, alignment: Alignment) -> Self {
        self.causal = true;
        self.alignment = alignment;
        self
    }

    /// A sliding window around each row's position, both ends inclusive. Combined with a causal mask by AND.
    pub fn window(mut self, window: Window) -> Self {
        self.window = Some(window);
        self
    }

    /// Where a row's position is: `i + offset`. ([`Problem::causal`] sets it too.) An error of [`Problem::check`] where nothing
    /// counts from it.
    pub fn align(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// A dense mask: (batch, q_heads, seq_q, seq_k), each its size or 1, packed in that order; 1 means that the row attends to
    /// the key.
    pub fn mask(mut self, format: MaskFormat, sizes: Broadcast) -> Self {
        self.mask = Some((format, sizes));
        self
    }

    /// A soft cap on the score, `cap tanh(score / cap)`: finite and above 0 (Gemma 2, arXiv 2408.00118, takes 50).
    pub fn softcap(mut self, cap: f32) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// An additive bias: (batch, q_heads, seq_q, seq_k), each its size or 1, packed in that order. -inf hides a key; finite values
    /// are cut off at +-1e38.
    pub fn bias(mut self, dtype: DType, sizes: Broadcast) -> Self {
        self.bias = Some((dtype, sizes));
        self
    }

    /// ALiBi (arXiv 2108.12409): minus `slope |position - j|`, with slopes from the table `alibi_slopes`, (q_heads) (see
    /// [`alibi_slopes`](crate::alibi_slopes)).
    pub fn with_alibi(mut self) -> Self {
        self.alibi = true;
        self
    }

    /// A sharper softmax for rows whose weights are spread out (arXiv 2410.01104). The keys are gone through twice.
    pub fn adaptive_temperature(mut self, adaptive: AdaptiveTemperature) -> Self {
        self.adaptive_temperature = Some(adaptive);
        self
    }

    /// Top-k attention (arXiv 2106.06899): a row attends to the k keys with the largest scores, of equal ones to the first; k at
    /// least 1. All others count as hidden, in lse and entropy too. The keys are gone through several times, at most 2^24 of them.
    pub fn top_k(mut self, k: u32) -> Self {
        self.top_k = Some(k);
        self
    }

    /// What makes weights of scores in place of the softmax.
    pub fn normalizer(mut self, normalizer: Normalizer) -> Self {
        self.normalizer = normalizer;
        self
    }

    /// Dropout: each weight is 0 with this probability (from 0, below 1) and divided by the rest otherwise. Which stay
    /// follows from the table `dropout`, (2): seed and offset; see [`Dropout`].
    pub fn dropout(mut self, rate: f32) -> Self {
        self.dropout = Some(Dropout { rate });
        self
    }

    /// A sink in the softmax: a logit in the denominator that belongs to no key.
    pub fn sink(mut self, sink: Sink) -> Self {
        self.sink = sink;
        self
    }

    /// Packed sequences, of `total_q` queries on `total_k` keys: [`Problem::packed_q`](Self::packed_q()) and
    /// [`Problem::packed_k`](Self::packed_k()) (FlashAttention's `varlen`).
    pub fn packed(self, total_q: u32, total_k: u32) -> Self {
        self.packed_q(total_q).packed_k(total_k)
    }

    /// Queries of different lengths without padding: q is (q_heads, total_q, head_dim_qk) and out (q_heads, total_q, head_dim_v), in
    /// either layout (bshd is the usual "thd"); statistics and temperatures per row are (q_heads, total_q). Sequence b has the rows
    /// from `cu_seqlens_q[b]` to before `cu_seqlens_q[b + 1]`, a table of (batch + 1).
    ///
    /// `batch` of the [`Shape`] is the number of sequences and `seq_q` the longest. Bias, mask, positions and the indices of user code
    /// count within a sequence, and [`Alignment::BottomRight`] from its own lengths.
    ///
    /// Prefix sums from the host are checked. Those that a device wrote are clamped, so that nothing outside of q and out is
    /// touched: rows that no sequence has are not written, and of rows that two have it is not said whose are.
    pub fn packed_q(mut self, total: u32) -> Self {
        self.packed_q = Some(total);
        self
    }

    /// Keys of different lengths without padding: k is (kv_heads, total_k, head_dim_qk), v (kv_heads, total_k, head_dim_v). Sequence b
    /// has the keys from `cu_seqlens_k[b]` to before `cu_seqlens_k[b + 1]`, a table of (batch + 1); `seq_k` is the longest.
    pub fn packed_k(mut self, total: u32) -> Self {
        self.packed_k = Some(total);
        self
    }

    /// Valid queries per batch, from the table `q_len`, (batch). Rows from there on are padding: nothing is loaded of them, so they
    /// may hold anything, and they are written as 0, with lse and row maximum -inf (a sink or not) and entropy 0.
    ///
    /// The number moves no position: count from the last valid query with [`Alignment::BottomRightValid`].
    pub fn with_q_len(mut self) -> Self {
        self.q_len = true;
        self
    }

    /// Valid keys per batch, from the table `kv_len`, (batch): keys from there on are hidden and may hold anything.
    pub fn with_kv_len(mut self) -> Self {
        self.kv_len = true;
        self
    }

    /// Documents: a row sees only keys with its own number, from the tables `documents_q`, (batch, seq_q), and `documents_k`,
    /// (batch, seq_k); of packed sequences (total_q) and (total_k). Any i32, equal or not (segment ids in JAX and cuDNN).
    ///
    /// They move no position, and [`LengthScale`]s do not count them.
    pub fn with_documents(mut self) -> Self {
        self.documents = true;
        self
    }

    /// A function of the score of your own, after the soft cap and before bias and masks.
    pub fn score_mod(mut self, code: UserCode) -> Self {
        self.score_mod = Some(code);
        self
    }

    /// A mask of your own, combined with the others by AND.
    pub fn mask_mod(mut self, code: UserCode) -> Self {
        self.mask_mod = Some(code);
        self
    }

    /// How many 32-bit numbers the table `user` holds for your functions. The number changes nothing that is compiled, except from
    /// 0 to more.
    pub fn user_params(mut self, count: u32) -> Self {
        self.user_params = count;
        self
    }

    /// Asks for the log-sum-exp of each row.
    pub fn with_lse(mut self) -> Self {
        self.stats.lse = true;
        self
    }

    /// Asks for the entropy of each row.
    pub fn with_entropy(mut self) -> Self {
        self.stats.entropy = true;
        self
    }

    /// Asks for the largest score of each row.
    pub fn with_row_max(mut self) -> Self {
        self.stats.row_max = true;
        self
    }

    /// What is looked for in passes over the keys before the last one.
    pub(crate) fn search(&self) -> Search {
        match self.normalizer {
            Normalizer::Sparsemax | Normalizer::Entmax15 => Search::Threshold,
            _ if self.top_k.is_some() => Search::TopK,
            _ if self.adaptive_temperature.is_some() => Search::Entropy,
            _ => Search::None,
        }
    }

    /// `scale / temperature` where both are numbers, else the scale alone, times YaRN's factor: what multiplies q for
    /// all rows alike. `softmax(x / tau)` with `tau = 1 / factor`: scale and temperature are one knob.
    pub fn factor(&self) -> f64 {
        let tau = match self.temperature {
            Temperature::Value(tau) => f64::from(tau),
            _ => 1.0,
        };
        self.scale.value(self.shape.head_dim_qk) / tau * self.length_scale.constant()
    }

    /// What the kernel multiplies q by, rounded to f32 once: the factor in units of log2, or what a soft cap takes the tanh
    /// of.
    pub(crate) fn kernel_factor(&self) -> f32 {
        match self.softcap {
            None => (self.factor() * core::f64::consts::LOG2_E) as f32,
            Some(cap) => (self.factor() / f64::from(cap)) as f32,
        }
    }

    /// Whether anything counts from a row's position. Where nothing does, an [`Alignment`] other than the default is refused.
    pub fn uses_positions(&self) -> bool {
        let counts = !matches!(self.length_scale, LengthScale::None | LengthScale::Yarn { .. });
        self.causal || self.window.is_some() || self.alibi || counts
    }

    /// How many gains of q and of k the tables hold, where there are any.
    pub(crate) fn gain_counts(&self) -> Option<[u64; 2]> {
        let s = &self.shape;
        self.qk_norm?.gain_counts([s.q_heads, s.kv_heads, s.head_dim_qk])
    }

    /// The distances `j - position` at which a row sees keys: at least, at most; `None` for unbounded.
    pub(crate) fn distances(&self) -> (Option<i32>, Option<i32>) {
        let window = self.window.unwrap_or_default();
        // More than i32::MAX is more than any sequence has.
        let min = window.left.and_then(|left| i32::try_from(left).ok()).map(|left| -left);
        let max = window.right.and_then(|right| i32::try_from(right).ok());
        let max = if self.causal { Some(0) } else { max.filter(|&m| m < i32::MAX) };
        (min, max)
    }

    /// Rows of the answer: batch x q_heads x seq_q, or q_heads x total_q of a packed problem.
    pub fn rows(&self) -> u64 {
        match self.packed_q {
            Some(total) => u64::from(self.shape.q_heads) * u64::from(total),
            None => self.shape.rows(),
        }
    }

    /// Documents of queries and of keys.
    pub(crate) fn document_counts(&self) -> [u64; 2] {
        let s = &self.shape;
        [(self.packed_q, s.seq_q), (self.packed_k, s.seq_k)]
            .map(|(total, seq)| total.map_or(u64::from(s.batch) * u64::from(seq), u64::from))
    }

    /// True where the answer has no element, so that nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.shape.is_empty() || self.packed_q == Some(0)
    }

    /// The rows of a tensor in which sequences lie one after the other.
    pub(crate) fn total(&self, tensor: Tensor) -> Option<u32> {
        match tensor {
            Tensor::Q | Tensor::Out => self.packed_q,
            Tensor::K | Tensor::V => self.packed_k,
            Tensor::Bias | Tensor::Mask => None,
        }
    }

    /// Where the elements of one tensor are. Packed sequences are one batch as long as all of them. A bias or mask is seen at its full size, with strides of 0 where it is broadcast, and
    /// has no element where the problem does not have it.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) where its extent does not fit 2^62 elements.
    pub fn view(&self, tensor: Tensor) -> Result<View> {
        let s = &self.shape;
        let (heads, seq, dim, layout) = match tensor {
            Tensor::Q => (s.q_heads, s.seq_q, s.head_dim_qk, self.q_layout),
            Tensor::K => (s.kv_heads, s.seq_k, s.head_dim_qk, self.k_layout),
            Tensor::V => (s.kv_heads, s.seq_k, s.head_dim_v, self.v_layout),
            Tensor::Out => (s.q_heads, s.seq_q, s.head_dim_v, self.out_layout),
            Tensor::Bias | Tensor::Mask => return self.dense_view(tensor),
        };
        let [batch, seq] = self.total(tensor).map_or([s.batch, seq], |total| [1, total]);
        View::new(tensor.name(), [batch, heads, seq, dim], layout)
    }

    fn dense_view(&self, tensor: Tensor) -> Result<View> {
        let s = &self.shape;
        let sizes = match tensor {
            Tensor::Bias => self.bias.map(|b| b.1),
            _ => self.mask.map(|m| m.1),
        };
        let Some(sizes) = sizes else {
            return View::new(tensor.name(), [0; 4], Layout::Bhsd);
        };
        let [batch, head, seq, dim] = sizes.strides();
        let strides = Strides { offset: 0, batch, head, seq, dim };
        View::new(tensor.name(), [s.batch, s.q_heads, s.seq_q, s.seq_k], Layout::Strided(strides))
    }

    /// Bits of one element of a tensor.
    pub fn bits(&self, tensor: Tensor) -> u32 {
        match tensor {
            Tensor::Q | Tensor::K | Tensor::V | Tensor::Out => self.dtypes[tensor as usize].bits(),
            Tensor::Bias => self.bias.map_or(32, |b| b.0.bits()),
            Tensor::Mask => match self.mask {
                Some((MaskFormat::Bits, _)) => 1,
                _ => 8,
            },
        }
    }

    /// Bytes of a tensor's buffer, in whole 32-bit words: 0 where the problem does not have it.
    ///
    /// # Errors
    /// As [`Problem::view`].
    pub fn bytes(&self, tensor: Tensor) -> Result<u64> {
        let words = (u128::from(self.view(tensor)?.extent()) * u128::from(self.bits(tensor))).div_ceil(32);
        // 2^62 elements may be one byte more than a u64 counts: no buffer has as many either way.
        Ok(u64::try_from(4 * words).unwrap_or(u64::MAX))
    }
}
