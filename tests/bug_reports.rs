//! Public bug reports of other attention implementations that could also happen here, each named after its fault, with its source.
//!
//! Those that are naturally elsewhere are not repeated: empty rows (ml-explore/mlx#2608, pytorch/pytorch#103749,
//! Dao-AILab/flash-attention#2470) in `numerics/empty.rs`, causal corners (Dao-AILab/flash-attention#517, ml-explore/mlx#2967)
//! in `numerics/causal.rs`, head order (ekzhang/jax-js#180) in `numerics/heads.rs`, constants that overflow (gfx-rs/wgpu#5128) and
//! barriers after early returns (gfx-rs/wgpu#4566) in `shaders.rs`, limits (tracel-ai/cubek#119, ggml-org/llama.cpp#19965,
//! #26566) in `planning/` and `numerics/slicing.rs`, contexts made again (huggingface/transformers.js#1576) in
//! `validation.rs`, threads and readback (gfx-rs/wgpu#5695, #8471) and determinism (ashalliants/ninfer-3090#43) in `sharing.rs`.
//! Masks and bias (ggml-org/llama.cpp#16316, #12776, microsoft/onnxruntime#26766, onnx/onnx#8108) are in `numerics/dense.rs`, windows
//! (huggingface/transformers#39408, microsoft/onnxruntime#32462) in `numerics/windows.rs`, soft caps, sinks and ALiBi
//! (onnx/onnx#7865, huggingface/trl#5691, modular/modular#6198, ml-explore/mlx#3071) in `numerics/scores.rs` and f16
//! (microsoft/onnxruntime#24723, #31626, gpuweb/gpuweb#5203) in `numerics/storage.rs`. Head counts that cannot be shared out
//! (Dao-AILab/flash-attention#362), sizes of 0 (pytorch/pytorch#141218) and long dispatches (ALaggyDev/CoordsFinder#14) are in `planning/`;
//! calls that leave no memory (apache/tvm#17005) in `validation.rs`; lengths that grow (microsoft/onnxruntime#21770) in `sharing.rs`; subgroups of
//! other sizes (microsoft/onnxruntime#23637) in `numerics/rows.rs`, and in control flow that is not uniform (microsoft/onnxruntime#23850) in
//! `tint.rs`; waiting in a browser (gfx-rs/wgpu#2715) in the page's test. Those of samplers and softmaxes are in `operations/bug_reports.rs`, those of
//! gradients in `backward.rs`.

#[path = "common/mod.rs"]
mod common;

use common::{
    Bench, Case, Gpu, assert_right, assert_same_bits, check, check_all, indices, plan, run, run_bench, shape,
};
use wgpu_attention::{
    Alignment, Attention, Broadcast, Caps, DType, Error, Inputs, Kernel, Layout, MaskFormat, Plan,
    PlanOptions, Problem, Scale, Stats, Strides, Temperature, Tensor, Tiles, Window, headless,
};

/// The planner's tiles, small ones, and the naive kernel: every way through the code.
fn all_paths() -> [PlanOptions; 3] {
    let small = Tiles { threads: 32, row_groups: 4, keys_per_thread: 2, dim_chunk: 2, v_chunk: 8 };
    [PlanOptions::kernel(Kernel::Tiled), PlanOptions::tiles(small), PlanOptions::kernel(Kernel::Naive)]
}

/// 66RING/tiny-flash-attention#12: no mask on the tail of the head dim, no guard on the tail of the rows.
#[test]
fn head_dim_63_and_row_tails() {
    let gpu = gpu!();
    let [_, small, _] = all_paths();
    for d in [1, 3, 5, 7, 33, 63, 65, 80, 96, 127] {
        for s in [1, 2, 31, 33, 63, 65] {
            check(gpu, &Case::new(Problem::new(shape([2, 3, 3, s, s, d, d])), d.into()), &small);
        }
    }
}

