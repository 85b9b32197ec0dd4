//! Gradients against float64, float64 against finite differences, and what is refused.

#[path = "common/mod.rs"]
mod common;

use common::{Case, Gpu, Guarded, POISON, Rng, indices, shape};
use wgpu_attention::backward::{self, Backward, Gradients, Inputs, Plan, truth};
use wgpu_attention::reference::{Bounded, compare};
use wgpu_attention::{
    Alignment, Broadcast, Caps, DType, Error, Layout, LengthScale, MaskFormat, Normalizer, PlanOptions,
    Problem, QkNorm, Scale, Sink, Strides, Temperature, Tensor, Window, validate,
};

/// A case with the gradients that come in.
struct Given {
    case: Case,
    problem: backward::Problem,
    dout: Vec<f32>,
    dlse: Option<Vec<f32>>,
}

impl Given {
    /// With every gradient that the problem has.
    fn new(problem: Problem, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xdead);
        let case = Case::new(problem.with_lse(), seed);
        let p = &case.problem;
        let dout = rng.normals(p.view(Tensor::Out).unwrap().extent() as usize);
        let dlse = seed.is_multiple_of(2).then(|| rng.normals(p.shape.rows() as usize));
        let mut problem = backward::Problem::new(p.clone()).with_temperature();
        problem.dlse = dlse.is_some();
        problem.dbias = p.bias.is_some();
        problem.dsinks = p.sink == Sink::PerHead;
        let strided = |layout| if matches!(layout, Layout::Strided(_)) { Layout::Bhsd } else { layout };
        let [q, k, v] = problem.layouts.map(strided);
        Given { case, problem: problem.layouts(q, k, v), dout, dlse }
    }

    fn inputs<'a>(&'a self, lse: &'a [f32]) -> Inputs<'a> {
        let inputs = Inputs::new(self.case.inputs(), lse, &self.dout);
        match &self.dlse {
            Some(dlse) => inputs.dlse(dlse),
            None => inputs,
        }
    }

    fn truth(&self) -> backward::Truth {
        let rows = self.case.problem.shape.rows() as usize;
        truth(&self.problem, &self.inputs(&vec![0.0; rows])).expect("the gradient in float64")
    }
}

fn backward(gpu: &Gpu) -> Backward {
    Backward::new(&gpu.device)
}

