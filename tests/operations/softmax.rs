//! Softmax, log-softmax, sparsemax and entmax.

use crate::common::{self, Gpu, Guarded, POISON, Rng};
use crate::gpu;
use wgpu_attention::softmax::{
    self, Buffers, Inputs, Kind, Outputs, Plan, Problem, RowLayout, RowTemperature, Softmax, Stat,
};
use wgpu_attention::{AdapterClass, Caps, DType, Error};

fn op(gpu: &Gpu) -> Softmax {
    use std::sync::OnceLock;
    static OP: OnceLock<Softmax> = OnceLock::new();
    OP.get_or_init(|| Softmax::new(&gpu.device)).clone()
}

/// With all statistics that its kind has.
fn with_stats(problem: Problem) -> Problem {
    let problem = problem.with_argmax();
    if problem.kind.is_sparse() { problem } else { problem.with_lse().with_entropy() }
}

/// Runs a plan in guarded and poisoned memory.
fn run_plan(gpu: &Gpu, plan: &Plan, inputs: &Inputs<'_>) -> Outputs {
    let problem = plan.problem();
    let prepared = op(gpu).prepare_blocking(plan).expect("preparing");
    let x = Guarded::stored(gpu, "x", problem.x_type, inputs.x);
    let apart = Guarded::poisoned(gpu, "out", plan.out_bytes());
    let stats = Guarded::poisoned(gpu, "stats", plan.stats_bytes());
    let tau = Guarded::floats(gpu, "temperature", inputs.temperature.unwrap_or_default());
    let mut buffers =
        if problem.in_place { Buffers::in_place(x.at()) } else { Buffers::new(x.at(), apart.at()) };
    if plan.stats_bytes() > 0 {
        buffers = buffers.stats(stats.at());
    }
    if inputs.temperature.is_some() {
        buffers = buffers.temperature(tau.at());
    }
    let bound = prepared.bind(&buffers).expect("binding");
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    bound.encode(&mut encoder);
    gpu.queue.submit([encoder.finish()]);
    let out = if problem.in_place { &x } else { &apart };
    let mut words = out.read(gpu, "out");
    if !problem.in_place {
        // Places that a strided layout leaves out were not written; the reference has 0 there.
        let mut element = vec![false; words.len()];
        for_each(problem, &problem.out_layout, |at| element[at] = true);
        for (word, element) in words.iter_mut().zip(element) {
            assert_eq!(*word != POISON, element, "exactly the elements are written");
            if !element {
                *word = 0;
            }
        }
    }
    let stats = stats.read(gpu, "stats");
    let stat = |stat| {
        let range = plan.stats_range(stat)?;
        Some(stats[range.start as usize / 4..range.end as usize / 4].to_vec())
    };
    let floats = |words: Vec<u32>| words.into_iter().map(f32::from_bits).collect::<Vec<_>>();
    Outputs {
        out: floats(words),
        lse: stat(Stat::Lse).map(floats),
        entropy: stat(Stat::Entropy).map(floats),
        argmax: stat(Stat::Argmax),
    }
}

fn for_each(problem: &Problem, layout: &RowLayout, mut f: impl FnMut(usize)) {
    for o in 0..u64::from(problem.rows[0]) {
        for n in 0..u64::from(problem.rows[1]) {
            for i in 0..u64::from(problem.len) {
                f((layout.offset + o * layout.outer + n * layout.inner + i * layout.step) as usize);
            }
        }
    }
}

fn check_plan(gpu: &Gpu, plan: &Plan, inputs: &Inputs<'_>) -> Outputs {
    let got = run_plan(gpu, plan, inputs);
    let truth = softmax::truth(plan.problem(), inputs).expect("the reference");
    let comparison = truth.compare(&got);
    let right = comparison.passes() && comparison.unspecified == 0;
    assert!(right, "{}\n{plan}\n{:?}\n{comparison:?}", gpu.name, plan.problem());
    if got.argmax.is_some() {
        assert_eq!(got.argmax.as_ref(), Some(&truth.argmax));
    }
    got
}

fn check(gpu: &Gpu, problem: &Problem, inputs: &Inputs<'_>) -> Outputs {
    check_plan(gpu, &op(gpu).plan(problem).expect("a plan"), inputs)
}

/// Normal numbers, every sixth of them -inf, with a tie for the largest.
fn numbers(rng: &mut Rng, rows: usize, len: usize, size: f32) -> Vec<f32> {
    let mut x: Vec<f32> = (0..rows * len)
        .map(|_| if rng.chance(1.0 / 6.0) { f32::NEG_INFINITY } else { size * rng.normal() })
        .collect();
    for row in x.chunks_mut(len) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let twin = rng.below(len as u64) as usize;
        row[twin] = largest;
    }
    x
}

