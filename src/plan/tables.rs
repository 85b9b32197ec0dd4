//! Where the small inputs are in the tables buffer.

use crate::error::{Error, Result};
use crate::kernel::{LengthSource, NormalizerSource, OffsetSource, TemperatureSource};
use crate::mask::Alignment;
use crate::normalizer::{Normalizer, SigmoidBias};
use crate::problem::Problem;
use crate::score::Sink;
use crate::sharpness::{LengthScale, Temperature, check_temperature};
use core::ops::Range;

/// The small inputs: per batch, per head or per row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Table {
    /// i32, (batch + 1): where packed sequences start, [`Problem::packed_q`](Problem::packed_q()): prefix sums of their lengths, from 0
    /// to total_q. Clamped in the shader, to what q has and to seq_q rows each.
    CuSeqlensQ,
    /// i32, (batch + 1): the same of k and v, [`Problem::packed_k`](Problem::packed_k()).
    CuSeqlensK,
    /// i32, (batch): valid queries, [`Problem::with_q_len`]. Values outside 0..=seq_q are clamped to it in the shader.
    QLen,
    /// i32, (batch): valid keys, [`Problem::with_kv_len`]. Values outside 0..=seq_k are clamped to it in the shader.
    KvLen,
    /// i32, (batch): offsets of the positions, [`Alignment::PerBatch`].
    CausalOffset,
    /// i32, (batch, seq_q), of packed sequences (total_q): the document of each query, [`Problem::with_documents`].
    DocumentsQ,
    /// i32, (batch, seq_k), of packed sequences (total_k): the document of each key.
    DocumentsK,
    /// f32, (q_heads) or (batch, q_heads, seq_q), of packed sequences (q_heads, total_q): temperatures, each finite and above 0. One that is not spoils the rows it
    /// governs, and no others.
    Temperature,
    /// f32, (q_heads): ALiBi's slopes, [`Problem::with_alibi`].
    AlibiSlopes,
    /// f32, (q_heads): sink logits, [`Sink::PerHead`].
    Sinks,
    /// f32, (q_heads): the s of Scalable-Softmax, [`LengthScale::Ssmax`].
    Ssmax,
    /// f32, (head_dim_qk) or (q_heads, head_dim_qk): gains of q, [`NormGains`](crate::NormGains).
    QGain,
    /// f32, (head_dim_qk) or (kv_heads, head_dim_qk): gains of k, [`NormGains`](crate::NormGains).
    KGain,
    /// u32, (2): seed and offset of dropout, [`Problem::dropout`].
    Dropout,
    /// [`Problem::user_params`] 32-bit numbers, for score_mod and mask_mod.
    User,
}

/// Layout of the tables buffer: the small inputs that a problem uses, one after the other, 32 bits an element.
///
/// An app either uploads the whole of it (from [`Tables::pack`]) or lets its own passes write into the sections
/// ([`Tables::range`]), so that lengths and temperatures that are computed on the device stay there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    sections: Vec<(Table, u64, u64)>, // start and length in elements
    len: u64,
}

/// Host values of the small inputs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TableData<'a> {
    /// (batch + 1): starts of packed sequences in q: from 0 to total_q, none longer than seq_q.
    pub cu_seqlens_q: Option<&'a [u32]>,
    /// (batch + 1): starts of packed sequences in k and v: from 0 to total_k, none longer than seq_k.
    pub cu_seqlens_k: Option<&'a [u32]>,
    /// (batch): valid queries, each at most seq_q.
    pub q_len: Option<&'a [u32]>,
    /// (batch): valid keys, each at most seq_k.
    pub kv_len: Option<&'a [u32]>,
    /// (batch): causal offsets.
    pub causal_offset: Option<&'a [i32]>,
    /// (batch, seq_q) or (total_q): documents of queries.
    pub documents_q: Option<&'a [i32]>,
    /// (batch, seq_k) or (total_k): documents of keys.
    pub documents_k: Option<&'a [i32]>,
    /// (q_heads) or (batch, q_heads, seq_q): temperatures, each finite and above 0.
    pub temperature: Option<&'a [f32]>,
    /// (q_heads): ALiBi's slopes, each finite.
    pub alibi_slopes: Option<&'a [f32]>,
    /// (q_heads): sink logits, each finite.
    pub sinks: Option<&'a [f32]>,
    /// (q_heads): the s of Scalable-Softmax, each finite.
    pub ssmax: Option<&'a [f32]>,
    /// (head_dim_qk) or (q_heads, head_dim_qk): gains of normalised q, each finite.
    pub q_gain: Option<&'a [f32]>,
    /// (head_dim_qk) or (kv_heads, head_dim_qk): gains of normalised k, each finite.
    pub k_gain: Option<&'a [f32]>,
    /// Seed and offset of dropout, any numbers.
    pub dropout: Option<[u32; 2]>,
    /// 32-bit numbers for score_mod and mask_mod (floats by their bits).
    pub user: Option<&'a [u32]>,
}

