//! Bringing results to the host: async everywhere, with somebody to wait for the device on native.

use crate::context::Context;
use crate::error::Result;
use crate::host::lost;
use crate::memory::create_buffer_unset;
use futures::channel::oneshot;

/// A buffer that results are copied into and that the host can map.
pub(crate) struct Target {
    buffer: wgpu::Buffer,
}

/// A target whose mapping was asked for.
pub(crate) struct Pending {
    buffer: wgpu::Buffer,
    mapped: oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>,
    /// Ends when the thread that waits has left the driver.
    left: oneshot::Receiver<()>,
}

impl Target {
    pub(crate) async fn new(context: &Context, bytes: u64) -> Result<Self> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let buffer = create_buffer_unset(context, "attention: readback", bytes, usage).await?;
        Ok(Target { buffer })
    }

    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Asks for the mapping, after the commands that fill the buffer were submitted.
    pub(crate) fn map(self, context: &Context, submission: wgpu::SubmissionIndex) -> Result<Pending> {
        let (sender, mapped) = oneshot::channel();
        self.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            // The receiver is gone when the caller dropped the future; then nobody wants the result.
            let _ = sender.send(result);
        });
        let left = wait_elsewhere(&context.device, submission)?;
        Ok(Pending { buffer: self.buffer, mapped, left })
    }
}

impl Pending {
    pub(crate) async fn read(self) -> Result<Vec<u8>> {
        let mapped = self.mapped.await;
        // The mapping is told of from within the driver. A program that ended now, with a thread in there, could crash while
        // its driver is unloaded. (An error here says that there is no such thread.)
        let _ = self.left.await;
        mapped.map_err(lost)?.map_err(lost)?;
        let bytes = self.buffer.get_mapped_range(..).map_err(lost)?.to_vec();
        // Which unmaps it too.
        self.buffer.destroy();
        Ok(bytes)
    }
}

/// Native devices report finished work only while somebody polls them. An app's frame loop usually does; so that this
/// future also ends where nobody does, a thread waits for the submission.
#[cfg(not(target_arch = "wasm32"))]
fn wait_elsewhere(device: &wgpu::Device, submission: wgpu::SubmissionIndex) -> Result<oneshot::Receiver<()>> {
    let device = device.clone();
    let (sender, left) = oneshot::channel();
    std::thread::Builder::new()
        .name("attention readback".to_owned())
        .spawn(move || {
            // A lost device ends the mapping with an error, which is reported there.
            let _ = device.poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: None });
            drop(device);
            let _ = sender.send(());
        })
        .map_err(lost)?;
    Ok(left)
}

/// Browsers poll by themselves.
#[cfg(target_arch = "wasm32")]
fn wait_elsewhere(
    _device: &wgpu::Device,
    _submission: wgpu::SubmissionIndex,
) -> Result<oneshot::Receiver<()>> {
    Ok(oneshot::channel().1)
}
