//! The tuner and its file, and `Attention::with_tuning`.

#[path = "common/mod.rs"]
mod common;

use common::shape;
use std::time::Duration;
use wgpu_attention::measure::{Clock, Effort, Roofs, Stopwatch, Work};
use wgpu_attention::tune::{Outcome, Stop, Tuner, Tuning, TuningError};
use wgpu_attention::{
    AdapterClass, Alignment, Broadcast, DType, Kernel, MaskFormat, MatrixTiles, PlanOptions, Problem, Sink,
    Stats, Temperature, Window,
};

fn every_option() -> Problem {
    let mut problem = Problem::new(shape([2, 4, 2, 9, 17, 12, 20]))
        .causal(Alignment::PerBatch)
        .window(Window { left: Some(9), right: None, keep_first: 2 })
        .with_kv_len()
        .temperature(Temperature::PerRow)
        .with_q_len()
        .dropout(0.25)
        .softcap(20.0)
        .with_alibi()
        .sink(Sink::PerHead)
        .bias(DType::F16, Broadcast([1, 4, 9, 17]))
        .mask(MaskFormat::Bits, Broadcast([2, 1, 9, 17]))
        .dtypes(DType::F32, DType::Bf16, DType::F16, DType::F16);
    problem.stats = Stats::ALL;
    problem
}

/// Inputs are made up for any problem, and answers to it checked.
#[test]
fn work_is_made_for_every_option_and_checks_every_kernel() {
    let gpu = gpu!();
    for problem in [Problem::new(shape([1, 2, 2, 5, 7, 4, 4])), every_option()] {
        let work = pollster::block_on(Work::new(&gpu.attention, &problem)).unwrap();
        for kernel in common::kernels(&problem) {
            let plan = common::plan(gpu, &problem, &PlanOptions::kernel(kernel));
            let ready = pollster::block_on(work.prepare(&plan)).unwrap();
            let checked = pollster::block_on(work.check(&gpu.queue, &ready)).unwrap();
            assert!(checked.passes(), "{kernel}: {checked:?}");
            assert_eq!(checked.rows as u64, problem.shape.rows());
            // A plan of something else computes something else.
            let other =
                common::plan(gpu, &problem.clone().with_lse().with_entropy(), &PlanOptions::kernel(kernel));
            if *other.problem() != problem {
                assert!(pollster::block_on(work.prepare(&other)).is_err());
            }
        }
    }
}

#[test]
fn both_clocks_count_the_same_work() {
    let gpu = gpu!();
    let problem = Problem::new(shape([1, 4, 4, 64, 64, 32, 32]));
    let work = pollster::block_on(Work::new(&gpu.attention, &problem)).unwrap();
    let ready = pollster::block_on(work.prepare(&gpu.attention.plan(&problem).unwrap())).unwrap();
    let wall = Stopwatch::wall(&gpu.attention, &gpu.queue);
    assert_eq!(wall.clock(), Clock::Wall);
    let best = pollster::block_on(Stopwatch::new(&gpu.attention, &gpu.queue)).unwrap();
    assert!(!best.why().is_empty());
    let mut effort = Effort::default();
    effort.time = Duration::from_millis(200);
    for watch in [&wall, &best] {
        let times = pollster::block_on(watch.measure(&ready, &effort)).unwrap();
        assert!((5..=50).contains(&times.samples.seconds().len()) && times.samples.min() > 0.0, "{times:?}");
        assert_eq!(times.clock, watch.clock());
    }
    effort.give_up = Some(Duration::ZERO);
    let times = pollster::block_on(wall.measure(&ready, &effort)).unwrap();
    assert_eq!((times.samples.seconds().len(), times.calls), (1, 1));
    let roofs =
        pollster::block_on(Roofs::measure(&gpu.attention, &best, Duration::from_millis(300))).unwrap();
    let all = [roofs.fma, roofs.dot, roofs.exp2, roofs.copy, roofs.read, roofs.workgroup];
    assert!(all.iter().all(|r| r.is_finite() && *r > 1e6), "{roofs:?}");
    let caps = gpu.attention.caps();
    assert_eq!(roofs.wide_copy.is_some(), caps.shader_int64 && caps.class == AdapterClass::Cpu);
    assert!(roofs.wide_copy.is_none_or(|r| r.is_finite() && r > 1e6), "{roofs:?}");
    assert_eq!(roofs.matrix.is_some(), gpu.has_matrices());
    assert!(roofs.matrix.is_none_or(|r| r.is_finite() && r > 1e6), "{roofs:?}");
}