impl Tables {
    pub(crate) fn new(problem: &Problem) -> Self {
        let s = &problem.shape;
        let mut tables = Tables::default();
        for (packed, table) in [(problem.packed_q, Table::CuSeqlensQ), (problem.packed_k, Table::CuSeqlensK)]
        {
            if packed.is_some() {
                tables.push(table, u64::from(s.batch) + 1);
            }
        }
        if problem.q_len {
            tables.push(Table::QLen, s.batch.into());
        }
        if problem.kv_len {
            tables.push(Table::KvLen, s.batch.into());
        }
        if problem.alignment == Alignment::PerBatch {
            tables.push(Table::CausalOffset, s.batch.into());
        }
        if problem.documents {
            let [queries, keys] = problem.document_counts();
            tables.push(Table::DocumentsQ, queries);
            tables.push(Table::DocumentsK, keys);
        }
        match problem.temperature {
            Temperature::Value(_) => {}
            Temperature::PerHead => tables.push(Table::Temperature, s.q_heads.into()),
            Temperature::PerRow => tables.push(Table::Temperature, problem.rows()),
        }
        if problem.alibi {
            tables.push(Table::AlibiSlopes, s.q_heads.into());
        }
        if problem.sink == Sink::PerHead {
            tables.push(Table::Sinks, s.q_heads.into());
        }
        if problem.length_scale == LengthScale::Ssmax {
            tables.push(Table::Ssmax, s.q_heads.into());
        }
        if let Some([q, k]) = problem.gain_counts() {
            tables.push(Table::QGain, q);
            tables.push(Table::KGain, k);
        }
        if problem.dropout.is_some() {
            tables.push(Table::Dropout, 2);
        }
        if problem.user_params > 0 {
            tables.push(Table::User, problem.user_params.into());
        }
        tables
    }

    fn push(&mut self, table: Table, len: u64) {
        self.sections.push((table, self.len, len));
        self.len += len;
    }

    /// Size of the buffer in bytes; 0 where the problem has no small input.
    pub fn bytes(&self) -> u64 {
        self.len.saturating_mul(4)
    }

    /// Where a section is, in bytes. `None` where the problem does not use it.
    pub fn range(&self, table: Table) -> Option<Range<u64>> {
        let (_, start, len) = self.sections.iter().find(|s| s.0 == table)?;
        Some(start * 4..(start + len) * 4)
    }

    pub(crate) fn start(&self, table: Table) -> u32 {
        // The planner refuses tables beyond the binding limit, which is far below 2^32 elements.
        self.range(table).map_or(0, |r| (r.start / 4) as u32)
    }

    /// The contents of the buffer from host values, for the problem of the plan that these tables are of.
    ///
    /// # Errors
    /// [`Error::Incompatible`] for a problem whose tables lie otherwise;
    /// [`Error::Missing`] or [`Error::Unused`] where what is given is not what the problem uses,
    /// [`Error::Length`] for a wrong length, [`Error::Value`] for a value outside its rule.
    pub fn pack(&self, problem: &Problem, data: &TableData<'_>) -> Result<Vec<u32>> {
        check(problem, data)?;
        if Tables::new(problem) != *self {
            return Err(Error::Incompatible {
                option: "the problem",
                other: "these tables",
                why: "they are laid out for a problem of other sizes or options: take those of its own plan",
            });
        }
        let mut words = Vec::with_capacity(self.len as usize);
        for &(table, _, _) in &self.sections {
            let floats = |values: Option<&[f32]>| -> Vec<u32> {
                values.unwrap_or_default().iter().map(|x| x.to_bits()).collect()
            };
            match table {
                Table::CuSeqlensQ => words.extend(data.cu_seqlens_q.unwrap_or_default()),
                Table::CuSeqlensK => words.extend(data.cu_seqlens_k.unwrap_or_default()),
                Table::QLen => words.extend(data.q_len.unwrap_or_default()),
                Table::KvLen => words.extend(data.kv_len.unwrap_or_default()),
                Table::DocumentsQ => {
                    words.extend(data.documents_q.unwrap_or_default().iter().map(|&x| x as u32));
                }
                Table::DocumentsK => {
                    words.extend(data.documents_k.unwrap_or_default().iter().map(|&x| x as u32));
                }
                Table::CausalOffset => {
                    words.extend(data.causal_offset.unwrap_or_default().iter().map(|&x| x as u32));
                }
                Table::Temperature => words.extend(floats(data.temperature)),
                Table::AlibiSlopes => words.extend(floats(data.alibi_slopes)),
                Table::Sinks => words.extend(floats(data.sinks)),
                Table::Ssmax => words.extend(floats(data.ssmax)),
                Table::QGain => words.extend(floats(data.q_gain)),
                Table::KGain => words.extend(floats(data.k_gain)),
                Table::Dropout => words.extend(data.dropout.unwrap_or_default()),
                Table::User => words.extend(data.user.unwrap_or_default()),
            }
        }
        Ok(words)
    }
}