/// leejet/stable-diffusion.cpp#736: 77 keys, padded to a tile, whose padding had weight.
#[test]
fn cross_attention_with_77_keys() {
    let gpu = gpu!();
    let mut case = Case::new(Problem::new(shape([1, 10, 10, 300, 77, 64, 64])), 736);
    check_all(gpu, &case);
    case.v.fill(1.0);
    for kernel in common::KERNELS {
        for x in run(gpu, &case, &PlanOptions::kernel(kernel)).out {
            approx::assert_abs_diff_eq!(x, 1.0, epsilon = 1e-6);
        }
    }
}

/// leejet/stable-diffusion.cpp#736: the caller's own padding to 256 keys, hidden by a valid length, changes nothing.
#[test]
fn padding_by_the_caller_has_no_weight() {
    let gpu = gpu!();
    let tight = Case::new(Problem::new(shape([1, 2, 2, 40, 77, 64, 64])), 737);
    let mut padded = Case::new(Problem::new(shape([1, 2, 2, 40, 256, 64, 64])).with_kv_len(), 738);
    padded.q.clone_from(&tight.q);
    padded.kv_len = Some(vec![77]);
    for (tensor, from) in [(Tensor::K, &tight.k), (Tensor::V, &tight.v)] {
        let view = tight.problem.view(tensor).unwrap();
        padded
            .fill(tensor, |[b, h, j, d]| if j < 77 { from[view.index([b, h, j, d]) as usize] } else { 1e4 });
    }
    for kernel in common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let (a, b) = (check(gpu, &tight, &options), check(gpu, &padded, &options));
        assert_same_bits(&a, &b, "77 keys, and 77 of 256");
    }
}

/// tenstorrent/tt-metal#54833: lengths that are no multiple of a tile (16 and 40 were wrong, 32 right) saw phantom keys.
#[test]
fn causal_lengths_off_the_tile() {
    let gpu = gpu!();
    for s in [16, 32, 40] {
        let problem = Problem::new(shape([1, 1, 1, s, s, 64, 64])).causal(Alignment::TopLeft);
        for options in all_paths() {
            check(gpu, &Case::new(problem.clone(), s.into()), &options);
        }
    }
}

/// ml-explore/mlx#3585: (batch, seq, head, dim) data taken for (batch, head, seq, dim). The order is spelled out, and either
/// gives the same answer.
#[test]
fn either_memory_order_gives_the_same_answer() {
    let gpu = gpu!();
    let a = Case::new(Problem::new(shape([2, 8, 8, 82, 82, 64, 64])), 3585);
    let mut b = Case::new(Problem::new(shape([2, 8, 8, 82, 82, 64, 64])).layout(Layout::Bshd), 3586);
    for (tensor, from) in [(Tensor::Q, &a.q), (Tensor::K, &a.k), (Tensor::V, &a.v)] {
        let view = a.problem.view(tensor).unwrap();
        b.fill(tensor, |at| from[view.index(at) as usize]);
    }
    let (x, y) = (check(gpu, &a, &PlanOptions::default()), check(gpu, &b, &PlanOptions::default()));
    let (from, to) = (a.problem.view(Tensor::Out).unwrap(), b.problem.view(Tensor::Out).unwrap());
    for at in indices(&a.problem, Tensor::Out) {
        assert_eq!(x.out[from.index(at) as usize], y.out[to.index(at) as usize], "{at:?}");
    }
}

/// microsoft/onnxruntime#26715: prompts and decode steps of batch 1 were wrong, larger batches right.
#[test]
fn batch_one_prompts_and_decode_steps() {
    let gpu = gpu!();
    for (batch, new, past) in [(1, 16, 0), (1, 1, 16), (1, 1, 64), (1, 4, 20), (2, 16, 0), (2, 1, 32)] {
        let problem =
            Problem::new(shape([batch, 2, 2, new, past + new, 64, 64])).causal(Alignment::BottomRight);
        check_all(gpu, &Case::new(problem, u64::from(past * 100 + new)));
    }
}