/// Lengths around what a thread, a row of lanes, a workgroup and a chunk hold, for the chunk size of this device.
fn lengths(gpu: &Gpu) -> Vec<u32> {
    let chunk = chunk(gpu);
    vec![1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 511, 513, 1000, chunk - 1, chunk, chunk + 1, 3 * chunk + 5]
}

/// The longest row that one workgroup takes.
fn chunk(gpu: &Gpu) -> u32 {
    let mut len = 1;
    while op(gpu).plan(&Problem::new(1, 2 * len)).expect("a plan").workgroups_per_row() == 1 {
        len *= 2;
    }
    len
}

#[test]
fn all_kinds_at_all_lengths() {
    let gpu = gpu!();
    let mut rng = Rng::new(1);
    for len in lengths(gpu) {
        for kind in Kind::ALL {
            // Few rows share workgroups, many have one for several, which goes through long ones tile by tile.
            for rows in [1, 5, 70] {
                let x = numbers(&mut rng, rows as usize, len as usize, 3.0);
                check(gpu, &with_stats(Problem::new(rows, len).kind(kind)), &Inputs::new(&x));
            }
        }
    }
}

/// Logits as models leave them; -inf and the ends of the type among them.
#[test]
fn sixteen_bit_numbers() {
    let gpu = gpu!();
    let mut rng = Rng::new(11);
    for dtype in [DType::F16, DType::Bf16] {
        for len in [1, 7, 8, 33, 64, 257, 3 * chunk(gpu) + 4] {
            for kind in Kind::ALL {
                let mut x = numbers(&mut rng, 9, len as usize, 4.0);
                x[0] = 65504.0;
                check(gpu, &with_stats(Problem::new(9, len).kind(kind).x_type(dtype)), &Inputs::new(&x));
            }
        }
        // At odd places, with odd steps.
        let layout = RowLayout { offset: 3, outer: 131, inner: 1, step: 5 };
        let packed = Problem::new(2, 21).x_layout;
        let problem = with_stats(Problem::strided([1, 2], 21, layout, packed).x_type(dtype));
        let x = rng.normals(200);
        check(gpu, &problem, &Inputs::new(&x));
    }
    let field = match Problem::new(1, 4).in_place().x_type(DType::F16).check() {
        Err(Error::Value { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field, "x_type");
}

#[test]
fn temperatures_from_tiny_to_huge() {
    let gpu = gpu!();
    let mut rng = Rng::new(2);
    for len in [9, 100, chunk(gpu) + 1] {
        let x = numbers(&mut rng, 6, len as usize, 3.0);
        let taus = [1.2e-38, 1e-3, 0.5, 1.0, 70.0, 3e38];
        for kind in Kind::ALL {
            let problem = with_stats(Problem::new(6, len).kind(kind));
            let per_row = problem.clone().temperature(RowTemperature::PerRow);
            check(gpu, &per_row, &Inputs::new(&x).temperature(&taus));
            for tau in taus {
                check(gpu, &problem.clone().temperature(RowTemperature::Value(tau)), &Inputs::new(&x));
            }
        }
    }
}

/// Numbers of any size: thousands, the ends of f32, subnormal ones, all equal.
#[test]
fn any_magnitude() {
    let gpu = gpu!();
    let mut rng = Rng::new(3);
    let len = 300;
    for kind in Kind::ALL {
        let problem = with_stats(Problem::new(1, len).kind(kind));
        for size in [1e-40, 1e-30, 1e4, 1e30, 1e38] {
            let x = numbers(&mut rng, 1, len as usize, size);
            check(gpu, &problem, &Inputs::new(&x));
        }
        for x in [0.0, -0.0, 88.0, -1e5, f32::MAX, f32::MIN] {
            let got = check(gpu, &problem, &Inputs::new(&vec![x; len as usize]));
            assert_eq!(got.argmax, Some(vec![0]), "the lowest of equal ones");
        }
        let mut ends = vec![f32::MIN; len as usize];
        ends[200] = f32::MAX;
        assert_eq!(check(gpu, &problem, &Inputs::new(&ends)).argmax, Some(vec![200]));
    }
}

#[test]
fn rows_without_an_element() {
    let gpu = gpu!();
    let none = f32::NEG_INFINITY;
    for len in [1, 40, chunk(gpu) + 3] {
        let len_ = len as usize;
        let mut x = vec![none; 3 * len_];
        // The second row has one element, and not the first.
        x[2 * len_ - 1] = -7.0;
        for kind in Kind::ALL {
            let problem = with_stats(Problem::new(3, len).kind(kind));
            let got = check(gpu, &problem, &Inputs::new(&x));
            let nothing = if kind == Kind::LogSoftmax { none } else { 0.0 };
            assert!(got.out[..len_].iter().all(|&p| p == nothing));
            assert_eq!(got.argmax, Some(vec![u32::MAX, len - 1, u32::MAX]));
            if let (Some(lse), Some(entropy)) = (got.lse, got.entropy) {
                assert_eq!((lse[0], lse[1], entropy[0]), (none, -7.0, 0.0));
            }
        }
    }
}

/// A masked element may not be told from its value, and NaN stays in its row.
#[test]
fn nan_spoils_its_own_row_only() {
    let gpu = gpu!();
    for len in [10usize, chunk(gpu) as usize + 3] {
        let mut x = vec![0.5; 3 * len];
        x[len + 4] = f32::NAN;
        for kind in Kind::ALL {
            let problem = Problem::new(3, len as u32).kind(kind);
            let got = run_plan(gpu, &op(gpu).plan(&problem).expect("a plan"), &Inputs::new(&x));
            let clean = run_plan(gpu, &op(gpu).plan(&problem).unwrap(), &Inputs::new(&vec![0.5; 3 * len]));
            assert_eq!(got.out[..len], clean.out[..len]);
            assert_eq!(got.out[2 * len..], clean.out[2 * len..]);
        }
    }
}

#[test]
fn in_place_gives_the_same_bits() {
    let gpu = gpu!();
    let mut rng = Rng::new(5);
    for len in [1, 77, chunk(gpu) + 9] {
        let x = numbers(&mut rng, 4, len as usize, 2.0);
        for kind in Kind::ALL {
            let apart = with_stats(Problem::new(4, len).kind(kind));
            let want = check(gpu, &apart, &Inputs::new(&x));
            let got = check(gpu, &apart.in_place(), &Inputs::new(&x));
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&got.out), bits(&want.out));
        }
    }
}

