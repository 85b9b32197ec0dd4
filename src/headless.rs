//! A device for scripts, tests and demos. Apps bring their own.

use crate::attention::Attention;
use crate::caps::{MATRIX_FEATURES, OPTIONAL_FEATURES, helpful_limits};
use crate::error::{Error, Result};

/// How to pick an adapter.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// Part of the adapter's name, in any case; the first that matches is taken.
    pub adapter: Option<String>,
    /// WebGPU's default limits and no features, as in any browser, rather than what helps.
    pub default_limits: bool,
    /// [`wgpu::ExperimentalFeatures::enabled`], an unsafe function, gives a device with [`MATRIX_FEATURES`], where the adapter has all of
    /// them: for [`Kernel::Matrix`](crate::Kernel::Matrix). Not by default.
    pub experimental: wgpu::ExperimentalFeatures,
}

impl Options {
    /// The first adapter whose name contains this, in any case.
    pub fn adapter(mut self, part_of_name: impl Into<String>) -> Self {
        self.adapter = Some(part_of_name.into());
        self
    }

    /// WebGPU's default limits and no features.
    pub fn default_limits(mut self) -> Self {
        self.default_limits = true;
        self
    }
}

/// An adapter with its device and queue.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// The adapter.
    pub adapter: wgpu::Adapter,
    /// Its device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
}

impl Gpu {
    /// Attention on the device, with the matrices of the adapter if they were asked for.
    pub fn attention(&self) -> Attention {
        Attention::new(&self.device).with_matrices(&self.adapter)
    }
}

/// An instance for the back ends of this build; `WGPU_BACKEND` and `WGPU_POWER_PREF` in the environment are heeded.
pub fn instance() -> wgpu::Instance {
    let descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    #[cfg(not(target_arch = "wasm32"))]
    let descriptor = descriptor.with_env();
    wgpu::Instance::new(descriptor)
}

/// All adapters that can run compute shaders, in the driver's order.
pub async fn adapters() -> Vec<wgpu::Adapter> {
    let compute = wgpu::DownlevelFlags::COMPUTE_SHADERS;
    instance()
        .enumerate_adapters(wgpu::Backends::all())
        .await
        .into_iter()
        .filter(|a| a.get_downlevel_capabilities().flags.contains(compute))
        .collect()
}

/// Opens the adapter that the options name, else the system's choice.
///
/// # Errors
/// [`Error::NoAdapter`] where there is none, [`Error::UnknownAdapter`] where none has the name, [`Error::Driver`] where it gives no device.
pub async fn open(options: &Options) -> Result<Gpu> {
    let adapter = match &options.adapter {
        Some(part) => by_name(part).await?,
        None => by_default().await?,
    };
    let (required_features, required_limits) = if options.default_limits {
        // An adapter below WebGPU's defaults has to do with what it has.
        let limits = wgpu::Limits::default().or_worse_values_from(&adapter.limits());
        (wgpu::Features::empty(), limits)
    } else {
        let has = adapter.features();
        let matrices = options.experimental.is_enabled() && has.contains(MATRIX_FEATURES);
        let wanted = if matrices { OPTIONAL_FEATURES | MATRIX_FEATURES } else { OPTIONAL_FEATURES };
        (has & wanted, helpful_limits(&adapter))
    };
    let (device, queue) = adapter
        .request_device(&wgpu::DeviceDescriptor {
            label: Some("wgpu-attention"),
            required_features,
            required_limits,
            experimental_features: options.experimental,
            ..Default::default()
        })
        .await
        .map_err(|e| Error::Driver { label: adapter.get_info().name, message: e.to_string() })?;
    Ok(Gpu { adapter, device, queue })
}

/// [`open`] for code that is not async.
///
/// # Errors
/// As [`open`].
#[cfg(not(target_arch = "wasm32"))]
pub fn open_blocking(options: &Options) -> Result<Gpu> {
    pollster::block_on(open(options))
}

async fn by_name(part: &str) -> Result<wgpu::Adapter> {
    let wanted = part.to_lowercase();
    let mut names = Vec::new();
    for adapter in adapters().await {
        let name = adapter.get_info().name;
        if name.to_lowercase().contains(&wanted) {
            return Ok(adapter);
        }
        names.push(name);
    }
    match names.len() {
        0 => Err(Error::NoAdapter("there is none for compute shaders".to_owned())),
        _ => Err(Error::UnknownAdapter { part: part.to_owned(), there: names }),
    }
}

async fn by_default() -> Result<wgpu::Adapter> {
    let power = if cfg!(target_arch = "wasm32") {
        wgpu::PowerPreference::HighPerformance
    } else {
        wgpu::PowerPreference::from_env().unwrap_or(wgpu::PowerPreference::HighPerformance)
    };
    instance()
        .request_adapter(&wgpu::RequestAdapterOptions { power_preference: power, ..Default::default() })
        .await
        .map_err(|e| Error::NoAdapter(e.to_string()))
}
