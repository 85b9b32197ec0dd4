//! The app's device with its limits, and compiling on it: what everything that runs on the device stands on.

use crate::caps::Caps;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device of the app's.
#[derive(Debug)]
pub(crate) struct Context {
    pub device: wgpu::Device,
    pub caps: Caps,
    /// What is bound where a tensor has no element, because WebGPU has no empty bindings.
    pub nothing: wgpu::Buffer,
    cache: Option<wgpu::PipelineCache>,
}

/// A compiled entry point.
#[derive(Debug)]
pub(crate) struct CompiledPass {
    pub layout: wgpu::BindGroupLayout,
    pub pipeline: wgpu::ComputePipeline,
}

/// A storage binding as a pipeline's layout has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub number: u32,
    pub written: bool,
}

/// A part of a buffer, in bytes, at a binding.
pub(crate) fn bound(number: u32, buffer: &wgpu::Buffer, offset: u64, bytes: u64) -> wgpu::BindGroupEntry<'_> {
    let size = NonZeroU64::new(bytes);
    let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
    wgpu::BindGroupEntry { binding: number, resource }
}

impl Context {
    pub(crate) fn new(device: &wgpu::Device, cache: Option<wgpu::PipelineCache>) -> Self {
        let nothing = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("attention: nothing"),
            size: 256,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        Context { device: device.clone(), caps: Caps::from_device(device), nothing, cache }
    }

    /// The same, with what only the adapter can say.
    pub(crate) fn with_matrices(&self, adapter: &wgpu::Adapter) -> Self {
        let caps = self.caps.clone();
        Context {
            device: self.device.clone(),
            caps: caps.with_matrices(self.device.features(), &adapter.cooperative_matrix_properties()),
            nothing: self.nothing.clone(),
            cache: self.cache.clone(),
        }
    }

    /// Makes pipelines within error scopes, so that a driver's refusal is an error and not a panic.
    pub(crate) async fn scoped<T>(&self, label: &str, make: impl FnOnce() -> T) -> Result<T> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let made = make();
        let (memory, internal, validation) = (memory.pop(), internal.pop(), scope.pop());
        if memory.await.is_some() {
            return Err(Error::OutOfMemory { label: label.to_owned(), bytes: 0 });
        }
        if let Some(error) = internal.await.or(validation.await) {
            return Err(Error::Driver { label: label.to_owned(), message: error.to_string() });
        }
        Ok(made)
    }

    pub(crate) fn module(&self, label: &str, source: String) -> wgpu::ShaderModule {
        self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(label),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        })
    }

    /// Compiles an entry point: params as a uniform at binding 0 with a dynamic offset, and storage bindings.
    pub(crate) fn entry_point(
        &self,
        label: &str,
        module: &wgpu::ShaderModule,
        entry_point: &str,
        params_bytes: usize,
        slots: impl Iterator<Item = Slot>,
    ) -> CompiledPass {
        let entry = |binding, ty, has_dynamic_offset, bytes| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset,
                min_binding_size: NonZeroU64::new(bytes),
            },
            count: None,
        };
        let storage = |slot: Slot| {
            let ty = wgpu::BufferBindingType::Storage { read_only: !slot.written };
            entry(slot.number, ty, false, 0)
        };
        let params = entry(0, wgpu::BufferBindingType::Uniform, true, params_bytes as u64);
        let entries: Vec<_> = [params].into_iter().chain(slots.map(storage)).collect();
        let layout = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(label),
            entries: &entries,
        });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(label),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(&pipeline_layout),
            module,
            entry_point: Some(entry_point),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: self.cache.as_ref(),
        });
        CompiledPass { layout, pipeline }
    }
}

/// Compiled variants by their key. Compiling happens outside the lock: two threads may do the same work once, but none waits
/// for a compiler.
#[derive(Debug)]
pub(crate) struct Variants<K, V>(Mutex<HashMap<K, Arc<V>>>);

impl<K, V> Default for Variants<K, V> {
    fn default() -> Self {
        Variants(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone, V> Variants<K, V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<V>>> {
        // The map is whole between any two statements, so a panic of another thread left nothing broken.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &K) -> Option<Arc<V>> {
        self.lock().get(key).cloned()
    }

    /// Keeps what was compiled, or what another thread compiled meanwhile.
    pub(crate) fn keep(&self, key: &K, compiled: V) -> Arc<V> {
        self.lock().entry(key.clone()).or_insert_with(|| Arc::new(compiled)).clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}