/// ggml-org/llama.cpp#12776, pytorch/pytorch#130014: tiles of which a row sees nothing, first and last, among rows that see
/// something there.
#[test]
fn tiles_that_some_rows_do_not_see_at_all() {
    let gpu = gpu!();
    for offset in [-40, -1, 0, 31, 32, 60] {
        let mut problem = Problem::new(shape([1, 1, 1, 64, 100, 8, 8])).causal(Alignment::Offset(offset));
        problem.stats = Stats::ALL;
        for options in all_paths() {
            check(gpu, &Case::new(problem.clone(), 12776), &options);
        }
    }
}

fn two_scores(gpu: &Gpu, options: &PlanOptions, a: f32, b: f32) -> [f32; 2] {
    let mut case = Case::new(Problem::new(shape([1, 1, 1, 1, 2, 1, 2])).scale(Scale::Value(1.0)), 1);
    case.q = vec![1.0];
    case.k = vec![a, b];
    case.v = vec![1.0, 0.0, 0.0, 1.0];
    let out = run(gpu, &case, options).out;
    [out[0], out[1]]
}

/// tensorflow/tfjs#7588: two equal and very negative scores gave NaN instead of a half each.
#[test]
fn equal_and_very_negative_scores_are_a_half_each() {
    let gpu = gpu!();
    for options in all_paths() {
        for x in [-1e4, 1e4, -1e30, 2e38, -2e38, 0.0] {
            assert_eq!(two_scores(gpu, &options, x, x), [0.5, 0.5], "two of {x}");
        }
        assert_eq!(two_scores(gpu, &options, 2e38, -2e38), [1.0, 0.0]);
        assert_eq!(two_scores(gpu, &options, -2e38, 2e38), [0.0, 1.0]);
    }
}

/// microsoft/onnxruntime#31956, NVIDIA/Megatron-LM#3698: a scale that was ignored on some path, or 0.5 that became the integer 0
/// and so "the default".
#[test]
fn the_scale_counts_on_every_path() {
    let gpu = gpu!();
    for options in all_paths() {
        let with = |scale| {
            let case = Case::new(Problem::new(shape([1, 2, 1, 9, 40, 64, 64])).scale(scale), 31956);
            check(gpu, &case.vacuous_above(0.02), &options).out
        };
        let default = with(Scale::RsqrtHeadDim);
        assert_eq!(with(Scale::Value(0.125)), default);
        for scale in [0.5, 0.05, 0.75, 2.0, 1e-3] {
            let other = with(Scale::Value(scale));
            let most = default.iter().zip(&other).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(most > 1e-2, "scale {scale} changes the answer only by {most}");
        }
    }
}

/// google-deepmind/gemma#562, state-spaces/mamba#1041: temperature 0 divided by 0, a negative one was taken. Errors here; and the
/// least that are numbers give the argmax.
#[test]
fn temperatures_at_and_near_zero() {
    let gpu = gpu!();
    let with = |tau| {
        Problem::new(shape([1, 1, 1, 1, 3, 1, 1]))
            .scale(Scale::Value(1.0))
            .temperature(Temperature::Value(tau))
    };
    for tau in [0.0, -0.0, -1.0, f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 1e-40] {
        assert!(matches!(with(tau).check(), Err(Error::Value { .. })), "{tau}");
    }
    for options in all_paths() {
        for (tau, want) in [(1e-30, 30.0), (1e-37, 30.0), (1e30, 20.0)] {
            let mut case = Case::new(with(tau), 562);
            (case.q, case.k, case.v) = (vec![1.0], vec![1.0, 2.0, 3.0], vec![10.0, 20.0, 30.0]);
            approx::assert_relative_eq!(run(gpu, &case, &options).out[0], want, max_relative = 1e-6);
        }
    }
}