/// The forward pass on the device, then its gradients in guarded memory.
fn run(gpu: &Gpu, backward: &Backward, given: &Given, plan: &Plan) -> Gradients {
    let case = &given.case;
    let forward = common::run(gpu, case, &PlanOptions::default());
    let lse = forward.lse.expect("lse was asked for");
    let problem = &case.problem;
    let stored =
        |label, t: Tensor, data: &[f32]| Guarded::stored(gpu, label, problem.dtypes[t as usize], data);
    let q = stored("q", Tensor::Q, &case.q);
    let k = stored("k", Tensor::K, &case.k);
    let v = stored("v", Tensor::V, &case.v);
    let (lse, dout) = (Guarded::floats(gpu, "lse", &lse), Guarded::floats(gpu, "dout", &given.dout));
    let [dq, dk, dv] = plan.gradient_bytes().map(|bytes| Guarded::poisoned(gpu, "gradient", bytes));
    let mut buffers =
        backward::Buffers::new([q.at(), k.at(), v.at()], [lse.at(), dout.at()], [dq.at(), dk.at(), dv.at()]);
    let dlse = given.dlse.as_ref().map(|dlse| Guarded::floats(gpu, "dlse", dlse));
    if let Some(dlse) = &dlse {
        buffers = buffers.dlse(dlse.at());
    }
    let bias = problem
        .bias
        .map(|(dtype, _)| Guarded::stored(gpu, "bias", dtype, case.bias.as_deref().unwrap_or_default()));
    if let Some(bias) = &bias {
        buffers = buffers.bias(bias.at());
    }
    let mask = case.mask.as_ref().map(|mask| Guarded::bytes(gpu, "mask", mask));
    if let Some(mask) = &mask {
        buffers = buffers.mask(mask.at());
    }
    let words = plan.tables().pack(problem, &case.tables()).expect("the tables");
    let tables = (!words.is_empty()).then(|| Guarded::new(gpu, "tables", &words));
    if let Some(tables) = &tables {
        buffers = buffers.tables(tables.at());
    }
    let extra = [plan.dbias_bytes(), plan.dsinks_bytes(), plan.dtemperature_bytes()]
        .map(|bytes| (bytes > 0).then(|| Guarded::poisoned(gpu, "gradient", bytes)));
    if let Some(dbias) = &extra[0] {
        buffers = buffers.dbias(dbias.at());
    }
    if let Some(dsinks) = &extra[1] {
        buffers = buffers.dsinks(dsinks.at());
    }
    if let Some(dtemperature) = &extra[2] {
        buffers = buffers.dtemperature(dtemperature.at());
    }
    let prepared = backward.prepare_blocking(plan).unwrap_or_else(|e| panic!("preparing\n{plan}\n{e}"));
    let bound = prepared.bind(&buffers).expect("binding");
    let mut encoder = common::encoder(gpu);
    bound.encode(&mut encoder);
    gpu.queue.submit([encoder.finish()]);
    let read = |guarded: &Guarded| -> Vec<f32> {
        let words = guarded.read(gpu, "a gradient");
        for (at, &word) in words.iter().enumerate() {
            assert_ne!(word, POISON, "element {at} was not written, of\n{plan}");
        }
        words.into_iter().map(f32::from_bits).collect()
    };
    let [dbias, dsinks, dtemperature] = extra.each_ref().map(|guarded| guarded.as_ref().map(read));
    Gradients { dq: read(&dq), dk: read(&dk), dv: read(&dv), dbias, dsinks, dtemperature }
}

/// Compares every gradient with float64, and refuses bounds that show nothing.
fn check(gpu: &Gpu, backward: &Backward, given: &Given) -> Gradients {
    let plan = backward.plan(&given.problem).unwrap_or_else(|e| panic!("planning {:?}: {e}", given.problem));
    let got = run(gpu, backward, given, &plan);
    assert_right(given, &given.truth(), &got);
    got
}

fn assert_right(given: &Given, truth: &backward::Truth, got: &Gradients) {
    let head = || format!("{}, seed {}, of {:?}", common::test_name(), given.case.seed, given.problem);
    for (name, got, truth) in [
        ("dq", Some(&got.dq), &truth.dq),
        ("dk", Some(&got.dk), &truth.dk),
        ("dv", Some(&got.dv), &truth.dv),
        ("dbias", got.dbias.as_ref(), &truth.dbias),
        ("dsinks", got.dsinks.as_ref(), &truth.dsinks),
        ("dtemperature", got.dtemperature.as_ref(), &truth.dtemperature),
    ] {
        let Some(got) = got else {
            assert!(truth.is_empty(), "{name} is missing: {}", head());
            continue;
        };
        // A sum over all rows may come out near 0.
        let least = if ["dq", "dk", "dv"].contains(&name) { 1e-3 } else { 1.0 };
        let largest = truth.iter().fold(least, |m: f64, x| m.max(x.value.abs()));
        let loosest = truth.iter().fold(0f64, |m, x| m.max(x.bound));
        assert!(loosest <= 0.05 * largest, "{}\nthe bound of {name}, {loosest:e}, shows nothing", head());
        let compared = compare(got, truth);
        let Bounded { value, bound } = truth.get(compared.at).copied().unwrap_or_default();
        assert!(
            compared.passes() && compared.unspecified == 0,
            "{}\n{name}[{}] is {:?}, want {value:e} +- {bound:e}: {} times that",
            head(),
            compared.at,
            got.get(compared.at),
            compared.worst
        );
    }
}

