//! Classes of mask tiles that are found once and used in many calls: FlexAttention's block mask.

use crate::buffers::MaskBuffers;
use crate::error::{Error, Result};
use crate::memory::create_buffer_unset;
use crate::plan::TileClasses;
use crate::prepared::{Bound, Prepared};

/// Classes of mask tiles, to be used again: as FlexAttention's block mask (Dong et al. 2024, arXiv 2412.05496), made from a dense mask,
/// documents, a [`mask_mod`](crate::Problem::mask_mod) or a bias with -inf.
///
/// A plan that classifies mask tiles ([`Plan::classes`](crate::Plan::classes)) does so before every attention. Where the mask stays the same
/// over many calls, as over the layers of a model or the steps of a training, find its classes once
/// ([`BlockMask::encode`]) and bind them ([`Buffers::block_mask`](crate::Buffers::block_mask)). They fit every plan with equal
/// [`TileClasses`]. Lengths and positions are not in them, so a cache may grow meanwhile.
///
/// They are as right as the mask that they are of: after a change to mask, bias, documents, starts of packed sequences or numbers of user code,
/// encode them again.
#[derive(Debug, Clone)]
pub struct BlockMask {
    bound: Bound,
    buffer: wgpu::Buffer,
    classes: TileClasses,
}

impl Prepared {
    /// Makes room for the classes of mask tiles, and binds the mask, bias and tables that they will be of: all that the plan has of
    /// these, and nothing else. So it takes [`MaskBuffers`], and [`Buffers`](crate::Buffers), whose others it does not look at.
    ///
    /// # Errors
    /// [`Error::Unused`] where the plan does not classify tiles (its [`classes_reason`](crate::Plan::classes_reason) says why); what
    /// [`Prepared::bind`] finds; [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn block_mask<'a>(&self, buffers: impl Into<MaskBuffers<'a>>) -> Result<BlockMask> {
        let buffers = buffers.into();
        let Some(&classes) = self.plan().classes() else {
            let hint = "the plan classifies no mask tiles, see Plan::classes_reason";
            return Err(Error::Unused { field: "block_mask", hint });
        };
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer = create_buffer_unset(self.context(), "block mask", classes.bytes(), usage).await?;
        let bound = self.bind_classes(buffers, &buffer)?;
        Ok(BlockMask { bound, buffer, classes })
    }

    /// [`Prepared::block_mask`] for code that is not async.
    ///
    /// # Errors
    /// As [`Prepared::block_mask`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn block_mask_blocking<'a>(&self, buffers: impl Into<MaskBuffers<'a>>) -> Result<BlockMask> {
        pollster::block_on(self.block_mask(buffers))
    }
}

impl BlockMask {
    /// Records the pass that finds the classes. Nothing is submitted, nothing allocated.
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some("block mask"),
            timestamp_writes: None,
        });
        self.bound.encode_classes(&mut pass);
    }

    /// What the classes are of, and how they lie in the buffer.
    pub fn classes(&self) -> &TileClasses {
        &self.classes
    }

    /// The classes, as [`TileClasses`] says: to be read, or to be written by passes of your own. A class that is wrong hides what
    /// should be seen or shows what should be hidden, and touches nothing outside of the tensors.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}
