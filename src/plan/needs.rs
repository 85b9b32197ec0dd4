//! What a plan needs of a device, as a list: asked of the capabilities that it is made for, and again of the device that it
//! is prepared on.

use super::{MatrixTiles, Plan, Tables};
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, PipelineKey};
use crate::problem::Problem;
use crate::tensor::Tensor;

pub(super) struct Need {
    what: &'static str,
    limit: &'static str,
    needed: u64,
    available: fn(&Caps) -> u64,
    advice: &'static str,
}

const BINDING: &str = "max_storage_buffer_binding_size";
const OTHER_DEVICE: &str = "plan for this device, with Attention::plan";

/// The first need that is not met.
pub(super) fn check(needs: &[Need], caps: &Caps) -> Result<()> {
    for need in needs {
        let (needed, available) = (need.needed, (need.available)(caps));
        if needed > available {
            let what = need.what.to_owned();
            return Err(Error::LimitExceeded {
                what,
                limit: need.limit,
                needed,
                available,
                advice: need.advice,
            });
        }
    }
    Ok(())
}

/// What does not depend on how the problem is cut into slices.
pub(super) fn of_key(key: &PipelineKey, problem: &Problem, tables: &Tables) -> Vec<Need> {
    let bindings = key.binding_count();
    // Sections are found by 32-bit indices, so that counts as a limit too.
    let section: fn(&Caps) -> u64 = |caps| caps.max_storage_buffer_binding_size.min(4 * u64::from(u32::MAX));
    vec![
        Need {
            what: "a workgroup",
            limit: "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
            needed: key.tiles.threads.into(),
            available: |caps| caps.threads().into(),
            advice: "ask for a device that can run compute shaders, or plan for this one",
        },
        Need {
            what: "a thread that goes through all keys",
            limit: "max_loop_iterations",
            needed: iterations(key, problem.shape.seq_k),
            available: Caps::loop_iterations,
            advice: "this release of Mesa's llvmpipe leaves loops too early: take a newer one (26.2 was tested and does \
                     not) or another adapter, or split the keys over several calls",
        },
        Need {
            what: "the bindings of this problem",
            limit: "max_storage_buffers_per_shader_stage",
            needed: bindings as u64,
            available: |caps| caps.max_storage_buffers_per_shader_stage.into(),
            advice: "leave out statistics, tables, bias or mask",
        },
        Need {
            what: "the statistics of all rows",
            limit: BINDING,
            needed: u64::from(key.stats.count()).saturating_mul(problem.rows()).saturating_mul(4),
            available: section,
            advice: "ask for fewer statistics, or call once for each batch",
        },
        Need {
            what: "the tables",
            limit: BINDING,
            needed: tables.bytes(),
            available: section,
            advice: "call once for each batch",
        },
    ]
}

/// Everything, for a plan that is made.
pub(super) fn of_plan(plan: &Plan) -> Vec<Need> {
    let mut needs = of_key(&plan.key, &plan.problem, &plan.tables);
    let spans = plan.slices.iter().flat_map(|slice| {
        Tensor::ALL.map(|t| {
            let bits = u64::from(plan.problem.bits(t));
            slice.spans[t as usize].len.saturating_mul(bits).div_ceil(32) * 4
        })
    });
    let workgroups = plan.slices.iter().flat_map(|slice| &slice.workgroups).flatten();
    needs.extend([
        Need {
            what: "the workgroup memory of this plan",
            limit: "max_compute_workgroup_storage_size",
            needed: plan.workgroup_bytes().into(),
            available: |caps| caps.max_compute_workgroup_storage_size.into(),
            advice: OTHER_DEVICE,
        },
        Need {
            what: "the largest binding of this plan",
            limit: BINDING,
            needed: spans.max().unwrap_or(0).max(plan.scratch_bytes),
            available: |caps| caps.max_storage_buffer_binding_size,
            advice: OTHER_DEVICE,
        },
        Need {
            what: "the largest dispatch of this plan",
            limit: "max_compute_workgroups_per_dimension",
            needed: workgroups.copied().max().unwrap_or(0).into(),
            available: |caps| caps.max_compute_workgroups_per_dimension.into(),
            advice: OTHER_DEVICE,
        },
    ]);
    needs
}

