//! A kernel of the user's own, to be measured beside the family. docs/benchmarking.md has the contract.

use super::work::{Inner, Ready, Work};
use crate::context::bound;
use crate::error::{Error, Result};
use crate::memory::create_buffer;
use crate::problem::Problem;
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};
use std::num::NonZeroU64;

/// A WGSL file with one compute entry point that computes plain or causal attention in f32.
///
/// It is given `params` at binding 0 of group 0, q, k, v and out at bindings 1 to 4, all packed (batch, heads, seq, head_dim),
/// and the constants `HEAD_DIM`, `HEAD_DIM_V` and `CAUSAL`. It declares `const ROWS: u32`, the query rows of a workgroup: workgroup
/// (x, y, z) is to compute the rows from `params.first_row + x * ROWS` and below `params.end_row` of query head
/// `params.first_head + y` in batch `params.first_batch + z`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CustomKernel {
    name: String,
    text: String,
    rows: u32,
}

/// What a dispatch is told: the twin of `struct Params` in [`header`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Params {
    batch: u32,
    q_heads: u32,
    kv_heads: u32,
    seq_q: u32,
    seq_k: u32,
    first_batch: u32,
    first_head: u32,
    first_row: u32,
    end_row: u32,
    offset: i32,
    scale: f32,
    _pad: u32,
}

/// What stands before the text, on one line, so that the text's lines count from the next one.
fn header(head_dim: u32, head_dim_v: u32, causal: bool) -> String {
    format!(
        "const HEAD_DIM: u32 = {head_dim}u; const HEAD_DIM_V: u32 = {head_dim_v}u; const CAUSAL: bool = {causal}; \
         struct Params {{ batch: u32, q_heads: u32, kv_heads: u32, seq_q: u32, seq_k: u32, first_batch: u32, first_head: u32, \
         first_row: u32, end_row: u32, offset: i32, scale: f32, }} \
         @group(0) @binding(0) var<uniform> params: Params;\n"
    )
}

const MAX_ROWS: u32 = 65535;

impl CustomKernel {
    /// Parses and checks the text, for a head dim of 64 at first. The name is for reports.
    ///
    /// # Errors
    /// [`Error::UserCode`] with line and column in the text.
    pub fn new(name: &str, text: &str) -> Result<Self> {
        let mut kernel = CustomKernel { name: name.to_owned(), text: text.to_owned(), rows: 1 };
        let module = kernel.parse(&header(64, 64, false))?;
        let [entry] = module.entry_points.as_slice() else {
            return Err(refuse(format!(
                "it has {} entry points, but must have one",
                module.entry_points.len()
            )));
        };
        if entry.stage != naga::ShaderStage::Compute {
            return Err(refuse(format!("its entry point {} is not @compute", entry.name)));
        }
        let rows = module.constants.iter().find_map(|(_, constant)| {
            let named = constant.name.as_deref() == Some("ROWS");
            match module.global_expressions[constant.init] {
                naga::Expression::Literal(naga::Literal::U32(rows)) if named => Some(rows),
                _ => None,
            }
        });
        match rows {
            Some(rows @ 1..=MAX_ROWS) => kernel.rows = rows,
            _ => {
                return Err(refuse(format!(
                    "it must declare `const ROWS: u32`, the query rows of a workgroup, from 1 to {MAX_ROWS}"
                )));
            }
        }
        Ok(kernel)
    }

    /// Its name in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Query rows of a workgroup.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The whole text for a problem, as the driver gets it.
    pub fn source(&self, problem: &Problem) -> String {
        let s = &problem.shape;
        header(s.head_dim_qk, s.head_dim_v, problem.causal) + &self.text
    }

    fn parse(&self, header: &str) -> Result<naga::Module> {
        naga::front::wgsl::parse_str(&format!("{header}{}", self.text)).map_err(|error| {
            let at = error.location(&format!("{header}{}", self.text));
            let (line, column) =
                at.map_or((1, 1), |l| (l.line_number.saturating_sub(1).max(1), l.line_position));
            Error::UserCode { which: WHICH, line, column, message: error.message().to_owned() }
        })
    }

    /// Refuses problems that the contract has no words for.
    fn check(&self, problem: &Problem) -> Result<()> {
        let mut plain = Problem::new(problem.shape);
        (plain.causal, plain.alignment, plain.scale) = (problem.causal, problem.alignment, problem.scale);
        let has_offset = plain.alignment.offset(1, 1).is_some();
        if plain != *problem || !has_offset {
            return Err(Error::KernelUnavailable {
                kernel: WHICH,
                reason: "a kernel of your own is told of shape, scale and causal mask, in f32, and of nothing else"
                    .to_owned(),
            });
        }
        Ok(())
    }
}

