//! What a plan of attention needs of a device.

use super::rows::parts;
use super::{KeyMovement, MatrixTiles, Plan, Tables};
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::kernel::{Access, Kernel, PipelineKey};
use crate::needs::{Limit, Need, check, check_alignment, check_subgroup, check_wide_words};
use crate::problem::Problem;
use crate::tensor::Tensor;

const OTHER_DEVICE: &str = "plan for this device, with Attention::plan";

/// What does not depend on how the problem is cut into slices.
pub(super) fn of_key(key: &PipelineKey, problem: &Problem, tables: &Tables) -> Vec<Need> {
    let bindings = key.binding_count();
    vec![
        Need {
            what: "a workgroup",
            limit: Limit::Threads,
            needed: key.tiles.threads.into(),
            advice: "ask for a device that can run compute shaders, or plan for this one",
        },
        Need {
            what: "a thread that goes through all keys",
            limit: Limit::LoopIterations,
            needed: iterations(key, problem.shape.seq_k),
            advice: "this release of Mesa's llvmpipe leaves loops too early: take a newer one (26.2 was tested and does \
                     not) or another adapter, or split the keys over several calls",
        },
        Need {
            what: "the bindings of this problem",
            limit: Limit::StorageBuffers,
            needed: bindings as u64,
            advice: "leave out statistics, tables, bias or mask",
        },
        Need {
            what: "the statistics of all rows",
            limit: Limit::Indexed,
            needed: u64::from(key.stats.count()).saturating_mul(problem.rows()).saturating_mul(4),
            advice: "ask for fewer statistics, or call once for each batch",
        },
        Need {
            what: "the tables",
            limit: Limit::Indexed,
            needed: tables.bytes(),
            advice: "call once for each batch",
        },
    ]
}

/// Whether a device has what a plan needs.
pub(super) fn fits(plan: &Plan, caps: &Caps) -> Result<()> {
    check(&of_plan(plan), caps)?;
    check_alignment(plan.binding_alignment, plan.params_stride(), caps, OTHER_DEVICE)?;
    if let Some(rows) = plan.key.rows.filter(|rows| rows.movement == KeyMovement::Broadcast) {
        check_subgroup(rows.lanes, caps, OTHER_DEVICE)?;
    }
    check_matrices(&plan.key, caps)?;
    check_f16(&plan.key, caps)?;
    match plan.key.access.contains(&Access::Wide) {
        true => check_wide_words(caps, OTHER_DEVICE),
        false => Ok(()),
    }
}

/// Everything, for a plan that is made.
fn of_plan(plan: &Plan) -> Vec<Need> {
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
            limit: Limit::WorkgroupMemory,
            needed: plan.workgroup_bytes().into(),
            advice: OTHER_DEVICE,
        },
        Need {
            what: "the largest binding of this plan",
            limit: Limit::Binding,
            needed: spans.max().unwrap_or(0).max(plan.scratch_bytes),
            advice: OTHER_DEVICE,
        },
        Need {
            what: "the largest dispatch of this plan",
            limit: Limit::Workgroups,
            needed: workgroups.copied().max().unwrap_or(0).into(),
            advice: OTHER_DEVICE,
        },
    ]);
    needs
}

/// Whether a device has the matrices that a variant multiplies, and subgroups that its workgroups are made of.
fn check_matrices(key: &PipelineKey, caps: &Caps) -> Result<()> {
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
fn check_f16(key: &PipelineKey, caps: &Caps) -> Result<()> {
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
        // Staging of each tile, a vec4 of a key or value a lane.
        let vec4s = u64::from(rows.keys) * (dim4 + u64::from(key.head_dim_v.div_ceil(4)));
        let staging =
            if rows.movement == KeyMovement::Staged { vec4s.div_ceil(rows.lanes.into()) + 1 } else { 0 };
        // Tiles of keys; parts of the rows of q and of out.
        let parts: u32 = parts(key.head_dim_qk, key.head_dim_v).into_iter().sum();
        return seq_k.div_ceil(rows.keys.into()) * (1 + staging) + 1 + u64::from(rows.rows * parts) + 2;
    }
    if let Some(matrix) = &key.matrix {
        return matrix_iterations(key, matrix, seq_k, passes);
    }
    let [threads, row_groups, keys, lanes, chunk, v_step] =
        [tiles.threads, tiles.row_groups, tiles.keys(), tiles.key_lanes(), tiles.dim_chunk, tiles.v_step()]
            .map(u64::from);
    let staging = |vec4s: u64| vec4s.div_ceil(threads) + 1;
    let out = tiles.shape(key.head_dim_v);
    let (v_block, stores) = (u64::from(out.v_block), u64::from(out.out_registers()) + 1);
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
    let search = passes * (tiles * (1 + scores) + gathered * (1 + lanes + 1) + 2 + row_groups);
    let attention =
        row_norms + search + tiles * (1 + scores + softmax + output) + 1 + 3 * (lanes + 1) + stores;
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
    let search = passes * (tiles * (1 + scores) + gathered * (1 + lanes + 1) + 2 + rows / 4);
    let attention =
        stage_q + row_norms + search + tiles * (1 + scores + softmax + output) + 1 + 4 * (lanes + 1);
    let classify = if key.tile_classes { staging(16 * keys * rows / 4) } else { 0 };
    attention.max(classify)
}
