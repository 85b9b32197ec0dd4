//! Planning with limits made by hand: no device anywhere.

#[path = "../common/mod.rs"]
mod common;

mod anything;
mod errors;
mod kernels;
mod large;
mod sections;
mod slices;

use common::{Rng, shape, value_error};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use wgpu_attention::{
    AdapterClass, AdaptiveTemperature, Alignment, Broadcast, Caps, DType, Dropout, Error, Inputs, Kernel,
    KeyMovement, Layout, LengthScale, MaskFormat, NormGains, Normalizer, Plan, PlanOptions, Problem, QkNorm,
    RowTiles, Scale, SigmoidBias, Sink, Slice, Stat, Stats, Strides, Table, TableData, Temperature, Tensor,
    Tiles, Window, reference, wgpu,
};

fn caps(change: impl FnOnce(&mut Caps)) -> Caps {
    let mut caps = Caps::webgpu_default();
    change(&mut caps);
    caps
}

fn plan(problem: &Problem, caps: &Caps) -> Plan {
    Plan::new(problem, caps, &PlanOptions::default()).unwrap_or_else(|e| panic!("{problem:?}: {e}"))
}

fn plain(numbers: [u32; 7]) -> Problem {
    Problem::new(shape(numbers))
}

// ---- what every plan must keep to ---------------------------------------------------------------------------

fn assert_within(plan: &Plan, caps: &Caps) {
    let threads = plan.tiles().map_or(1, |t| t.threads);
    assert!(threads <= caps.max_compute_invocations_per_workgroup, "{plan}");
    assert!(threads <= caps.max_compute_workgroup_size_x, "{plan}");
    assert!(plan.workgroup_bytes() <= caps.max_compute_workgroup_storage_size, "{plan}");
    assert!(plan.scratch_bytes() <= caps.max_storage_buffer_binding_size, "{plan}");
    assert!(plan.stats_bytes() <= caps.max_storage_buffer_binding_size, "{plan}");
    assert!(plan.tables().bytes() <= caps.max_storage_buffer_binding_size, "{plan}");
    let alignment = u64::from(caps.min_storage_buffer_offset_alignment.max(1));
    for slice in plan.slices() {
        for (tensor, window) in Tensor::ALL.into_iter().zip(slice.spans) {
            let bits = u64::from(plan.problem().bits(tensor));
            let bytes = window.len.saturating_mul(bits).div_ceil(32) * 4;
            assert!(
                bytes <= caps.max_storage_buffer_binding_size,
                "{bytes} bytes of {} in {plan}",
                tensor.name()
            );
            assert_eq!(
                window.start * bits % (8 * alignment),
                0,
                "{} starts at {}",
                tensor.name(),
                window.start
            );
            assert!(
                window.start * bits / 8 + bytes <= plan.tensor_bytes(tensor),
                "{} reaches beyond its buffer: {window:?}",
                tensor.name()
            );
        }
        for &[x, y] in &slice.workgroups {
            let most = caps.max_compute_workgroups_per_dimension;
            assert!(x <= most && y <= most, "{x} x {y} workgroups of {most}");
        }
    }
    let text = plan.to_string();
    assert!(text.contains(plan.kernel().name()) && text.contains(plan.reason()), "{text}");
    assert!(!plan.reason().is_empty());
}

/// Every row is in exactly one slice, and what is bound of each tensor holds all that the slice needs. The boxes are read
/// from what the shader is told, which `Debug` shows.
fn assert_covers(plan: &Plan) {
    let s = plan.problem().shape;
    let mut seen = vec![0u32; s.rows() as usize];
    for slice in plan.slices() {
        let [b, h, i, batches, heads, rows] = extent(slice);
        for b in b..b + batches {
            for h in h..h + heads {
                for i in i..i + rows {
                    seen[((b * s.q_heads + h) * s.seq_q + i) as usize] += 1;
                    for (tensor, window) in Tensor::ALL.into_iter().zip(slice.spans) {
                        let view = plan.problem().view(tensor).unwrap();
                        let [_, _, seq, dim] = view.sizes();
                        if view.extent() == 0 {
                            continue;
                        }
                        let (head, places) = match tensor {
                            Tensor::Q | Tensor::Out | Tensor::Bias | Tensor::Mask => (h, i..i + 1),
                            _ => (h / s.group(), 0..seq),
                        };
                        for at in places {
                            for d in [0, dim - 1] {
                                let n = view.index([b, head, at, d]);
                                assert!(
                                    (window.start..window.start + window.len).contains(&n),
                                    "{} {n} is not in {window:?}",
                                    tensor.name()
                                );
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|&n| n == 1), "rows are covered {seen:?} times\n{plan}");
}

/// first batch, head and row; how many of each.
fn extent(slice: &Slice) -> [u32; 6] {
    let text = format!("{slice:?}");
    ["first_batch", "first_head", "first_row", "batches", "heads", "rows"].map(|name| {
        let field = format!(" {name}: ");
        let at = text.find(&field).unwrap_or_else(|| panic!("{name} is not in {text}")) + field.len();
        text[at..].split([',', ' ']).next().unwrap().parse().unwrap()
    })
}

fn assert_covers_windows(plan: &Plan) {
    for tensor in Tensor::ALL {
        let mut ranges: Vec<_> = plan.slices().iter().map(|s| s.spans[tensor as usize]).collect();
        ranges.sort_by_key(|w| w.start);
        let mut reached = 0;
        for window in ranges {
            assert!(window.start <= reached, "{} leaves out {reached}..{}", tensor.name(), window.start);
            reached = reached.max(window.start + window.len);
        }
        assert_eq!(reached * 4, plan.tensor_bytes(tensor), "{}", tensor.name());
    }
}
