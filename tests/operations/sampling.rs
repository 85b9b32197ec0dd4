//! The sampler: every device draws the tokens of the CPU twin.

use crate::common::{Gpu, Guarded, Rng};
use crate::gpu;
use std::sync::OnceLock;
use wgpu_attention::sampling::{
    self, Buffers, Chain, Draws, Inputs, LlamaCpp, Plan, Problem, Sampler, Seed, Step, Transformers,
};
use wgpu_attention::{Caps, DType, Error};

pub fn op(gpu: &Gpu) -> Sampler {
    static OP: OnceLock<Sampler> = OnceLock::new();
    OP.get_or_init(|| Sampler::new(&gpu.device)).clone()
}

pub fn seeds(rows: u32) -> Vec<Seed> {
    (0..rows).map(|n| Seed { seed: 0x1234_5678_9abc_def0, offset: n }).collect()
}

/// Everything that a problem may read, in owned memory.
#[derive(Debug, Clone)]
struct Batch {
    problem: Problem,
    logits: Vec<f32>,
    seeds: Vec<Seed>,
    chains: Vec<Chain>,
    history: Vec<u32>,
    bias: Vec<(u32, f32)>,
    allowed: Vec<u32>,
}

impl Batch {
    fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(&self.logits, &self.seeds).chains(&self.chains);
        let has = |name| self.problem.chain.steps().iter().any(|step| step.name() == name);
        inputs.history = (self.problem.history > 0).then_some(&self.history);
        inputs.bias = (self.problem.bias > 0).then_some(&self.bias);
        inputs.allowed = has("allowed").then_some(&self.allowed);
        inputs
    }

    /// Any steps in any order, other numbers in each row, logits with ties, infinities, NaN and subnormal numbers.
    fn any(rng: &mut Rng, vocab: u32) -> Batch {
        let rows = rng.range(1, 5) as u32;
        let kinds: Vec<i64> = (0..rng.range(0, 6)).map(|_| rng.range(0, 9)).collect();
        let chains: Vec<Chain> = (0..rows)
            .map(|_| kinds.iter().fold(Chain::new(), |chain, &kind| chain.step(step(rng, kind, vocab))))
            .collect();
        let coarse = rng.chance(0.5);
        let logits = (0..rows * vocab)
            .map(|_| match rng.below(40) {
                0 => f32::NEG_INFINITY,
                1 => rng.pick(&[f32::NAN, f32::INFINITY, 1e-42, -0.0, 3e38, -3e38, f32::NEG_INFINITY]),
                _ if coarse => (rng.normal() * 4.0).round() / 2.0,
                _ => rng.normal() * 3.0,
            })
            .collect();
        let mut problem = Problem::new(rows, vocab, chains[0].clone()).with_log_probs();
        if kinds.contains(&0) {
            problem = problem.with_history(rng.range(1, 40) as u32);
        }
        if kinds.contains(&1) {
            problem = problem.with_bias(rng.range(1, 6) as u32);
        }
        if rng.chance(0.2) {
            problem = problem.greedy();
        }
        problem = problem.dtype(rng.pick(&[DType::F32, DType::F32, DType::F16, DType::Bf16]));
        let token = |rng: &mut Rng| match rng.below(4) {
            0 => u32::MAX,
            _ => rng.below(u64::from(vocab) * 5 / 4 + 1) as u32,
        };
        let history = (0..rows * problem.history).map(|_| token(rng)).collect();
        let bias = (0..rows * problem.bias)
            .map(|_| {
                let bias = rng.pick(&[1.5, -2.0, 0.0, 40.0, f32::NEG_INFINITY, -3e38, 1e38]);
                (token(rng), bias)
            })
            .collect();
        let allowed = (0..rows * problem.allowed_words()).map(|_| (rng.next() | rng.next()) as u32).collect();
        let seeds = (0..rows).map(|_| Seed { seed: rng.next(), offset: rng.next() as u32 }).collect();
        Batch { problem, logits, seeds, chains, history, bias, allowed }
    }
}