const WHICH: &str = "of your own";

fn refuse(message: String) -> Error {
    Error::UserCode { which: WHICH, line: 1, column: 1, message }
}

/// A kernel of the user's with its buffers.
#[derive(Debug)]
pub(super) struct Bound {
    pipeline: wgpu::ComputePipeline,
    bind_group: wgpu::BindGroup,
    /// Workgroups and the place of the params.
    slices: Vec<([u32; 3], u32)>,
}

impl Bound {
    pub(super) fn slices(&self) -> usize {
        self.slices.len()
    }

    pub(super) fn encode_slice(&self, pass: &mut wgpu::ComputePass<'_>, slice: usize) {
        if let Some(&([x, y, z], offset)) = self.slices.get(slice) {
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, &self.bind_group, &[offset]);
            pass.dispatch_workgroups(x, y, z);
        }
    }
}

impl Work {
    /// Compiles a kernel of the user's for this problem, and binds it to the inputs. Like the family's own it is cut into slices, so
    /// that no dispatch takes too long.
    ///
    /// # Errors
    /// [`Error::KernelUnavailable`] for options that such kernels are not told of; [`Error::UserCode`] for text that does not suit the
    /// head dim; [`Error::LimitExceeded`] for tensors or workgroup memory that are too large; [`Error::Driver`].
    pub async fn prepare_custom(&self, kernel: &CustomKernel) -> Result<Ready> {
        let problem = self.problem();
        kernel.check(problem)?;
        let s = &problem.shape;
        let module = kernel.parse(&header(s.head_dim_qk, s.head_dim_v, problem.causal))?;
        self.check_limits(&module)?;
        let slices = self.slices(kernel);
        let stride = 256u32.max(self.attention().caps().min_uniform_buffer_offset_alignment);
        let bytes = u64::from(stride) * slices.len().max(1) as u64;
        let params = create_buffer(
            self.attention().context(),
            kernel.name(),
            bytes,
            wgpu::BufferUsages::UNIFORM,
            |mapped| {
                for (slice, (_, params)) in slices.iter().enumerate() {
                    let at = slice * stride as usize;
                    mapped[at..at + size_of::<Params>()].copy_from_slice(bytemuck::bytes_of(params));
                }
            },
        )
        .await?;

        let device = self.attention().device();
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let label = Some(kernel.name());
        let shader = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label,
            source: wgpu::ShaderSource::Wgsl(kernel.source(problem).into()),
        });
        let buffer = |binding, ty, has_dynamic_offset, size| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: NonZeroU64::new(size) },
            count: None,
        };
        let storage =
            |binding, read_only| buffer(binding, wgpu::BufferBindingType::Storage { read_only }, false, 0);
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label,
            entries: &[
                buffer(0, wgpu::BufferBindingType::Uniform, true, size_of::<Params>() as u64),
                storage(1, true),
                storage(2, true),
                storage(3, true),
                storage(4, false),
            ],
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            })),
            module: &shader,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let tensors = &self.buffers;
        let bind_group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label,
            layout: &layout,
            entries: &[
                bound(0, &params, 0, size_of::<Params>() as u64),
                bound(1, &tensors.q, 0, 0),
                bound(2, &tensors.k, 0, 0),
                bound(3, &tensors.v, 0, 0),
                bound(4, &tensors.out, 0, 0),
            ],
        });
        let (internal, validation) = (internal.pop(), validation.pop());
        if let Some(error) = internal.await.or(validation.await) {
            return Err(Error::Driver { label: kernel.name().to_owned(), message: error.to_string() });
        }
        let slices = slices.into_iter().zip(0..).map(|((groups, _), n)| (groups, n * stride)).collect();
        Ok(Ready(Inner::Custom(Bound { pipeline, bind_group, slices })))
    }

    /// What wgpu does not check itself, or only by an error without a name.
    fn check_limits(&self, module: &naga::Module) -> Result<()> {
        let caps = self.attention().caps();
        let memory: u64 = module
            .global_variables
            .iter()
            .filter(|(_, variable)| variable.space == naga::AddressSpace::WorkGroup)
            .map(|(_, variable)| u64::from(module.types[variable.ty].inner.size(module.to_ctx())))
            .sum();
        let largest = [Tensor::Q, Tensor::K, Tensor::V, Tensor::Out]
            .map(|tensor| self.problem().bytes(tensor).unwrap_or(u64::MAX))
            .into_iter()
            .max()
            .unwrap_or(0);
        for (what, limit, needed, available) in [
            (
                "the workgroup memory of this kernel",
                "max_compute_workgroup_storage_size",
                memory,
                caps.max_compute_workgroup_storage_size.into(),
            ),
            (
                "a tensor, which a kernel of your own is given whole,",
                "max_storage_buffer_binding_size",
                largest,
                caps.max_storage_buffer_binding_size,
            ),
        ] {
            if needed > available {
                let what = what.to_owned();
                return Err(Error::LimitExceeded { what, limit, needed, available, advice: "take less" });
            }
        }
        Ok(())
    }

    /// Dispatches, each within the work that the library's own may have (but for staged keys on processors, which may have more).
    fn slices(&self, kernel: &CustomKernel) -> Vec<([u32; 3], Params)> {
        const MOST: u32 = 65535;
        let problem = self.problem();
        let s = &problem.shape;
        let per_pair = 2 * (u64::from(s.head_dim_qk) + u64::from(s.head_dim_v));
        let per_row = per_pair.saturating_mul(u64::from(s.seq_k)).max(1);
        let most_rows = self.attention().caps().flops_per_dispatch() / per_row;
        let (rows, heads, batches) = (u64::from(s.seq_q), u64::from(s.q_heads), u64::from(s.batch));
        let tile = u64::from(kernel.rows);
        // Whole heads where they fit, else tiles of rows of one head.
        let heads_step = (most_rows / rows.max(1)).clamp(1, heads.max(1)).min(MOST.into());
        let batch_step = (most_rows / (rows * heads).max(1)).clamp(1, batches.max(1)).min(MOST.into());
        let tiles_step = (most_rows / tile).clamp(1, rows.div_ceil(tile).max(1)).min(MOST.into());
        let row_step = if most_rows >= rows { rows.min(u64::from(MOST) * tile) } else { tiles_step * tile };
        let steps = |all: u64, step: u64| (0..all).step_by(step.max(1) as usize);
        let mut slices = Vec::new();
        for batch in steps(batches, batch_step) {
            for head in steps(heads, heads_step) {
                for row in steps(rows, row_step) {
                    let end = (row + row_step).min(rows);
                    // Each is at most a 32-bit size.
                    let groups = [
                        (end - row).div_ceil(tile) as u32,
                        heads_step.min(heads - head) as u32,
                        batch_step.min(batches - batch) as u32,
                    ];
                    let params = Params {
                        batch: s.batch,
                        q_heads: s.q_heads,
                        kv_heads: s.kv_heads,
                        seq_q: s.seq_q,
                        seq_k: s.seq_k,
                        first_batch: batch as u32,
                        first_head: head as u32,
                        first_row: row as u32,
                        end_row: end as u32,
                        offset: problem.alignment.offset(s.seq_q, s.seq_k).unwrap_or(0),
                        scale: problem.factor() as f32,
                        _pad: 0,
                    };
                    slices.push((groups, params));
                }
            }
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::layout;

    #[test]
    fn the_header_is_one_line_and_its_params_are_the_host_s() {
        let text = header(64, 32, true);
        assert_eq!(text.lines().count(), 1);
        assert_eq!(
            layout::of_text(&text),
            layout::of_type!(Params: batch q_heads kv_heads seq_q seq_k first_batch first_head first_row end_row offset scale)
        );
    }

    #[test]
    fn texts_that_cannot_be_measured_are_refused_with_a_reason() {
        let body = "@compute @workgroup_size(1) fn f() {}";
        assert_eq!(CustomKernel::new("k", &format!("const ROWS: u32 = 4u; {body}")).unwrap().rows(), 4);
        assert_eq!(CustomKernel::new("k", &format!("const ROWS = 4u; {body}")).unwrap().rows(), 4);
        for (text, word) in [
            ("const ROWS = 4u;", "0 entry points"),
            ("const ROWS: u32 = 0u; @compute @workgroup_size(1) fn f() {}", "const ROWS"),
            (body, "const ROWS"),
            ("const ROWS = 4u; @fragment fn f() {}", "not @compute"),
        ] {
            let error = CustomKernel::new("k", text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let Err(Error::UserCode { line, .. }) = CustomKernel::new("k", "const ROWS = 4u;\nfn f( {}") else {
            panic!("it parsed");
        };
        assert_eq!(line, 2);
    }
}
