//! The adapter's own ceilings, measured by small kernels that do one thing (`shaders/roofs/`).

use super::stopwatch::Stopwatch;
use crate::attention::Attention;
use crate::caps::{AdapterClass, Caps};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::memory::{create_buffer, create_buffer_unset};
use crate::shader::matrix_prelude;
use crate::shader::unroll::{Constants, unroll};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What an adapter reaches at best, a second each.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Roofs {
    /// Operations of f32 fused multiply-adds, each counted as two.
    pub fma: f64,
    /// Operations of f32 `dot(vec4, vec4) + x`, each counted as eight.
    pub dot: f64,
    /// Exponentials (`exp2` of f32).
    pub exp2: f64,
    /// Bytes that a copy between two buffers reads and writes, each counted; in vec4s of f32, as any device can.
    pub copy: f64,
    /// The same in words of 64 bits, with which a processor that plays a GPU has half the loads and stores; `None` where the device lacks
    /// them ([`Caps::shader_int64`](crate::Caps::shader_int64)) and on other adapters, for which nothing here moves such words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wide_copy: Option<f64>,
    /// Bytes that workgroups read from a buffer, which decoding does most of the time: each thread its own, or all the same at a time.
    pub read: f64,
    /// Bytes that threads read from workgroup memory, vec4s side by side.
    pub workgroup: f64,
    /// Operations of products of f16 matrices with sums in f32, a multiplication and an addition each; `None` where the device has no
    /// such matrices ([`Caps::matrix_sizes`](crate::Caps::matrix_sizes)), or nobody asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<f64>,
}

impl Roofs {
    /// The higher of the two that do multiplications and additions.
    pub fn compute(&self) -> f64 {
        self.fma.max(self.dot)
    }

    /// The one that a kernel's products are held against: that of matrices for the kernel that multiplies matrices, and for it alone.
    pub fn compute_of(&self, kernel: Kernel) -> f64 {
        match (kernel, self.matrix) {
            (Kernel::Matrix, Some(matrix)) => matrix,
            _ => self.compute(),
        }
    }

    /// The faster of the two copies.
    pub fn best_copy(&self) -> f64 {
        self.wide_copy.unwrap_or(0.0).max(self.copy)
    }

    /// The highest of those that go through memory.
    pub fn memory(&self) -> f64 {
        self.best_copy().max(self.read)
    }

    /// Measures them within about the given time. Each is the best of several runs and, where a kernel has independent chains, of
    /// two, four and eight of them: a ceiling, not a typical value.
    ///
    /// # Errors
    /// [`Error::Driver`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn measure(attention: &Attention, stopwatch: &Stopwatch, time: Duration) -> Result<Roofs> {
        let has_matrices = !attention.caps().matrix_sizes.is_empty();
        let has_words = attention.caps().shader_int64 && attention.caps().class == AdapterClass::Cpu;
        let share =
            time / ((3 + u32::from(has_matrices)) * CHAINS.len() as u32 + 6 + 2 * u32::from(has_words));
        let mut best = [0.0f64; 9];
        for (roof, &(kind, chains)) in best.iter_mut().zip(&ROOFS) {
            if (kind == Kind::Matrix && !has_matrices) || (kind == Kind::WideCopy && !has_words) {
                continue;
            }
            for &chains in chains {
                for &threads in kind.threads(attention.caps().class) {
                    let probe = Probe::new(attention, kind, chains, threads).await?;
                    *roof = roof.max(probe.rate(stopwatch, share).await?);
                }
            }
        }
        let [fma, dot, exp2, copy, wide_copy, read, together, workgroup, matrix] = best;
        let (wide_copy, matrix) = (has_words.then_some(wide_copy), has_matrices.then_some(matrix));
        Ok(Roofs { fma, dot, exp2, copy, wide_copy, read: read.max(together), workgroup, matrix })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fma,
    Dot,
    Exp2,
    Copy,
    WideCopy,
    Read,
    ReadTogether,
    Workgroup,
    Matrix,
}

/// Independent chains in a thread. More hide latencies; too many do not fit the registers.
const CHAINS: [u32; 3] = [2, 4, 8];

const ROOFS: [(Kind, &[u32]); 9] = [
    (Kind::Fma, &CHAINS),
    (Kind::Dot, &CHAINS),
    (Kind::Exp2, &CHAINS),
    (Kind::Copy, &[1]),
    (Kind::WideCopy, &[1]),
    (Kind::Read, &[1]),
    (Kind::ReadTogether, &[1]),
    (Kind::Workgroup, &[4]),
    (Kind::Matrix, &CHAINS),
];

impl Kind {
    /// Workgroup sizes of which the better one counts. On a processor that plays a GPU a workgroup of one vector register goes through memory
    /// faster than a larger one.
    fn threads(self, class: AdapterClass) -> &'static [u32] {
        match (self, class) {
            (Kind::Copy | Kind::WideCopy | Kind::Read, AdapterClass::Cpu) => &[THREADS, 8],
            _ => &[THREADS],
        }
    }
}