fn step(rng: &mut Rng, kind: i64, vocab: u32) -> Step {
    match kind {
        0 => Step::Penalties {
            repetition: rng.pick(&[1.0, 1.1, 1.7, 0.5]),
            frequency: rng.pick(&[0.0, 0.3, -0.2]),
            presence: rng.pick(&[0.0, 0.7]),
        },
        1 => Step::LogitBias,
        2 => Step::Allowed,
        3 => Step::Temperature(rng.pick(&[0.0, 1e-30, 0.1, 0.7, 1.0, 1.3, 50.0, 3e38, f32::INFINITY])),
        4 => Step::DynamicTemperature {
            low: rng.pick(&[0.0, 0.2, 1.0]),
            high: rng.pick(&[1.0, 1.7, 30.0]),
            exponent: rng.pick(&[0.0, 0.5, 1.0, 2.0]),
        },
        5 => Step::TopK(rng.pick(&[0, 1, 2, 5, 40, vocab, vocab + 1])),
        6 => Step::TopP(rng.pick(&[1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])),
        7 => Step::MinP(rng.pick(&[0.0, 0.01, 0.3, 1.0])),
        8 => Step::Typical(rng.pick(&[1e-6, 0.2, 0.7, 0.95, 1.0])),
        _ => Step::TopNSigma(rng.pick(&[0.0, 0.5, 1.0, 2.5])),
    }
}

/// Runs a plan in guarded and poisoned memory.
fn run_plan(gpu: &Gpu, plan: &Plan, batch: &Batch) -> Draws {
    let problem = plan.problem();
    let inputs = batch.inputs();
    let prepared = op(gpu).prepare_blocking(plan).expect("preparing");
    let logits = Guarded::stored(gpu, "logits", problem.dtype, inputs.logits);
    let words = plan.settings(inputs.seeds, inputs.chains).expect("settings");
    let settings = Guarded::new(gpu, "settings", &words);
    let out = Guarded::poisoned(gpu, "out", plan.out_bytes());
    let pairs: Vec<u32> = batch.bias.iter().flat_map(|&(token, bias)| [token, bias.to_bits()]).collect();
    let history = Guarded::new(gpu, "history", &batch.history);
    let bias = Guarded::new(gpu, "bias", &pairs);
    let allowed = Guarded::new(gpu, "allowed", &batch.allowed);
    let mut buffers = Buffers::new(logits.at(), settings.at(), out.at());
    if inputs.history.is_some() {
        buffers = buffers.history(history.at());
    }
    if inputs.bias.is_some() {
        buffers = buffers.bias(bias.at());
    }
    if inputs.allowed.is_some() {
        buffers = buffers.allowed(allowed.at());
    }
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    prepared.bind(&buffers).expect("binding").encode(&mut encoder);
    gpu.queue.submit([encoder.finish()]);
    let words = out.read(gpu, "out");
    let (tokens, log_probs) = words.split_at(problem.rows as usize);
    Draws {
        tokens: tokens.iter().map(|&token| (token != u32::MAX).then_some(token)).collect(),
        log_probs: problem.log_probs.then(|| log_probs.iter().map(|&w| f32::from_bits(w)).collect()),
    }
}

fn check(gpu: &Gpu, batch: &Batch, what: &str) {
    let want = sampling::twin(&batch.problem, &batch.inputs()).expect("the twin");
    let plan = op(gpu).plan(&batch.problem).expect("a plan");
    let got = run_plan(gpu, &plan, batch);
    assert_eq!(got, want, "{} {what}: {:?}\n{plan}", gpu.name, batch.chains);
}

#[test]
fn every_step_alone_draws_what_the_twin_draws() {
    let gpu = gpu!();
    let mut rng = Rng::new(1);
    for kind in 0..10 {
        for vocab in [1, 2, 3, 65, 300, 1025] {
            for _ in 0..3 {
                let mut batch = Batch::any(&mut rng, vocab);
                let rows = batch.problem.rows;
                batch.chains = (0..rows).map(|_| Chain::new().step(step(&mut rng, kind, vocab))).collect();
                let plain = Problem::new(rows, vocab, batch.chains[0].clone()).with_log_probs();
                batch.problem = match kind {
                    0 => plain.with_history(3),
                    1 => plain.with_bias(2),
                    _ => plain,
                };
                batch.history = (0..3 * rows).map(|_| rng.below(vocab.into()) as u32).collect();
                batch.bias = (0..2 * rows).map(|n| (rng.below(vocab.into()) as u32, n as f32)).collect();
                check(gpu, &batch, "one step");
            }
        }
    }
}

