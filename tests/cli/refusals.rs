//! `run`: what is refused, and in what words.

use super::*;

#[test]
fn run_says_what_is_wrong_with_its_options() {
    let files = Files::new();
    let dense = Dense::new(&files);
    let at = |name: &str| files.folder.path().join(name);
    let wrong = |flags: &[&str], words: &[&str]| fails(&files.run(flags), 2, words);
    let Dense { bias, mask, rows, .. } = &dense;
    for flag in ["--bias", "--mask", "--temperature-per-row", "--sinks", "--temperature-per-head"] {
        wrong(&[flag, "nowhere.npy"], &["nowhere.npy", "cannot be read"]);
    }
    wrong(&["--bias", mask], &["mask.npy", "|u1", "<f4"]);
    wrong(&["--mask", bias], &["bias.npy", "<f4", "|b1", "|u1"]);
    let wide = npy(&at("wide.npy"), "<f4", false, &[3, 3, 5], &[0; 180]);
    wrong(&["--bias", &wide], &["wide.npy", "[3, 3, 5]", "broadcasts", "[1, 2, 3, 5]"]);
    let deep = npy(&at("deep.npy"), "|b1", false, &[1, 1, 1, 1, 5], &MASK);
    wrong(&["--mask", &deep], &["deep.npy", "[1, 1, 1, 1, 5]", "[1, 2, 3, 5]"]);
    let short = npy(&at("cut.npy"), "|b1", false, &[3, 5], &MASK);
    wrong(&["--mask", &short], &["cut.npy", "5 bytes of data", "[3, 5]"]);
    wrong(&["--temperature-per-row", bias], &["bias.npy", "[3, 5]", "[1, 2, 3]"]);
    wrong(&["--sinks", rows], &["rows.npy", "[2, 3]", "(q_heads)"]);
    wrong(&["--sinks", "1,2,3"], &["sinks has 3", "2"]);
    wrong(&["--alibi=1"], &["alibi_slopes has 1", "2"]);
    wrong(&["--length-scale", "ssmax=1"], &["ssmax has 1", "2"]);
    wrong(&["--length-scale", "logn=1"], &["train_len is 1", "at least 2"]);
    wrong(&["--qk-norm", "l2=1e-30"], &["qk_norm eps", "1e-18"]);
    wrong(&["--qk-norm", "l2", "--q-gain", "1,2", "--k-gain", "1,2,3,4"], &["q_gain has 2", "8"]);
    wrong(&["--q-gain", "1", "--k-gain", "1"], &["--qk-norm"]);
    wrong(&["--normalizer", "sigmoid=1", "--lse"], &["sigmoid attention", "lse"]);
    wrong(&["--top-k", "0"], &["top_k is 0", "at least 1"]);
    wrong(&["--dropout", "1,7"], &["dropout rate is 1"]);
    wrong(&["--softcap", "-1"], &["softcap is -1", "above 0"]);
    wrong(&["--align", "1"], &["alignment", "does not use it"]);
    wrong(&["--align=1,2", "--window", "1,1"], &["causal_offset has 2", "1"]);
    let (_, out) = files.path("out.npy");
    wrong(&["--scores", "raw", "-o", &out], &["out.npy", "one tensor", ".safetensors"]);
    wrong(&["--mask-format", "bits"], &["--mask-format", "--mask"]);
    wrong(&["--bias-dtype", "f16"], &["--bias-dtype", "--bias"]);
    wrong(&["--user-params", "1"], &["user_params"]);
    wrong(&["--mask-mod", "nowhere.wgsl"], &["nowhere.wgsl", "cannot be read"]);
    let code = at("code.wgsl");
    std::fs::write(&code, "fn score_mod(score: f32) -> f32 { return score; }").unwrap();
    let code = code.to_str().unwrap();
    wrong(&["--score-mod", code], &["score_mod", "q_index"]);
    std::fs::write(code, USER_SCORE).unwrap();
    wrong(&["--score-mod", code, "--check"], &["float64", "--check"]);
    wrong(&["--tile-mask", "classified"], &["mask tiles"]);
    wrong(&["--kernel", "naive", "--tiles", "32,4,2,2,8"], &["naive", "tiles"]);
    wrong(&["--tiles", "33,4,2,2,8"], &["tiles"]);
    // By the reader of arguments, which says more than one line.
    for rows in [
        "8,4,2",
        "8,4,2,2,both",
        "8,4,2,2,staged,uniform",
        "8,4,2,2,grouped,staged",
        "8,4,2,2,lazy,grouped",
        "8,4,2,2,fenced,lazy",
        "8,4,2,2,",
    ] {
        let (_, err, code) = finish(&files.run(&["--rows", rows]));
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("--rows") && err.contains("as in 8,4,2,2,broadcast"), "{err}");
    }
    wrong(&["--rows", "8,5,2,2"], &["rows.rows", "1 to 4"]);
    wrong(&["--native-f16", "yes"], &["f16", "no tensor"]);
    wrong(&["--kernel", "tiled", "--wide-words", "yes"], &["words of 64 bits", "only the row kernel"]);
}