/// Along each axis of a tensor, and with gaps in which NaN lies.
/// No element is in the place of another, whatever the strides.
#[test]
fn nothing_along_any_axis() {
    let gpu = gpu!();
    for shape in [[1, 2, 10, 0], [0, 3, 1, 2], [2, 0, 0, 5]] {
        for axis in 0..4 {
            let problem = Problem::along_axis(&shape, axis).expect("an axis");
            if shape[axis] == 0 {
                // No row is without elements.
                assert!(matches!(problem.check(), Err(Error::Value { field: "len", .. })));
                continue;
            }
            assert!(check(gpu, &problem, &Inputs::new(&[])).out.is_empty());
        }
    }
}

#[test]
fn strided_rows() {
    let gpu = gpu!();
    let mut rng = Rng::new(6);
    let shape = [3, 5, 7, 2];
    let x = numbers(&mut rng, 1, 210, 2.0);
    for kind in Kind::ALL {
        for axis in 0..4 {
            let problem = with_stats(Problem::along_axis(&shape, axis).expect("an axis").kind(kind));
            assert_eq!(problem.len, shape[axis]);
            check(gpu, &problem, &Inputs::new(&x));
        }
        for len in [6u32, chunk(gpu) + 2] {
            let step = 3 * u64::from(len) + 1;
            let x_layout = RowLayout { offset: 5, outer: 4 * step, inner: step, step: 3 };
            let out_layout =
                RowLayout { offset: 1, outer: u64::from(len), inner: 2 * u64::from(len), step: 1 };
            let problem = with_stats(Problem::strided([2, 4], len, x_layout, out_layout).kind(kind));
            let mut x = vec![f32::NAN; problem.extent(&x_layout) as usize];
            for_each(&problem, &x_layout, |at| x[at] = rng.normal());
            check(gpu, &problem, &Inputs::new(&x));
        }
    }
}