#[test]
fn any_chain_draws_what_the_twin_draws() {
    let gpu = gpu!();
    let mut rng = Rng::new(2);
    for n in 0..120 {
        let vocab = rng.pick(&[1, 2, 7, 64, 65, 257, 1000, 4099]);
        check(gpu, &Batch::any(&mut rng, vocab), &format!("number {n}"));
    }
}

/// A list has no order, and of equal logits the lowest token comes first all the same; settings that are off, and others in other rows.
#[test]
fn many_equal_logits_in_long_rows() {
    let gpu = gpu!();
    let vocab = 5000;
    let logits: Vec<f32> = (0..3 * vocab).map(|n| [1.0, 3.0, 2.0, 3.0][n as usize % 4]).collect();
    let seeds = seeds(3);
    let chains = |with: &dyn Fn(u32, f32) -> Chain| [with(40, 0.4), with(0, 1.0), with(2, 0.9)];
    for (number, chains) in [
        chains(&|k, p| Chain::new().top_k(k).top_p(p)),
        chains(&|k, p| Chain::new().top_p(p).top_k(k)),
        chains(&|k, p| Chain::new().typical(p).min_p(1.0 - p).top_k(k)),
        chains(&|_, p| Chain::new().top_p(p).typical(p)),
    ]
    .iter()
    .enumerate()
    {
        // Rows are planned by the first one's chain, which has a top-k or has none.
        for turned in [0, 1] {
            let mut chains = chains.clone();
            chains.rotate_left(turned);
            for greedy in [false, true] {
                let problem = Problem::new(3, vocab, chains[0].clone()).with_log_probs();
                let problem = if greedy { problem.greedy() } else { problem };
                let inputs = Inputs::new(&logits, &seeds).chains(&chains);
                let got = op(gpu).run_blocking(&gpu.queue, &problem, &inputs).expect("tokens");
                let want = sampling::twin(&problem, &inputs).expect("the twin");
                assert_eq!(got, want, "{number} {turned} {greedy}");
            }
        }
    }
}

/// As large as vocabularies are, and larger.
#[test]
fn large_vocabularies() {
    let gpu = gpu!();
    let mut rng = Rng::new(3);
    for vocab in [50_257, 262_144, 300_001] {
        let logits: Vec<f32> = (0..vocab).map(|_| (rng.normal() * 3.0 * 64.0).round() / 64.0).collect();
        for chain in [
            Chain::llama_cpp(LlamaCpp { typical: 0.9, top_n_sigma: 3.0, ..LlamaCpp::default() }),
            Chain::transformers(Transformers { top_k: 0, top_p: 0.95, ..Transformers::default() }),
            Chain::new().dynamic_temperature(0.5, 1.5, 1.0).top_p(0.99),
        ] {
            let problem = Problem::new(1, vocab, chain).with_log_probs();
            let seeds = [Seed { seed: 3, offset: 4 }];
            let inputs = Inputs::new(&logits, &seeds);
            let got = op(gpu).run_blocking(&gpu.queue, &problem, &inputs).expect("a token");
            assert_eq!(got, sampling::twin(&problem, &inputs).expect("the twin"), "{}", problem.chain);
        }
    }
}

/// A row draws the same alone, in any batch, with any stride, in slices, and for any number of threads.
#[test]
fn a_row_does_not_know_its_batch() {
    let gpu = gpu!();
    let chain = Chain::new().temperature(0.9).top_k(50).top_p(0.9);
    knows_no_batch(gpu, 500, &chain);
    // Several workgroups share a row: for the list of a top-k, and in all steps.
    knows_no_batch(gpu, 2001, &chain);
    knows_no_batch(gpu, 2001, &Chain::new().temperature(0.9).typical(0.95).top_p(0.9).min_p(0.01));
}

