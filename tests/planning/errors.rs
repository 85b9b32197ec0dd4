//! What is refused, and in what words.

use super::*;

#[test]
fn every_rule_names_its_field_and_value() {
    let good = plain([1, 2, 1, 8, 8, 8, 8]);
    let with = |change: fn(&mut Problem)| {
        let mut problem = good.clone();
        change(&mut problem);
        assert_eq!(
            problem.check(),
            Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::default()).map(|_| ())
        );
        value_error(problem.check())
    };
    let is = |field, value: &str| (field, value.to_owned());
    assert_eq!(with(|p| p.shape.head_dim_qk = 0), is("head_dim_qk", "0"));
    assert_eq!(with(|p| p.shape.head_dim_v = 0), is("head_dim_v", "0"));
    assert_eq!(with(|p| p.shape.head_dim_v = u32::MAX), is("head_dim_v", "4294967295"));
    assert_eq!(with(|p| p.shape.seq_q = (1 << 30) + 1), is("seq_q", "1073741825"));
    assert_eq!(with(|p| p.shape.seq_k = u32::MAX), is("seq_k", "4294967295"));
    assert_eq!(with(|p| p.scale = Scale::Value(f32::NAN)), is("scale", "NaN"));
    assert_eq!(with(|p| p.scale = Scale::Value(f32::INFINITY)), is("scale", "inf"));
    assert_eq!(with(|p| p.scale = Scale::Value(f32::NEG_INFINITY)), is("scale", "-inf"));
    assert_eq!(with(|p| p.scale = Scale::PerHeadDim { numerator: f32::NAN }), is("scale numerator", "NaN"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(0.0)), is("temperature", "0"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(-0.0)), is("temperature", "-0"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(-1.0)), is("temperature", "-1"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(f32::NAN)), is("temperature", "NaN"));
    assert_eq!(with(|p| p.temperature = Temperature::Value(f32::INFINITY)), is("temperature", "inf"));
    // Each is fine, but not their quotient.
    assert_eq!(with(|p| p.temperature = Temperature::Value(1e-40)).0, "scale / temperature");
    assert_eq!(with(|p| p.scale = Scale::Value(f32::MAX)).0, "scale / temperature");
    let far = Strides { offset: 0, batch: 0, head: 0, seq: u64::MAX / 4, dim: 1 };
    let (field, value) = value_error({
        let mut problem = good.clone();
        problem.k_layout = Layout::Strided(far);
        problem.check()
    });
    assert_eq!(field, "k");
    assert!(value.contains("elements"), "{value}");
}