fn plain(numbers: [u32; 7]) -> Problem {
    Problem::new(shape(numbers))
}

/// Every option with a gradient, alone and with others.
fn problems() -> Vec<Problem> {
    let p = || plain([2, 4, 2, 13, 21, 8, 8]);
    let full = Broadcast([2, 4, 13, 21]);
    vec![
        plain([1, 1, 1, 1, 1, 1, 1]),
        plain([1, 2, 2, 70, 3, 5, 7]),
        plain([1, 3, 1, 3, 140, 33, 20]),
        p().scale(Scale::Value(-0.3)).temperature(Temperature::Value(0.7)).causal(Alignment::TopLeft),
        p().temperature(Temperature::PerHead).causal(Alignment::BottomRight).softcap(2.0),
        p().temperature(Temperature::PerRow).with_kv_len().with_q_len().causal(Alignment::BottomRightValid),
        p().window(Window { left: Some(4), right: Some(2), keep_first: 2 }).with_alibi().sink(Sink::PerHead),
        p().window(Window { left: Some(6), right: None, keep_first: 0 }).causal(Alignment::PerBatch),
        p().bias(DType::F32, full).mask(MaskFormat::Bits, Broadcast([1, 4, 13, 1])).sink(Sink::Zero),
        p().bias(DType::F16, Broadcast([1, 4, 1, 21])).sink(Sink::PerHead).softcap(5.0),
        p().bias(DType::Bf16, Broadcast([1, 1, 13, 1])).mask(MaskFormat::Bytes, full).with_kv_len(),
        p().length_scale(LengthScale::Ssmax).temperature(Temperature::PerHead).with_alibi(),
        p().length_scale(LengthScale::Llama4 { coef: 0.3, floor: 4 }).causal(Alignment::Offset(3)),
        p().dtypes(DType::F16, DType::Bf16, DType::F32, DType::F16).layout(Layout::Bshd),
        p().layouts(Layout::Bhsd, Layout::Bshd, Layout::Bhsd, Layout::Bshd).sink(Sink::PerHead),
    ]
}

#[test]
fn every_option_with_a_gradient() {
    let gpu = gpu!();
    let backward = backward(gpu);
    for (n, problem) in problems().into_iter().enumerate() {
        check(gpu, &backward, &Given::new(problem, n as u64));
    }
}

/// Everything drawn together; WGPU_ATTENTION_SEED and WGPU_ATTENTION_CASES as in properties.rs.
#[test]
fn random_problems() {
    let gpu = gpu!();
    let backward = backward(gpu);
    let number = |name: &str, default| std::env::var(name).map_or(default, |n| n.parse().expect("a number"));
    let first: u64 = number("WGPU_ATTENTION_SEED", 1);
    let mut count: u64 = number("WGPU_ATTENTION_CASES", 10);
    for seed in first.. {
        if count == 0 {
            break;
        }
        let mut problem = validate::problem_of(seed, seed);
        (problem.qk_norm, problem.dropout, problem.normalizer) = (None, None, Normalizer::Softmax);
        (problem.adaptive_temperature, problem.top_k) = (None, None);
        (problem.score_mod, problem.mask_mod, problem.user_params) = (None, None, 0);
        let packed = problem.packed_q.is_some() || problem.packed_k.is_some();
        // Sharp softmaxes leave bounds that show nothing, and float64 takes long.
        let sharp = matches!(problem.scale, Scale::Value(x) if x >= 1.0)
            || problem.temperature != Temperature::Value(1.0);
        if packed
            || sharp
            || problem.check().is_err()
            || problem.shape.seq_q > 40
            || problem.shape.seq_k > 70
            || problem.shape.head_dim_qk > 64
        {
            continue;
        }
        count -= 1;
        check(gpu, &backward, &Given::new(problem, seed));
    }
}

