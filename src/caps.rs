//! `Caps`: what a device can do, as plain data, so that planning can be tested with no device at all.

/// The kind of adapter: it decides which tiles are tried, and after how much work a dispatch is cut in two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdapterClass {
    /// A graphics card with its own memory.
    Discrete,
    /// Graphics that share the processor's memory.
    Integrated,
    /// A processor that plays a GPU: lavapipe, SwiftShader, WARP.
    Cpu,
    /// Virtual, or not told (browsers).
    Other,
}

impl From<wgpu::DeviceType> for AdapterClass {
    fn from(kind: wgpu::DeviceType) -> Self {
        match kind {
            wgpu::DeviceType::DiscreteGpu => AdapterClass::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterClass::Integrated,
            wgpu::DeviceType::Cpu => AdapterClass::Cpu,
            _ => AdapterClass::Other,
        }
    }
}

/// Limits and facts of a device that planning looks at. Read from a device, or made by hand in a test.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Caps {
    /// The kind of adapter.
    pub class: AdapterClass,
    /// Bytes of one buffer.
    pub max_buffer_size: u64,
    /// Bytes of one storage binding.
    pub max_storage_buffer_binding_size: u64,
    /// Storage buffers that one shader may use.
    pub max_storage_buffers_per_shader_stage: u32,
    /// Bytes of workgroup memory.
    pub max_compute_workgroup_storage_size: u32,
    /// Threads of a workgroup.
    pub max_compute_invocations_per_workgroup: u32,
    /// Threads of a workgroup in x, the only dimension in use here.
    pub max_compute_workgroup_size_x: u32,
    /// Workgroups of a dispatch in one dimension.
    pub max_compute_workgroups_per_dimension: u32,
    /// Alignment of a storage binding's offset, in bytes.
    pub min_storage_buffer_offset_alignment: u32,
    /// Alignment of a uniform binding's offset, in bytes.
    pub min_uniform_buffer_offset_alignment: u32,
    /// Rounds of loops, all of them together, that one thread may make: no limit of WebGPU, but older releases of Mesa's llvmpipe
    /// leave all loops after 65535, without a word and with wrong numbers. The planner refuses a problem that would need more
    /// ([`Error::LimitExceeded`](crate::Error::LimitExceeded)); loops in [`UserCode`](crate::UserCode) are not counted.
    /// `u32::MAX` where there is no limit.
    pub max_loop_iterations: u32,
    /// Lanes of a subgroup, where the device has the feature `SUBGROUP` and all its subgroups are of one size.
    pub subgroup_size: Option<u32>,
    /// The most lanes of a subgroup, where the device has the feature `SUBGROUP`, and else 0.
    pub max_subgroup_size: u32,
    /// Each n for which n x n matrices of f16 can be multiplied with sums in f32, by shaders as they may be written for the device.
    /// Empty where the device lacks [`MATRIX_FEATURES`] or nobody has said what its adapter has: see [`Caps::with_matrices`].
    pub matrix_sizes: Vec<u32>,
    /// Mesa's llvmpipe through Vulkan: a processor whose driver gains most from many keys a thread, for which loads cost more than what they feed.
    pub is_llvmpipe: bool,
    /// What all lanes load at one address, the driver loads once: Mesa's llvmpipe since release 26. (22.3 loads it lane by lane.)
    pub loads_once: bool,
    /// For an adapter that is this machine's processor: loads by lane, each from a place of its own, are not known to be dear. They are on x86
    /// without AVX-512, where LLVM makes them as many loads as there are lanes, with a branch each (not on some of Intel's with AVX2,
    /// which are not told apart here). Other processors were not measured, and count as if they were not.
    pub gathers: bool,
    /// For an adapter that is this machine's processor: its threads, so many workgroups as run at a time. 1 where it is not known.
    pub processors: u32,
    /// The device has the feature `SHADER_F16`: f16 as a type of the shader's own. Never needed.
    pub shader_f16: bool,
    /// The device has wgpu's feature `SHADER_INT64`: a shader may load and store two numbers as one. Never needed.
    pub shader_int64: bool,
}

impl Caps {
    /// WebGPU's default limits on an adapter that says nothing about itself: what every browser has.
    pub fn webgpu_default() -> Self {
        Self::from_limits(&wgpu::Limits::default(), AdapterClass::Other)
    }

    /// What a device was created with: the limits the app asked for, not those the adapter could have given.
    pub fn from_device(device: &wgpu::Device) -> Self {
        Self::from_info(&device.limits(), &device.adapter_info(), device.features())
    }

    /// What a device of an adapter has when it is asked for with [`helpful_limits`].
    pub fn from_adapter(adapter: &wgpu::Adapter) -> Self {
        Self::from_info(&helpful_limits(adapter), &adapter.get_info(), adapter.features() & OPTIONAL_FEATURES)
    }

