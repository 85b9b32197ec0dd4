//! `run`: every option of attention.

use super::*;

/// All flags that stand between q.k and the softmax: they reach the problem as the library would be asked.
#[test]
fn run_takes_every_score_option() {
    if !adapter("run_takes_every_score_option") {
        return;
    }
    let files = Files::new();
    let dense = Dense::new(&files);
    let (path, out) = files.path("out.safetensors");
    let (case_path, case) = files.path("case.safetensors");
    let (_, svg) = files.path("map.svg");
    let flags = [
        "--window=2,-,1",
        "--align=-1",
        "--softcap",
        "5",
        "--bias",
        &dense.bias,
        "--mask",
        &dense.mask,
        "--alibi",
        "--sinks",
        "-0.5,1",
        "--temperature",
        "0.5",
        "--scores",
        "biased",
        "--lse",
        "-o",
        &out,
        "--save-case",
        &case,
        "--heatmap",
        &svg,
        "--check",
    ];
    let report = succeeds(&files.run(&flags));
    for word in ["window", "softcap", "bias", "alibi", "sink", "slow path", "scores   max error", "map.svg"] {
        assert!(report.contains(word), "{word}: {report}");
    }

    let [q, k, v] = data();
    let problem = Problem::new(SHAPE)
        .window(Window { left: Some(2), right: None, keep_first: 1 })
        .align(Alignment::Offset(-1))
        .softcap(5.0)
        .bias(DType::F32, Broadcast([1, 1, 3, 5]))
        .mask(MaskFormat::Bytes, Broadcast([1, 1, 1, 5]))
        .with_alibi()
        .sink(Sink::PerHead)
        .temperature(Temperature::Value(0.5));
    let (bias, slopes) = (biases(), alibi_slopes(2));
    let inputs = Inputs::new(&q, &k, &v).bias(&bias).mask(&MASK).alibi_slopes(&slopes).sinks(&[-0.5, 1.0]);
    let truth = reference::truth(&problem, &inputs).unwrap();
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let read = |name: &str| DType::F32.decode(tensors.tensor(name).unwrap().data());
    assert!(reference::compare(&read("out"), &truth.out).passes());
    assert!(reference::compare(&read("lse"), &truth.lse).passes());
    assert_eq!(tensors.tensor("scores").unwrap().shape(), [1, 2, 3, 5]);
    let row = reference::scores_at(&problem, &inputs, ScoreStage::Biased, [0, 1, 2]).unwrap();
    assert!(reference::compare(&read("scores")[25..], &row).passes());

    // The case says all of it: it passes, and run on it is the same problem.
    let saved = Case::read(case_path).unwrap();
    let work = saved.work().unwrap();
    assert_eq!(*work.problem(), problem.with_lse().with_entropy());
    let mask = [1, 1, 0, 1, 1]; // as the format writes it
    assert_eq!(work.inputs(), inputs.mask(&mask));
    assert_eq!(work.scores().unwrap().0, ScoreStage::Biased);
    assert!(succeeds(&["check", &case]).contains("1 of 1 passed"));
    let (_, again) = files.path("again.safetensors");
    succeeds(&["run", &case, "--save-case", &again, "--scores", "biased", "-o", &out]);
    assert!(Case::read(again).unwrap() == saved);
}

