//! Grouped heads: query head h reads key/value head h / (q_heads / kv_heads).

use crate::common::{Case, check_all, run, shape};
use crate::gpu;
use wgpu_attention::{PlanOptions, Problem, Tensor};

#[test]
fn grouped_and_multi_query_heads() {
    let gpu = gpu!();
    for (hq, hkv) in [(1, 1), (2, 1), (4, 2), (6, 3), (8, 2), (7, 1), (14, 2), (12, 12)] {
        check_all(gpu, &Case::new(Problem::new(shape([2, hq, hkv, 5, 40, 8, 8])), u64::from(hq * 100 + hkv)));
    }
}

/// v of key/value head h is h everywhere, so the answer is the number of the head that was read.
#[test]
fn query_heads_read_their_group_in_order() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        for (hq, hkv) in [(4, 2), (6, 3), (6, 1), (8, 4)] {
            let mut case = Case::new(Problem::new(shape([2, hq, hkv, 3, 9, 8, 8])), 3);
            case.fill(Tensor::V, |[b, h, _, _]| (10 * b + h) as f32);
            let got = run(gpu, &case, &PlanOptions::kernel(kernel)).out;
            let view = case.problem.view(Tensor::Out).unwrap();
            for b in 0..2 {
                for h in 0..hq {
                    let x = got[view.index([b, h, 1, 5]) as usize];
                    let want = (10 * b + h / (hq / hkv)) as f32;
                    approx::assert_relative_eq!(x, want, epsilon = 1e-6, max_relative = 1e-6);
                }
            }
        }
    }
}

/// Repeating the key/value heads by hand is the same problem.
#[test]
fn grouped_is_repeated() {
    let gpu = gpu!();
    let grouped = Case::new(Problem::new(shape([2, 6, 2, 7, 33, 8, 8])), 11);
    let mut repeated = Case::new(Problem::new(shape([2, 6, 6, 7, 33, 8, 8])), 12);
    repeated.q.clone_from(&grouped.q);
    for (tensor, from) in [(Tensor::K, &grouped.k), (Tensor::V, &grouped.v)] {
        let view = grouped.problem.view(tensor).unwrap();
        repeated.fill(tensor, |[b, h, s, d]| from[view.index([b, h / 3, s, d]) as usize]);
    }
    for kernel in crate::common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let (a, b) = (run(gpu, &grouped, &options), run(gpu, &repeated, &options));
        crate::common::assert_same_bits(&a, &b, "grouped and repeated heads");
    }
}

/// What is written out for a wide head compiles in seconds. (A minute is for machines that do other work; what this looks for are
/// minutes, and memory by the gigabyte.) Browsers have no clock of std's, and do not choose this kernel.
#[cfg(not(target_arch = "wasm32"))]
#[test]
fn wide_heads_of_whole_rows() {
    use crate::common::check;
    use std::time::{Duration, Instant};
    use wgpu_attention::{Alignment, Kernel};

    let gpu = gpu!();
    // Four rows in a lane, two, and one. The widest where the planner takes them by itself: elsewhere they compile for long.
    let mut dims = vec![(33, 33), (64, 64), (127, 127), (128, 128), (192, 128), (256, 256), (9, 300)];
    if gpu.attention.caps().is_llvmpipe {
        dims.extend([(320, 320), (512, 512)]);
    }
    for (qk, v) in dims {
        let problem = Problem::new(shape([1, 2, 1, 9, 70, qk, v])).causal(Alignment::BottomRight);
        let (case, start) = (Case::new(problem, u64::from(qk)), Instant::now());
        check(gpu, &case, &PlanOptions::kernel(Kernel::Rows));
        let took = start.elapsed();
        assert!(took < Duration::from_secs(60), "{took:?} at head dims {qk} and {v}");
    }
}

/// One to four rows in a lane: SwiftShader gave wrong numbers for one.
#[cfg(not(target_arch = "wasm32"))]
#[test]
fn any_number_of_rows_in_a_lane() {
    use crate::common::{check, plan};
    use wgpu_attention::{Alignment, Kernel, RowTiles};

    let gpu = gpu!();
    let problem = Problem::new(shape([1, 2, 1, 9, 23, 36, 20])).causal(Alignment::BottomRight);
    let case = Case::new(problem, 5);
    let chosen = plan(gpu, &case.problem, &PlanOptions::kernel(Kernel::Rows));
    let tiles = chosen.rows().expect("the row kernel has some");
    for rows in 1..=4 {
        check(gpu, &case, &PlanOptions::rows(RowTiles { rows, ..tiles }));
    }
}