/// Whether the host values are there, of the right length and within their rules.
pub(crate) fn check(problem: &Problem, data: &TableData<'_>) -> Result<()> {
    let s = &problem.shape;
    let per_batch = u64::from(s.batch);
    for (field, starts, total, longest, ask) in [
        (
            "cu_seqlens_q",
            data.cu_seqlens_q,
            problem.packed_q,
            s.seq_q,
            ("Problem::packed_q", "ask for it with Problem::packed_q"),
        ),
        (
            "cu_seqlens_k",
            data.cu_seqlens_k,
            problem.packed_k,
            s.seq_k,
            ("Problem::packed_k", "ask for it with Problem::packed_k"),
        ),
    ] {
        present(field, starts.map(<[u32]>::len), total.map(|_| per_batch + 1), ask)?;
        if let (Some(starts), Some(total)) = (starts, total) {
            check_starts(field, starts, total, longest)?;
        }
    }
    present(
        "q_len",
        data.q_len.map(<[u32]>::len),
        problem.q_len.then_some(per_batch),
        ("Problem::with_q_len", "ask for it with Problem::with_q_len"),
    )?;
    present(
        "kv_len",
        data.kv_len.map(<[u32]>::len),
        problem.kv_len.then_some(per_batch),
        ("Problem::with_kv_len", "ask for it with Problem::with_kv_len"),
    )?;
    let documents = ("Problem::with_documents", "ask for it with Problem::with_documents");
    let [queries, keys] = problem.document_counts();
    let count = |n| problem.documents.then_some(n);
    present("documents_q", data.documents_q.map(<[i32]>::len), count(queries), documents)?;
    present("documents_k", data.documents_k.map(<[i32]>::len), count(keys), documents)?;
    present(
        "causal_offset",
        data.causal_offset.map(<[i32]>::len),
        (problem.alignment == Alignment::PerBatch).then_some(per_batch),
        ("Alignment::PerBatch", "ask for it with Alignment::PerBatch"),
    )?;
    let temperatures = match problem.temperature {
        Temperature::Value(_) => None,
        Temperature::PerHead => Some(u64::from(s.q_heads)),
        Temperature::PerRow => Some(problem.rows()),
    };
    present(
        "temperature",
        data.temperature.map(<[f32]>::len),
        temperatures,
        ("Temperature::PerHead or PerRow", "ask for it with Temperature::PerHead or Temperature::PerRow"),
    )?;
    let per_head = u64::from(s.q_heads);
    present(
        "alibi_slopes",
        data.alibi_slopes.map(<[f32]>::len),
        problem.alibi.then_some(per_head),
        ("Problem::with_alibi", "ask for it with Problem::with_alibi"),
    )?;
    present(
        "sinks",
        data.sinks.map(<[f32]>::len),
        (problem.sink == Sink::PerHead).then_some(per_head),
        ("Sink::PerHead", "ask for it with Sink::PerHead"),
    )?;
    present(
        "ssmax",
        data.ssmax.map(<[f32]>::len),
        (problem.length_scale == LengthScale::Ssmax).then_some(per_head),
        ("LengthScale::Ssmax", "ask for it with LengthScale::Ssmax"),
    )?;
    let gains = problem.gain_counts();
    for (field, values, count) in
        [("q_gain", data.q_gain, gains.map(|g| g[0])), ("k_gain", data.k_gain, gains.map(|g| g[1]))]
    {
        let why = ("QkNorm::gains", "ask for it with QkNorm::gains");
        present(field, values.map(<[f32]>::len), count, why)?;
    }
    present(
        "dropout (seed and offset)",
        data.dropout.map(|_| 2),
        problem.dropout.is_some().then_some(2),
        ("Problem::dropout", "ask for it with Problem::dropout"),
    )?;
    present(
        "user",
        data.user.map(<[u32]>::len),
        (problem.user_params > 0).then_some(problem.user_params.into()),
        ("Problem::user_params", "ask for it with Problem::user_params"),
    )?;
    for (field, values) in [
        ("alibi_slopes", data.alibi_slopes),
        ("sinks", data.sinks),
        ("ssmax", data.ssmax),
        ("q_gain", data.q_gain),
        ("k_gain", data.k_gain),
    ] {
        if let Some(&value) = values.unwrap_or_default().iter().find(|x| !x.is_finite()) {
            return Err(Error::value(field, value, "finite"));
        }
    }
    for &len in data.q_len.unwrap_or_default() {
        if len > s.seq_q {
            return Err(Error::value("q_len", len, "at most seq_q"));
        }
    }
    for &len in data.kv_len.unwrap_or_default() {
        if len > s.seq_k {
            return Err(Error::value("kv_len", len, "at most seq_k"));
        }
    }
    for &tau in data.temperature.unwrap_or_default() {
        check_temperature(tau)?;
    }
    Ok(())
}

