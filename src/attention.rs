//! `Attention`: the façade. Holds the app's device and the compiled variants; everything else is a plan away.

use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::kernel::{Binding, Pass, PipelineKey};
use crate::plan::{Plan, PlanOptions};
use crate::prepared::Prepared;
use crate::problem::Problem;
use crate::shader;
use crate::shader::params::Params;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

/// Attention on a device of the app's. Cheap to clone, usable from several threads.
///
/// It never submits or waits, with exceptions that say so: [`Attention::run`] and [`Attention::scores`], which take host slices,
/// with their variants. It never asks for a device.
///
/// On OpenGL use it from one thread: wgpu gives its context to one thread at a time, and panics when another holds it for some
/// seconds, as while compiling.
#[derive(Debug, Clone)]
pub struct Attention {
    pub(crate) inner: Arc<Inner>,
    #[cfg(feature = "measure")]
    tuning: Option<Arc<crate::tune::Tuning>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub device: wgpu::Device,
    pub caps: Caps,
    /// What is bound where a tensor has no element, because WebGPU has no empty bindings.
    pub nothing: wgpu::Buffer,
    cache: Option<wgpu::PipelineCache>,
    pipelines: Mutex<HashMap<PipelineKey, Arc<Pipelines>>>,
}

/// A compiled variant.
#[derive(Debug)]
pub(crate) struct Pipelines {
    /// In order of dispatch.
    pub passes: Vec<CompiledPass>,
}

#[derive(Debug)]
pub(crate) struct CompiledPass {
    pub layout: wgpu::BindGroupLayout,
    pub pipeline: wgpu::ComputePipeline,
}

// WebGPU objects belong to one thread in a browser; everywhere else these are shared freely.
#[cfg(not(target_arch = "wasm32"))]
const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<Attention>();
    send_sync::<Prepared>();
    send_sync::<crate::prepared::Bound>();
    send_sync::<Plan>();
};

impl Attention {
    /// For a device of the app's, which may have any limits and no features.
    pub fn new(device: &wgpu::Device) -> Self {
        Self::with_pipeline_cache(device, None)
    }

    /// With the app's own [`wgpu::PipelineCache`], through which compiled variants survive the program.
    pub fn with_pipeline_cache(device: &wgpu::Device, cache: Option<wgpu::PipelineCache>) -> Self {
        let nothing = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("attention: nothing"),
            size: 256,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        Attention {
            inner: Arc::new(Inner {
                device: device.clone(),
                caps: Caps::from_device(device),
                nothing,
                cache,
                pipelines: Mutex::default(),
            }),
            #[cfg(feature = "measure")]
            tuning: None,
        }
    }

    /// With what a [`Tuner`](crate::tune::Tuner) found on this device: it takes the place of the planner's choice for problems of
    /// the classes that were tuned, wherever [`PlanOptions`] leave the choice open. Compiled variants are shared with the original.
    #[cfg(feature = "measure")]
    pub fn with_tuning(mut self, tuning: crate::tune::Tuning) -> Self {
        self.tuning = Some(Arc::new(tuning));
        self
    }

    /// The device that everything is made on.
    pub fn device(&self) -> &wgpu::Device {
        &self.inner.device
    }

    /// What the device can do, as planning sees it.
    pub fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    /// Plans a problem for this device.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan(&self, problem: &Problem) -> Result<Plan> {
        self.plan_with(problem, &PlanOptions::default())
    }

    /// Plans a problem with choices of your own.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan_with(&self, problem: &Problem, options: &PlanOptions) -> Result<Plan> {
        let plan = Plan::new(problem, &self.inner.caps, options)?;
        #[cfg(feature = "measure")]
        if *options == PlanOptions::default()
            && let Some(tuned) =
                self.tuning.as_ref().and_then(|t| t.plan(&self.inner.device, &self.inner.caps, &plan))
        {
            return Ok(tuned);
        }
        Ok(plan)
    }

    /// Compiles what a plan needs (or finds it compiled) and makes its buffers: a few hundred bytes for each slice, and the
    /// naive kernel's scratch ([`Plan::scratch_bytes`]). After this, binding and encoding neither compile nor allocate device
    /// memory.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] for a plan made for a device that has more than this one; [`Error::Driver`] where the driver
    /// refuses the shader; [`Error::OutOfMemory`] or [`Error::DeviceLost`] where there is no buffer to be had.
    pub async fn prepare(&self, plan: &Plan) -> Result<Prepared> {
        plan.fits(self.caps())?;
        let pipelines = self.pipelines(plan.key()).await?;
        Prepared::new(self.clone(), plan.clone(), pipelines).await
    }

    /// [`Attention::prepare`] for code that is not async.
    ///
    /// # Errors
    /// As [`Attention::prepare`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn prepare_blocking(&self, plan: &Plan) -> Result<Prepared> {
        pollster::block_on(self.prepare(plan))
    }

    /// Compiles the variants of several plans ahead of their first use.
    ///
    /// # Errors
    /// As [`Attention::prepare`].
    pub async fn warm_up(&self, plans: &[Plan]) -> Result<()> {
        for plan in plans {
            plan.fits(self.caps())?;
            self.pipelines(plan.key()).await?;
        }
        Ok(())
    }

    /// Number of variants compiled so far.
    pub fn compiled(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PipelineKey, Arc<Pipelines>>> {
        // The map is whole between any two statements, so a panic of another thread left nothing broken.
        self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pipelines(&self, key: &PipelineKey) -> Result<Arc<Pipelines>> {
        if let Some(found) = self.lock().get(key) {
            return Ok(found.clone());
        }
        // Compiled outside the lock: two threads may do the same work once, but none waits for a compiler.
        let label = key.to_string();
        let scope = self.inner.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = self.inner.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let memory = self.inner.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let pipelines = Arc::new(self.compile(key, &label));
        let (memory, internal, validation) = (memory.pop(), internal.pop(), scope.pop());
        if memory.await.is_some() {
            return Err(Error::OutOfMemory { label, bytes: 0 });
        }
        if let Some(error) = internal.await.or(validation.await) {
            return Err(Error::Driver { label, message: error.to_string() });
        }
        Ok(self.lock().entry(key.clone()).or_insert(pipelines).clone())
    }

    fn compile(&self, key: &PipelineKey, label: &str) -> Pipelines {
        let device = &self.inner.device;
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(label),
            source: wgpu::ShaderSource::Wgsl(shader::source(key).into()),
        });
        let compile_pass = |pass: &Pass| {
            let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: Some(label),
                entries: &layout_entries(pass, key),
            });
            let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(label),
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(label),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some(pass.entry_point),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: self.inner.cache.as_ref(),
            });
            CompiledPass { layout, pipeline }
        };
        Pipelines { passes: key.kernel.passes().iter().map(compile_pass).collect() }
    }
}

fn layout_entries(pass: &Pass, key: &PipelineKey) -> Vec<wgpu::BindGroupLayoutEntry> {
    let entry = |binding, ty| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty,
        count: None,
    };
    let params = wgpu::BindingType::Buffer {
        ty: wgpu::BufferBindingType::Uniform,
        has_dynamic_offset: true,
        min_binding_size: NonZeroU64::new(size_of::<Params>() as u64),
    };
    let storage = |binding: Binding| {
        let ty = wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: !binding.is_written() },
            has_dynamic_offset: false,
            min_binding_size: None,
        };
        entry(binding.number(), ty)
    };
    [entry(0, params)].into_iter().chain(pass.bindings(key).map(storage)).collect()
}