fn knows_no_batch(gpu: &Gpu, vocab: usize, chain: &Chain) {
    let mut rng = Rng::new(4);
    let mut batch = Batch::any(&mut rng, vocab as u32);
    let rows = 9;
    batch.problem = Problem::new(rows, vocab as u32, chain.clone());
    batch.chains = vec![chain.clone(); rows as usize];
    batch.logits = rng.normals(vocab * rows as usize);
    batch.seeds = seeds(rows);
    let whole = run_plan(gpu, &op(gpu).plan(&batch.problem).expect("a plan"), &batch);
    for (row, &token) in whole.tokens.iter().enumerate() {
        let alone = Problem::new(1, vocab as u32, chain.clone());
        let inputs = Inputs::new(&batch.logits[vocab * row..vocab * (row + 1)], &batch.seeds[row..row + 1]);
        assert_eq!(op(gpu).run_blocking(&gpu.queue, &alone, &inputs).expect("a token").tokens, [token]);
    }
    // So that some rows fit, and all do not.
    let (binding, groups) = if vocab > 1024 { (60_000, 8) } else { (5000, 3) };
    let changes: [&dyn Fn(&mut Caps); 4] = [
        &|caps| caps.max_storage_buffer_binding_size = binding,
        &|caps| caps.max_compute_workgroups_per_dimension = groups,
        &|caps| caps.max_compute_invocations_per_workgroup = 1,
        &|caps| caps.max_compute_invocations_per_workgroup = 40,
    ];
    for change in changes {
        let mut caps = op(gpu).caps().clone();
        change(&mut caps);
        let plan = Plan::new(&batch.problem, &caps).expect("a plan");
        assert_eq!(run_plan(gpu, &plan, &batch), whole, "{plan}");
    }
    let mut spread = batch.clone();
    let stride = vocab + 13;
    spread.problem = spread.problem.stride(stride as u64);
    spread.logits = vec![f32::NAN; stride * 8 + vocab];
    for row in 0..9 {
        spread.logits[stride * row..][..vocab].copy_from_slice(&batch.logits[vocab * row..][..vocab]);
    }
    assert_eq!(run_plan(gpu, &op(gpu).plan(&spread.problem).expect("a plan"), &spread), whole);
}

fn draw(gpu: &Gpu, chain: &Chain, logits: &[f32], finish_greedy: bool) -> Option<u32> {
    let mut problem = Problem::new(1, logits.len() as u32, chain.clone());
    if finish_greedy {
        problem = problem.greedy();
    }
    let seeds = [Seed::default()];
    let inputs = Inputs::new(logits, &seeds);
    op(gpu).run_blocking(&gpu.queue, &problem, &inputs).expect("a token").tokens[0]
}

/// Temperature 0, and what comes near it, is the largest logit, the lowest token of equal ones.
#[test]
fn temperature_zero_and_tiny() {
    let gpu = gpu!();
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 2.999, -1.0];
    for t in [0.0, f32::MIN_POSITIVE, 1e-30, 1e-9] {
        for _ in 0..3 {
            let token = draw(gpu, &Chain::new().temperature(t), &logits, t > 0.0);
            assert_eq!(token, Some(1), "T = {t}");
        }
    }
    // Never an infinity in between: far apart, and large.
    let far = [-3e38, 3e38, 2.9e38, 0.0];
    for t in [0.0, f32::MIN_POSITIVE, 1e-3] {
        assert_eq!(draw(gpu, &Chain::new().temperature(t), &far, false), Some(1));
    }
}