#[test]
fn a_tuner_finds_something_right_that_plans_take_up() {
    let gpu = gpu!();
    let problem = Problem::new(shape([1, 2, 2, 60, 50, 16, 16])).causal(Alignment::TopLeft);
    let tuner = Tuner::new_blocking(&gpu.attention, &gpu.queue).unwrap().time(Duration::from_secs(8));
    let tuned = tuner.tune_blocking(&problem).unwrap();
    // A busy machine may have time for the planner's choice alone.
    assert!(tuned.candidates.len() > 1 || tuned.stop == Stop::Time, "{tuned}");
    for candidate in &tuned.candidates {
        assert!(matches!(candidate.outcome, Outcome::Timed(_) | Outcome::Refused(_)), "{candidate:?}");
    }
    assert!(tuned.gain() >= 1.0 && tuned.share.0 > 0.0);

    let planned = gpu.attention.plan(&problem).unwrap();
    let mut tuning = Tuning::default();
    tuning.insert(&tuned);
    let attention = gpu.attention.clone().with_tuning(tuning.clone());
    let plan = attention.plan(&problem).unwrap();
    assert_eq!(plan.options(), tuned.options);
    assert!(plan.reason().contains("tuning"), "{plan}");
    // A little smaller is the same class; another option, or sizes beyond the next power of two, are not.
    let near = Problem::new(shape([1, 2, 2, 40, 64, 16, 16])).causal(Alignment::BottomRight);
    assert!(attention.plan(&near).unwrap().reason().contains("tuning"));
    for far in [
        Problem::new(shape([1, 2, 2, 60, 50, 16, 16])),
        Problem::new(shape([1, 2, 2, 65, 50, 16, 16])).causal(Alignment::TopLeft),
        Problem::new(shape([1, 2, 1, 60, 50, 16, 16])).causal(Alignment::TopLeft),
        problem.clone().dtype(DType::F16),
    ] {
        assert_eq!(attention.plan(&far).unwrap(), gpu.attention.plan(&far).unwrap());
    }
    // What is asked for is not overruled.
    let naive = attention.plan_with(&problem, &PlanOptions::kernel(Kernel::Naive)).unwrap();
    assert_eq!(naive.kernel(), Kernel::Naive);
    assert_eq!(gpu.attention.plan(&problem).unwrap(), planned, "the original is as it was");

    // Of another machine, or another release, nothing is taken.
    for (from, to) in [
        (tuned.entry().adapter.as_str(), "Another Adapter"),
        (tuned.entry().driver.as_str(), "another driver"),
        ("\"crate_version\": \"", "\"crate_version\": \"9"),
    ] {
        let text = tuning.to_json();
        assert!(text.contains(from));
        let other = Tuning::from_json(&text.replace(from, to)).unwrap();
        assert_eq!(gpu.attention.clone().with_tuning(other).plan(&problem).unwrap(), planned);
    }
    // And what no longer fits is not an error.
    let mut file: serde_json::Value = serde_json::from_str(&tuning.to_json()).unwrap();
    file["entries"][0]["options"]["kernel"] = "tiled".into();
    file["entries"][0]["options"]["tiles"] = serde_json::json!({
        "threads": 3, "row_groups": 4, "keys_per_thread": 4, "dim_chunk": 8, "v_chunk": 0
    });
    let broken = Tuning::from_json(&file.to_string()).unwrap();
    assert_eq!(gpu.attention.clone().with_tuning(broken).plan(&problem).unwrap(), planned);

    // Through a file and back.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a").join("b.json");
    assert!(matches!(Tuning::load(&path), Err(TuningError::Io { .. })));
    assert_eq!(Tuning::load_or_new(&path), Ok(Tuning::default()));
    tuning.save(&path).unwrap();
    assert_eq!(Tuning::load(&path), Ok(tuning.clone()));
    tuning.insert(&tuned);
    assert_eq!(tuning.entries().len(), 1, "the same class replaces its own");
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn files_that_are_none_are_told_apart() {
    let entry = |kernel: &str, version: &str| {
        format!(
            r#"{{"format": "wgpu-attention tuning", "version": 4, "entries": [{{"adapter": "a", "driver": "d", "crate_version": "{version}",
            "class": "c", "options": {{"kernel": "{kernel}", "tiles": null}}, "seconds": 1.0, "planned_seconds": 1.0}}]}}"#
        )
    };
    let this = env!("CARGO_PKG_VERSION");
    assert_eq!(Tuning::from_json(&entry("naive", this)).unwrap().entries().len(), 1);
    assert!(matches!(Tuning::from_json(&entry("magic", this)), Err(TuningError::Entry { number: 0, .. })));
    // Another release may have other kernels: what it found is kept for it, and not used.
    let newer = Tuning::from_json(&entry("magic", "9.9.9")).unwrap();
    assert!(newer.entries().is_empty() && newer.to_json().contains("magic"));
    assert!(matches!(Tuning::from_json(&entry("naive", "")), Ok(t) if t.entries().is_empty()));
    for foreign in [
        "",
        "[",
        "[]",
        "{}",
        r#"{"format": "wgpu-attention bench", "version": 1}"#,
        r#"{"format": "wgpu-attention tuning"}"#,
        r#"{"format": "wgpu-attention tuning", "version": 4}"#,
    ] {
        assert!(matches!(Tuning::from_json(foreign), Err(TuningError::Foreign(_))), "{foreign}");
    }
    let nothing = r#"{"format": "wgpu-attention tuning", "version": 4, "entries": [{}]}"#;
    assert!(matches!(Tuning::from_json(nothing), Err(TuningError::Entry { number: 0, .. })));
    // Another version too, whatever is in it.
    for found in [1, 2, 3] {
        let other =
            format!(r#"{{"format": "wgpu-attention tuning", "version": {found}, "entries": [{{}}]}}"#);
        assert_eq!(Tuning::from_json(&other), Err(TuningError::Version { found, supported: 4 }));
    }
    assert!(Tuning::default_path().is_ok_and(|p| p.ends_with("wgpu-attention/tuning.json")));
}