/// Float64's own gradient against differences of a loss, sum dout out + sum dlse lse, as the numbers it is taken of move.
#[test]
fn float64_agrees_with_finite_differences() {
    for (n, mut problem) in problems().into_iter().enumerate() {
        problem.dtypes = [DType::F32; 4];
        problem.bias = problem.bias.map(|(_, sizes)| (DType::F32, sizes));
        let mut given = Given::new(problem, n as u64);
        let truth = given.truth();
        let loss = |given: &Given| {
            let forward = given.case.truth();
            let out = given.case.problem.view(Tensor::Out).unwrap();
            let of_out: f64 = indices(&given.case.problem, Tensor::Out)
                .into_iter()
                .map(|at| out.index(at) as usize)
                .map(|at| forward.out[at].value * f64::from(given.dout[at]))
                .sum();
            let lse = forward.lse.iter().zip(given.dlse.iter().flatten());
            of_out
                + lse.filter(|(l, _)| l.value.is_finite()).map(|(l, &d)| l.value * f64::from(d)).sum::<f64>()
        };
        // Moves a number by a step that f32 holds exactly, both ways.
        let mut slope = |change: &dyn Fn(&mut Given) -> Option<&mut f32>| -> Option<f64> {
            let old = *change(&mut given)?;
            if !old.is_finite() {
                return None;
            }
            let mut at = |x: f32| {
                if let Some(place) = change(&mut given) {
                    *place = x;
                }
                loss(&given)
            };
            let (high, low) = (old + 1.0 / 512.0, old - 1.0 / 512.0);
            let slope = (at(high) - at(low)) / (f64::from(high) - f64::from(low));
            at(old);
            Some(slope)
        };
        let mut rng = Rng::new(n as u64);
        for which in 0..6 {
            let list =
                [&truth.dq, &truth.dk, &truth.dv, &truth.dbias, &truth.dsinks, &truth.dtemperature][which];
            for _ in 0..6.min(list.len()) {
                let at = rng.below(list.len() as u64) as usize;
                let got = slope(&|given| match which {
                    0 => given.case.q.get_mut(at),
                    1 => given.case.k.get_mut(at),
                    2 => given.case.v.get_mut(at),
                    3 => given.case.bias.as_mut()?.get_mut(at),
                    4 => given.case.sinks.as_mut()?.get_mut(at),
                    _ => match &mut given.case.problem.temperature {
                        Temperature::Value(tau) => Some(tau),
                        _ => given.case.temperature.as_mut()?.get_mut(at),
                    },
                });
                let Some(got) = got else { continue };
                let want = list[at].value;
                assert!(
                    (got - want).abs() < 1e-4 + 1e-3 * want.abs(),
                    "gradient {which} at {at} is {want}, differences give {got}: {:?}",
                    given.problem
                );
            }
        }
    }
}

/// NaN in keys and values that nobody sees, and in queries and incoming gradients of rows that are none.
#[test]
fn what_is_hidden_does_not_leak() {
    let gpu = gpu!();
    let backward = backward(gpu);
    let problem = plain([2, 2, 1, 9, 20, 8, 4]).with_q_len().with_kv_len().sink(Sink::PerHead);
    let mut given = Given::new(problem, 4);
    (given.case.q_len, given.case.kv_len) = (Some(vec![9, 3]), Some(vec![7, 20]));
    let truth = given.truth();
    let problem = given.case.problem.clone();
    for tensor in [Tensor::K, Tensor::V] {
        for at in indices(&problem, tensor).into_iter().filter(|at| at[0] == 0 && at[2] >= 7) {
            given.case.set(tensor, at, f32::NAN);
        }
    }
    for at in indices(&problem, Tensor::Q).into_iter().filter(|at| at[0] == 1 && at[2] >= 3) {
        given.case.set(Tensor::Q, at, f32::NAN);
    }
    let out = problem.view(Tensor::Out).unwrap();
    for at in indices(&problem, Tensor::Out).into_iter().filter(|at| at[0] == 1 && at[2] >= 3) {
        given.dout[out.index(at) as usize] = f32::NAN;
    }
    let plan = backward.plan(&given.problem).unwrap();
    assert_right(&given, &truth, &run(gpu, &backward, &given, &plan));
}

