//! `Attention`: the façade. Holds the app's device and the compiled variants; everything else is a plan away.

use crate::caps::Caps;
use crate::context::{CompiledPass, Context, Slot, Variants};
use crate::error::Result;
use crate::kernel::{Binding, Pass, PipelineKey};
use crate::plan::{Plan, PlanOptions};
use crate::prepared::Prepared;
use crate::problem::Problem;
use crate::shader;
use crate::shader::params::Params;
use std::sync::Arc;

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
    context: Context,
    pipelines: Variants<PipelineKey, Pipelines>,
}

/// A compiled variant.
#[derive(Debug)]
pub(crate) struct Pipelines {
    /// In order of dispatch.
    pub passes: Vec<CompiledPass>,
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
        let context = Context::new(device, cache);
        Attention {
            inner: Arc::new(Inner { context, pipelines: Variants::default() }),
            #[cfg(feature = "measure")]
            tuning: None,
        }
    }

    /// With the cooperative matrices of the device's adapter, which a device does not tell: so [`Kernel::Matrix`](crate::Kernel::Matrix)
    /// can be asked for. Changes nothing on a device that was made without [`MATRIX_FEATURES`](crate::MATRIX_FEATURES).
    ///
    /// wgpu calls this experimental and wants that said in an unsafe block, which is the app's to write. Right after [`Attention::new`]:
    /// what was compiled before is not taken along.
    ///
    /// ```no_run
    /// # async fn example(adapter: wgpu::Adapter) -> Result<(), Box<dyn std::error::Error>> {
    /// use wgpu_attention::{Attention, MATRIX_FEATURES, OPTIONAL_FEATURES, helpful_limits, wgpu};
    /// let (device, queue) = adapter
    ///     .request_device(&wgpu::DeviceDescriptor {
    ///         required_features: adapter.features() & (OPTIONAL_FEATURES | MATRIX_FEATURES),
    ///         required_limits: helpful_limits(&adapter),
    ///         // Safety: the app accepts that wgpu's code for cooperative matrices is unfinished.
    ///         experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
    ///         ..Default::default()
    ///     })
    ///     .await?;
    /// let attention = Attention::new(&device).with_matrices(&adapter);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_matrices(self, adapter: &wgpu::Adapter) -> Self {
        let context = self.context().with_matrices(adapter);
        let mut with_matrices = self;
        with_matrices.inner = Arc::new(Inner { context, pipelines: Variants::default() });
        with_matrices
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
        &self.context().device
    }

    pub(crate) fn context(&self) -> &Context {
        &self.inner.context
    }

    /// What the device can do, as planning sees it.
    pub fn caps(&self) -> &Caps {
        &self.context().caps
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
        let plan = Plan::new(problem, self.caps(), options)?;
        #[cfg(feature = "measure")]
        if *options == PlanOptions::default()
            && let Some(tuned) = self.tuning.as_ref().and_then(|t| t.plan(self.device(), self.caps(), &plan))
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
    /// [`LimitExceeded`](crate::Error::LimitExceeded) for a plan made for a device that has more than this one;
    /// [`Driver`](crate::Error::Driver) where the driver refuses the shader; [`OutOfMemory`](crate::Error::OutOfMemory) or
    /// [`DeviceLost`](crate::Error::DeviceLost) where there is no buffer to be had.
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
        self.inner.pipelines.len()
    }

    async fn pipelines(&self, key: &PipelineKey) -> Result<Arc<Pipelines>> {
        let known = &self.inner.pipelines;
        if let Some(found) = known.get(key) {
            return Ok(found);
        }
        let label = key.to_string();
        let compiled = self.context().scoped(&label, || self.compile(key, &label)).await?;
        Ok(known.keep(key, compiled))
    }

    fn compile(&self, key: &PipelineKey, label: &str) -> Pipelines {
        let context = self.context();
        let module = context.module(label, shader::source(key));
        let slot = |binding: Binding| Slot { number: binding.number(), written: binding.is_written() };
        let compile_pass = |pass: &Pass| {
            let slots = pass.bindings(key).map(slot);
            context.entry_point(label, &module, pass.entry_point, size_of::<Params>(), slots)
        };
        Pipelines { passes: key.passes().iter().map(compile_pass).collect() }
    }
}
