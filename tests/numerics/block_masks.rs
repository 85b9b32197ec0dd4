//! Classes of mask tiles: found right, used, and used again.

use crate::common::{
    Bench, Case, Gpu, assert_right, assert_same_bits, encoder, plan, read_words, run_plan, shape,
};
use crate::gpu;
use wgpu_attention::{
    AdaptiveTemperature, Alignment, BlockMask, Broadcast, Caps, DType, Error, Kernel, MaskFormat, Normalizer,
    Plan, PlanOptions, Problem, Stats, Temperature, Tensor, TileClasses, TileMask, Tiles, Window,
};

const SMALL: Tiles = Tiles { threads: 32, row_groups: 2, keys_per_thread: 1, dim_chunk: 2, v_chunk: 8 };

fn classified() -> PlanOptions {
    PlanOptions::tiles(SMALL).tile_mask(TileMask::Classified)
}

fn problem(numbers: [u32; 7]) -> Problem {
    let mut problem = Problem::new(shape(numbers));
    problem.stats = Stats { lse: true, ..Stats::default() };
    problem
}

/// Stretches of documents, so that there are tiles of every class.
fn blocks(problem: Problem, seed: u64) -> Case {
    let mut case = Case::new(problem, seed).vacuous_above(3e-2);
    let s = case.problem.shape;
    let blocks = |seq: u32, n: usize| (n as u32 % seq / 37) as i32;
    for (ids, seq) in [(&mut case.documents_q, s.seq_q), (&mut case.documents_k, s.seq_k)] {
        for (n, id) in ids.iter_mut().flatten().enumerate() {
            *id = blocks(seq, n);
        }
    }
    let keeps = |at: usize, sizes: Broadcast| {
        let [_, _, rows, keys] = sizes.0.map(|n| n as usize);
        let (i, j) = (at / keys % rows, at % keys);
        // Blocks on and beside the diagonal, one hole in each third.
        i / 40 == j / 50 || (i / 40 == j / 50 + 1 && (i + j) % 7 != 0)
    };
    if let (Some(mask), Some((format, sizes))) = (&mut case.mask, case.problem.mask) {
        let pairs: Vec<bool> =
            (0..sizes.0.iter().product::<u32>() as usize).map(|at| keeps(at, sizes)).collect();
        *mask = match format {
            MaskFormat::Bits => pairs
                .chunks(8)
                .map(|c| c.iter().rev().fold(0, |byte, &keep| byte << 1 | u8::from(keep)))
                .collect(),
            _ => pairs.iter().map(|&keep| u8::from(keep)).collect(),
        };
    }
    if let (Some(bias), Some((_, sizes))) = (&mut case.bias, case.problem.bias) {
        for (at, x) in bias.iter_mut().enumerate() {
            *x = if keeps(at, sizes) { (at % 13) as f32 * 0.1 } else { f32::NEG_INFINITY };
        }
    }
    case
}