/// microsoft/onnxruntime#26064: a grouped model (14 heads on 2), a prompt and then steps on a growing cache, fused against
/// unfused. The cache has room behind, full of NaN.
#[test]
fn a_grouped_model_that_decodes_on_a_cache() {
    let gpu = gpu!();
    let (capacity, d) = (50, 64);
    let cache = |heads: u64| {
        Layout::Strided(Strides {
            offset: 0,
            batch: heads * capacity * d,
            head: capacity * d,
            seq: d,
            dim: 1,
        })
    };
    let b = Layout::Bhsd;
    let full = Case::new(Problem::new(shape([1, 14, 2, 50, 50, 64, 64])), 26064);
    for (new, past) in std::iter::once((30, 0)).chain((30..50).map(|past| (1, past))) {
        let problem = Problem::new(shape([1, 14, 2, new, past + new, 64, 64]))
            .layouts(b, cache(2), cache(2), b)
            .causal(Alignment::BottomRight);
        let mut case = Case::new(problem, 1);
        for (tensor, from, skip) in
            [(Tensor::Q, &full.q, past), (Tensor::K, &full.k, 0), (Tensor::V, &full.v, 0)]
        {
            let view = full.problem.view(tensor).unwrap();
            case.fill(tensor, |[b, h, s, d]| from[view.index([b, h, s + skip, d]) as usize]);
        }
        let fused = check(gpu, &case, &PlanOptions::kernel(Kernel::Tiled));
        let unfused = check(gpu, &case, &PlanOptions::kernel(Kernel::Naive));
        for (a, b) in fused.out.iter().zip(&unfused.out) {
            approx::assert_abs_diff_eq!(a, b, epsilon = 1e-5);
        }
    }
}

/// pytorch/pytorch#181133: a permuted view, (84, 3, 3, 64) in bshd order taken as bhsd by its strides, read as contiguous.
#[test]
fn a_permuted_view() {
    let gpu = gpu!();
    let view = Layout::Strided(Strides { offset: 0, batch: 3 * 3 * 64, head: 64, seq: 3 * 64, dim: 1 });
    check_all(gpu, &Case::new(Problem::new(shape([84, 3, 3, 3, 3, 64, 64])).layout(view), 181_133));
}

/// pytorch/pytorch#116333: an innermost stride that is not 1.
#[test]
fn an_innermost_stride_of_two() {
    let gpu = gpu!();
    let every_second = |seq: u64| {
        Layout::Strided(Strides { offset: 1, batch: 2 * seq * 16, head: seq * 16, seq: 16, dim: 2 })
    };
    let problem = Problem::new(shape([2, 2, 2, 9, 35, 8, 8]));
    let (q, kv) = (every_second(9), every_second(35));
    check_all(gpu, &Case::new(problem.layouts(q, kv, kv, q), 116_333));
}

/// pytorch/pytorch#193728: k and v of different lengths were accepted and k read past its end.
#[test]
fn keys_and_values_of_different_lengths() {
    let x = [0.0f32; 6 * 4];
    let problem = |sk| Problem::new(shape([1, 1, 1, 1, sk, 4, 4]));
    let error = Inputs::new(&x[..4], &x[..5 * 4], &x).check(&problem(5)).unwrap_err();
    assert_eq!(error, Error::Length { field: "v", got: 24, expected: 20 });
    let error = Inputs::new(&x[..4], &x[..5 * 4], &x).check(&problem(6)).unwrap_err();
    assert_eq!(error, Error::Length { field: "k", got: 20, expected: 24 });
}

/// tenstorrent/tt-metal#41215: what is left in a cache behind the current position leaked in.
#[test]
fn stale_cache_behind_the_current_position() {
    let gpu = gpu!();
    for stale in [1e4, f32::NAN] {
        for position in [0, 4, 8, 14, 15, 16, 24, 30, 31] {
            let mut case =
                Case::new(Problem::new(shape([1, 2, 1, 1, 32, 8, 8])).with_kv_len().with_lse(), 41215);
            case.kv_len = Some(vec![position + 1]);
            for tensor in [Tensor::K, Tensor::V] {
                for at in indices(&case.problem, tensor).into_iter().filter(|at| at[2] > position) {
                    case.set(tensor, at, stale);
                }
            }
            for options in all_paths() {
                check(gpu, &case, &options);
            }
        }
    }
}