/// What scores cannot be told of, or numbers that are none, are refused before anything is computed: no line says that something was.
#[test]
fn run_refuses_before_it_computes() {
    if !adapter("run_refuses_before_it_computes") {
        return;
    }
    let files = Files::new();
    let (path, out) = files.path("out.safetensors");
    let refused = |args: &[&str], words: &[&str]| {
        fails(args, 2, words);
        assert_eq!(finish(args).0, "", "something was computed");
        assert!(!path.exists());
    };
    let counted = ["--length-scale", "logn=3", "--scores", "raw", "-o", &out];
    refused(&files.run(&counted), &["length_scale does not go with scores before the masks"]);

    let mut q = data()[0].clone();
    q[17] = f32::NAN;
    let bad = npy(&files.folder.path().join("bad.npy"), "<f4", false, &[1, 2, 3, 4], &bytes(&q));
    refused(&["run", &bad, &files.k, &files.v, "--check-finite", "-o", &out], &["q[17] is NaN"]);
    q[17] = 70000.0;
    npy(&files.folder.path().join("bad.npy"), "<f4", false, &[1, 2, 3, 4], &bytes(&q));
    let large = ["run", &bad, &files.k, &files.v, "--check-finite", "-o", &out];
    refused(&[&large[..], &["--dtype", "f16"]].concat(), &["q[17] is 70000, stored as inf"]);
    succeeds(&large);
}