/// What the classes should be, by asking each pair.
fn expected(case: &Case, classes: &TileClasses) -> Vec<u32> {
    let p = &case.problem;
    let s = p.shape;
    let dense = |sizes: Broadcast, at: [u32; 4]| {
        let mut index = 0usize;
        for (&size, n) in sizes.0.iter().zip(at) {
            index = index * size as usize + if size == 1 { 0 } else { n as usize };
        }
        index
    };
    let keeps = |at: [u32; 4]| {
        let [b, _, i, j] = at;
        let by_mask = match (&case.mask, p.mask) {
            (Some(mask), Some((MaskFormat::Bits, sizes))) => {
                let n = dense(sizes, at);
                mask[n / 8] >> (n % 8) & 1 == 1
            }
            (Some(mask), Some((_, sizes))) => mask[dense(sizes, at)] != 0,
            _ => true,
        };
        let by_bias = match (&case.bias, p.bias) {
            (Some(bias), Some((_, sizes))) => bias[dense(sizes, at)] != f32::NEG_INFINITY,
            _ => true,
        };
        let by_documents = match (&case.documents_q, &case.documents_k) {
            (Some(q), Some(k)) => q[(b * s.seq_q + i) as usize] == k[(b * s.seq_k + j) as usize],
            _ => true,
        };
        by_mask && by_bias && by_documents
    };
    let words = classes.key_tiles.div_ceil(16);
    let mut all = vec![0u32; (classes.bytes() / 4) as usize];
    for b in 0..classes.batches {
        for h in 0..classes.heads {
            for i in 0..s.seq_q {
                for j in 0..s.seq_k {
                    let row = (b * classes.heads + h) * classes.row_tiles + i / classes.rows;
                    let tile = j / classes.keys;
                    let bit = if keeps([b, h, i, j]) { 1 } else { 0x10000 };
                    all[(row * words + tile / 16) as usize] |= bit << (tile % 16);
                }
            }
        }
    }
    all
}

fn make(gpu: &Gpu, plan: &Plan, bench: &Bench) -> BlockMask {
    let prepared = gpu.attention.prepare_blocking(plan).unwrap();
    let mask = prepared.block_mask_blocking(&bench.buffers()).unwrap();
    let mut encoder = encoder(gpu);
    mask.encode(&mut encoder);
    gpu.queue.submit([encoder.finish()]);
    mask
}

fn run_with(gpu: &Gpu, plan: &Plan, bench: &Bench, mask: &BlockMask) {
    let prepared = gpu.attention.prepare_blocking(plan).unwrap();
    let mut encoder = encoder(gpu);
    prepared.encode(&mut encoder, &bench.buffers().block_mask(mask)).unwrap();
    gpu.queue.submit([encoder.finish()]);
}

type Change = fn(Problem, Broadcast) -> Problem;

const MASKS: [Change; 11] = [
    // Passes over the keys before the last one, which end with the last tile, seen or not.
    |mut p, _| {
        p.stats = Stats::default();
        p.with_documents().normalizer(Normalizer::Entmax15)
    },
    |p, _| p.with_documents().adaptive_temperature(AdaptiveTemperature::default()),
    |p, d| {
        p.mask(MaskFormat::Bits, Broadcast([1, 1, d.0[2], d.0[3]])).top_k(9).causal(Alignment::BottomRight)
    },
    |p, _| p.with_documents(),
    |p, d| p.mask(MaskFormat::Bits, Broadcast([1, 1, d.0[2], d.0[3]])),
    |p, d| p.mask(MaskFormat::Bytes, Broadcast([1, d.0[1], d.0[2], d.0[3]])),
    |p, d| p.mask(MaskFormat::Bits, Broadcast([d.0[0], 1, d.0[2], d.0[3]])).causal(Alignment::BottomRight),
    |p, d| p.mask(MaskFormat::Bytes, d).with_kv_len().with_q_len(),
    |p, d| p.bias(DType::F32, Broadcast([1, 1, d.0[2], d.0[3]])).softcap(5.0),
    |p, d| {
        p.bias(DType::F16, d).with_documents().window(Window {
            left: Some(90),
            right: Some(60),
            keep_first: 3,
        })
    },
    |p, d| {
        p.mask(MaskFormat::Bits, Broadcast([1, 1, 1, d.0[3]]))
            .bias(DType::Bf16, Broadcast([1, d.0[1], 1, d.0[3]]))
    },
];