/// Little room for bindings and workgroups cuts the rows into slices, with the same bits.
#[test]
fn slices_change_nothing() {
    let gpu = gpu!();
    let mut rng = Rng::new(7);
    for (rows, len) in [([3u32, 40], 30u32), ([1, 21], chunk(gpu) + 1)] {
        let count = rows[0] * rows[1];
        let x = numbers(&mut rng, count as usize, len as usize, 2.0);
        let taus: Vec<f32> = (0..count).map(|r| 0.3 + r as f32 / 7.0).collect();
        for kind in Kind::ALL {
            let mut problem = with_stats(Problem::new(count, len).kind(kind));
            problem.rows = rows;
            let step = u64::from(len);
            let layout = RowLayout { offset: 0, outer: step * u64::from(rows[1]), inner: step, step: 1 };
            problem = problem.layouts(layout, layout).temperature(RowTemperature::PerRow);
            let inputs = Inputs::new(&x).temperature(&taus);
            let whole = check(gpu, &problem, &inputs);
            let mut caps = op(gpu).caps().clone();
            caps.max_storage_buffer_binding_size = u64::from(3 * len * 4 + 1100);
            let plan = Plan::new(&problem, &caps).expect("a plan");
            assert!(plan.slices() > 5, "{} slices", plan.slices());
            let got = check_plan(gpu, &plan, &inputs);
            assert_eq!(got, whole);
            caps = op(gpu).caps().clone();
            caps.max_compute_workgroups_per_dimension = 2;
            let plan = Plan::new(&problem, &caps).expect("a plan");
            assert!(plan.slices() > 1);
            assert_eq!(check_plan(gpu, &plan, &inputs), whole);
        }
    }
}

/// More rows than a dispatch has workgroups in one dimension.
#[test]
fn more_rows_than_one_dimension_holds() {
    let gpu = gpu!();
    let rows = 200_000;
    let x: Vec<f32> = (0..rows * 9).map(|n| (n as f32 * 0.7).sin()).collect();
    let mut caps = op(gpu).caps().clone();
    caps.max_compute_workgroups_per_dimension = 1000;
    let plan = Plan::new(&with_stats(Problem::new(rows, 9)), &caps).expect("a plan");
    check_plan(gpu, &plan, &Inputs::new(&x));
}

#[test]
fn ten_million_elements() {
    let gpu = gpu!();
    let len = 10_000_000u32;
    let mut x: Vec<f32> = (0..len).map(|n| (n.wrapping_mul(2_654_435_769) >> 8) as f32 / 2e6).collect();
    x[7_654_321] = 30.0;
    for kind in [Kind::Softmax, Kind::Entmax15] {
        let got = check(gpu, &with_stats(Problem::new(1, len).kind(kind)), &Inputs::new(&x));
        assert_eq!(got.argmax, Some(vec![7_654_321]));
        let sum: f64 = got.out.iter().map(|&p| f64::from(p)).sum();
        approx::assert_abs_diff_eq!(sum, 1.0, epsilon = 1e-4);
    }
}

/// A maximum that grows with every element is the worst case of the online sum.
#[test]
fn growing_rows() {
    let gpu = gpu!();
    for len in [500, chunk(gpu) * 2 + 7] {
        for step in [0.1f32, 1e-3, 5.0] {
            let x: Vec<f32> = (0..len).map(|n| n as f32 * step).collect();
            for kind in Kind::ALL {
                check(gpu, &with_stats(Problem::new(1, len).kind(kind)), &Inputs::new(&x));
            }
        }
    }
}

/// The limits of the temperature: argmax and uniform.
#[test]
fn limits_of_the_temperature() {
    let gpu = gpu!();
    let x = [0.25, 1.5, 1.4999999, f32::NEG_INFINITY, -3.0];
    let run = |kind, tau| {
        let problem = Problem::new(1, 5).kind(kind).temperature(RowTemperature::Value(tau));
        op(gpu).run_blocking(&gpu.queue, &problem, &Inputs::new(&x)).expect("a result").out
    };
    for kind in [Kind::Softmax, Kind::Sparsemax, Kind::Entmax15] {
        assert_eq!(run(kind, 1e-30), [0.0, 1.0, 0.0, 0.0, 0.0]);
        for (i, p) in run(kind, 1e30).into_iter().enumerate() {
            approx::assert_abs_diff_eq!(p, if i == 3 { 0.0 } else { 0.25 }, epsilon = 1e-6);
        }
    }
}