/// A member of the family like the others, where there are matrices and numbers for them.
#[test]
fn the_matrix_kernel_is_tried_where_it_can_run() {
    let gpu = gpu!();
    let problem = Problem::new(shape([1, 2, 2, 60, 50, 16, 16])).dtype(DType::F16);
    let tuner =
        Tuner::new_blocking(&gpu.attention, &gpu.queue).unwrap().time(Duration::from_secs(20)).enough(1e9);
    let tuned = tuner.tune_blocking(&problem).unwrap();
    let mut tried = tuned.candidates.iter().filter(|c| c.options.kernel == Some(Kernel::Matrix)).peekable();
    assert!(tried.peek().is_some() || tuned.stop == Stop::Time, "{tuned:?}");
    for candidate in tried {
        match &candidate.outcome {
            Outcome::Timed(_) => assert!(gpu.has_matrices()),
            Outcome::Refused(error) => assert!(!gpu.has_matrices(), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    // As a file keeps it, and as it was before there were matrices.
    let matrix =
        MatrixTiles { size: 8, threads: 32, row_blocks: 4, key_blocks: 4, out_blocks: 2, abreast: 1 };
    let options = PlanOptions::matrix(matrix);
    let text = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<PlanOptions>(&text).unwrap(), options);
    let old = r#"{"kernel": "naive", "tiles": null, "rows": null}"#;
    assert_eq!(serde_json::from_str::<PlanOptions>(old).unwrap(), PlanOptions::kernel(Kernel::Naive));
}