/// Classes by the device are those by asking each pair; with them, without and with a block mask, the answer is the same to the
/// bit, and right.
#[test]
fn classes_are_right_and_change_nothing() {
    let gpu = gpu!();
    for (n, mask) in MASKS.into_iter().enumerate() {
        // 330 keys are 21 tiles of 16, and so two words.
        let case = blocks(mask(problem([2, 4, 2, 115, 330, 8, 8]), Broadcast([2, 4, 115, 330])), n as u64);
        let with = plan(gpu, &case.problem, &classified());
        let without = plan(gpu, &case.problem, &PlanOptions::tiles(SMALL).tile_mask(TileMask::Each));
        assert!(with.classes().is_some() && without.classes().is_none());
        let bench = Bench::new(gpu, &with, &case);
        let mask = make(gpu, &with, &bench);
        let classes = *mask.classes();
        let found = read_words(gpu, mask.buffer());
        let want = expected(&case, &classes);
        assert_eq!(found, want, "options {n}\n{with}");
        // There is something to leave out, and something that hides nothing.
        let tiles = (0..21).map(|t| (want[t / 16] >> (t % 16)) & 0x10001);
        assert!(
            n == 10 || tiles.clone().any(|class| class == 0x10000),
            "nothing to leave out in options {n}"
        );
        let (a, b) = (run_plan(gpu, &with, &case), run_plan(gpu, &without, &case));
        assert_right(gpu, &with, &case, &case.truth(), &a);
        assert_same_bits(&a, &b, &format!("with and without classes, options {n}\n{with}"));
        run_with(gpu, &with, &bench, &mask);
        assert_same_bits(&a, &bench.read(gpu, &with), "with a block mask");
    }
}

/// What nobody sees is not loaded: were it, a class that says "nobody" of tiles that all see would change nothing. And where a
/// class says "hides nothing", the mask is not asked.
#[test]
fn a_wrong_class_shows() {
    let gpu = gpu!();
    let full = Broadcast([1, 1, 64, 256]);
    let open = {
        let mut case = Case::new(problem([1, 2, 1, 64, 256, 8, 8]).mask(MaskFormat::Bytes, full), 1);
        case.mask = Some(vec![1; 64 * 256]);
        case
    };
    let half = {
        let mut case = open.clone();
        case.mask = Some((0..64 * 256).map(|at| u8::from(at % 256 < 128)).collect());
        case
    };
    let plan = plan(gpu, &open.problem, &classified());
    let (open_bench, half_bench) = (Bench::new(gpu, &plan, &open), Bench::new(gpu, &plan, &half));
    let (of_open, of_half) = (make(gpu, &plan, &open_bench), make(gpu, &plan, &half_bench));
    // Classes of the half with the mask of the whole: the half is seen.
    run_with(gpu, &plan, &open_bench, &of_half);
    assert_right(gpu, &plan, &half, &half.truth(), &open_bench.read(gpu, &plan));
    // Classes of the whole with the mask of the half: the whole is seen.
    run_with(gpu, &plan, &half_bench, &of_open);
    assert_right(gpu, &plan, &open, &open.truth(), &half_bench.read(gpu, &plan));
}

/// NaN and infinity in every key and value of tiles that nobody sees.
#[test]
fn what_nobody_sees_may_hold_anything() {
    let gpu = gpu!();
    for mask in [MASKS[3], MASKS[5], MASKS[9]] {
        let clean = blocks(mask(problem([1, 4, 2, 115, 330, 8, 8]), Broadcast([1, 4, 115, 330])), 2);
        let mut poisoned = clean.clone();
        let truth = clean.truth();
        let seen = |j: u32| {
            (0..4).any(|h| {
                (0..115).any(|i| {
                    let row = wgpu_attention::reference::scores(&clean.problem, &clean.inputs(), [0, h, i])
                        .unwrap();
                    row[j as usize].is_some()
                })
            })
        };
        let hidden: Vec<u32> = (300..330).filter(|&j| !seen(j)).collect();
        assert!(hidden.len() > 10, "{hidden:?}");
        for &j in &hidden {
            for (h, d) in (0..2).flat_map(|h| (0..8).map(move |d| (h, d))) {
                poisoned.set(Tensor::K, [0, h, j, d], f32::NAN);
                poisoned.set(Tensor::V, [0, h, j, d], f32::INFINITY);
            }
        }
        let plan = plan(gpu, &clean.problem, &classified());
        assert_right(gpu, &plan, &poisoned, &truth, &run_plan(gpu, &plan, &poisoned));
    }
}