#[test]
fn run_says_what_is_wrong_with_its_input() {
    let files = Files::new();
    let at = |name: &str| files.folder.path().join(name);
    let missing = at("missing.npy").to_str().unwrap().to_owned();
    let (q, k, v) = (files.q.as_str(), files.k.as_str(), files.v.as_str());
    fails(&["run", q, k, &missing], 2, &["missing.npy", "cannot be read"]);
    fails(&["run", q, k], 2, &["2 files", "three .npy"]);
    fails(&["run", q], 2, &["q.npy", "three (q, k, v)"]);
    fails(&["run", q, k, v, "--causal", "top-left"], 2, &["top-left: is no .npy", "--causal=top-left"]);
    fails(&["run", q, k, v, "--dropout", "-0.1,1"], 2, &["dropout rate is -0.1"]);
    for flag in ["--q-len", "--kv-len", "--top-k", "--head", "--cu-seqlens-q"] {
        let (_, err, code) = finish(&["run", q, k, v, flag, "-1"]);
        assert!(code == 2 && err.contains("invalid value '-1'") && err.contains(flag), "{err}");
    }
    let (_, both) = files.path("both.safetensors");
    fails(
        &["run", q, k, v, "-o", &both, "--save-case", &both],
        2,
        &["both.safetensors: is -o", "--save-case"],
    );
    fails(&["run", q, k, v, "-o", q], 2, &["q.npy: is an input", "-o"]);
    fails(&["study", "--html", &both, "--json", &both], 2, &["both.safetensors: is --html", "--json"]);
    fails(&["softmax", &both], 2, &["both.safetensors", "cannot be read"]);
    std::fs::write(&both, [0u8; 64]).unwrap();
    fails(&["softmax", &both], 2, &["both.safetensors: is not a whole .npy file: it does not begin as one"]);
    for share in ["nan", "-1", "2", "0"] {
        let (_, err, code) = finish(&["tune", "--enough", share]);
        assert!(code == 2 && err.contains("above 0 and at most 1"), "{err}");
    }
    fails(&["tune", "--file", q], 2, &["q.npy: ", "no tuning file"]);
    fails(&["run", "tensors.pt"], 2, &["tensors.pt", ".safetensors"]);
    fails(&["run", q, v, v], 2, &["head dim of k: 6", "that of q: 4", "[1, 1, 5, 6]"]);
    fails(&["run", q, k, q], 2, &["heads of v: 2", "those of k: 1"]);
    let doubles = npy(&at("doubles.npy"), "<f8", false, &[1, 1, 5, 6], &[0; 240]);
    fails(&["run", q, k, &doubles], 2, &["doubles.npy", "<f8", "<f4", "<f2"]);
    let fortran = npy(&at("fortran.npy"), "<f4", true, &[1, 1, 5, 6], &[0; 120]);
    fails(&["run", q, k, &fortran], 2, &["Fortran", "C order"]);
    let short = npy(&at("short.npy"), "<f4", false, &[1, 1, 5, 6], &[0; 12]);
    fails(&["run", q, k, &short], 2, &["12 bytes of data", "[1, 1, 5, 6]"]);
    let huge = npy(&at("huge.npy"), "<f4", false, &[usize::MAX, 3, 5, 6], &[0; 12]);
    fails(&["run", q, k, &huge], 2, &["huge.npy", "beyond 2^64"]);
    let long = npy(&at("long.npy"), "<f4", false, &[1 << 40, 1], &[0; 12]);
    fails(&["run", q, k, &long], 2, &["long.npy", "12 bytes of data", "1099511627776"]);
    std::fs::write(at("text.npy"), "not numbers").unwrap();
    fails(&["run", q, k, at("text.npy").to_str().unwrap()], 2, &["text.npy", "not a whole .npy file"]);
    std::fs::write(at("text.safetensors"), "not tensors").unwrap();
    fails(
        &["run", at("text.safetensors").to_str().unwrap()],
        2,
        &["text.safetensors", "not a safetensors file"],
    );
    fails(&["run", q, k, v, "--temperature", "0"], 2, &["--temperature", "0", "above 0"]);
    fails(&["run", q, k, v, "--temperature-per-head", "1,2,3"], 2, &["temperature has 3", "2"]);
    fails(&["run", q, k, v, "--kv-len", "9"], 2, &["kv_len is 9", "seq_k"]);
    fails(&["run", q, k, v, "--kv-len", "1,2"], 2, &["kv_len has 2", "1"]);
    fails(&["run", q, k, v, "--q-len", "4"], 2, &["q_len is 4", "seq_q"]);
    let (_, svg) = files.path("map.svg");
    fails(&["run", q, k, v, "--heatmap", &svg, "--head", "2"], 2, &["--head is 2", "below 2"]);
    let none = npy(&at("none.npy"), "<f4", false, &[1, 1, 0, 4], &[]);
    fails(&["run", q, &none, &none, "--heatmap", &svg], 2, &["3 queries on 0 keys"]);
    fails(&["run", &shipped("backward_plain")], 2, &["backward_plain", "gradients (dout)"]);
}

#[test]
fn no_output_is_left_half_written() {
    let files = Files::new();
    for (flag, name, words) in [
        ("-o", "nowhere/out.npy", &["nowhere", "does not exist"][..]),
        ("-o", "out.txt", &["out.txt", ".npy or .safetensors"]),
        ("-o", "out", &["no ending"]),
        ("--heatmap", "nowhere/map.svg", &["nowhere", "does not exist"]),
        ("--heatmap", "map.gif", &["map.gif", ".svg or .png"]),
        ("--save-case", "case.npy", &["case.npy", ".safetensors"]),
        ("-o", "", &["is a folder"]),
    ] {
        let (_, path) = files.path(name);
        fails(&files.run(&[flag, &path]), 2, words);
        files.assert_clean();
    }
    let (_, out) = files.path("out.npy");
    fails(&files.run(&["-o", &out, "--lse"]), 2, &["one tensor", ".safetensors"]);
    let (_, page) = files.path("nowhere/page.html");
    fails(&["demo", "--html", &page], 2, &["nowhere", "does not exist"]);
    // A run that fails after its files were named leaves none.
    fails(&files.run(&["-o", &out, "--kv-len", "9"]), 2, &["kv_len"]);
    files.assert_clean();
}