/// microsoft/onnxruntime#29593: length or length - 1? `kv_len` counts: 0 is none, 1 is the first key, whose value comes out as
/// it is.
#[test]
fn a_length_is_a_count() {
    let gpu = gpu!();
    let problem = Problem::new(shape([4, 1, 1, 1, 9, 8, 8])).with_kv_len().with_lse();
    let mut case = Case::new(problem, 29593);
    case.kv_len = Some(vec![0, 1, 8, 9]);
    for options in all_paths() {
        let got = check(gpu, &case, &options);
        assert_eq!(got.out[..8], [0.0; 8]);
        assert_eq!(got.out[8..16], case.v[72..80]);
    }
}

/// meta-pytorch/attention-gym#205: a base-2 lse taken for a natural one.
#[test]
fn lse_of_eight_equal_keys_is_ln_8_and_not_3() {
    let gpu = gpu!();
    for options in all_paths() {
        let mut case = Case::new(Problem::new(shape([1, 1, 1, 1, 8, 8, 8])).with_lse(), 205);
        case.q.fill(0.0);
        approx::assert_abs_diff_eq!(check(gpu, &case, &options).lse.unwrap()[0], 2.079_441_5, epsilon = 1e-6);
    }
}

/// ROCm/rocMLIR#2371: few keys for many workers, of which some had nothing to do and gave 0 / 0.
#[test]
fn fewer_keys_than_threads() {
    let gpu = gpu!();
    for sk in 1..=17 {
        let mut case = Case::new(Problem::new(shape([1, 1, 1, 3, sk, 8, 8])), 2371);
        case.v.fill(1.0);
        for options in all_paths() {
            for x in check(gpu, &case, &options).out {
                approx::assert_abs_diff_eq!(x, 1.0, epsilon = 5e-7);
            }
        }
    }
}

/// microsoft/onnxruntime#21687: beyond 65535 rows the last ones were wrong.
#[test]
fn more_than_65535_rows() {
    let gpu = gpu!();
    for (rows, sk) in [(65537, 4), (131_071, 3)] {
        let case = Case::new(Problem::new(shape([1, 1, 1, rows, sk, 8, 8])), 21687);
        let truth = case.truth();
        for kernel in common::KERNELS {
            let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
            let bench = Bench::new(gpu, &plan, &case);
            run_bench(gpu, &plan, &bench);
            assert_right(gpu, &plan, &case, &truth, &bench.read(gpu, &plan));
        }
    }
}

/// pytorch/executorch#20583: the dispatch for the scores of 32 heads passed 65535 workgroups at a length of only 362.
#[test]
fn a_prompt_of_362_with_32_heads() {
    let gpu = gpu!();
    let case = Case::new(Problem::new(shape([1, 32, 32, 362, 362, 8, 8])), 20583);
    check(gpu, &case, &PlanOptions::kernel(Kernel::Naive));
}

/// ggml-org/ggml#951: one row in a tile of many, where the threads of the other rows must reach every barrier.
#[test]
fn one_row_in_a_tile_of_64() {
    let gpu = gpu!();
    let tiles = Tiles { threads: 64, row_groups: 16, keys_per_thread: 2, dim_chunk: 2, v_chunk: 8 };
    for sk in [1, 5, 100] {
        check(gpu, &Case::new(Problem::new(shape([1, 1, 1, 1, sk, 8, 8])), 951), &PlanOptions::tiles(tiles));
    }
}