/// The same bits each time, also when short dispatches cut the passes up.
#[test]
fn the_same_bits_however_it_is_cut() {
    let gpu = gpu!();
    let backward = backward(gpu);
    let problem = plain([1, 4, 2, 150, 130, 64, 64]).causal(Alignment::BottomRight).sink(Sink::PerHead);
    let given = Given::new(problem.bias(DType::F32, Broadcast([1, 1, 150, 130])), 6);
    let plan = backward.plan(&given.problem).unwrap();
    let first = run(gpu, &backward, &given, &plan);
    assert_eq!(first, run(gpu, &backward, &given, &plan));
    assert_right(&given, &given.truth(), &first);
    assert_eq!(plan.scratch_bytes(), 4 * (3 * 4 * 150 + 4), "no more than three numbers for each row");
}

/// Temperature by gradient descent: a number for each head is moved until the loss, out's distance to another temperature's, is gone.
#[test]
fn a_temperature_is_learned() {
    let gpu = gpu!();
    let backward = backward(gpu);
    let problem = plain([1, 2, 2, 20, 30, 8, 8]).temperature(Temperature::PerHead);
    let mut given = Given::new(problem, 7);
    (given.dlse, given.problem.dlse) = (None, false);
    given.case.temperature = Some(vec![0.7, 1.6]);
    let target = common::run(gpu, &given.case, &PlanOptions::default()).out;
    given.case.temperature = Some(vec![1.0, 1.0]);
    let plan = backward.plan(&given.problem).unwrap();
    let mut step = 0.1;
    for _ in 0..120 {
        let out = common::run(gpu, &given.case, &PlanOptions::default()).out;
        given.dout = out.iter().zip(&target).map(|(o, t)| o - t).collect();
        let gradient = run(gpu, &backward, &given, &plan).dtemperature.unwrap();
        // Only the direction: how steep the loss is differs from head to head.
        for (tau, d) in given.case.temperature.iter_mut().flatten().zip(gradient) {
            *tau -= step * d.signum();
        }
        step *= 0.94;
    }
    let taus = given.case.temperature.unwrap();
    approx::assert_abs_diff_eq!(taus[0], 0.7, epsilon = 0.01);
    approx::assert_abs_diff_eq!(taus[1], 1.6, epsilon = 0.01);
}