const THREADS: u32 = 64;
const STEPS: u32 = 8;
const ROUNDS: u32 = 128;
/// Within what WebGPU promises for one dimension of a dispatch.
const MOST_GROUPS: u32 = 65535;

/// Bytes that are copied or read: beyond the caches of most adapters of a kind, and soon done. Of a processor as many as the softmaxes of
/// `bench --preset operations` have, whose share of the copy would else be one of a cache's.
fn stream(class: AdapterClass) -> u64 {
    match class {
        AdapterClass::Cpu => 32 << 20,
        _ => 256 << 20,
    }
}

/// One kernel with its buffers.
#[derive(Debug)]
pub(super) struct Probe {
    pipeline: wgpu::ComputePipeline,
    bind_group: wgpu::BindGroup,
    /// What one workgroup does, in the unit of its roof.
    work: f64,
    /// Workgroups of a dispatch at most; all of them for a copy.
    groups: core::ops::RangeInclusive<u32>,
}

/// The whole text of one of them; matrices as these capabilities have them, in workgroups of one subgroup.
fn source(kind: Kind, chains: u32, threads: u32, caps: &Caps) -> String {
    let text = match kind {
        Kind::Fma => include_str!("../../shaders/roofs/fma.wgsl"),
        Kind::Dot => include_str!("../../shaders/roofs/dot.wgsl"),
        Kind::Exp2 => include_str!("../../shaders/roofs/exp2.wgsl"),
        Kind::Copy | Kind::WideCopy => include_str!("../../shaders/roofs/copy.wgsl"),
        Kind::Read => include_str!("../../shaders/roofs/read.wgsl"),
        Kind::ReadTogether => include_str!("../../shaders/roofs/read_together.wgsl"),
        Kind::Workgroup => include_str!("../../shaders/roofs/workgroup.wgsl"),
        Kind::Matrix => include_str!("../../shaders/roofs/matrix.wgsl"),
    };
    let threads = if kind == Kind::Matrix { caps.max_subgroup_size } else { threads };
    let mut constants =
        Constants::from([("THREADS", threads), ("STEPS", STEPS), ("ROUNDS", ROUNDS), ("CHAINS", chains)]);
    let prelude = match kind {
        Kind::Matrix => {
            constants.insert("SIZE", matrix_size(caps));
            matrix_prelude(matrix_size(caps))
        }
        Kind::Copy => "alias Words = vec4<f32>;\n".to_owned(),
        Kind::WideCopy => "alias Words = vec2<u64>;\n".to_owned(),
        _ => String::new(),
    };
    let header: String =
        constants.iter().map(|(name, value)| format!("const {name} = {value}u;\n")).collect();
    unroll(&format!("{prelude}{header}{text}"), &constants)
}

/// The widest matrices.
fn matrix_size(caps: &Caps) -> u32 {
    caps.matrix_sizes.iter().max().copied().unwrap_or(0)
}

/// Work of which nothing is known but that it takes time in proportion.
pub(super) async fn known_work(attention: &Attention) -> Result<Probe> {
    Probe::new(attention, Kind::Fma, 4, THREADS).await
}

