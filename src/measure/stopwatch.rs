//! How long work takes on a device.

use super::roofs;
use super::samples::Samples;
use super::work::Ready;
use crate::attention::Attention;
use crate::error::Result;
use crate::host::lost;
use crate::readback;
use core::fmt;
use serde::{Deserialize, Serialize};
use std::time::Duration;
#[cfg(not(target_arch = "wasm32"))]
use std::time::Instant;
#[cfg(target_arch = "wasm32")]
use web_time::Instant;

/// What time was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Clock {
    /// The device's timestamps at both ends of a compute pass: the work alone.
    Timestamps,
    /// The host's clock, from before submitting until the device was seen to be done: the work, and some tens of microseconds of
    /// driver and waking up.
    Wall,
}

impl Clock {
    /// `timestamps` or `wall`.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Timestamps => "timestamps",
            Clock::Wall => "wall",
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How much effort goes into one figure.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Effort {
    /// Time for all samples together. At least [`Effort::least`] are taken even if that is more.
    pub time: Duration,
    /// Samples at least.
    pub least: usize,
    /// Samples at most.
    pub most: usize,
    /// How long a sample should take at least: shorter work is repeated within one sample, back to back in one pass.
    pub sample: Duration,
    /// Give up after the first, untimed call if that took longer. Its time is then the only sample.
    pub give_up: Option<Duration>,
}

impl Default for Effort {
    /// A second, 5 to 50 samples of at least 5 ms.
    fn default() -> Self {
        Effort {
            time: Duration::from_secs(1),
            least: 5,
            most: 50,
            sample: Duration::from_millis(5),
            give_up: None,
        }
    }
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Times {
    /// Times of one call, in seconds.
    pub samples: Samples,
    /// Calls in each sample.
    pub calls: u32,
    /// What they were read from.
    pub clock: Clock,
}

/// Takes times on a device.
#[derive(Debug)]
pub struct Stopwatch {
    attention: Attention,
    queue: wgpu::Queue,
    stamps: Option<Stamps>,
    why: String,
}

/// Timestamps at both ends of up to [`PASSES`] passes.
#[derive(Debug)]
struct Stamps {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    /// Nanoseconds of a tick.
    period: f64,
}

/// Passes whose timestamps are read together.
const PASSES: u32 = 256;

/// Records the parts of a piece of work: each into a pass of its own, a number of times.
pub(super) type Record<'a> = dyn Fn(usize, &mut wgpu::ComputePass<'_>) + 'a;

impl Stopwatch {
    /// Timestamps where the device has them and they agree with the wall clock on work that takes some milliseconds; else the wall
    /// clock.
    ///
    /// # Errors
    /// As [`Attention::prepare`].
    pub async fn new(attention: &Attention, queue: &wgpu::Queue) -> Result<Self> {
        let device = attention.device();
        let mut stopwatch = Stopwatch {
            attention: attention.clone(),
            queue: queue.clone(),
            stamps: None,
            why: "the device was made without timestamps".to_owned(),
        };
        if !device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Ok(stopwatch);
        }
        let stamps = Stamps {
            set: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("stopwatch"),
                ty: wgpu::QueryType::Timestamp,
                count: 2 * PASSES,
            }),
            resolved: device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("stopwatch"),
                size: u64::from(2 * PASSES * wgpu::QUERY_SIZE),
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            }),
            period: f64::from(queue.get_timestamp_period()),
        };
        let known = roofs::known_work(attention).await?;
        let (groups, calls) = known.grow(&stopwatch, 0.01).await?;
        let wall = known.best(&stopwatch, groups, calls, 1.0).await?;
        stopwatch.stamps = Some(stamps);
        let stamped = known.best(&stopwatch, groups, calls, 1.0).await?;
        let ratio = stamped / wall;
        // The wall clock sees some driver beside the work, and other programs disturb both.
        if (0.5..1.25).contains(&ratio) {
            stopwatch.why = "the device has timestamps, and they agree with the wall clock".to_owned();
        } else {
            stopwatch.stamps = None;
            stopwatch.why = format!(
                "the device's timestamps say {ratio:.2} times what the wall clock does, so they are not used"
            );
        }
        Ok(stopwatch)
    }

    /// Takes the wall clock, whatever the device has.
    pub fn wall(attention: &Attention, queue: &wgpu::Queue) -> Self {
        let why = "it was asked for".to_owned();
        Stopwatch { attention: attention.clone(), queue: queue.clone(), stamps: None, why }
    }

    /// What times are read from.
    pub fn clock(&self) -> Clock {
        if self.stamps.is_some() { Clock::Timestamps } else { Clock::Wall }
    }

    /// Why it is this clock.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Warms up, then takes the time of calls until there are enough, see [`Effort`].
    ///
    /// Work that was cut into slices so that no dispatch takes too long is submitted slice by slice, each in a pass of its own;
    /// its time is the sum of theirs (timestamps), or from the first submit to the end of the last (wall clock).
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub async fn measure(&self, ready: &Ready, effort: &Effort) -> Result<Times> {
        self.measure_parts(ready.parts(), &|part, pass| ready.record(part, pass), effort).await
    }

    /// [`Stopwatch::measure`] of whatever is recorded into a compute pass, such as
    /// [`softmax::Bound::encode_in_pass`](crate::softmax::Bound).
    ///
    /// # Errors
    /// As [`Stopwatch::measure`].
    pub async fn measure_recorded(
        &self,
        record: &dyn Fn(&mut wgpu::ComputePass<'_>),
        effort: &Effort,
    ) -> Result<Times> {
        self.measure_parts(1, &|_, pass| record(pass), effort).await
    }

    pub(super) async fn measure_parts(
        &self,
        parts: usize,
        record: &Record<'_>,
        effort: &Effort,
    ) -> Result<Times> {
        let clock = self.clock();
        let first = self.time(parts, 1, record).await?;
        // Two is the least for there to be quartiles; one, where the caller has seen enough.
        let only = |seconds: f64| Samples::new(vec![seconds]).ok_or_else(|| lost("a time that is no number"));
        if effort.give_up.is_some_and(|most| first > most.as_secs_f64()) {
            return Ok(Times { samples: only(first)?, calls: 1, clock });
        }
        // The first call may have paid for page faults and caches; the second tells how many fit a sample.
        let second = self.time(parts, 1, record).await?;
        let fit = effort.sample.as_secs_f64() / first.min(second).max(1e-9);
        let calls = if parts > 1 { 1 } else { fit.ceil().clamp(1.0, 1000.0) as u32 };
        let each = second.max(1e-9) * f64::from(calls);
        let most = effort.most.max(1);
        let wanted =
            (effort.time.as_secs_f64() / each).floor().clamp(effort.least.min(most) as f64, most as f64);
        let mut seconds = Vec::new();
        for _ in 0..wanted as usize {
            seconds.push(self.time(parts, calls, record).await? / f64::from(calls));
        }
        Ok(Times {
            samples: Samples::new(seconds).ok_or_else(|| lost("a time that is no number"))?,
            calls,
            clock,
        })
    }

    /// Seconds of so many calls, by this stopwatch's clock.
    pub(super) async fn time(&self, parts: usize, calls: u32, record: &Record<'_>) -> Result<f64> {
        let seconds = match &self.stamps {
            Some(stamps) => self.stamped(stamps, parts, calls, record).await?,
            None => self.walled(parts, calls, record).await?,
        };
        Ok(seconds.max(0.0))
    }

    fn commands(
        &self,
        part: usize,
        calls: u32,
        record: &Record<'_>,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) -> wgpu::CommandEncoder {
        let mut encoder = self
            .attention
            .device()
            .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("stopwatch") });
        let mut pass = encoder
            .begin_compute_pass(&wgpu::ComputePassDescriptor { label: Some("stopwatch"), timestamp_writes });
        for _ in 0..calls {
            record(part, &mut pass);
        }
        drop(pass);
        encoder
    }

    async fn walled(&self, parts: usize, calls: u32, record: &Record<'_>) -> Result<f64> {
        let commands: Vec<_> =
            (0..parts).map(|part| self.commands(part, calls, record, None).finish()).collect();
        let start = Instant::now();
        let mut last = None;
        for commands in commands {
            last = Some(self.queue.submit([commands]));
        }
        match last {
            Some(last) => Ok(self.end(last).await?.duration_since(start).as_secs_f64()),
            None => Ok(0.0),
        }
    }

    async fn stamped(&self, stamps: &Stamps, parts: usize, calls: u32, record: &Record<'_>) -> Result<f64> {
        let mut ticks = 0u64;
        let mut part = 0;
        while part < parts {
            let passes = (parts - part).min(PASSES as usize) as u32;
            for pass in 0..passes {
                let writes = wgpu::ComputePassTimestampWrites {
                    query_set: &stamps.set,
                    beginning_of_pass_write_index: Some(2 * pass),
                    end_of_pass_write_index: Some(2 * pass + 1),
                };
                self.queue.submit([self.commands(part, calls, record, Some(writes)).finish()]);
                part += 1;
            }
            let bytes = u64::from(2 * passes * wgpu::QUERY_SIZE);
            let target = readback::Target::new(self.attention.context(), bytes).await?;
            let mut encoder = self
                .attention
                .device()
                .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("stopwatch") });
            encoder.resolve_query_set(&stamps.set, 0..2 * passes, &stamps.resolved, 0);
            encoder.copy_buffer_to_buffer(&stamps.resolved, 0, target.buffer(), 0, bytes);
            let submission = self.queue.submit([encoder.finish()]);
            let bytes = target.map(self.attention.context(), submission)?.read().await?;
            let words: Vec<u64> =
                bytes.chunks_exact(8).filter_map(|b| Some(u64::from_le_bytes(b.try_into().ok()?))).collect();
            ticks += words.chunks_exact(2).map(|ends| ends[1].saturating_sub(ends[0])).sum::<u64>();
        }
        Ok(ticks as f64 * stamps.period * 1e-9)
    }

    /// When a submission was done.
    #[cfg(not(target_arch = "wasm32"))]
    async fn end(&self, submission: wgpu::SubmissionIndex) -> Result<Instant> {
        // A thread of its own waits, so that the future suits any executor; it looks at the clock itself, so that waking up
        // this one is not counted.
        let (sender, end) = futures::channel::oneshot::channel();
        let device = self.attention.device().clone();
        std::thread::Builder::new()
            .name("attention stopwatch".to_owned())
            .spawn(move || {
                let wait = wgpu::PollType::Wait { submission_index: Some(submission), timeout: None };
                let end = device.poll(wait).map(|_| Instant::now());
                // Out of the driver before anybody hears of it: a program that ends may unload it.
                drop(device);
                // Nobody wants it any more where the receiver is gone.
                let _ = sender.send(end);
            })
            .map_err(lost)?;
        end.await.map_err(lost)?.map_err(lost)
    }

    /// When a submission was done.
    #[cfg(target_arch = "wasm32")]
    async fn end(&self, _submission: wgpu::SubmissionIndex) -> Result<Instant> {
        let (sender, end) = futures::channel::oneshot::channel();
        self.queue.on_submitted_work_done(move || {
            let _ = sender.send(Instant::now());
        });
        end.await.map_err(lost)
    }
}