    fn from_info(limits: &wgpu::Limits, info: &wgpu::AdapterInfo, features: wgpu::Features) -> Self {
        let (least, most) = (info.subgroup_min_size, info.subgroup_max_size);
        Caps {
            max_loop_iterations: loop_iterations(info),
            subgroup_size: (features.contains(wgpu::Features::SUBGROUP) && least == most).then_some(least),
            max_subgroup_size: if features.contains(wgpu::Features::SUBGROUP) { most } else { 0 },
            is_llvmpipe: info.backend == wgpu::Backend::Vulkan && info.name.contains(LLVMPIPE),
            loads_once: info.backend == wgpu::Backend::Vulkan
                && mesa_release(info).is_some_and(|r| r >= NEW_LLVMPIPE),
            gathers: processor_gathers(),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get().min(1 << 16) as u32),
            shader_f16: features.contains(wgpu::Features::SHADER_F16),
            shader_int64: features.contains(wgpu::Features::SHADER_INT64),
            ..Self::from_limits(limits, info.device_type.into())
        }
    }

    /// From a set of limits, for an adapter whose driver ends no loop early.
    pub fn from_limits(limits: &wgpu::Limits, class: AdapterClass) -> Self {
        Caps {
            class,
            max_buffer_size: limits.max_buffer_size,
            max_storage_buffer_binding_size: limits.max_storage_buffer_binding_size,
            max_storage_buffers_per_shader_stage: limits.max_storage_buffers_per_shader_stage,
            max_compute_workgroup_storage_size: limits.max_compute_workgroup_storage_size,
            max_compute_invocations_per_workgroup: limits.max_compute_invocations_per_workgroup,
            max_compute_workgroup_size_x: limits.max_compute_workgroup_size_x,
            max_compute_workgroups_per_dimension: limits.max_compute_workgroups_per_dimension,
            min_storage_buffer_offset_alignment: limits.min_storage_buffer_offset_alignment,
            min_uniform_buffer_offset_alignment: limits.min_uniform_buffer_offset_alignment,
            max_loop_iterations: u32::MAX,
            subgroup_size: None,
            max_subgroup_size: 0,
            matrix_sizes: Vec::new(),
            is_llvmpipe: false,
            loads_once: false,
            gathers: false,
            processors: 1,
            shader_f16: false,
            shader_int64: false,
        }
    }

    /// With the cooperative matrices of an adapter ([`wgpu::Adapter::cooperative_matrix_properties`]), as far as a device with these
    /// features has them and a kernel can use them: square, 8 or 16 wide, f16 in, f32 out.
    ///
    /// ```
    /// use wgpu_attention::{Caps, MATRIX_FEATURES, wgpu};
    /// use wgpu::CooperativeScalarType::{F16, F32};
    /// let small = wgpu::CooperativeMatrixProperties {
    ///     m_size: 8, n_size: 8, k_size: 8, ab_type: F16, cr_type: F32, saturating_accumulation: false,
    /// };
    /// let caps = Caps::webgpu_default();
    /// assert_eq!(caps.clone().with_matrices(MATRIX_FEATURES, &[small]).matrix_sizes, [8]);
    /// assert!(caps.with_matrices(wgpu::Features::empty(), &[small]).matrix_sizes.is_empty());
    /// ```
    pub fn with_matrices(
        mut self,
        features: wgpu::Features,
        properties: &[wgpu::CooperativeMatrixProperties],
    ) -> Self {
        use wgpu::CooperativeScalarType::{F16, F32};
        let has = |size: &u32| {
            properties.iter().any(|p| {
                let square = [p.m_size, p.n_size, p.k_size].iter().all(|n| n == size);
                square && p.ab_type == F16 && p.cr_type == F32
            })
        };
        self.matrix_sizes = match features.contains(MATRIX_FEATURES) {
            true => [8, 16].into_iter().filter(has).collect(),
            false => Vec::new(),
        };
        self
    }

    pub(crate) fn loop_iterations(&self) -> u64 {
        match self.max_loop_iterations {
            u32::MAX => u64::MAX,
            limit => limit.into(),
        }
    }

    /// Threads that one workgroup may have in x.
    pub(crate) fn threads(&self) -> u32 {
        self.max_compute_invocations_per_workgroup.min(self.max_compute_workgroup_size_x)
    }

    /// Operations after which a dispatch is cut in two, so that one dispatch stays well under the seconds after which
    /// operating systems reset a driver, and other work of the app gets its turn: about half a second for a CPU adapter
    /// (lavapipe on two cores), and guesses, not measured, for the others. Staged keys may have more on a processor ([`RowTiles::flops_per_dispatch`](crate::RowTiles)).
    pub(crate) fn flops_per_dispatch(&self) -> u64 {
        match self.class {
            AdapterClass::Discrete => 400_000_000_000,
            AdapterClass::Integrated | AdapterClass::Other => 50_000_000_000,
            AdapterClass::Cpu => 2_000_000_000,
        }
    }
}