/// Slices find their own classes, and a block mask has those of all.
#[test]
fn in_slices() {
    let gpu = gpu!();
    for (n, mask) in [MASKS[3], MASKS[4], MASKS[5], MASKS[7]].into_iter().enumerate() {
        let case = blocks(mask(problem([2, 4, 2, 115, 330, 8, 8]), Broadcast([2, 4, 115, 330])), 3);
        let whole = plan(gpu, &case.problem, &classified());
        let want = run_plan(gpu, &whole, &case);
        let whole_bench = Bench::new(gpu, &whole, &case);
        let whole_mask = make(gpu, &whole, &whole_bench);
        for (workgroups, flops) in [(4, u32::MAX), (u32::MAX, 7)] {
            let mut caps = gpu.attention.caps().clone();
            caps.max_compute_workgroups_per_dimension =
                workgroups.min(caps.max_compute_workgroups_per_dimension);
            if flops == 7 {
                caps.max_storage_buffer_binding_size = 13_000;
            }
            let parts = match Plan::new(&case.problem, &caps, &classified()) {
                Ok(parts) => parts,
                // Dense masks of all heads do not fit a binding as small.
                Err(Error::LimitExceeded { .. }) if flops == 7 => continue,
                Err(e) => panic!("{e}"),
            };
            assert!(parts.slices().len() > 1, "{parts}");
            assert_same_bits(
                &want,
                &run_plan(gpu, &parts, &case),
                &format!("{n}: whole and in parts\n{parts}"),
            );
            let bench = Bench::new(gpu, &parts, &case);
            let mask = make(gpu, &parts, &bench);
            assert_eq!(read_words(gpu, mask.buffer()), read_words(gpu, whole_mask.buffer()), "{parts}");
            run_with(gpu, &parts, &bench, &whole_mask);
            assert_same_bits(&want, &bench.read(gpu, &parts), "in parts with a block mask");
        }
    }
}

/// Packed sequences and documents in them.
#[test]
fn packed_sequences() {
    let gpu = gpu!();
    for documents in [false, true] {
        let sizes = Broadcast([1, 1, 64, 129]);
        let mut packed = problem([5, 2, 1, 64, 129, 8, 8]).packed(1 + 33 + 64 + 7, 129 + 20 + 70 + 40);
        packed = packed.causal(Alignment::BottomRight).layout(wgpu_attention::Layout::Bshd);
        packed = if documents { packed.with_documents() } else { packed.mask(MaskFormat::Bits, sizes) };
        let mut case = Case::new(packed, 4).vacuous_above(2e-2);
        (case.cu_seqlens_q, case.cu_seqlens_k) =
            (Some(vec![0, 1, 34, 34, 98, 105]), Some(vec![0, 129, 149, 219, 219, 259]));
        let (with, without) = (
            plan(gpu, &case.problem, &classified()),
            plan(gpu, &case.problem, &PlanOptions::tiles(SMALL).tile_mask(TileMask::Each)),
        );
        let (a, b) = (run_plan(gpu, &with, &case), run_plan(gpu, &without, &case));
        assert_right(gpu, &with, &case, &case.truth(), &a);
        assert_same_bits(&a, &b, "with and without classes");
    }
}