/// gfx-rs/wgpu#7743: the counters that naga adds to loops broke some: 1, 2 and very many rounds.
///
/// ggml-org/llama.cpp#13813: llvmpipe leaves loops after some ten thousand rounds, silently. On a release that does, as many
/// keys as are planned for are right, and one more is refused.
#[test]
fn loops_of_one_two_and_very_many_rounds() {
    let gpu = gpu!();
    let limited = gpu.attention.caps().max_loop_iterations < u32::MAX;
    for options in all_paths() {
        for d in [8, 65] {
            let problem = |sk| Problem::new(shape([1, 1, 1, 1, sk, d, 8])).with_lse();
            let fits = |sk| match gpu.attention.plan_with(&problem(sk), &options) {
                Ok(_) => true,
                Err(Error::LimitExceeded { limit: "max_loop_iterations", .. }) if limited => false,
                Err(other) => panic!("{other}"),
            };
            let (mut most, mut too_many) = (1, 100_001);
            while !fits(too_many - 1) {
                let middle = (most + too_many) / 2;
                (most, too_many) = if fits(middle) { (middle, too_many) } else { (most, middle) };
            }
            assert!(too_many > 4000, "only {most} keys");
            for sk in [1, 2, too_many - 1] {
                check(gpu, &Case::new(problem(sk), 7743).vacuous_above(5e-3), &options);
            }
        }
    }
}

/// gfx-rs/wgpu#5940: memory that grows with every small call.
#[test]
#[cfg(target_os = "linux")]
fn many_small_calls_do_not_pile_up_memory() {
    let gpu = gpu!();
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let case = Case::new(Problem::new(shape([1, 1, 1, 1, 4, 8, 8])), 5940);
    let plan = plan(gpu, &case.problem, &PlanOptions::kernel(Kernel::Naive));
    let bench = Bench::new(gpu, &plan, &case);
    let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
    let call = |n: usize| {
        for _ in 0..n {
            let mut encoder = common::encoder(gpu);
            prepared.encode(&mut encoder, &bench.buffers()).unwrap();
            gpu.queue.submit([encoder.finish()]);
            gpu.device.poll(wgpu_attention::wgpu::PollType::wait_indefinitely()).unwrap();
        }
    };
    call(500);
    let before = resident();
    call(3000);
    let grown = resident().saturating_sub(before);
    // Other tests of this binary run meanwhile and take some; a leak of one bind group a call would be several MB more.
    assert!(grown < 64 << 20, "{grown} bytes more after 3000 calls");
}

const FORMATS: [MaskFormat; 2] = [MaskFormat::Bytes, MaskFormat::Bits];

/// A mask from a rule, packed in the order of its sizes.
fn mask(case: &mut Case, keeps: impl Fn([u32; 4]) -> bool) {
    let (format, Broadcast([b, h, i, j])) = case.problem.mask.unwrap();
    let mut all = Vec::new();
    for n in 0..b * h * i * j {
        all.push(keeps([n / (h * i * j), n / (i * j) % h, n / j % i, n % j]));
    }
    case.mask = Some(match format {
        MaskFormat::Bits => all
            .chunks(8)
            .map(|bits| bits.iter().rev().fold(0, |byte, &keep| byte << 1 | u8::from(keep)))
            .collect(),
        _ => all.iter().map(|&keep| u8::from(keep)).collect(),
    });
}

/// ml-explore/mlx#2608: a row of which the mask hides everything was NaN on one path and 0 on the other.
#[test]
fn a_row_that_the_mask_hides_altogether() {
    let gpu = gpu!();
    for format in FORMATS {
        let mut problem = Problem::new(shape([1, 1, 1, 4, 8, 4, 4])).mask(format, Broadcast([1, 1, 4, 8]));
        problem.stats = Stats::ALL;
        let mut case = Case::new(problem, 2608);
        mask(&mut case, |[_, _, i, _]| i != 2);
        for options in all_paths() {
            let got = check(gpu, &case, &options);
            assert_eq!(got.out[8..12], [0.0; 4]);
            assert_eq!(got.lse.unwrap()[2], f32::NEG_INFINITY);
            assert_eq!(got.entropy.unwrap()[2], 0.0);
        }
    }
}