#[test]
fn refusals_name_the_field() {
    let gpu = gpu!();
    let field = |error: Error| match error {
        Error::Value { field, .. } | Error::Length { field, .. } => field,
        Error::Missing { field, .. } | Error::Unused { field, .. } => field,
        other => panic!("{other}"),
    };
    let caps = Caps::webgpu_default();
    for tau in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        let problem = Problem::new(1, 4).temperature(RowTemperature::Value(tau));
        assert_eq!(field(Plan::new(&problem, &caps).unwrap_err()), "temperature");
        let problem = Problem::new(1, 4).temperature(RowTemperature::PerRow);
        let inputs = Inputs::new(&[0.0; 4]);
        assert_eq!(field(inputs.temperature(&[tau]).check(&problem).unwrap_err()), "temperature");
        assert_eq!(field(inputs.check(&problem).unwrap_err()), "temperature");
        assert_eq!(field(inputs.temperature(&[1.0]).check(&Problem::new(1, 4)).unwrap_err()), "temperature");
    }
    assert_eq!(field(Problem::new(1, 0).check().unwrap_err()), "len");
    assert_eq!(field(Problem::new(1, 3).kind(Kind::Sparsemax).with_lse().check().unwrap_err()), "lse");
    assert_eq!(field(Problem::new(1, 3).kind(Kind::Entmax15).with_entropy().check().unwrap_err()), "entropy");
    assert_eq!(field(Problem::along_axis(&[2, 3], 2).unwrap_err()), "axis");
    let over = RowLayout { offset: 0, outer: 0, inner: 1, step: 1 };
    let problem = Problem::new(2, 3);
    assert_eq!(field(problem.clone().layouts(problem.x_layout, over).check().unwrap_err()), "out_layout");
    // To read one place twice is fine.
    assert!(problem.clone().layouts(over, problem.out_layout).check().is_ok());
    for wrong in [5, 7] {
        assert_eq!(field(Inputs::new(&[0.0; 7][..wrong]).check(&problem).unwrap_err()), "x");
    }

    let plan = op(gpu).plan(&problem.clone().with_lse()).expect("a plan");
    let prepared = op(gpu).prepare_blocking(&plan).expect("preparing");
    let [a, b] = ["a", "b"].map(|name| Guarded::poisoned(gpu, name, 64));
    let bind = |buffers: &Buffers<'_>| prepared.bind(buffers).map(drop).unwrap_err();
    assert_eq!(field(bind(&Buffers::new(a.at(), b.at()))), "stats");
    let all = Buffers::new(a.at(), b.at()).stats(b.at());
    assert!(matches!(bind(&all), Error::Aliased { .. }));
    assert_eq!(field(bind(&all.temperature(a.at()))), "temperature");
    let mut caps = Caps::webgpu_default();
    caps.max_storage_buffer_binding_size = 1024;
    let refused = Plan::new(&Problem::new(1, 1000), &caps).unwrap_err();
    assert!(
        matches!(refused, Error::LimitExceeded { limit: "max_storage_buffer_binding_size", .. }),
        "{refused}"
    );
}

#[test]
fn empty_problems_are_nothing_to_do() {
    let gpu = gpu!();
    let got = op(gpu).run_blocking(&gpu.queue, &with_stats(Problem::new(0, 5)), &Inputs::new(&[]));
    let got = got.expect("nothing");
    assert_eq!((got.out, got.lse, got.argmax), (vec![], Some(vec![]), Some(vec![])));
}

/// Other numbers of threads, as other devices have them, compute the same; so do the tiles of cards.
#[test]
fn any_number_of_threads() {
    let gpu = gpu!();
    let mut rng = Rng::new(8);
    for threads in [1, 2, 32, 100, 256] {
        let mut caps = op(gpu).caps().clone();
        caps.class = AdapterClass::Discrete;
        caps.max_compute_invocations_per_workgroup = threads;
        for len in [1u32, 9, 128, 130, 64 * threads, 70 * threads + 1] {
            let x = numbers(&mut rng, 3, len as usize, 2.0);
            for kind in Kind::ALL {
                let plan = Plan::new(&with_stats(Problem::new(3, len).kind(kind)), &caps).expect("a plan");
                check_plan(gpu, &plan, &Inputs::new(&x));
            }
        }
    }
}

/// One plan twice in a submission, and results that are the same every time.
#[test]
fn the_same_bits_every_time() {
    let gpu = gpu!();
    let x = numbers(&mut Rng::new(9), 3, 20_000, 2.0);
    let problem = with_stats(Problem::new(3, 20_000));
    let run = || op(gpu).run_blocking(&gpu.queue, &problem, &Inputs::new(&x)).expect("a result");
    let first = run();
    for _ in 0..3 {
        assert_eq!(run(), first);
    }
    let before = op(gpu).compiled();
    run();
    assert_eq!(op(gpu).compiled(), before, "nothing is compiled twice");
    let _ = common::test_name();
}