/// Features that this crate can use where the device has them: timestamps, for [`Bound::encode_timed`](crate::Bound::encode_timed),
/// subgroups, for [`Kernel::Rows`](crate::Kernel::Rows), f16 as a type of the shader's own, for tensors that are stored so
/// ([`PlanOptions::native_f16`](crate::PlanOptions)), and whole numbers of 64 bits, as which [`Kernel::Rows`](crate::Kernel::Rows)
/// ([`PlanOptions::wide_words`](crate::PlanOptions)) and [`Softmax`](crate::softmax::Softmax) move numbers on a processor that plays a GPU. None is
/// needed, and none for f16 or bf16.
pub const OPTIONAL_FEATURES: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SHADER_INT64);

/// Features that [`Kernel::Matrix`](crate::Kernel::Matrix) needs. One of them is experimental in wgpu, which gives it only to who
/// passes [`wgpu::ExperimentalFeatures::enabled`], an unsafe function: this crate never does, and no device has them by default.
pub const MATRIX_FEATURES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP);

/// Features without which nothing runs: none.
pub const REQUIRED_FEATURES: wgpu::Features = wgpu::Features::empty();

/// A device request that gets the most out of an adapter: the default limits, raised to the adapter's own where
/// more helps this crate (buffer and binding sizes, workgroup memory, threads).
///
/// An app merges this with its own needs; with `wgpu::Limits::default()` everything works too.
pub fn helpful_limits(adapter: &wgpu::Adapter) -> wgpu::Limits {
    let has = adapter.limits();
    // An adapter below WebGPU's defaults (an old OpenGL) keeps its own lower limits: asking for more would fail.
    let mut limits = wgpu::Limits::default().or_worse_values_from(&has);
    limits.max_buffer_size = has.max_buffer_size;
    limits.max_storage_buffer_binding_size = has.max_storage_buffer_binding_size;
    limits.max_compute_workgroup_storage_size = has.max_compute_workgroup_storage_size;
    limits.max_compute_invocations_per_workgroup = has.max_compute_invocations_per_workgroup;
    limits.max_compute_workgroup_size_x = has.max_compute_workgroup_size_x;
    limits
}

/// What Mesa's software rasteriser calls itself.
const LLVMPIPE: &str = "llvmpipe";

/// Rounds of loops, all of them together, after which Mesa's software rasteriser leaves every loop of a thread, whatever the shader says.
const LLVMPIPE_LOOP_ITERATIONS: u32 = 65535;

/// Taken to be without that, and to load once what all lanes load at one address: 26.2 was tested and is, 22.3 is not, and what lies between
/// was not tried.
const NEW_LLVMPIPE: u32 = 26;

/// How many rounds of loops one thread may make before the driver stops it, silently.
fn loop_iterations(info: &wgpu::AdapterInfo) -> u32 {
    if !info.name.contains(LLVMPIPE) {
        return u32::MAX;
    }
    match mesa_release(info) {
        Some(release) if release >= NEW_LLVMPIPE => u32::MAX,
        _ => LLVMPIPE_LOOP_ITERATIONS,
    }
}

/// The release of Mesa that a software rasteriser belongs to.
fn mesa_release(info: &wgpu::AdapterInfo) -> Option<u32> {
    if !info.name.contains(LLVMPIPE) {
        return None;
    }
    // "Mesa 22.3.6 (LLVM 15.0.6)", or with OpenGL's own version before it.
    info.driver_info.split("Mesa ").nth(1)?.split('.').next()?.parse().ok()
}

/// Whether this machine's processor is not known to lack a gather that LLVM uses for the eight lanes of llvmpipe.
fn processor_gathers() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    {
        std::is_x86_feature_detected!("avx512vl")
    }
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of Mesa's software rasteriser by its release.
    #[test]
    fn releases_of_llvmpipe() {
        let caps = |name: &str, driver_info: &str, backend| {
            let mut info = wgpu::AdapterInfo::new(wgpu::DeviceType::Cpu, backend);
            (info.name, info.driver_info) = (name.to_owned(), driver_info.to_owned());
            let caps = Caps::from_info(&wgpu::Limits::default(), &info, wgpu::Features::empty());
            (caps.is_llvmpipe, caps.loads_once, caps.max_loop_iterations == u32::MAX)
        };
        let (vulkan, gl) = (wgpu::Backend::Vulkan, wgpu::Backend::Gl);
        let name = "llvmpipe (LLVM 15.0.6, 256 bits)";
        assert_eq!(caps(name, "Mesa 22.3.6 (LLVM 15.0.6)", vulkan), (true, false, false));
        assert_eq!(caps(name, "Mesa 25.9.9", vulkan), (true, false, false));
        assert_eq!(caps(name, "Mesa 26.0.0", vulkan), (true, true, true));
        assert_eq!(caps(name, "something else", vulkan), (true, false, false));
        assert_eq!(caps(name, "4.5 (Core Profile) Mesa 26.2.6", gl), (false, false, true));
        assert_eq!(caps("SwiftShader Device", "SwiftShader driver", vulkan), (false, false, true));
        assert_eq!(caps("a card", "Mesa 26.2.6", vulkan), (false, false, true));
    }
}