/// pytorch/pytorch#103749: padding rows, hidden altogether below a causal triangle, poisoned the whole batch.
#[test]
fn padding_rows_below_a_triangle() {
    let gpu = gpu!();
    for format in FORMATS {
        let problem = Problem::new(shape([1, 2, 2, 6, 10, 8, 8]))
            .scale(Scale::Value(0.125))
            .mask(format, Broadcast([1, 1, 6, 10]))
            .with_lse();
        let mut case = Case::new(problem, 103_749);
        mask(&mut case, |[_, _, i, j]| i != 5 && j <= i);
        for options in all_paths() {
            let got = check(gpu, &case, &options);
            assert_eq!([&got.out[40..48], &got.out[88..96]], [[0.0; 8]; 2]);
        }
    }
}

/// pytorch/pytorch#130014: a first, middle or last tile of which the mask hides everything from a row.
#[test]
fn tiles_that_the_mask_hides() {
    let gpu = gpu!();
    for format in FORMATS {
        for hidden in [0..32, 32..64, 96..128, 0..127, 1..128] {
            let mut problem =
                Problem::new(shape([1, 2, 1, 5, 128, 8, 8])).mask(format, Broadcast([1, 2, 5, 128]));
            problem.stats = Stats::ALL;
            let mut case = Case::new(problem, 130_014);
            mask(&mut case, |[_, h, i, j]| (i + h) % 2 == 0 || !hidden.contains(&j));
            for options in all_paths() {
                check(gpu, &case, &options);
            }
        }
    }
}

/// jax-ml/jax#32300: a window was ignored where there was no mask.
#[test]
fn a_window_counts_without_a_mask() {
    let gpu = gpu!();
    for options in all_paths() {
        let with = |left, right| {
            let window = Window { left: Some(left), right: Some(right), keep_first: 0 };
            let problem =
                Problem::new(shape([1, 2, 2, 64, 80, 8, 8])).window(window).align(Alignment::TopLeft);
            check(gpu, &Case::new(problem, 32300), &options).out
        };
        let (a, b) = (with(0, 31), with(0, 0));
        let most = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(most > 0.5, "the right side changes the answer only by {most}");
    }
}

/// intel/torch-xpu-ops#5090: a mask for each head failed with grouped heads, one for all heads worked.
#[test]
fn a_mask_for_each_head_of_a_group() {
    let gpu = gpu!();
    for heads in [1, 8] {
        for format in FORMATS {
            let sizes = Broadcast([3, heads, 8, 8]);
            for options in all_paths() {
                check(
                    gpu,
                    &Case::new(Problem::new(shape([3, 8, 2, 8, 8, 64, 64])).mask(format, sizes), 5090),
                    &options,
                );
            }
        }
        let sizes = Broadcast([3, heads, 8, 8]);
        check_all(
            gpu,
            &Case::new(Problem::new(shape([3, 8, 2, 8, 8, 64, 64])).bias(DType::F16, sizes), 5091),
        );
    }
}

/// jax-ml/jax#28974: a mask of padded keys, (batch, 1, 1, keys), was refused or read the wrong way round.
#[test]
fn a_mask_of_padded_keys() {
    let gpu = gpu!();
    for format in FORMATS {
        for lens in [[1u32, 2, 7, 31], [8, 15, 16, 17], [30, 3, 24, 9]] {
            let problem = Problem::new(shape([4, 4, 4, 32, 32, 16, 16]));
            let mut case = Case::new(problem.clone().mask(format, Broadcast([4, 1, 1, 32])), 28974);
            mask(&mut case, |[b, _, _, j]| j < lens[b as usize]);
            let mut same = Case::new(problem.with_kv_len(), 28974);
            same.kv_len = Some(lens.to_vec());
            for options in all_paths() {
                let (a, b) = (check(gpu, &case, &options), check(gpu, &same, &options));
                for (a, b) in a.out.iter().zip(&b.out) {
                    approx::assert_abs_diff_eq!(a, b, epsilon = 1e-6);
                }
            }
        }
    }
}