#[test]
fn nothing_left_is_said_and_is_not_token_0() {
    let gpu = gpu!();
    let none = [f32::NEG_INFINITY, f32::NAN, f32::NEG_INFINITY];
    for chain in [
        Chain::new(),
        Chain::new().temperature(0.0),
        Chain::new().temperature(1e-30).dynamic_temperature(0.1, 1.0, 1.0),
        Chain::new().top_k(2).top_p(0.5).min_p(0.1).typical(0.5).top_n_sigma(1.0),
    ] {
        for greedy in [false, true] {
            assert_eq!(draw(gpu, &chain, &none, greedy), None, "{chain}");
        }
    }
    // A long row is shared by workgroups.
    let long = vec![f32::NEG_INFINITY; 5000];
    for chain in [
        Chain::new(),
        Chain::new().temperature(0.5).typical(0.9).top_p(0.5).min_p(0.1),
        Chain::new().top_k(7).top_p(0.5),
    ] {
        for greedy in [false, true] {
            let mut problem = Problem::new(1, 5000, chain.clone()).with_log_probs();
            if greedy {
                problem = problem.greedy();
            }
            let seeds = seeds(1);
            let got =
                op(gpu).run_blocking(&gpu.queue, &problem, &Inputs::new(&long, &seeds)).expect("no token");
            assert_eq!((got.tokens, got.log_probs), (vec![None], Some(vec![f32::NEG_INFINITY])), "{chain}");
        }
    }
    let problem = Problem::new(2, 3, Chain::new().top_k(2)).with_log_probs();
    let logits = [none, [0.0, 1.0, f32::NEG_INFINITY]].concat();
    let seeds = seeds(2);
    let got = op(gpu).run_blocking(&gpu.queue, &problem, &Inputs::new(&logits, &seeds)).expect("tokens");
    assert_eq!((got.tokens[0], got.tokens[1].is_some()), (None, true));
    assert_eq!(got.log_probs.expect("asked for")[0], f32::NEG_INFINITY);
}