/// Whether what a plan aligns is aligned for a device too: alignments are powers of two, so the larger one serves both.
pub(super) fn check_alignment(plan: &Plan, caps: &Caps) -> Result<()> {
    for (what, limit, planned, device) in [
        (
            "a binding that this plan aligned for another device",
            "min_storage_buffer_offset_alignment",
            plan.binding_alignment,
            caps.min_storage_buffer_offset_alignment,
        ),
        (
            "the params that this plan aligned for another device",
            "min_uniform_buffer_offset_alignment",
            plan.params_stride(),
            caps.min_uniform_buffer_offset_alignment,
        ),
    ] {
        let device = u64::from(device.max(1));
        if !planned.is_multiple_of(device) {
            // More alignment than the plan gives.
            return Err(Error::LimitExceeded {
                what: what.to_owned(),
                limit,
                needed: device,
                available: planned,
                advice: OTHER_DEVICE,
            });
        }
    }
    Ok(())
}

/// Whether a device has subgroups of the size that a variant is written for.
pub(super) fn check_subgroup(key: &PipelineKey, caps: &Caps) -> Result<()> {
    match key.rows {
        Some(rows) if rows.broadcast && caps.subgroup_size != Some(rows.lanes) => Err(Error::LimitExceeded {
            what: "a kernel for subgroups of one size, and the feature SUBGROUP,".to_owned(),
            limit: "subgroup_size",
            needed: rows.lanes.into(),
            available: caps.subgroup_size.unwrap_or(0).into(),
            advice: OTHER_DEVICE,
        }),
        _ => Ok(()),
    }
}

/// Whether a device has the matrices that a variant multiplies, and subgroups that its workgroups are made of.
pub(super) fn check_matrices(key: &PipelineKey, caps: &Caps) -> Result<()> {
    let Some(matrix) = key.matrix else { return Ok(()) };
    let refused = |what: String, limit, needed: u32, available: u32| Error::LimitExceeded {
        what,
        limit,
        needed: needed.into(),
        available: available.into(),
        advice: OTHER_DEVICE,
    };
    if !caps.matrix_sizes.contains(&matrix.size) {
        let what = "a kernel for matrices of one size, and MATRIX_FEATURES,".to_owned();
        let largest = caps.matrix_sizes.iter().max().copied().unwrap_or(0);
        return Err(refused(what, "matrix_sizes", matrix.size, largest));
    }
    if !matrix.threads.is_multiple_of(caps.max_subgroup_size.max(1)) {
        let what = "a workgroup of whole subgroups".to_owned();
        return Err(refused(what, "max_subgroup_size", caps.max_subgroup_size, matrix.threads));
    }
    Ok(())
}

/// Whether a device has f16 as a type, where a variant is written with it.
pub(super) fn check_f16(key: &PipelineKey, caps: &Caps) -> Result<()> {
    if key.native_f16 && !caps.shader_f16 {
        return Err(Error::LimitExceeded {
            what: "a kernel with f16 as a type of its own".to_owned(),
            limit: "SHADER_F16, a feature",
            needed: 1,
            available: 0,
            advice: OTHER_DEVICE,
        });
    }
    Ok(())
}