/// tracel-ai/cubecl#1027: a mask over several tiles of keys. However the keys are cut into tiles, the answer is one.
#[test]
fn a_random_mask_over_tiles_of_every_width() {
    let gpu = gpu!();
    let sizes = Broadcast([1, 2, 9, 131]);
    for format in FORMATS {
        let case =
            Case::new(Problem::new(shape([1, 2, 2, 9, 131, 8, 8])).mask(format, sizes).with_lse(), 1027);
        for (threads, keys_per_thread) in [(8, 1), (32, 1), (32, 4), (64, 4)] {
            let tiles = Tiles { threads, row_groups: 2, keys_per_thread, dim_chunk: 2, v_chunk: 0 };
            check(gpu, &case, &PlanOptions::tiles(tiles));
        }
    }
}

/// ggml-org/llama.cpp#26566: wide heads with a bias passed the workgroup memory, or found no path at all.
#[test]
fn wide_heads_with_a_bias() {
    let gpu = gpu!();
    for d in [256, 512] {
        for dtype in [DType::F32, DType::F16] {
            let problem = Problem::new(shape([1, 1, 1, 9, 40, d, d])).bias(dtype, Broadcast([1, 1, 9, 40]));
            let plan = Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::default()).unwrap();
            assert!(plan.workgroup_bytes() <= 16384 && plan.kernel() == Kernel::Tiled, "{plan}");
            check_all(gpu, &Case::new(problem, 26566));
        }
    }
}

/// mlc-ai/web-llm#254, ggml-org/llama.cpp#23844: f16 on a device without shader-f16, which gave a hundred thousand errors, or ended the program as it
/// started. Nothing here needs the feature.
#[test]
fn f16_needs_no_feature() {
    let gpu = gpu!();
    let sizes = Broadcast([1, 2, 9, 40]);
    let problem = Problem::new(shape([1, 2, 1, 9, 40, 8, 8])).dtype(DType::F16).bias(DType::F16, sizes);
    let case = Case::new(problem, 254).vacuous_above(2e-2);
    let mut caps = gpu.attention.caps().clone();
    caps.shader_f16 = false;
    for options in all_paths() {
        let plan = Plan::new(&case.problem, &caps, &options).unwrap();
        assert!(!plan.shader_source().contains("enable"));
        assert_right(gpu, &plan, &case, &case.truth(), &common::run_plan(gpu, &plan, &case));
    }
    // On a device that has no feature at all, as in browsers.
    let mut options = headless::Options::default();
    options.default_limits = true;
    let plain = headless::open_blocking(&options).unwrap();
    let attention = Attention::new(&plain.device);
    assert!(!attention.caps().shader_f16);
    let got = attention.run_blocking(&plain.queue, &case.problem, &case.inputs()).unwrap();
    assert!(case.truth().compare(&got).passes());
}

/// ml-explore/mlx#2894: a mask of more than 2^31 pairs was read at the wrong place. What cannot be bound is cut, and what
/// cannot be cut is refused: indices never pass 32 bits.
#[test]
fn a_mask_of_more_than_two_to_the_31_pairs() {
    for s in [46_341, 46_342, 65_537, 100_000] {
        for format in FORMATS {
            let problem = Problem::new(shape([1, 1, 1, s, s, 64, 64])).mask(format, Broadcast([1, 1, s, s]));
            for limit in [128 << 20, 2 << 30, u64::from(u32::MAX) * 4] {
                let mut caps = Caps::webgpu_default();
                caps.max_storage_buffer_binding_size = limit;
                let plan = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
                let bits = u64::from(problem.bits(Tensor::Mask));
                for slice in plan.slices() {
                    let span = slice.spans[Tensor::Mask as usize];
                    assert!(span.len <= u64::from(u32::MAX) && span.len * bits <= 8 * limit, "{span:?}");
                }
                let last = plan.slices().last().unwrap().spans[Tensor::Mask as usize];
                assert_eq!(last.start + last.len, u64::from(s) * u64::from(s));
            }
        }
    }
}
