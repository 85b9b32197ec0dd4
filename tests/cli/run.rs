//! `run`: files in, files out.

use super::*;

#[test]
fn run_on_npy_agrees_with_float64() {
    if !adapter("run_on_npy_agrees_with_float64") {
        return;
    }
    let files = Files::new();
    let (path, out) = files.path("out.npy");
    let report = succeeds(&files.run(&["-o", &out, "--temperature", "0.5", "--causal", "--check"]));
    assert!(report.contains("pass") && report.contains("attention/"), "{report}");

    let file = std::fs::read(&path).unwrap();
    let npy = npyz::NpyFile::new(file.as_slice()).unwrap();
    assert_eq!(npy.shape(), [1, 2, 3, 6]);
    let got: Vec<f32> = npy.into_vec().unwrap();
    let [q, k, v] = data();
    let problem = Problem::new(SHAPE).causal(Alignment::BottomRight).temperature(Temperature::Value(0.5));
    let truth = reference::truth(&problem, &Inputs::new(&q, &k, &v)).unwrap();
    assert!(reference::compare(&got, &truth.out).passes());
}

#[test]
fn run_takes_fewer_axes_and_the_other_layout() {
    if !adapter("run_takes_fewer_axes_and_the_other_layout") {
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let x = bytes(&numbers(2 * 3 * 4, 0.3));
    let (out, shape) = (at("out.npy"), |path: &Path| {
        npyz::NpyFile::new(std::fs::read(path).unwrap().as_slice()).unwrap().shape().to_vec()
    });
    let plain = npy(&at("plain.npy"), "<f4", false, &[6, 4], &x);
    succeeds(&["run", &plain, &plain, &plain, "--check", "-o", out.to_str().unwrap()]);
    assert_eq!(shape(&out), [6, 4]);
    let heads = npy(&at("heads.npy"), "<f4", false, &[3, 2, 4], &x);
    succeeds(&["run", &heads, &heads, &heads, "--layout", "bshd", "--check", "-o", out.to_str().unwrap()]);
    assert_eq!(shape(&out), [3, 2, 4]);
    fails(
        &["run", &plain, &plain, &plain, "--layout", "bshd"],
        2,
        &["[6, 4]", "(batch, seq, heads, head_dim)"],
    );
    fails(&["run", &plain, &heads, &heads], 2, &["k has 3 axes", "q has 2"]);
}

#[test]
fn run_writes_statistics_heatmaps_and_cases() {
    if !adapter("run_writes_statistics_heatmaps_and_cases") {
        return;
    }
    let files = Files::new();
    let (out_path, out) = files.path("out.safetensors");
    let (case_path, case) = files.path("case.safetensors");
    let (svg_path, svg) = files.path("map.svg");
    let (png_path, png) = files.path("map.png");
    let options = [
        "-o",
        &out,
        "--lse",
        "--entropy",
        "--row-max",
        "--save-case",
        &case,
        "--heatmap",
        &svg,
        "--head",
        "1",
        "--scale",
        "8/d",
        "--temperature-per-head",
        "0.5,2",
        "--temperature",
        "1.5",
        "--causal=1",
        "--kv-len",
        "4",
        "--q-len",
        "2",
        "--check",
        "--kernel",
        "naive",
    ];
    let report = succeeds(&files.run(&options));
    for word in ["naive", "nats on average", "row_max", "out.safetensors", "case.safetensors", "float64"] {
        assert!(report.contains(word), "{word}: {report}");
    }
    let file = std::fs::read(&out_path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut names = tensors.names();
    names.sort_unstable();
    assert_eq!(names, ["entropy", "lse", "out", "row_max"]);
    assert_eq!(tensors.tensor("lse").unwrap().shape(), [1, 2, 3]);

    let saved = Case::read(&case_path).unwrap();
    assert!(saved.missing().is_empty() && saved.work().unwrap().problem().kv_len);
    assert!(succeeds(&["check", &case]).contains("1 of 1 passed"));
    // A case can be run again, and flags go before what it says.
    assert!(succeeds(&["run", &case, "--check", "--kv-len", "2", "--heatmap", &png]).contains("pass"));

    let svg = std::fs::read_to_string(svg_path).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("data:image/png;base64,") && svg.ends_with("</svg>\n"));
    assert!(std::fs::read(png_path).unwrap().starts_with(b"\x89PNG"));
}

/// Sequences of 1 and 2 queries on 2 and 3 keys: (heads, rows, head_dim) without an axis for a batch, and with one.
#[test]
fn run_packed_sequences() {
    if !adapter("run_packed_sequences") {
        return;
    }
    let files = Files::new();
    let (case_path, case) = files.path("case.safetensors");
    let (out_path, out) = files.path("out.safetensors");
    let options = ["--cu-seqlens-q", "0,1,3", "--cu-seqlens-k", "0,2,5", "--causal", "--lse", "--check"];
    let (_, png) = files.path("map.png");
    let more = ["-o", &out, "--save-case", &case, "--heatmap", &png, "--batch", "1"];
    let report = succeeds(&files.run(&[options.as_slice(), &more].concat()));
    assert!(report.contains("batch 2") && report.contains("2 queries on 3 keys"), "{report}");
    let file = std::fs::read(out_path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("out").unwrap().shape(), [1, 2, 3, 6]);
    assert_eq!(tensors.tensor("lse").unwrap().shape(), [1, 2, 3]);
    assert_eq!(Case::read(&case_path).unwrap().work().unwrap().problem().packed_k, Some(5));
    assert!(succeeds(&["check", &case]).contains("1 of 1 passed"));
    fails(
        &files.run(&["--cu-seqlens-q", "0,4,3", "--cu-seqlens-k", "0,2,5"]),
        2,
        &["cu_seqlens_q is 3 at 2"],
    );
    fails(&["run", &case, "--cu-seqlens-q", "0,3"], 2, &["case file", "--cu-seqlens-q"]);
    fails(&files.run(&["--cu-seqlens-q", "0,1,3"]), 2, &["the batch of k", "2"]);
    fails(
        &files.run(&["--cu-seqlens-q", "0,1", "--cu-seqlens-k", "0,5"]),
        2,
        &["--cu-seqlens-q ends at 1", "3 rows"],
    );
    let documents = npy(&files.folder.path().join("d.npy"), "<i4", false, &[5], &[1, 0, 0, 0].repeat(5));
    let both = ["--documents-q", "1,1,-2", "--documents-k", &documents, "--check", "--save-case", &case];
    assert!(succeeds(&files.run(&both)).contains("pass"));
    assert!(succeeds(&["check", &case]).contains("1 of 1 passed"));
    fails(
        &files.run(&["--documents-q", "1,2", "--documents-k", "1,1,1,1,1"]),
        2,
        &["documents_q has 2", "3"],
    );
    let scores = ["--cu-seqlens-q", "0,3", "--cu-seqlens-k", "0,5", "-o", &out, "--scores", "raw"];
    fails(&files.run(&scores), 2, &["--scores", "packed"]);
}

/// Nothing that a case says is lost when it is run.
#[test]
fn run_carries_the_options_of_a_case() {
    if !adapter("run_carries_the_options_of_a_case") {
        return;
    }
    let folder = folder();
    let again = folder.path().join("again.safetensors");
    // Nothing counts from this offset until a window does.
    let problem = Problem::new(SHAPE).causal(Alignment::Offset(1));
    let [q, k, v] = data();
    let inputs = Inputs::new(&q, &k, &v);
    let truth = reference::truth(&problem, &inputs).unwrap().outputs(&problem);
    let tokens = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
    let case = Case::new("offset", &problem, &inputs, &truth, Tolerance { rtol: 1.0, atol: 1.0 })
        .unwrap()
        .with_tokens(vec![tokens.clone()])
        .unwrap();
    let mut file = case.to_bytes().unwrap();
    let at = file.windows(4).position(|w| w == b"true").unwrap();
    file.splice(at..at + 4, *b"false");
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) + 1;
    file.splice(..8, length.to_le_bytes());
    let unused = folder.path().join("unused.safetensors");
    std::fs::write(&unused, file).unwrap();
    let (unused, to) = (unused.to_str().unwrap(), again.to_str().unwrap());
    assert_eq!(Case::read(unused).unwrap().work().unwrap().problem().alignment, Alignment::default());
    succeeds(&["run", unused, "--window", "1,0", "--save-case", to]);
    let saved = Case::read(&again).unwrap();
    assert_eq!(saved.work().unwrap().problem().alignment, Alignment::Offset(1));
    assert_eq!(saved.tokens(0), Some(tokens.as_slice()));
    for name in ["softcap_masked_key", "window_causal_3", "sinks_per_head", "f16_65", "alibi_8_heads"] {
        succeeds(&["run", &shipped(name), "--check", "--save-case", again.to_str().unwrap()]);
        let [old, new] = [Case::read(shipped(name)).unwrap(), Case::read(&again).unwrap()];
        let [old, new] = [old.work().unwrap(), new.work().unwrap()];
        assert_eq!(new.inputs(), old.inputs(), "{name}");
        assert_eq!(*new.problem(), old.problem().clone().with_lse().with_entropy(), "{name}");
    }
}

#[test]
fn run_reads_tensors_by_name() {
    if !adapter("run_reads_tensors_by_name") {
        return;
    }
    let files = Files::new();
    let (_, packed) = files.path("packed.safetensors");
    let [q, k, v] = data().map(|x| bytes(&x));
    let view = |shape: &[usize], bytes| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes).unwrap()
    };
    let tensors = [
        ("layer.q", view(&[1, 2, 3, 4], &q)),
        ("layer.k", view(&[1, 1, 5, 4], &k)),
        ("layer.v", view(&[1, 1, 5, 6], &v)),
    ];
    std::fs::write(&packed, safetensors::serialize(tensors, None).unwrap()).unwrap();
    succeeds(&["run", &packed, "--names", "layer.q,layer.k,layer.v", "--check"]);
    fails(&["run", &packed], 2, &["no tensor \"q\"", "layer.q", "--names"]);
    fails(&["run", &packed, "--names", "a,b"], 2, &["2 names", "3"]);
    fails(&["run", &files.q, &files.k, &files.v, "--names", "q,k,v"], 2, &["--names", "three .npy files"]);
}