/// The most rounds that one thread makes in all loops of the kernel together: one line for each loop of `shaders/`. Each loop
/// counts one more, for the round in which it ends.
fn iterations(key: &PipelineKey, problem_keys: u32) -> u64 {
    let tiles = &key.tiles;
    let (seq_k, dim4) = (u64::from(problem_keys), u64::from(key.head_dim_qk.div_ceil(4)));
    let passes = u64::from(key.search.most_passes(problem_keys));
    if key.kernel == Kernel::Naive {
        // Each pass of a search goes through the scores; one more takes what it found to them.
        let search = if passes > 0 { passes * (1 + seq_k + 1) + 1 + seq_k + 1 } else { 0 };
        return (dim4 + 1).max(3 * (seq_k + 1) + search);
    }
    if let Some(rows) = &key.rows {
        // Tiles of keys; rows of q and of out.
        return seq_k.div_ceil(rows.keys.into()) + 1 + 2 * (u64::from(rows.rows) + 1);
    }
    if let Some(matrix) = &key.matrix {
        return matrix_iterations(key, matrix, seq_k, passes);
    }
    let [threads, row_groups, keys, lanes, chunk, v_step] =
        [tiles.threads, tiles.row_groups, tiles.keys(), tiles.key_lanes(), tiles.dim_chunk, tiles.v_step()]
            .map(u64::from);
    let staging = |vec4s: u64| vec4s.div_ceil(threads) + 1;
    let v_block = u64::from(tiles.shape(key.head_dim_v).v_block);
    let scores =
        dim4.div_ceil(chunk) * (1 + staging(row_groups * chunk) + staging(keys * chunk) + chunk + 1) + 1;
    let v_staging = if tiles.v_chunk > 0 { staging(v_step * v_block) } else { 0 };
    // One more in each step of v: whether its keys lie on a boundary decides between two loops.
    let output = keys.div_ceil(v_step) * (1 + v_staging + v_step + 2) + 1;
    let softmax = lanes + 1;
    let row_norms = if key.qk_norm.is_some() { dim4.div_ceil(lanes) + 1 + lanes + 1 } else { 0 };
    let tiles = seq_k.div_ceil(keys);
    // Of a search: scores of all tiles, then what the threads have gathered, and whether any row needs another pass.
    let gathered: u64 = key.search.gathered().map(u64::from).iter().sum();
    let search = passes * (tiles * (1 + scores) + gathered * (lanes + 1) + row_groups);
    let attention = row_norms + search + tiles * (1 + scores + softmax + output) + 1 + 3 * (lanes + 1);
    let classify = if key.tile_classes { staging(16 * keys * row_groups) } else { 0 };
    attention.max(classify)
}

/// [`iterations`] of the matrix kernel.
fn matrix_iterations(key: &PipelineKey, matrix: &MatrixTiles, seq_k: u64, passes: u64) -> u64 {
    let at = matrix.layout(key.head_dim_qk, key.head_dim_v);
    let [threads, rows, keys, lanes, parts] =
        [matrix.threads, matrix.rows(), matrix.keys(), key.tiles.key_lanes(), at.out_parts].map(u64::from);
    let dim4 = u64::from(key.head_dim_qk.div_ceil(4));
    let staging = |vec4s: u64| vec4s.div_ceil(threads) + 1;
    // Of each block of rows: groups of sums that stand side by side, and what each sum is of.
    let abreast = matrix.abreast.max(1);
    let [key_groups, column_groups] =
        [matrix.key_blocks, matrix.out_blocks].map(|blocks| u64::from(blocks.div_ceil(abreast)));
    let products = |groups: u64, terms: u32| {
        u64::from(matrix.row_blocks) * (1 + groups * (1 + u64::from(terms) + 1) + 1) + 1
    };
    let score_products = products(key_groups, at.qk_blocks);
    let out_products = products(column_groups, matrix.key_blocks);
    let stage_q = staging(rows * u64::from(at.qk_stride / 4));
    let norms = if key.qk_norm.is_some() { staging(keys) * (u64::from(key.head_dim_qk) + 2) } else { 0 };
    let scores = staging(keys * u64::from(at.qk_stride / 4)) + norms + score_products;
    let softmax = staging(keys) + lanes + 1;
    let output = staging(keys * u64::from(at.v_stride / 4)) + parts * out_products;
    let row_norms = if key.qk_norm.is_some() { dim4.div_ceil(lanes) + 1 + lanes + 1 } else { 0 };
    let tiles = seq_k.div_ceil(keys);
    let gathered: u64 = key.search.gathered().map(u64::from).iter().sum();
    let search = passes * (tiles * (1 + scores) + gathered * (lanes + 1) + rows / 4);
    let attention =
        stage_q + row_norms + search + tiles * (1 + scores + softmax + output) + 1 + 4 * (lanes + 1);
    let classify = if key.tile_classes { staging(16 * keys * rows / 4) } else { 0 };
    attention.max(classify)
}