/// What is not in [`run_takes_every_score_option`], a few flags at a time.
#[test]
fn run_takes_the_other_options() {
    if !adapter("run_takes_the_other_options") {
        return;
    }
    let files = Files::new();
    let dense = Dense::new(&files);
    let at = |name: &str| files.folder.path().join(name);
    let halves: Vec<u8> = DType::F16.encode(&data()[1]);
    let half = npy(&at("half.npy"), "<f2", false, &[1, 1, 5, 4], &halves);
    let (_, out) = files.path("out.safetensors");
    let (_, case) = files.path("case.safetensors");
    let (_, sigmoid) = files.path("sigmoid.safetensors");
    let (_, dropped) = files.path("dropped.safetensors");
    let [sparse, largest, adapted] =
        ["sparse", "largest", "adapted"].map(|name| files.path(&format!("{name}.safetensors")).1);
    let runs: [(&[&str], &[&str]); 14] = [
        (&["--qk-norm", "l2", "--scale", "1", "--scores", "raw", "-o", &out], &["qk_norm/l2", "30 raw"]),
        (
            &["--qk-norm", "rms=0.1", "--q-gain", "1,-2,0.5,1", "--k-gain=-1,1,2,0.5", "--save-case", &case],
            &["qk_norm/rms", "gains/shared"],
        ),
        (&["--temperature-per-row", &dense.rows, "--length-scale", "yarn=4"], &["temperature/row"]),
        (&["--length-scale", "ssmax=0.4,1", "--align", "top-left"], &["ssmax"]),
        (&["--length-scale", "logn=2", "--causal", "--scores", "probs", "-o", &out], &["log-n", "30 probs"]),
        (&["--length-scale", "llama4=0.3,2", "--align=1"], &["llama"]),
        (
            &["--dtype", "f16", "--out-dtype", "f16", "--sinks", "zero", "--save-case", &case],
            &["f16,f16,f16->f16", "sink/zero"],
        ),
        (
            &["--dtype", "bf16", "--alibi=0.3,0.1", "--scores", "capped", "-o", &out],
            &["bf16,bf16,bf16->f32", "30 capped"],
        ),
        (
            &[
                "--normalizer",
                "sigmoid=seq-k",
                "--row-max",
                "--scores",
                "probs",
                "-o",
                &out,
                "--save-case",
                &sigmoid,
            ],
            &["sigmoid", "30 probs"],
        ),
        (&["--dropout", "0.5,7,1", "--save-case", &dropped], &["dropout"]),
        (&["--normalizer", "entmax15", "--entropy", "--save-case", &sparse], &["entmax15"]),
        (&["--top-k", "2", "--lse", "--save-case", &largest], &["top_k"]),
        (&["--adaptive-temperature", "--lse", "--save-case", &adapted], &["adaptive"]),
        (&["--window", "none,1", "--align", "0", "--scores", "raw", "-o", &out], &["window", "30 raw"]),
    ];
    for (flags, words) in runs {
        let report = succeeds(&files.run(&[flags, &["--check"]].concat()));
        assert!(report.contains("pass") && !report.contains("FAIL"), "{report}");
        for word in words {
            assert!(report.contains(word), "{word}: {report}");
        }
    }
    let saved = ["check", &case, &sigmoid, &dropped, &sparse, &largest, &adapted];
    assert!(succeeds(&saved).contains("6 of 6 passed"));
    assert!(succeeds(&["run", &case]).contains("f16,f16,f16->f16"));
    // Slopes from a file are those of the command line, and files of 16 bits are read as they are.
    let alibi = format!("--alibi={}", dense.slopes);
    let report = succeeds(&["run", &files.q, &half, &files.v, &alibi, "--check"]);
    assert!(report.contains("f32,f16,f32->f32"), "{report}");
}

const USER_MASK: &str = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool {
    return k_index < param_u32(2u);
}";