/// Short rows that a workgroup takes one after the other are fewer where a driver leaves loops early, and not refused.
#[test]
fn short_rows_where_loops_are_left_early() {
    let mut caps = Caps::from_limits(&wgpu_attention::wgpu::Limits::default(), AdapterClass::Cpu);
    caps.max_loop_iterations = 65535;
    for subgroup in [None, Some(8)] {
        caps.subgroup_size = subgroup;
        for kind in Kind::ALL {
            for len in [1, 7, 32, 100, 128, 1000, 1024, 4096, 32_768] {
                for rows in [1, 1000, 65_536] {
                    let problem = Problem::new(rows, len).kind(kind);
                    Plan::new(&problem, &caps).expect("a plan");
                    Plan::backward(&problem, true, &caps).expect("a plan of the gradient");
                }
            }
        }
    }
}

/// Words of 64 bits move the same elements: the results are the same to the bit, in place and not, whatever is stored.
#[test]
fn wide_words_change_no_bit() {
    let gpu = gpu!();
    if !op(gpu).caps().shader_int64 {
        common::say(&format!(
            "{}: without SHADER_INT64 on {}, nothing to compare",
            common::test_name(),
            gpu.name
        ));
        return;
    }
    let [plain, wide] = [false, true].map(|has| {
        let mut caps = op(gpu).caps().clone();
        (caps.class, caps.shader_int64) = (AdapterClass::Cpu, has);
        caps
    });
    let mut rng = Rng::new(13);
    for len in [100u32, 1024, 1152, 70_000] {
        let x = numbers(&mut rng, 3, len as usize, 3.0);
        for kind in Kind::ALL {
            let problem = with_stats(Problem::new(3, len).kind(kind).temperature(RowTemperature::Value(0.7)));
            let stored = [DType::F16, DType::Bf16].map(|dtype| problem.clone().x_type(dtype));
            for problem in [problem.clone(), problem.in_place()].into_iter().chain(stored) {
                let [plain, wide] = [&plain, &wide].map(|caps| Plan::new(&problem, caps).expect("a plan"));
                assert!(plain.reason().contains("in fours") && !plain.reason().contains("64 bits"));
                assert!(wide.reason().contains("64 bits"), "{}", wide.reason());
                let got = [&plain, &wide].map(|plan| check_plan(gpu, plan, &Inputs::new(&x)));
                assert_eq!(got[0], got[1], "{problem:?}");
            }
        }
    }
}

/// The largest element is the same whether its place is asked for or not, and so is everything else: rows of every sign, zeros of both, numbers
/// below the normal ones at the smallest temperature, where the wrong one would be seen, and -inf among them and all over.
#[test]
fn the_largest_without_its_place() {
    let gpu = gpu!();
    let tiny = 2e-39f32;
    let special: [&[f32]; 9] = [
        &[-1.0, -2.0, -3.0, -0.5],
        &[-0.0, 0.0, -0.0, -1.0],
        &[-0.0, -0.0, -1e-30, -1.0],
        &[tiny, 3.0 * tiny, 2.0 * tiny, 0.0],
        &[-tiny, -3.0 * tiny, -2.0 * tiny, -4.0 * tiny],
        &[f32::NEG_INFINITY, -f32::MAX, f32::NEG_INFINITY, -3e38],
        &[f32::NEG_INFINITY; 4],
        &[f32::MAX, -f32::MAX, 1.0, f32::NEG_INFINITY],
        &[-1e-20, f32::NEG_INFINITY, 1e-20, -1.0],
    ];
    for len in [4usize, 36, 128, 1024, 4100, 70_000] {
        // Each four in turn, at places that all lanes and tiles have.
        let x: Vec<f32> = special.iter().flat_map(|four| (0..len).map(|n| four[(n / 3 + n) % 4])).collect();
        for tau in [1.2e-38, 1.0] {
            for kind in Kind::ALL {
                let mut problem = Problem::new(special.len() as u32, len as u32)
                    .kind(kind)
                    .temperature(RowTemperature::Value(tau));
                problem.lse = !kind.is_sparse();
                let without = check(gpu, &problem, &Inputs::new(&x));
                let with = check(gpu, &problem.with_argmax(), &Inputs::new(&x));
                let bits = |got: &Outputs| {
                    [Some(&got.out), got.lse.as_ref()].map(|numbers| {
                        numbers.map(|numbers| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
                    })
                };
                assert_eq!(bits(&without), bits(&with), "{len} {tau} {kind:?}");
            }
        }
    }
}