/// One block mask over growing caches, and over plans that differ in what has no part in it.
#[test]
fn a_block_mask_serves_other_plans() {
    let gpu = gpu!();
    let base =
        problem([2, 2, 1, 40, 200, 8, 8]).mask(MaskFormat::Bytes, Broadcast([1, 1, 40, 200])).with_kv_len();
    let mut case = blocks(base, 5);
    let first = plan(gpu, &case.problem, &classified());
    case.kv_len = Some(vec![3, 77]);
    let mask = make(gpu, &first, &Bench::new(gpu, &first, &case));
    let mut other = case.problem.clone().softcap(3.0).temperature(Temperature::PerHead).with_entropy();
    other.stats.row_max = true;
    for problem in [case.problem.clone(), other] {
        let mut case = Case { mask: case.mask.clone(), ..blocks(problem, 6) };
        for kv_len in [[200, 10], [0, 150]] {
            case.kv_len = Some(kv_len.to_vec());
            let plan = plan(gpu, &case.problem, &classified());
            let bench = Bench::new(gpu, &plan, &case);
            run_with(gpu, &plan, &bench, &mask);
            assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
        }
    }
    // Another shape has other classes; a plan without any has no use for them.
    let longer =
        blocks(problem([2, 2, 1, 40, 201, 8, 8]).mask(MaskFormat::Bytes, Broadcast([1, 1, 40, 201])), 7);
    let mut other = plan(
        gpu,
        &longer.problem,
        &PlanOptions::tiles(Tiles { threads: 64, ..SMALL }).tile_mask(TileMask::Classified),
    );
    let prepared = gpu.attention.prepare_blocking(&other).unwrap();
    let bench = Bench::new(gpu, &other, &longer);
    let refused = prepared.bind(&bench.buffers().block_mask(&mask)).map(|_| ());
    assert_eq!(crate::common::value_error(refused).0, "block_mask");
    other = plan(gpu, &longer.problem, &PlanOptions::tiles(SMALL).tile_mask(TileMask::Each));
    let prepared = gpu.attention.prepare_blocking(&other).unwrap();
    assert!(matches!(
        prepared.bind(&bench.buffers().block_mask(&mask)),
        Err(Error::Unused { field: "block_mask", .. })
    ));
    assert!(matches!(
        prepared.block_mask_blocking(&bench.buffers()),
        Err(Error::Unused { field: "block_mask", .. })
    ));
}

/// Any words in the buffer of a block mask show or hide keys, and touch nothing else.
#[test]
fn wild_classes_touch_nothing_else() {
    let gpu = gpu!();
    let case = blocks(problem([1, 2, 1, 115, 330, 8, 8]).with_documents().causal(Alignment::BottomRight), 8);
    let plan = plan(gpu, &case.problem, &classified());
    let bench = Bench::new(gpu, &plan, &case);
    let mask = make(gpu, &plan, &bench);
    for wild in [0u32, u32::MAX, 0xffff, 0xffff_0000, 0xa5a5_5a5a] {
        let words = vec![wild; (mask.classes().bytes() / 4) as usize];
        gpu.queue.write_buffer(mask.buffer(), 0, bytemuck::cast_slice(&words));
        run_with(gpu, &plan, &bench, &mask);
        bench.read(gpu, &plan);
    }
}

/// The user's mask; one that does not read its head is classified once for all heads.
#[cfg(feature = "user-code")]
#[test]
fn of_a_mask_function() {
    use wgpu_attention::{UserCode, reference};
    let gpu = gpu!();
    let band = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool {
        return q_index / 20u == k_index / 40u;
    }";
    let by_head = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool {
        let width = 20u * (head + 1u);
        return q_index / width == k_index / width;
    }";
    for (text, heads) in [(band, 1), (by_head, 4)] {
        let problem = problem([2, 4, 2, 115, 330, 8, 8]).mask_mod(UserCode::mask_mod(text).unwrap());
        let case = Case::new(problem, 9);
        let plan = plan(gpu, &case.problem, &classified());
        assert_eq!((plan.classes().unwrap().batches, plan.classes().unwrap().heads), (1, heads));
        let bench = Bench::new(gpu, &plan, &case);
        let twin = |[_, h, i, j]: [u32; 4]| match heads {
            1 => i / 20 == j / 40,
            _ => i / (20 * (h + 1)) == j / (20 * (h + 1)),
        };
        let mods = reference::Mods { mask: Some(&twin), ..Default::default() };
        let truth = reference::truth_with(&case.problem, &case.inputs(), &mods).unwrap();
        crate::common::run_bench(gpu, &plan, &bench);
        assert_right(gpu, &plan, &case, &truth, &bench.read(gpu, &plan));
        let mask = make(gpu, &plan, &bench);
        run_with(gpu, &plan, &bench, &mask);
        assert_right(gpu, &plan, &case, &truth, &bench.read(gpu, &plan));
        assert!(read_words(gpu, mask.buffer())[0] & 0xffff != 0xffff, "nothing to leave out");
    }
}