impl Probe {
    async fn new(attention: &Attention, kind: Kind, chains: u32, threads: u32) -> Result<Self> {
        let per_group = threads * STEPS * 16;
        let caps = attention.caps();
        let streamed = stream(caps.class).min(caps.max_storage_buffer_binding_size).min(caps.max_buffer_size);
        let stream_groups = (streamed / u64::from(per_group)).clamp(1, MOST_GROUPS.into()) as u32;
        let operations = |each: u32| f64::from(THREADS) * f64::from(ROUNDS * STEPS * chains * each);
        let (work, groups, bytes) = match kind {
            Kind::Fma => (operations(4 * 2), 1..=MOST_GROUPS, 48),
            Kind::Dot => (operations(8), 1..=MOST_GROUPS, 48),
            Kind::Exp2 => (operations(4), 1..=MOST_GROUPS, 48),
            Kind::Copy | Kind::WideCopy | Kind::Read | Kind::ReadTogether => {
                let both = matches!(kind, Kind::Copy | Kind::WideCopy);
                let each = if both { 2 * per_group } else { per_group };
                (
                    f64::from(each),
                    stream_groups..=stream_groups,
                    u64::from(stream_groups) * u64::from(per_group),
                )
            }
            Kind::Workgroup => (f64::from(THREADS) * f64::from(ROUNDS * STEPS) * 16.0, 1..=MOST_GROUPS, 48),
            // Of one subgroup.
            Kind::Matrix => {
                let product = 2.0 * f64::from(matrix_size(caps)).powi(3);
                (product * f64::from(ROUNDS * STEPS * chains), 1..=MOST_GROUPS, 48)
            }
        };
        let source = source(kind, chains, threads, caps);
        // 0.999 x + 0.001: stays near 1.
        let seed = [0.999f32, 0.001, 0.5].map(|x| [x; 4]);
        let seed =
            create_buffer(attention.context(), "roof: read", bytes, wgpu::BufferUsages::STORAGE, |mapped| {
                mapped[..48].copy_from_slice(bytemuck::cast_slice(&seed));
            })
            .await?;
        let sink =
            create_buffer_unset(attention.context(), "roof: written", bytes, wgpu::BufferUsages::STORAGE)
                .await?;
        let label = format!("roof: {kind:?}");
        let device = attention.device();
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: None,
            module: &module,
            entry_point: Some("roof"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let bind_group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&label),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[
                wgpu::BindGroupEntry { binding: 0, resource: seed.as_entire_binding() },
                wgpu::BindGroupEntry { binding: 1, resource: sink.as_entire_binding() },
            ],
        });
        let (internal, validation) = (internal.pop(), scope.pop());
        if let Some(error) = internal.await.or(validation.await) {
            return Err(Error::Driver { label, message: error.to_string() });
        }
        Ok(Probe { pipeline, bind_group, work, groups })
    }

    fn record(&self, groups: u32, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bind_group, &[]);
        pass.dispatch_workgroups(groups, 1, 1);
    }

    /// Workgroups and calls that take about so many seconds.
    pub(super) async fn grow(&self, stopwatch: &Stopwatch, seconds: f64) -> Result<(u32, u32)> {
        let (mut groups, mut calls) = (*self.groups.start(), 1);
        // Some drivers compile when a pipeline is first dispatched, which would pass for the work of one workgroup.
        stopwatch.time(1, calls, &|_, pass| self.record(groups, pass)).await?;
        loop {
            let took = stopwatch.time(1, calls, &|_, pass| self.record(groups, pass)).await?;
            let full = groups == *self.groups.end();
            if took >= seconds || (full && calls >= 64) {
                return Ok((groups, calls));
            }
            if full {
                calls *= 2;
            } else {
                groups = groups.saturating_mul(2).min(*self.groups.end());
            }
        }
    }

    /// The best of two to six runs within about the given time, in seconds.
    pub(super) async fn best(
        &self,
        stopwatch: &Stopwatch,
        groups: u32,
        calls: u32,
        time: f64,
    ) -> Result<f64> {
        let (mut best, mut all) = (f64::INFINITY, 0.0);
        for run in 0..6 {
            let took = stopwatch.time(1, calls, &|_, pass| self.record(groups, pass)).await?;
            (best, all) = (best.min(took), all + took);
            if run > 0 && all > time {
                break;
            }
        }
        Ok(best)
    }

    /// What it does in a second, taken within about the given time.
    async fn rate(&self, stopwatch: &Stopwatch, time: Duration) -> Result<f64> {
        let (groups, calls) = self.grow(stopwatch, (time.as_secs_f64() / 8.0).clamp(0.001, 0.1)).await?;
        let best = self.best(stopwatch, groups, calls, time.as_secs_f64()).await?;
        Ok(self.work * f64::from(groups) * f64::from(calls) / best.max(1e-9))
    }
}

// Every read from workgroup memory is within its array, which is within what every device has.
const _: () = {
    let last_first = (THREADS - 1) + (THREADS - 1);
    assert!(last_first + (STEPS - 1) * THREADS < THREADS * (STEPS + 1));
    assert!(THREADS * (STEPS + 1) * 16 <= 16384 && THREADS.is_power_of_two());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_copy_is_the_roof_of_copies() {
        let plain = Roofs {
            fma: 1.0,
            dot: 1.0,
            exp2: 1.0,
            copy: 2.0,
            wide_copy: None,
            read: 3.0,
            workgroup: 1.0,
            matrix: None,
        };
        assert_eq!((plain.best_copy(), plain.memory()), (2.0, 3.0));
        let wide = Roofs { wide_copy: Some(4.0), ..plain };
        assert_eq!((wide.best_copy(), wide.memory()), (4.0, 4.0));
        let slow = Roofs { wide_copy: Some(1.0), ..plain };
        assert_eq!((slow.best_copy(), slow.memory()), (2.0, 3.0));
    }

    #[test]
    fn every_roof_is_valid_wgsl_and_unrolled() {
        let mut caps = Caps::webgpu_default();
        (caps.matrix_sizes, caps.max_subgroup_size) = (vec![8], 32);
        for (kind, chains) in ROOFS {
            for &chains in chains {
                let source = source(kind, chains, THREADS, &caps);
                assert!(!source.contains("// unroll"), "{source}");
                let module = naga::front::wgsl::parse_str(&source).unwrap();
                let flags = naga::valid::ValidationFlags::all();
                use naga::valid::Capabilities as C;
                let needs = match kind {
                    Kind::Matrix => C::COOPERATIVE_MATRIX | C::SHADER_FLOAT16 | C::SUBGROUP,
                    Kind::WideCopy => C::SHADER_INT64,
                    _ => C::empty(),
                };
                let mut validator = naga::valid::Validator::new(flags, needs);
                validator.validate(&module).unwrap();
            }
        }
    }
}