#[test]
fn what_has_no_gradient_is_refused() {
    let p = || plain([1, 2, 1, 3, 4, 8, 8]);
    let refused = |problem: Problem| backward::Problem::new(problem).check();
    for (problem, word) in [(p().qk_norm(QkNorm::l2()), "qk_norm"), (p().dropout(0.5), "dropout")] {
        match refused(problem) {
            Err(Error::Incompatible { option, other: "gradients", .. }) => assert_eq!(option, word),
            other => panic!("{other:?}"),
        }
    }
    let of = backward::Problem::new;
    assert!(matches!(of(p()).with_bias().check(), Err(Error::Unused { field: "dbias", .. })));
    assert!(matches!(
        of(p().sink(Sink::Zero)).with_sinks().check(),
        Err(Error::Unused { field: "dsinks", .. })
    ));
    // One k for all heads: its gradient needs a place for each.
    let shared = Layout::Strided(Strides { offset: 0, batch: 0, head: 0, seq: 8, dim: 1 });
    let mut problem = plain([1, 2, 2, 3, 4, 8, 8]);
    problem.k_layout = shared;
    assert!(matches!(of(problem.clone()).check(), Err(Error::Value { field: "dk", .. })));
    let apart = of(problem).layouts(Layout::Bhsd, Layout::Bhsd, Layout::Bhsd);
    assert_eq!(apart.check(), Ok(()));
    let mut caps = Caps::webgpu_default();
    caps.max_storage_buffer_binding_size = 64;
    assert!(matches!(Plan::new(&of(p()), &caps), Err(Error::LimitExceeded { .. })));
    caps = Caps::webgpu_default();
    caps.max_loop_iterations = 3;
    assert!(matches!(
        Plan::new(&of(p()), &caps),
        Err(Error::LimitExceeded { limit: "max_loop_iterations", .. })
    ));
    let inputs = |n: usize| vec![0.5f32; n];
    let (q, k, out, lse) = (inputs(48), inputs(32), inputs(48), inputs(6));
    let forward = wgpu_attention::Inputs::new(&q, &k, &k);
    let short = Inputs::new(forward, &lse, &out[1..]);
    assert!(matches!(short.check(&of(p())), Err(Error::Length { field: "dout", got: 47, expected: 48 })));
    let given = Inputs::new(forward, &lse, &out);
    assert!(matches!(given.check(&of(p()).with_lse()), Err(Error::Missing { field: "dlse", .. })));
    assert!(matches!(given.dlse(&lse).check(&of(p())), Err(Error::Unused { field: "dlse", .. })));
}

/// Every pass of every problem, in Vulkan's, Metal's, DX12's and OpenGL's languages.
#[test]
fn passes_are_valid() {
    for problem in problems() {
        let given = Given::new(problem, 2);
        let plan = Plan::new(&given.problem, &Caps::webgpu_default()).unwrap();
        for source in plan.shader_sources() {
            let module = naga::front::wgsl::parse_str(&source)
                .unwrap_or_else(|e| panic!("{}", e.emit_to_string(&source)));
            let flags = naga::valid::ValidationFlags::all();
            naga::valid::Validator::new(flags, naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32)
                .validate(&module)
                .unwrap_or_else(|e| panic!("{e:?}\n{source}"));
            for declaration in source.split(['{', '}', ';']).map(str::trim).filter(|s| s.starts_with("var "))
            {
                assert!(declaration.contains('='), "no initial value in `{declaration}`");
            }
        }
    }
}

// ---- public bug reports of other implementations, each named after its fault ------------------------------------

/// xlite-dev/ffpa-attn#300: the gradient took the causal mask of a square where the forward pass had it at the bottom right.
#[test]
fn the_gradient_has_the_forward_pass_s_causal_corner() {
    let gpu = gpu!();
    for alignment in [Alignment::BottomRight, Alignment::TopLeft] {
        check(gpu, &backward(gpu), &Given::new(plain([1, 4, 2, 8, 24, 16, 16]).causal(alignment), 300));
    }
}

/// marin-community/levanter#449: dk and dv were not summed over the query heads of a group. They are the sums of those that heads of their own get.
#[test]
fn gradients_of_shared_heads_are_sums_over_the_group() {
    let gpu = gpu!();
    let backward = backward(gpu);
    let grouped = Given::new(plain([1, 4, 2, 9, 12, 8, 8]), 449);
    let got = check(gpu, &backward, &grouped);
    let mut own = Given::new(plain([1, 4, 4, 9, 12, 8, 8]), 449);
    own.dout.clone_from(&grouped.dout);
    (own.dlse, own.problem.dlse) = (grouped.dlse.clone(), grouped.problem.dlse);
    own.case.q.clone_from(&grouped.case.q);
    let each = 12 * 8;
    let twice = |x: &[f32]| x.chunks(each).flat_map(|head| [head, head].concat()).collect::<Vec<_>>();
    (own.case.k, own.case.v) = (twice(&grouped.case.k), twice(&grouped.case.v));
    let expanded = run(gpu, &backward, &own, &backward.plan(&own.problem).unwrap());
    for (got, expanded) in [(&got.dk, &expanded.dk), (&got.dv, &expanded.dv)] {
        for (at, &x) in got.iter().enumerate() {
            let first = at / each * 2 * each + at % each;
            approx::assert_abs_diff_eq!(x, expanded[first] + expanded[first + each], epsilon = 1e-4);
        }
    }
}