#[test]
fn rules_of_the_options() {
    let good = plain([2, 4, 2, 8, 9, 8, 8]);
    let is = |field, value: &str| (field, value.to_owned());
    let with = |problem: Problem| value_error(problem.check());
    // The field, and the number however it is written.
    let is_number = |(named, value): (&str, String), field: &str, number: f32| {
        let read: f32 = value.parse().unwrap();
        assert!(
            named == field && read.total_cmp(&number).is_eq(),
            "{named} is {value}, not {field} {number}"
        );
        assert!(value.len() <= 20, "{value}");
    };
    for cap in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 2.4e38] {
        is_number(with(good.clone().softcap(cap)), "softcap", cap);
    }
    assert_eq!(with(good.clone().softcap(1e-40)).0, "scale / temperature");
    assert!(good.clone().softcap(2.3e38).check().is_ok());
    for eps in [-1.0, 1e-19, f32::NAN, f32::INFINITY] {
        let norm = QkNorm { eps, ..QkNorm::l2() };
        is_number(with(good.clone().qk_norm(norm)), "qk_norm eps", eps);
        assert_eq!(good.clone().qk_norm(QkNorm::rms(eps)).check().is_ok(), eps == 1e-19);
    }
    for sizes in [[3, 4, 8, 9], [2, 2, 8, 9], [2, 4, 9, 8], [0, 4, 8, 9], [2, 4, 8, 0], [u32::MAX; 4]] {
        let value = format!("{sizes:?}");
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            assert_eq!(with(good.clone().bias(dtype, Broadcast(sizes))), is("bias sizes", &value));
        }
        for format in [MaskFormat::Bytes, MaskFormat::Bits] {
            assert_eq!(with(good.clone().mask(format, Broadcast(sizes))), is("mask sizes", &value));
        }
    }
    for train_len in [0, 1] {
        let rule = LengthScale::LogTrainLen { train_len };
        assert_eq!(with(good.clone().length_scale(rule)), is("train_len", &train_len.to_string()));
    }
    assert_eq!(
        with(good.clone().length_scale(LengthScale::Llama4 { coef: 0.1, floor: 0 })),
        is("llama4 floor", "0")
    );
    for x in [f32::NAN, f32::INFINITY] {
        let llama = LengthScale::Llama4 { coef: x, floor: 1 };
        is_number(with(good.clone().length_scale(llama)), "llama4 coef", x);
    }
    for x in [f32::NAN, f32::INFINITY, 0.0, -5.0] {
        let yarn = LengthScale::Yarn { factor: x };
        is_number(with(good.clone().length_scale(yarn)), "yarn factor", x);
    }
    for alignment in [Alignment::TopLeft, Alignment::Offset(0), Alignment::PerBatch] {
        for problem in [
            good.clone(),
            good.clone().length_scale(LengthScale::Yarn { factor: 2.0 }),
            good.clone().softcap(1.0),
        ] {
            let error = problem.align(alignment).check();
            assert!(matches!(error, Err(Error::Unused { field: "alignment", .. })), "{error:?}");
        }
        for problem in [
            good.clone().with_alibi(),
            good.clone().window(Window::default()),
            good.clone().length_scale(LengthScale::Ssmax),
        ] {
            assert_eq!(problem.align(alignment).check(), Ok(()));
        }
    }
    let error = good.clone().user_params(1).check();
    assert!(matches!(error, Err(Error::Unused { field: "user_params", .. })), "{error:?}");
}

/// Dropout's seed is a table; its rate has a rule, and so have the places that its random numbers count.
#[test]
fn dropout_has_a_rate_and_a_seed() {
    let good = plain([2, 4, 2, 8, 9, 8, 8]).dropout(0.25);
    let tables = plan(&good, &Caps::webgpu_default()).tables().clone();
    assert_eq!(tables.range(Table::Dropout), Some(0..8));
    let data = TableData { dropout: Some([7, 9]), ..TableData::default() };
    assert_eq!(tables.pack(&good, &data), Ok(vec![7, 9]));
    let missing = tables.pack(&good, &TableData::default());
    assert!(matches!(missing, Err(Error::Missing { field: "dropout (seed and offset)", .. })), "{missing:?}");
    let unused = tables.pack(&plain([2, 4, 2, 8, 9, 8, 8]), &data);
    assert!(matches!(unused, Err(Error::Unused { field: "dropout (seed and offset)", .. })), "{unused:?}");
    let other = tables.pack(&good.clone().with_alibi(), &TableData { alibi_slopes: Some(&[0.5; 4]), ..data });
    assert!(matches!(other, Err(Error::Incompatible { option: "the problem", .. })), "{other:?}");
    // Rates that no problem accepts do no harm either.
    let keep = [-1.0, 0.0, 0.25, 1.0, 2.0, f32::INFINITY, f32::NAN].map(|rate| Dropout { rate }.keep());
    assert_eq!(keep, [1.0, 1.0, 0.75, 0.0, 0.0, 0.0, 1.0]);
    for rate in [-0.1, 1.0, 1.5, 0.999_999, f32::NAN, f32::INFINITY] {
        let (field, value) = value_error(good.clone().dropout(rate).check());
        assert_eq!((field, value), ("dropout rate", rate.to_string()));
    }
    for rate in [0.0, 1e-9, 0.5, 1.0 - 1.0 / 65536.0] {
        assert_eq!(good.clone().dropout(rate).check(), Ok(()));
    }
    let places = |seq_q| plain([1 << 14, 16, 16, seq_q, 1, 1, 1]).dropout(0.5).check();
    assert_eq!(places(1 << 16), Ok(()));
    assert_eq!(value_error(places((1 << 16) + 1)).0, "batch * q_heads * ceil(seq_q / 4)");
}