/// When classes are planned, and what the plan says when they are not.
#[test]
fn the_plan_says_why() {
    let caps = Caps::webgpu_default();
    let problem = |heads, sk| problem([1, heads, 1, 256, sk, 64, 64]);
    let sizes = |heads, sk| Broadcast([1, heads, 256, sk]);
    let tiled = PlanOptions::kernel(Kernel::Tiled);
    let say = |problem: &Problem, options: &PlanOptions| {
        let plan = Plan::new(problem, &caps, options).unwrap();
        let reason = plan.classes_reason().unwrap_or_default().to_owned();
        assert!(reason.is_empty() || plan.to_string().contains(&reason));
        if plan.tiles().is_some() {
            assert_eq!(plan.scratch_bytes(), plan.classes().map_or(0, TileClasses::bytes));
        }
        (plan.classes().is_some(), reason)
    };
    let shared = problem(8, 1024).mask(MaskFormat::Bits, sizes(1, 1024));
    let (on, why) = say(&shared, &tiled);
    assert!(on && why.contains("8 heads"), "{why}");
    let (on, why) = say(&shared, &tiled.tile_mask(TileMask::Each));
    assert!(!on && why.contains("not wanted"), "{why}");
    let own = problem(8, 1024).mask(MaskFormat::Bits, sizes(8, 1024));
    let (on, why) = say(&own, &tiled);
    assert!(on && why.contains("1 heads"), "{why}");
    let mut narrow = own.clone();
    (narrow.shape.head_dim_qk, narrow.shape.head_dim_v) = (32, 32);
    let (on, why) = say(&narrow, &tiled);
    assert!(!on && why.contains("head dims as small as 32 and 32"), "{why}");
    assert!(say(&narrow, &tiled.tile_mask(TileMask::Classified)).0);
    let (on, why) = say(&problem(8, 16).mask(MaskFormat::Bits, sizes(1, 16)), &tiled);
    assert!(!on && why.contains("too few"), "{why}");
    let (on, why) = say(&problem(8, 1024).bias(DType::F32, sizes(1, 1024)), &tiled);
    assert!(!on && why.contains("bias"), "{why}");
    assert_eq!(say(&problem(8, 1024).with_kv_len(), &tiled), (false, String::new()));
    let (on, why) = say(&shared, &PlanOptions::kernel(Kernel::Naive));
    assert!(!on && why.contains("no tiles"), "{why}");
    // q, k, v, out, bias, mask, stats and tables are all there are.
    let full = shared.clone().bias(DType::F32, sizes(1, 1024)).with_kv_len().with_lse();
    let (on, why) = say(&full, &tiled);
    assert!(!on && why.contains("all 8 storage buffers"), "{why}");
    for refused in [
        Plan::new(&full, &caps, &tiled.tile_mask(TileMask::Classified)),
        Plan::new(&problem(8, 1024), &caps, &tiled.tile_mask(TileMask::Classified)),
        Plan::new(&shared, &caps, &PlanOptions::kernel(Kernel::Naive).tile_mask(TileMask::Classified)),
    ] {
        assert!(matches!(refused, Err(Error::KernelUnavailable { .. })), "{refused:?}");
    }
}