/// What stays, step by step, where it can be seen by eye.
#[test]
fn ties_and_the_token_that_crosses() {
    let logits = [1.0, 2.0, 2.0, 0.0, 2.0, 1.0];
    let left = |chain: Chain| -> Vec<usize> {
        let problem = Problem::new(1, 6, chain);
        let rows = sampling::left(&problem, &Inputs::new(&logits, &[Seed::default()])).expect("a row");
        (0..6).filter(|&t| rows[0][t].is_some()).collect()
    };
    assert_eq!(left(Chain::new().top_k(2)), [1, 2], "exactly k, the lowest of equal ones");
    assert_eq!(left(Chain::new().top_k(4)), [0, 1, 2, 4]);
    assert_eq!(left(Chain::new().top_k(0)), [0, 1, 2, 3, 4, 5], "0 is off");
    assert_eq!(left(Chain::new().top_k(7)), [0, 1, 2, 3, 4, 5]);
    // Each of the three has .269 of all, the two after them .099.
    assert_eq!(left(Chain::new().top_p(0.1)), [1], "the first crosses");
    assert_eq!(left(Chain::new().top_p(0.3)), [1, 2]);
    assert_eq!(left(Chain::new().top_p(0.85)), [0, 1, 2, 4]);
    assert_eq!(left(Chain::new().top_p(1.0)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(left(Chain::new().min_p(0.3)), [0, 1, 2, 4, 5], "e^-1 is .37");
    assert_eq!(left(Chain::new().min_p(1.0)), [1, 2, 4]);
    assert_eq!(left(Chain::new().top_n_sigma(0.1)), [1, 2, 4]);
    // The order of steps is the order of calls: temperature before top-p changes what stays.
    assert_eq!(left(Chain::new().temperature(100.0).top_p(0.55)), [0, 1, 2, 4]);
    assert_eq!(left(Chain::new().top_p(0.55).temperature(100.0)), [1, 2, 4]);
}

#[test]
fn presets_have_the_orders_they_name() {
    let llama = Chain::llama_cpp(LlamaCpp { repetition: 1.1, ..LlamaCpp::default() });
    assert_eq!(
        llama.to_string(),
        "penalties 1.1 0 0, top_n_sigma 0, top_k 40, typical 1, top_p 0.95, min_p 0.05, temperature 0.8"
    );
    let transformers = Chain::transformers(Transformers::default());
    assert_eq!(transformers.to_string(), "temperature 1, top_k 50, top_p 1, min_p 0, typical 1");
}

#[test]
fn refusals_name_the_field() {
    let gpu = gpu!();
    let field = |error: Error| match error {
        Error::Value { field, .. } | Error::Length { field, .. } => field,
        Error::Missing { field, .. } | Error::Unused { field, .. } => field,
        other => panic!("{other}"),
    };
    let nan = f32::NAN;
    for (chain, name) in [
        (Chain::new().temperature(-0.1), "temperature"),
        (Chain::new().temperature(nan), "temperature"),
        (Chain::new().temperature(1e-40), "temperature"),
        (Chain::new().dynamic_temperature(1.0, 0.5, 1.0), "dynamic_temperature"),
        (Chain::new().dynamic_temperature(0.0, 1.0, nan), "dynamic_temperature"),
        (Chain::new().top_p(0.0), "top_p"),
        (Chain::new().top_p(1.1), "top_p"),
        (Chain::new().top_p(nan), "top_p"),
        (Chain::new().typical(0.0), "typical"),
        (Chain::new().min_p(-0.1), "min_p"),
        (Chain::new().min_p(nan), "min_p"),
        (Chain::new().top_n_sigma(-1.0), "top_n_sigma"),
        (Chain::new().penalties(0.0, 0.0, 0.0), "history"),
    ] {
        assert_eq!(field(Problem::new(1, 4, chain).check().unwrap_err()), name);
    }
    let chain = Chain::new().penalties(0.0, 0.0, 0.0);
    assert_eq!(field(Problem::new(1, 4, chain).with_history(1).check().unwrap_err()), "penalties");
    let plain = Problem::new(2, 4, Chain::new().top_k(2));
    assert_eq!(field(plain.clone().with_history(1).check().unwrap_err()), "history");
    assert_eq!(field(plain.clone().with_bias(1).check().unwrap_err()), "bias");
    assert_eq!(field(plain.clone().stride(3).check().unwrap_err()), "stride");
    assert_eq!(field(Problem::new(1, 0, Chain::new()).check().unwrap_err()), "vocab");
    assert_eq!(field(Problem::new(1, 1 << 23, Chain::new()).check().unwrap_err()), "vocab");
    let two = seeds(2);
    let inputs = Inputs::new(&[0.0; 8], &two);
    assert_eq!(field(inputs.allowed(&[1, 1]).check(&plain).unwrap_err()), "allowed");
    for wrong in [7, 9] {
        assert_eq!(field(Inputs::new(&[0.0; 9][..wrong], &two).check(&plain).unwrap_err()), "logits");
    }
    let apart = plain.clone().stride(5);
    assert!(
        Inputs::new(&[0.0; 12], &two).check(&apart).is_ok(),
        "rows that lie apart may lie in a longer slice"
    );
    let biased = Problem::new(2, 4, Chain::new().logit_bias()).with_bias(1);
    for (bias, right) in [(1.0, true), (f32::NEG_INFINITY, true), (f32::INFINITY, false), (nan, false)] {
        let checked = Inputs::new(&[0.0; 8], &two).bias(&[(1, 0.5), (2, bias)]).check(&biased);
        assert_eq!(checked.map_err(field), if right { Ok(()) } else { Err("bias") }, "{bias}");
    }
    let run = |inputs: &Inputs<'_>| op(gpu).run_blocking(&gpu.queue, &plain, inputs).unwrap_err();
    assert_eq!(field(run(&Inputs::new(&[0.0; 8], &two[..1]))), "seeds");
    assert_eq!(field(run(&inputs.chains(&[Chain::new().top_k(3)]))), "chains");
    let others = [Chain::new().top_k(3), Chain::new().top_p(0.3)];
    assert_eq!(field(run(&inputs.chains(&others))), "chains");
}

#[test]
fn nothing_to_draw() {
    let gpu = gpu!();
    let problem = Problem::new(0, 5, Chain::new());
    let got = op(gpu).run_blocking(&gpu.queue, &problem, &Inputs::new(&[], &[])).expect("nothing");
    assert_eq!(got.tokens, []);
}