/// pytorch/pytorch#196170: one row that sees nothing made all gradients NaN, although nothing of it came in.
#[test]
fn a_row_that_sees_nothing_spoils_no_gradient() {
    let gpu = gpu!();
    let problem = plain([1, 2, 2, 6, 9, 8, 8]).mask(MaskFormat::Bytes, Broadcast([1, 1, 6, 9]));
    let mut given = Given::new(problem.with_entropy(), 196_170);
    given.case.mask = Some((0..6 * 9).map(|at| u8::from(at / 9 != 2)).collect());
    for at in indices(&given.case.problem, Tensor::Out).into_iter().filter(|at| at[2] == 2) {
        let place = given.case.problem.view(Tensor::Out).unwrap().index(at) as usize;
        given.dout[place] = 0.0;
    }
    let got = check(gpu, &backward(gpu), &given);
    assert!([&got.dq, &got.dk, &got.dv].into_iter().flatten().all(|x| x.is_finite()));
    let q = given.case.problem.view(Tensor::Q).unwrap();
    let row = |h| (0..8).map(move |d| q.index([0, h, 2, d]) as usize);
    assert!((0..2).flat_map(row).all(|at| got.dq[at] == 0.0));
}

/// pytorch/pytorch#188302: the gradient of the bias alone was computed without lse. It is the same whatever else is asked for.
#[test]
fn the_gradient_of_the_bias_is_the_same_alone() {
    let gpu = gpu!();
    let backward = backward(gpu);
    let problem =
        plain([2, 2, 1, 9, 20, 8, 8]).bias(DType::F32, Broadcast([1, 2, 9, 20])).sink(Sink::PerHead);
    let all = Given::new(problem, 188_302);
    let mut alone = Given::new(all.case.problem.clone(), 188_302);
    (alone.problem.dsinks, alone.problem.dtemperature) = (false, false);
    let [all, alone] = [&all, &alone].map(|given| check(gpu, &backward, given).dbias.expect("asked for"));
    assert_eq!(all, alone);
}

/// Dao-AILab/flash-attention#818: a gradient that comes in with strides of its own was read as if it were packed. It lies as out does, and out may
/// lie anywhere.
#[test]
fn the_gradient_that_comes_in_lies_as_out_does() {
    let gpu = gpu!();
    let backward = backward(gpu);
    let strided = Layout::Strided(Strides { offset: 4, batch: 9 * 40, head: 12, seq: 40, dim: 1 });
    let mut results = Vec::new();
    for layout in [Layout::Bhsd, Layout::Bshd, strided] {
        let problem = plain([2, 3, 3, 9, 20, 8, 8]).layouts(Layout::Bhsd, Layout::Bhsd, Layout::Bhsd, layout);
        let mut given = Given::new(problem, 818);
        (given.dlse, given.problem.dlse) = (None, false);
        let view = given.case.problem.view(Tensor::Out).unwrap();
        for at in indices(&given.case.problem, Tensor::Out) {
            let [b, h, i, d] = at.map(|n| n as f32);
            given.dout[view.index(at) as usize] = (b + 0.7 * h + 0.3 * i + 0.11 * d).sin();
        }
        let got = check(gpu, &backward, &given);
        results.push((got.dq, got.dk, got.dv));
    }
    for other in &results[1..] {
        for (a, b) in [(&results[0].0, &other.0), (&results[0].1, &other.1), (&results[0].2, &other.2)] {
            for (a, b) in a.iter().zip(b) {
                approx::assert_abs_diff_eq!(a, b, epsilon = 1e-4);
            }
        }
    }
}