/// What has no meaning beside a sigmoid is refused by name.
#[test]
fn sigmoid_attention_has_no_sum() {
    let sigmoid = |bias| plain([2, 4, 2, 8, 9, 8, 8]).normalizer(Normalizer::Sigmoid { bias });
    let good = sigmoid(SigmoidBias::MinusLogSeqK);
    assert_eq!(good.clone().with_row_max().dropout(0.1).check(), Ok(()));
    let refused: [(Problem, &str); 4] = [
        (good.clone().with_lse(), "lse"),
        (good.clone().with_entropy(), "entropy"),
        (good.clone().sink(Sink::Zero), "a sink"),
        (good.clone().sink(Sink::PerHead), "a sink"),
    ];
    for (problem, named) in refused {
        let error = problem.check();
        let by_name = matches!(error, Err(Error::Incompatible { option: "sigmoid attention", other, .. }) if other == named);
        assert!(by_name, "{error:?}");
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2e38] {
        assert_eq!(value_error(sigmoid(SigmoidBias::Value(bad)).check()).0, "sigmoid bias");
    }
    assert_eq!(sigmoid(SigmoidBias::Value(-1e38)).check(), Ok(()));
}

/// Options that need another look at the keys, and what they do not go with.
#[test]
fn searches_have_rules() {
    let plain = || plain([2, 4, 2, 8, 9, 8, 8]);
    let adaptive = || plain().adaptive_temperature(AdaptiveTemperature::default());
    let sparse = || plain().normalizer(Normalizer::Sparsemax);
    for good in [
        adaptive().with_lse().with_entropy(),
        plain().top_k(3).sink(Sink::PerHead).with_lse().dropout(0.1),
        plain().top_k(u32::MAX),
        sparse().with_entropy().with_row_max(),
        plain().normalizer(Normalizer::Entmax15).dropout(0.5),
    ] {
        assert_eq!(good.check(), Ok(()), "{good:?}");
    }
    for (bad, pair) in [
        (adaptive().sink(Sink::Zero), ["adaptive_temperature", "a sink"]),
        (adaptive().top_k(3), ["adaptive_temperature", "top_k"]),
        (
            adaptive().normalizer(Normalizer::Entmax15),
            ["adaptive_temperature", "a normalizer other than the softmax"],
        ),
        (sparse().top_k(3), ["top_k", "a normalizer other than the softmax"]),
        (sparse().with_lse(), ["sparsemax", "lse"]),
        (sparse().sink(Sink::PerHead), ["sparsemax", "a sink"]),
        (plain().normalizer(Normalizer::Entmax15).with_lse(), ["entmax15", "lse"]),
    ] {
        let error = bad.check();
        assert!(
            matches!(error, Err(Error::Incompatible { option, other, .. }) if [option, other] == pair),
            "{error:?}"
        );
    }
    assert_eq!(value_error(plain().top_k(0).check()).0, "top_k");
    let long = Problem::new(shape([1, 1, 1, 1, (1 << 24) + 1, 1, 1]));
    assert_eq!(long.check(), Ok(()));
    assert_eq!(value_error(long.top_k(5).check()).0, "seq_k");
    let with = |n: usize, x: f32, above: f32| {
        let mut adaptive = AdaptiveTemperature { above, ..AdaptiveTemperature::default() };
        adaptive.coefficients[n] = x;
        value_error(plain().adaptive_temperature(adaptive).check()).0
    };
    assert_eq!(with(2, f32::NAN, 0.5), "adaptive temperature's coefficient");
    assert_eq!(with(0, 1.0, f32::NAN), "adaptive temperature's threshold");
    assert_eq!(with(0, 1.0, -0.1), "adaptive temperature's threshold");
}

