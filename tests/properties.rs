//! Random problems over all options together, with every kernel, against float64.
//!
//! `WGPU_ATTENTION_CASES=1000` runs more of them, `WGPU_ATTENTION_SEED=7` starts elsewhere: the seed of a case that fails
//! is in its message, and running from it with one case repeats it.

#[path = "common/mod.rs"]
mod common;

use common::{Case, Gpu, Rng, indices};
use wgpu_attention::{Kernel, Plan, PlanOptions, Tensor, TileMask, Tiles};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")),
        Err(_) => default,
    }
}

/// With a plan of the tiled kernel: the planner's tiles, those of a graphics card, or small ones.
fn any_case(gpu: &Gpu, seed: u64) -> (Case, Plan) {
    let mut rng = Rng::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let problem = common::random::any_problem(&mut rng);
    let mut case = Case::new(problem, seed).vacuous_above(0.05);
    // What nobody sees may hold anything.
    let (q_len, kv_len) = (case.q_len.clone(), case.kv_len.clone());
    for (tensor, lens) in [(Tensor::Q, q_len), (Tensor::K, kv_len.clone()), (Tensor::V, kv_len)] {
        if let Some(lens) = lens {
            // A place that is broadcast over batches is seen where any of them sees it.
            let strides = case.problem.view(tensor).unwrap().strides();
            let packed = [case.problem.packed_q, case.problem.packed_k];
            if strides.batch == 0 || strides.seq == 0 || packed != [None; 2] {
                continue;
            }
            for at in indices(&case.problem, tensor) {
                if at[2] >= lens[at[0] as usize] {
                    case.set(tensor, at, f32::NAN);
                }
            }
        }
    }
    let small = Tiles { threads: 32, row_groups: 4, keys_per_thread: 2, dim_chunk: 2, v_chunk: 8 };
    let plan = match rng.below(6) {
        0 => common::plan(gpu, &case.problem, &PlanOptions::kernel(Kernel::Tiled)),
        1 => common::plan(gpu, &case.problem, &PlanOptions::tiles(small)),
        // With classes of mask tiles where there can be any.
        2 | 3 => gpu
            .attention
            .plan_with(&case.problem, &PlanOptions::tiles(small).tile_mask(TileMask::Classified))
            .unwrap_or_else(|_| common::plan(gpu, &case.problem, &PlanOptions::tiles(small))),
        4 if Kernel::Rows.supports(&case.problem) => {
            common::plan(gpu, &case.problem, &PlanOptions::kernel(Kernel::Rows))
        }
        _ => common::plan_as_card(gpu, &case.problem),
    };
    (case, plan)
}

/// Every second case, so that two threads share the work.
fn run(parity: u64) {
    let gpu = gpu!();
    let (first, cases) = (number("WGPU_ATTENTION_SEED", 1), number("WGPU_ATTENTION_CASES", 60));
    for seed in (first..first + cases).filter(|seed| seed % 2 == parity) {
        let (case, tiled) = any_case(gpu, seed);
        let check = || {
            let naive = common::plan(gpu, &case.problem, &PlanOptions::kernel(Kernel::Naive));
            let truth = case.truth();
            for plan in [&tiled, &naive] {
                common::assert_right(gpu, plan, &case, &truth, &common::run_plan(gpu, plan, &case));
            }
            if gpu.has_matrices()
                && let Some(halves) = case.in_halves()
            {
                common::check(gpu, &halves, &PlanOptions::kernel(Kernel::Matrix));
            }
        };
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) {
            common::say(&format!("repeat with WGPU_ATTENTION_SEED={seed} WGPU_ATTENTION_CASES=1"));
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn random_problems_agree_with_float64_even_seeds() {
    run(0);
}

#[test]
fn random_problems_agree_with_float64_odd_seeds() {
    run(1);
}
