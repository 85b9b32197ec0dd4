//! Device memory of the crate's own, made so that running out of it is an error and not a panic.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::host::lost;

/// A buffer with contents; running out of memory is an error and not a panic.
pub(crate) async fn create_buffer(
    context: &Context,
    label: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
    fill: impl FnOnce(&mut [u8]),
) -> Result<wgpu::Buffer> {
    // Mapped buffers come in multiples of four bytes, and none is empty.
    let size = bytes.next_multiple_of(4).max(4);
    let mut contents = vec![0; bytes as usize];
    fill(&mut contents);
    let buffer = create(context, label, size, usage, true).await?;
    {
        // Memory was there, or create() would have said so. What is left is a device that is gone: it makes invalid buffers
        // and reports nothing.
        let mut mapped = buffer.get_mapped_range_mut(..).map_err(lost)?;
        mapped.slice(..bytes as usize).copy_from_slice(&contents);
    }
    buffer.unmap();
    Ok(buffer)
}

/// A buffer of zeros.
pub(crate) async fn create_buffer_unset(
    context: &Context,
    label: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> Result<wgpu::Buffer> {
    create(context, label, bytes.next_multiple_of(4).max(4), usage, false).await
}

async fn create(
    context: &Context,
    label: &str,
    size: u64,
    usage: wgpu::BufferUsages,
    mapped_at_creation: bool,
) -> Result<wgpu::Buffer> {
    let available = context.caps.max_buffer_size;
    if size > available {
        return Err(Error::LimitExceeded {
            what: label.to_owned(),
            limit: "max_buffer_size",
            needed: size,
            available,
            advice: "ask for a device with larger limits (helpful_limits), or call once for each batch",
        });
    }
    let device = &context.device;
    let scope = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let buffer =
        device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation });
    match scope.pop().await {
        None => Ok(buffer),
        Some(_) => Err(Error::OutOfMemory { label: label.to_owned(), bytes: size }),
    }
}

/// A buffer that is given back when it is let go of, rather than when the browser's garbage collector comes by, which knows nothing of
/// device memory. For buffers that no commands are recorded with but those already submitted.
#[derive(Debug)]
pub(crate) struct Temporary(pub(crate) wgpu::Buffer);

impl Drop for Temporary {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

impl core::ops::Deref for Temporary {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.0
    }
}