/// Each tensor in its own storage and order, what is otherwise the planner's choice, and user code.
#[test]
fn run_takes_storage_plans_and_user_code() {
    if !adapter("run_takes_storage_plans_and_user_code") {
        return;
    }
    let files = Files::new();
    let dense = Dense::new(&files);
    let (case_path, case) = files.path("case.safetensors");
    let run = |more: &[&str]| succeeds(&files.run(more));
    assert!(
        run(&["--dtype", "f16,bf16,f32", "--out-dtype", "bf16", "--check"]).contains("f16,bf16,f32->bf16")
    );
    let report =
        run(&["--mask", &dense.mask, "--mask-format", "bits", "--tile-mask", "classified", "--check"]);
    assert!(
        report.contains("+mask/bits +tile_classes") && report.contains("they were asked for"),
        "{report}"
    );
    assert!(
        run(&["--mask", &dense.mask, "--kernel", "tiled", "--tile-mask", "each", "--check"])
            .contains("they were not wanted")
    );
    assert!(run(&["--bias", &dense.bias, "--bias-dtype", "bf16", "--check"]).contains("+bias/bf16"));
    assert!(run(&["--tiles", "32,4,2,2,8", "--check"]).contains("these tiles were asked for"));
    for rows in [
        "8,4,2,2",
        "8,4,2,2,grouped",
        "8,4,2,2,staged",
        "8,4,2,2,staged,grouped",
        "8,4,2,2,uniform",
        "8,4,2,2,staged,grouped,lazy",
        "8,4,2,2,lazy",
        "8,4,2,2,staged,grouped,lazy,fenced",
        "8,4,2,2,fenced",
    ] {
        let text = run(&["--kernel", "rows", "--rows", rows, "--check"]);
        assert!(text.contains("these rows were asked for"), "{text}");
        assert_eq!(text.contains("staged"), rows.contains("staged"), "{text}");
    }
    assert!(run(&["--dtype", "f16", "--native-f16", "no", "--check"]).contains("unpacked: "));
    // Nothing is said of words where the device has none of 64 bits.
    let text = run(&["--kernel", "rows", "--wide-words", "no", "--check"]);
    assert!(!text.contains("words    ") || text.contains("of 32 bits: it was asked for"), "{text}");

    // What a case says of them is what was computed.
    run(&[
        "--temperature-per-row",
        &dense.rows,
        "--length-scale",
        "llama4=0.1,2",
        "--dtype",
        "bf16,f16,f32",
        "--mask",
        &dense.mask,
        "--mask-format",
        "bits",
        "--save-case",
        &case,
    ]);
    assert!(succeeds(&["check", &case, "--kernel", "tiled", "--tile-mask", "classified"]).contains("pass"));
    let saved = Case::read(&case_path).unwrap();
    let problem = saved.work().unwrap().problem();
    assert_eq!(problem.dtypes, [DType::Bf16, DType::F16, DType::F32, DType::F32]);
    assert_eq!(problem.temperature, Temperature::PerRow);

    // Tensors in different orders: v and out as (batch, seq, heads, head_dim).
    let [q, k, v] = data();
    let s = SHAPE;
    let size = |n: u32| n as usize;
    let (heads, keys, dim) = (size(s.kv_heads), size(s.seq_k), size(s.head_dim_v));
    let turned: Vec<f32> = (0..keys * heads * dim)
        .map(|at| v[((at / dim % heads) * keys + at / dim / heads) * dim + at % dim])
        .collect();
    let turned =
        npy(&files.folder.path().join("turned.npy"), "<f4", false, &[1, keys, heads, dim], &bytes(&turned));
    let (out, out_name) = files.path("out.npy");
    succeeds(&[
        "run",
        &files.q,
        &files.k,
        &turned,
        "--layout",
        "bhsd,bhsd,bshd,bshd",
        "--check",
        "-o",
        &out_name,
    ]);
    let file = std::fs::read(out).unwrap();
    let file = npyz::NpyFile::new(file.as_slice()).unwrap();
    assert_eq!(file.shape().to_vec(), [1, s.seq_q, s.q_heads, s.head_dim_v].map(u64::from));
    let got: Vec<f32> = file.into_vec().unwrap();
    let problem = Problem::new(s).layouts(Layout::Bhsd, Layout::Bhsd, Layout::Bhsd, Layout::Bshd);
    let truth = reference::truth(&problem, &Inputs::new(&q, &k, &v)).unwrap();
    assert!(reference::compare(&got, &truth.out).passes());

    // A case whose out lies apart on the device: in files it is in the order of its axes.
    let apart = Layout::Strided(Strides { offset: 4, batch: 100, head: 50, seq: 8, dim: 1 });
    let problem = Problem::new(s).layouts(Layout::Bhsd, Layout::Bhsd, Layout::Bhsd, apart);
    let inputs = Inputs::new(&q, &k, &v);
    let strided = reference::truth(&problem, &inputs).unwrap();
    let saved = Case::of_truth("apart", &problem, &inputs, &strided, &[]).unwrap();
    std::fs::write(&case_path, saved.to_bytes().unwrap()).unwrap();
    assert!(succeeds(&["check", &case]).contains("pass"));
    assert!(succeeds(&["run", &case, "--check", "-o", &out_name]).contains("pass"));
    let got: Vec<f32> =
        npyz::NpyFile::new(std::fs::read(&out_name).unwrap().as_slice()).unwrap().into_vec().unwrap();
    let truth = reference::truth(&Problem::new(s), &inputs).unwrap();
    assert!(reference::compare(&got, &truth.out).passes());

    // User code: the relative distance, and the first two keys.
    let [score, mask] = [("score.wgsl", USER_SCORE), ("mask.wgsl", USER_MASK)].map(|(name, text)| {
        let (path, name) = files.path(name);
        std::fs::write(path, text).unwrap();
        name
    });
    let report =
        run(&["--score-mod", &score, "--mask-mod", &mask, "--user-params", "0.5,-0.25,2", "-o", &out_name]);
    assert!(report.contains("score_mod/") && report.contains("mask_mod/"), "{report}");
    let got: Vec<f32> =
        npyz::NpyFile::new(std::fs::read(&out_name).unwrap().as_slice()).unwrap().into_vec().unwrap();
    let problem = Problem::new(s)
        .score_mod(UserCode::score_mod(USER_SCORE).unwrap())
        .mask_mod(UserCode::mask_mod(USER_MASK).unwrap())
        .user_params(3);
    let user = [0.5f32.to_bits(), (-0.25f32).to_bits(), 2];
    let twin = |x: f64, [_, h, i, j]: [u32; 4]| x - [0.5, -0.25][h as usize] * f64::from(i.abs_diff(j));
    let first_two = |[_, _, _, j]: [u32; 4]| j < 2;
    let mods = reference::Mods { score: Some(&twin), mask: Some(&first_two) };
    let inputs = Inputs::new(&q, &k, &v);
    let truth = reference::truth_with(&problem, &inputs.user(&user), &mods).unwrap();
    assert!(reference::compare(&got, &truth.out).passes());
}