/// A search goes through the keys again and again, and its rounds count where a driver ends loops early.
#[test]
fn passes_count_as_rounds() {
    for kernel in [Kernel::Tiled, Kernel::Naive] {
        // The smallest power of two that is enough.
        let needed = |change: fn(Problem) -> Problem| {
            let problem = change(plain([1, 1, 1, 8, 2000, 8, 8]));
            let fits = |limit: &u32| {
                let caps = caps(|c| c.max_loop_iterations = *limit);
                Plan::new(&problem, &caps, &PlanOptions::kernel(kernel)).is_ok()
            };
            (0..32).map(|log| 1 << log).find(fits).unwrap()
        };
        let one = needed(|p| p);
        let two = needed(|p| p.adaptive_temperature(AdaptiveTemperature::default()));
        assert!(one <= two && two <= 4 * one, "{kernel}: {one}, {two}");
        for many in [needed(|p| p.normalizer(Normalizer::Sparsemax)), needed(|p| p.top_k(5))] {
            assert!(many >= 4 * one && many <= 32 * one, "{kernel}: {one}, {many}");
        }
    }
}

/// Tables are asked for, and refused, each by its name and length; and their numbers have rules.
#[test]
fn tables_of_the_options() {
    let full = plain([2, 4, 2, 8, 9, 4, 8])
        .with_alibi()
        .sink(Sink::PerHead)
        .length_scale(LengthScale::Ssmax)
        .qk_norm(QkNorm::l2().gains(NormGains::Shared));
    let plan = plan(&full, &Caps::webgpu_default());
    let four = [0.5f32; 4];
    let data = TableData {
        alibi_slopes: Some(&four),
        sinks: Some(&four),
        ssmax: Some(&four),
        q_gain: Some(&four),
        k_gain: Some(&four),
        ..TableData::default()
    };
    assert_eq!(plan.tables().pack(&full, &data).map(|t| t.len()), Ok(20));
    let none = plain([2, 4, 2, 8, 9, 8, 8]);
    type Set = for<'a> fn(&mut TableData<'a>, Option<&'a [f32]>);
    let set: [(&str, Set); 5] = [
        ("alibi_slopes", |t, x| t.alibi_slopes = x),
        ("sinks", |t, x| t.sinks = x),
        ("ssmax", |t, x| t.ssmax = x),
        ("q_gain", |t, x| t.q_gain = x),
        ("k_gain", |t, x| t.k_gain = x),
    ];
    for (name, set) in set {
        let pack = |problem: &Problem, values: Option<&[f32]>, base: &TableData<'_>| {
            let mut data = *base;
            let values = values.map(<[f32]>::to_vec);
            set(&mut data, values.as_deref());
            plan.tables().pack(problem, &data).map(|_| ())
        };
        assert!(matches!(pack(&full, None, &data), Err(Error::Missing { field, .. }) if field == name));
        let short = pack(&full, Some(&four[1..]), &data);
        assert!(matches!(short, Err(Error::Length { field, got: 3, expected: 4 }) if field == name));
        let unused = pack(&none, Some(&four), &TableData::default());
        assert!(matches!(unused, Err(Error::Unused { field, .. }) if field == name));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (field, value) = value_error(pack(&full, Some(&[0.0, 1.0, bad, 0.0]), &data));
            assert_eq!((field, value), (name, bad.to_string()));
        }
    }
}

/// The pairs that lengths and positions leave visible are counted one by one by the reference.
#[test]
fn visible_pairs_are_the_pairs_that_are_visible() {
    let mut rng = Rng::new(7);
    for n in 0..1500 {
        let (sq, sk) = (rng.range(1, 12) as u32, rng.range(0, 12) as u32);
        let mut problem = plain([2, 2, 1, sq, sk, 1, 1]);
        problem.causal = rng.chance(0.5);
        let side = |rng: &mut Rng| rng.chance(0.6).then(|| rng.range(0, 9) as u32);
        if rng.chance(0.7) {
            let keep_first = if rng.chance(0.5) { rng.range(0, 14) as u32 } else { 0 };
            problem.window = Some(Window { left: side(&mut rng), right: side(&mut rng), keep_first });
        }
        if problem.causal || problem.window.is_some() {
            let offset = Alignment::Offset(rng.range(-14, 14) as i32);
            problem.alignment = rng.pick(&[Alignment::BottomRight, Alignment::TopLeft, offset]);
        }
        let (q, kv) = (vec![0.0; 4 * sq as usize], vec![0.0; 2 * sk as usize]);
        let inputs = Inputs::new(&q, &kv, &kv);
        let row =
            |i| reference::scores(&problem, &inputs, [0, 0, i]).unwrap().into_iter().flatten().count() as u64;
        let pairs: u64 = (0..sq).map(row).sum();
        assert_eq!(problem.visible_pairs(), 4 * pairs, "{n}: {problem:?}");
    }
}