/// Prefix sums of lengths: from 0 to the total, none longer than the longest.
fn check_starts(field: &'static str, starts: &[u32], total: u32, longest: u32) -> Result<()> {
    let rule = "prefix sums of lengths: from 0 to the rows of the packed tensor, none above the shape's seq_q or seq_k";
    let wrong = |at: usize| Err(Error::value(field, format!("{} at {at}", starts[at]), rule));
    if starts.first() != Some(&0) {
        return wrong(0);
    }
    let step = |pair: &[u32]| pair[1].checked_sub(pair[0]).is_none_or(|length| length > longest);
    if let Some(at) = starts.windows(2).position(step) {
        return wrong(at + 1);
    }
    if starts.last() != Some(&total) {
        return wrong(starts.len() - 1);
    }
    Ok(())
}

pub(crate) fn present(
    field: &'static str,
    got: Option<usize>,
    expected: Option<u64>,
    (why, hint): (&'static str, &'static str),
) -> Result<()> {
    match (got, expected) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(Error::Missing { field, why }),
        (Some(_), None) => Err(Error::Unused { field, hint }),
        (Some(got), Some(expected)) if got as u64 != expected => {
            Err(Error::Length { field, got: got as u64, expected })
        }
        _ => Ok(()),
    }
}

/// What generated code needs to know of the alignment.
pub(crate) fn offset_source(problem: &Problem) -> OffsetSource {
    let packed = problem.uses_positions() && (problem.packed_q.is_some() || problem.packed_k.is_some());
    match problem.alignment {
        Alignment::PerBatch => OffsetSource::PerBatch,
        Alignment::BottomRightValid if problem.q_len || problem.kv_len => OffsetSource::Valid,
        Alignment::BottomRight | Alignment::BottomRightValid if packed => OffsetSource::Lengths,
        _ => OffsetSource::Number,
    }
}

/// What generated code needs to know of the length scale.
pub(crate) fn length_source(length_scale: LengthScale) -> LengthSource {
    match length_scale {
        LengthScale::None | LengthScale::Yarn { .. } => LengthSource::None,
        LengthScale::Ssmax => LengthSource::Ssmax,
        LengthScale::LogTrainLen { .. } => LengthSource::LogTrainLen,
        LengthScale::Llama4 { .. } => LengthSource::Llama4,
    }
}

/// What generated code needs to know of the normalizer.
pub(crate) fn normalizer_source(normalizer: Normalizer) -> NormalizerSource {
    match normalizer {
        Normalizer::Softmax => NormalizerSource::Softmax,
        Normalizer::Sigmoid { bias: SigmoidBias::MinusLogVisible } => NormalizerSource::SigmoidVisible,
        Normalizer::Sigmoid { .. } => NormalizerSource::Sigmoid,
        Normalizer::Sparsemax => NormalizerSource::Sparsemax,
        Normalizer::Entmax15 => NormalizerSource::Entmax15,
    }
}

/// What generated code needs to know of the temperature.
pub(crate) fn source(temperature: Temperature) -> TemperatureSource {
    match temperature {
        Temperature::Value(_) => TemperatureSource::Number,
        Temperature::PerHead => TemperatureSource::PerHead,
        Temperature::PerRow => TemperatureSource::PerRow,
    }
}
