//! What a caller binds: buffers and where in them a tensor begins.

use crate::block_mask::BlockMask;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A buffer of the caller's and where in it a tensor begins.
#[derive(Debug, Clone, Copy)]
pub struct BufferRef<'a> {
    /// Created with `BufferUsages::STORAGE`.
    pub buffer: &'a wgpu::Buffer,
    /// In bytes; a multiple of the device's `min_storage_buffer_offset_alignment` (usually 256 or less). A finer
    /// offset goes into [`Layout::Strided`](crate::Layout::Strided).
    pub offset: u64,
}

impl<'a> From<&'a wgpu::Buffer> for BufferRef<'a> {
    fn from(buffer: &'a wgpu::Buffer) -> Self {
        BufferRef { buffer, offset: 0 }
    }
}

/// The buffers of one call, each with `BufferUsages::STORAGE`. q, k, v, bias, mask and tables may share a buffer; out and stats each
/// need one that nothing else of the call is in.
#[derive(Debug, Clone, Copy)]
pub struct Buffers<'a> {
    /// Queries.
    pub q: BufferRef<'a>,
    /// Keys.
    pub k: BufferRef<'a>,
    /// Values.
    pub v: BufferRef<'a>,
    /// The answer. Every element of it is written, and nothing else.
    pub out: BufferRef<'a>,
    /// The additive bias, packed in the order of its sizes; needed when the problem has one.
    pub bias: Option<BufferRef<'a>>,
    /// The dense mask, packed in the order of its sizes; needed when the problem has one.
    pub mask: Option<BufferRef<'a>>,
    /// The statistics, [`Plan::stats_bytes`](crate::Plan::stats_bytes) long; needed when the problem asks for one.
    pub stats: Option<BufferRef<'a>>,
    /// The small inputs as [`Plan::tables`](crate::Plan::tables) lays them out; needed when the problem uses one.
    pub tables: Option<BufferRef<'a>>,
    /// Classes of mask tiles that were found before, for a plan that would find them each time; see [`BlockMask`].
    pub block_mask: Option<&'a BlockMask>,
}

impl<'a> Buffers<'a> {
    /// Without bias, mask, statistics and tables.
    pub fn new(
        q: impl Into<BufferRef<'a>>,
        k: impl Into<BufferRef<'a>>,
        v: impl Into<BufferRef<'a>>,
        out: impl Into<BufferRef<'a>>,
    ) -> Self {
        Buffers {
            q: q.into(),
            k: k.into(),
            v: v.into(),
            out: out.into(),
            bias: None,
            mask: None,
            stats: None,
            tables: None,
            block_mask: None,
        }
    }

    /// With a buffer for the statistics.
    pub fn stats(mut self, stats: impl Into<BufferRef<'a>>) -> Self {
        self.stats = Some(stats.into());
        self
    }

    /// With a buffer of small inputs.
    pub fn tables(mut self, tables: impl Into<BufferRef<'a>>) -> Self {
        self.tables = Some(tables.into());
        self
    }

    /// With classes of mask tiles that were found before. The attention does not find them again, and takes them as they are.
    pub fn block_mask(mut self, mask: &'a BlockMask) -> Self {
        self.block_mask = Some(mask);
        self
    }

    /// With a buffer for the additive bias.
    pub fn bias(mut self, bias: impl Into<BufferRef<'a>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// With a buffer for the dense mask.
    pub fn mask(mut self, mask: impl Into<BufferRef<'a>>) -> Self {
        self.mask = Some(mask.into());
        self
    }
}

/// The buffers that a [`BlockMask`] is made of: of a call's [`Buffers`] those that classes of mask tiles come from. [`Buffers`] are taken
/// in its place, too.
#[derive(Debug, Clone, Copy, Default)]
pub struct MaskBuffers<'a> {
    /// As [`Buffers::bias`].
    pub bias: Option<BufferRef<'a>>,
    /// As [`Buffers::mask`].
    pub mask: Option<BufferRef<'a>>,
    /// As [`Buffers::tables`].
    pub tables: Option<BufferRef<'a>>,
}

impl<'a> MaskBuffers<'a> {
    /// With the buffer of the additive bias.
    pub fn bias(mut self, bias: impl Into<BufferRef<'a>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// With the buffer of the dense mask.
    pub fn mask(mut self, mask: impl Into<BufferRef<'a>>) -> Self {
        self.mask = Some(mask.into());
        self
    }

    /// With the buffer of small inputs.
    pub fn tables(mut self, tables: impl Into<BufferRef<'a>>) -> Self {
        self.tables = Some(tables.into());
        self
    }
}

impl<'a> From<&Buffers<'a>> for MaskBuffers<'a> {
    fn from(buffers: &Buffers<'a>) -> Self {
        MaskBuffers { bias: buffers.bias, mask: buffers.mask, tables: buffers.tables }
    }
}

/// What is given to be bound: all buffers of a call, or those of a block mask.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given<'a> {
    /// q, k, v and out with the statistics, where an attention is to be computed.
    pub main: Option<([BufferRef<'a>; 4], Option<BufferRef<'a>>)>,
    pub masks: MaskBuffers<'a>,
    pub block_mask: Option<&'a BlockMask>,
}

impl<'a> From<&Buffers<'a>> for Given<'a> {
    fn from(buffers: &Buffers<'a>) -> Self {
        let Buffers { q, k, v, out, stats, block_mask, .. } = *buffers;
        Given { main: Some(([q, k, v, out], stats)), masks: buffers.into(), block_mask }
    }
}

impl<'a> From<MaskBuffers<'a>> for Given<'a> {
    fn from(masks: MaskBuffers<'a>) -> Self {
        Given { main: None, masks, block_mask: None }
    }
}

impl<'a> Given<'a> {
    pub(crate) fn tensor(&self, tensor: Tensor) -> Option<BufferRef<'a>> {
        match tensor {
            Tensor::Bias => self.masks.bias,
            Tensor::Mask => self.masks.mask,
            _ => self.main.map(|(main, _)| main[tensor as usize]),
        }
    }

    pub(crate) fn stats(&self) -> Option<BufferRef<'a>> {
        self.main.and_then(|(_, stats)| stats)
    }
}

/// A buffer as a call binds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding<'a> {
    /// Its name in errors.
    pub field: &'static str,
    pub buffer: BufferRef<'a>,
    /// Bytes that the call needs of it; with 0 it is not bound.
    pub bytes: u64,
    pub written: bool,
}

/// Checks buffers against what a call needs: usage, offset, size, and that none that is written is bound twice.
pub(crate) fn check(all: &[Binding<'_>], alignment: u64) -> Result<()> {
    let bound = || all.iter().filter(|b| b.bytes > 0);
    for &Binding { field, buffer: BufferRef { buffer, offset }, bytes, .. } in bound() {
        if !buffer.usage().contains(wgpu::BufferUsages::STORAGE) {
            return Err(Error::BufferUsage { field, usage: "STORAGE" });
        }
        if !offset.is_multiple_of(alignment) {
            return Err(Error::Offset { field, offset, alignment });
        }
        let available = buffer.size().saturating_sub(offset);
        if bytes > available {
            return Err(Error::BufferTooSmall { field, needed: bytes, available });
        }
    }
    for written in bound().filter(|b| b.written) {
        for other in bound() {
            if other.field != written.field && written.buffer.buffer == other.buffer.buffer {
                return Err(Error::Aliased { written: written.field, read: other.field });
            }
        }
    }
    Ok(())
}