/// Tensors beyond all memory: counted without overflow, and refused.
#[test]
fn tensors_beyond_all_memory() {
    let point = Layout::Strided(Strides { offset: 0, batch: 0, head: 0, seq: 0, dim: 0 });
    let x = [0.0];
    for format in [MaskFormat::Bytes, MaskFormat::Bits] {
        for numbers in
            [[1 << 12, 1 << 10, 1, 1 << 20, 1 << 20, 1, 1], [1 << 16, 1 << 16, 1, 1, 1 << 30, 1, 1]]
        {
            let mut problem = plain(numbers).layouts(point, point, point, Layout::Bhsd);
            let s = problem.shape;
            problem.mask = Some((format, Broadcast([s.batch, s.q_heads, s.seq_q, s.seq_k])));
            assert_eq!(problem.check(), Ok(()));
            assert!(problem.bytes(Tensor::Mask).unwrap() >= 1 << 59);
            let mut inputs = Inputs::new(&x, &x, &x);
            inputs.mask = Some(&[1]);
            assert!(matches!(inputs.check(&problem), Err(Error::Length { field: "mask", got: 1, .. })));
            assert!(Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::default()).is_err());
        }
    }
    // Two batches as far apart as numbers go: small parts of a buffer that nobody has.
    for far in [1u64 << 60, 1 << 61, (1 << 62) - 100] {
        let strided = Layout::Strided(Strides { offset: 0, batch: far, head: 64, seq: 8, dim: 1 });
        let b = Layout::Bhsd;
        for layouts in [[strided, b, b, b], [b, strided, b, b], [b, b, b, strided]] {
            let [q, k, v, out] = layouts;
            let problem = plain([2, 1, 1, 8, 8, 8, 8]).layouts(q, k, v, out);
            let plan = plan(&problem, &Caps::webgpu_default());
            let bytes = Tensor::MAIN.map(|tensor| plan.tensor_bytes(tensor));
            assert!(bytes.iter().any(|&b| b >= far), "{bytes:?}");
        }
    }
}

#[test]
fn heads_that_cannot_be_shared_out() {
    for (q_heads, kv_heads) in [(6, 4), (1, 2), (5, 0), (0, 3), (u32::MAX, 2)] {
        let problem = plain([1, q_heads, kv_heads, 1, 1, 1, 1]);
        assert_eq!(problem.check(), Err(Error::HeadsNotMultiple { q_heads, kv_heads }));
        let text = problem.check().unwrap_err().to_string();
        assert!(text.contains(&q_heads.to_string()) && text.contains(&kv_heads.to_string()), "{text}");
    }
}

#[test]
fn an_output_whose_elements_overlap() {
    let strided = |batch, head, seq, dim| Layout::Strided(Strides { offset: 0, batch, head, seq, dim });
    let b = Layout::Bhsd;
    for out in [
        strided(0, 64, 8, 1),
        strided(128, 0, 8, 1),
        strided(128, 64, 0, 1),
        strided(128, 64, 8, 0),
        strided(128, 64, 7, 1),
        strided(127, 64, 8, 1),
        strided(64, 128, 8, 2),
    ] {
        let problem = plain([2, 2, 2, 8, 8, 8, 8]).layouts(b, b, b, out);
        assert_eq!(value_error(problem.check()).0, "out", "{out:?}");
        // The same is fine to read.
        assert!(plain([2, 2, 2, 8, 8, 8, 8]).layouts(out, out, out, b).check().is_ok());
    }
}

#[test]
fn messages_say_what_to_do() {
    let e = Plan::new(&plain([1, 1, 1, 8, 1 << 29, 8, 8]), &Caps::webgpu_default(), &PlanOptions::default());
    let text = e.unwrap_err().to_string();
    for part in ["max_storage_buffer_binding_size", "134217728", "17179869184", "helpful_limits"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}
