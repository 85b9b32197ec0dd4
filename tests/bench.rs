//! `bench` and `tune`, as a user meets them.

#[path = "common/program.rs"]
mod program;

use program::{adapter, fails, finish, succeeds};
use serde_json::Value;
use std::io::Write;
use std::path::Path;

fn file(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn example_kernel() -> String {
    format!("{}/examples/kernels/one_row_a_thread.wgsl", env!("CARGO_MANIFEST_DIR"))
}

/// The example kernel with one word of it replaced.
fn changed_kernel(folder: &tempfile::TempDir, from: &str, to: &str) -> String {
    let path = file(folder, "changed.wgsl");
    let text = std::fs::read_to_string(example_kernel()).unwrap();
    assert!(text.contains(from));
    std::fs::write(&path, text.replace(from, to)).unwrap();
    path
}

/// Takes seconds. The time allowed is for a machine so busy that nothing else would be measured before it is over.
const SMALL: [&str; 4] = ["bench", "--shape", "1,2,1,20,20,8,1", "--seconds=600"];

#[test]
fn what_cannot_be_measured_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    for (args, word) in [
        (&["bench", "--shape", "1,2,3"][..], "B,Hq,Hkv"),
        (&["bench", "--shape", "1,3,2,4,4,8"], "multiple"),
        (&["bench", "--shape", "1,1,1,0,4,8"], "nothing to measure"),
        (&["bench", "--preset", "huge"], "sweep"),
        (&["bench", "--kernel", "magic"], "tiled, rows, matrix, naive"),
        (&["bench", "--seconds", "0"], "seconds"),
        (&["tune", "--dry-run", "--file", "x"], "--file"),
    ] {
        let (_, err, code) = finish(args);
        assert!(code == 2 && err.contains(word), "{args:?}: {err}");
    }
    fails(&["bench", "--json", "-", "--csv", "-"], 2, &["standard output"]);
    fails(&["bench", "--json", "/no/such/folder/x.json"], 2, &["does not exist"]);
    fails(&["bench", "--compare", "/no/such/file"], 2, &["/no/such/file"]);
    fails(&["bench", "--kernel", "/no/such/kernel.wgsl"], 2, &["/no/such/kernel.wgsl"]);
    fails(&["bench", "--tuning=/no/such/file"], 2, &["/no/such/file"]);
    let path = file(&folder, "a.json");
    for (text, word) in [("{", "JSON"), ("{}", "bench --json")] {
        std::fs::write(&path, text).unwrap();
        fails(&["bench", "--compare", &path], 2, &[&path, word]);
    }
    for text in ["{", r#"{"format": "other"}"#, r#"{"format": "wgpu-attention bench", "version": 1}"#] {
        std::fs::write(&path, text).unwrap();
        fails(&["tune", "--file", &path], 2, &["no tuning file"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it is left as it is");
    }
    std::fs::write(&path, r#"{"format": "wgpu-attention tuning", "version": 7, "entries": []}"#).unwrap();
    fails(&["tune", "--file", &path], 2, &["version 7", "version 4"]);
    for (text, word) in [
        ("warning: none\n", "no line"),
        ("{}\n", "no row"),
        ("{\"shape\": [1,1,1,1,1,1], \"causal\": false, \"ms\": 1, \"gflops\": 1, \"kv_gb_s\": 1}", "peer"),
    ] {
        std::fs::write(&path, text).unwrap();
        fails(&["bench", "--peer", &path], 2, &[&path, word]);
    }
    let path = file(&folder, "k.wgsl");
    std::fs::write(&path, "const ROWS: u32 = 4u;\nfn f( {}").unwrap();
    fails(&["bench", "--kernel", &path], 2, &["line 2"]);
}

/// The rows of the peer script, and everything that is needed to repeat the run.
#[test]
fn json_has_rows_machine_and_command() {
    if !adapter("json_has_rows_machine_and_command") {
        return;
    }
    let out = succeeds(&[&SMALL[..], &["--shape", "2,2,2,3,40,12", "--json", "-"]].concat());
    let report = json(&out);
    assert_eq!((&report["format"], &report["version"]), (&"wgpu-attention bench".into(), &1.into()));
    assert!(report["command"].as_str().unwrap().starts_with("wgpu-attention bench --shape 1,2,1,20,20,8,1"));
    for name in ["adapter", "driver", "kind", "crate_version", "system", "clock", "clock_because"] {
        assert!(report["machine"][name].as_str().is_some_and(|s| !s.is_empty()), "{name}: {report}");
    }
    for name in ["fma", "dot", "exp2", "copy", "read", "workgroup"] {
        assert!(report["roofs"][name].as_f64().unwrap() > 1e6, "{name}: {report}");
    }
    let rows = report["rows"].as_array().unwrap();
    let kernels: Vec<_> = rows.iter().map(|r| r["kernel"].as_str().unwrap()).collect();
    // The matrix kernel is not there unasked.
    for kernel in ["tiled", "rows", "naive"] {
        let left = report["left_out"].as_array().unwrap();
        let refused = left.iter().filter(|l| l["kernel"] == kernel).count();
        assert_eq!(kernels.iter().filter(|k| **k == kernel).count() + refused, 2, "{kernels:?}");
    }
    for row in rows {
        let shape: Vec<u64> = row["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let causal = row["causal"].as_bool().unwrap();
        let pairs = match causal {
            true => 2 * (1..=20).sum::<u64>(),
            false => 2 * 2 * 3 * 40,
        };
        assert_eq!(shape, if causal { vec![1, 2, 1, 20, 20, 8] } else { vec![2, 2, 2, 3, 40, 12] });
        let (ms, gflops) = (row["ms"].as_f64().unwrap(), row["gflops"].as_f64().unwrap());
        let expected = (4 * pairs * shape[5]) as f64 / ms / 1e6;
        assert!((gflops / expected - 1.0).abs() < 1e-3, "{gflops} {expected}");
        let kv_bytes = 2 * shape[0] * shape[2] * shape[4] * shape[5] * 4;
        let expected = kv_bytes as f64 / ms / 1e6;
        assert!((row["kv_gb_s"].as_f64().unwrap() / expected - 1.0).abs() < 1e-3, "{row}");
        assert!(row["checked"]["worst"].as_f64().unwrap() <= 1.0 && row["share"].as_f64().unwrap() > 0.0);
        assert_eq!(row["checked"]["rows"], row["checked"]["of"], "small problems are checked whole");
        let spread = |name: &str| row["spread"][name].as_f64().unwrap();
        assert!(
            spread("min_ms") <= spread("q1_ms") && spread("q1_ms") <= ms && ms <= spread("q3_ms"),
            "{row}"
        );
    }
    assert!(rows.iter().filter(|r| r["planned"] == true).count() == 2, "one for each problem");
}

#[test]
fn all_outputs_come_from_one_run_and_compare_with_an_earlier_one() {
    if !adapter("all_outputs_come_from_one_run_and_compare_with_an_earlier_one") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [j, c, h, peer] = ["r.json", "r.csv", "r.html", "peer.jsonl"].map(|name| file(&folder, name));
    std::fs::write(
        &peer,
        "warning: slow\n{\"peer\": \"other 1.0\", \"shape\": [1, 2, 1, 20, 20, 8], \"causal\": true, \"ms\": 2.0, \"gflops\": 1.0, \"kv_gb_s\": 1.0}\n",
    )
    .unwrap();
    let sizes = ["--shape", "1,2,1,40,40,8,1", "--shape", "1,2,1,80,80,8,1"];
    let outputs = ["--json", &j, "--csv", &c, "--html", &h, "--peer", &peer, "--dtype", "f16"];
    let out = succeeds(&[&SMALL[..], &sizes, &outputs].concat());
    for word in [
        "adapter ",
        "driver ",
        "command ",
        "clock ",
        "ceilings ",
        "GFLOP/s",
        "S^x",
        "1x2/1x20x20x8 causal f16",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    assert!(wgpu_attention::Kernel::ALL.iter().any(|kernel| out.contains(&format!("{kernel} *"))), "{out}");
    let report = json(&std::fs::read_to_string(&j).unwrap());
    let rows = report["rows"].as_array().unwrap();
    // The peer measured f32, which is another problem.
    assert!(rows.iter().all(|r| r["dtype"] == "f16"), "{rows:?}");
    assert!(!report["scaling"].as_array().unwrap().is_empty());

    let csv = std::fs::read_to_string(&c).unwrap();
    assert_eq!(csv.lines().count(), 1 + rows.len());
    assert!(csv.lines().next().unwrap().starts_with("name,batch,q_heads"));
    assert!(csv.lines().skip(1).all(|line| line.contains("wgpu-attention bench")), "{csv}");

    let page = std::fs::read_to_string(&h).unwrap();
    for word in [
        "<svg",
        "Roofline",
        "Speed over length",
        "Share of the lowest roof",
        "operations for each byte",
        "time as S^",
        "wgpu-attention bench --shape",
    ] {
        assert!(page.contains(word), "{word}");
    }
    assert!(!page.contains("http:") && !page.contains("https:"), "it asks for nothing else");
    for tag in ["section", "svg", "table", "div", "ul", "dl", "figure", "p"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }

    let out = succeeds(&["bench", "--shape", "1,2,1,20,20,8,1", "--seconds=600", "--compare", &j]);
    assert!(out.contains("nothing is in both"), "f32 is not f16: {out}");
    let out =
        succeeds(&["bench", "--shape", "1,2,1,20,20,8,1", "--dtype=f16", "--seconds=600", "--compare", &j]);
    assert!(out.contains("against wgpu-attention bench") && out.contains("the ceilings differ"), "{out}");
    assert!(out.contains("times as fast"), "{out}");
    let out = succeeds(&["bench", "--shape", "1,2,1,20,20,8,1", "--seconds=600", "--peer", &peer]);
    assert!(out.contains("other 1.0"), "{out}");
}

/// Whether the adapter has matrices, as the program says.
fn has_matrices() -> bool {
    let adapters = json(&succeeds(&["info", "--json"]));
    let adapter = adapters.as_array().unwrap().iter().find(|a| a["default"] == true).unwrap_or(&adapters[0]);
    !adapter["matrix_sizes"].as_array().unwrap().is_empty()
}

/// A ceiling of their own, for the rows of the matrix kernel alone, where they are asked for.
#[test]
fn matrices_have_a_ceiling_of_their_own() {
    if !adapter("matrices_have_a_ceiling_of_their_own") {
        return;
    }
    let sizes = ["bench", "--shape", "1,2,1,40,40,16,1", "--dtype", "f16", "--seconds=600", "--json", "-"];
    let plain = json(&succeeds(&sizes));
    assert!(plain["roofs"].get("matrix").is_none(), "nobody asked for them: {plain}");
    let left = |report: &serde_json::Value| -> Vec<String> {
        let because = |l: &serde_json::Value| l["because"].as_str().unwrap().to_owned();
        report["left_out"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|l| l["kernel"] == "matrix")
            .map(because)
            .collect()
    };
    assert!(left(&plain).is_empty(), "{plain}");

    let asked = json(&succeeds(&[&sizes[..], &["--kernel", "matrix", "--kernel", "tiled"]].concat()));
    if !has_matrices() {
        // Past libtest's capture.
        let line = "LEFT OUT for want of matrices in the program's adapter: the rows of matrices_have_a_ceiling_of_their_own";
        let _ = writeln!(std::io::stderr(), "{line}");
        assert!(asked["roofs"].get("matrix").is_none());
        assert!(left(&asked)[0].contains("MATRIX_FEATURES"), "{asked}");
        return;
    }
    let roof = asked["roofs"]["matrix"].as_f64().unwrap();
    assert!(roof > 1e6, "{asked}");
    let rows = asked["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{asked}");
    for row in rows {
        let gflops = row["gflops"].as_f64().unwrap();
        let of = match row["limit"].as_str().unwrap() {
            "matrix" => roof,
            "compute" => asked["roofs"]["fma"].as_f64().unwrap().max(asked["roofs"]["dot"].as_f64().unwrap()),
            _ => continue,
        };
        assert!((row["share"].as_f64().unwrap() / (gflops * 1e9 / of) - 1.0).abs() < 1e-3, "{row}");
        assert_eq!(row["limit"] == "matrix", row["kernel"] == "matrix", "{row}");
    }
    // f32 is nothing for them.
    let f32s = ["bench", "--shape", "1,1,1,9,9,8", "--kernel", "matrix", "--seconds=600", "--json", "-"];
    let f32s = json(&succeeds(&f32s));
    assert!(left(&f32s)[0].contains("f16 only"), "{f32s}");
}

#[test]
fn a_kernel_of_ones_own_is_checked_before_it_is_timed() {
    if !adapter("a_kernel_of_ones_own_is_checked_before_it_is_timed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let example = example_kernel();
    let run = |kernel: &str| {
        [&SMALL[..], &["--shape", "2,4,2,33,50,16", "--kernel", kernel, "--json", "-"]].concat().join(" ")
    };
    let args = run(&example);
    let report = json(&succeeds(&args.split(' ').collect::<Vec<_>>()));
    let own: Vec<&Value> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|r| r["kernel"] == "one_row_a_thread.wgsl")
        .collect();
    assert_eq!(own.len(), 2, "{report}");

    // Off by a factor, by a key, and with a row that is not written.
    for (from, to) in [
        ("o[d] * scale", "o[d] * scale * 1.001"),
        ("params.offset + 1", "params.offset"),
        ("if (row >= params.end_row)", "if (row >= params.end_row || row == 13u)"),
    ] {
        let kernel = changed_kernel(&folder, from, to);
        let args = run(&kernel);
        let (out, err, code) = finish(&args.split(' ').collect::<Vec<_>>());
        assert!(code == 1 && err.contains("wrong") && err.contains("changed.wgsl"), "{to}: {err}");
        let report = json(&out);
        let wrong: Vec<&Value> =
            report["left_out"].as_array().unwrap().iter().filter(|l| l["wrong"] == true).collect();
        assert!(!wrong.is_empty() && wrong.iter().all(|l| l["kernel"] == "changed.wgsl"), "{report}");
    }

    // What the driver or the device refuses is left out, with the reason.
    let kernel = changed_kernel(&folder, "var<storage, read> q", "var<storage, read_write> q");
    let args = run(&kernel);
    let report = json(&succeeds(&args.split(' ').collect::<Vec<_>>()));
    let left = report["left_out"].as_array().unwrap();
    assert_eq!(
        left.iter().filter(|l| l["kernel"] == "changed.wgsl" && l["wrong"] == false).count(),
        2,
        "{report}"
    );
}

/// Time that is not there is said, and not taken.
#[test]
fn what_there_is_no_time_for_is_left_out_and_listed() {
    if !adapter("what_there_is_no_time_for_is_left_out_and_listed") {
        return;
    }
    let args =
        ["bench", "--shape", "64,96,96,4096,4096,16", "--kernel", "naive", "--seconds=1", "--json", "-"];
    let (out, err, code) = finish(&args);
    assert!(code == 1 && err.contains("nothing was measured: naive on"), "{err}");
    let report = json(&out);
    assert!(report["rows"].as_array().unwrap().is_empty());
    let because = report["left_out"][0]["because"].as_str().unwrap();
    assert!(because.contains("--seconds"), "{because}");
}

#[test]
fn tuning_is_kept_used_and_extended() {
    if !adapter("tuning_is_kept_used_and_extended") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "new folder/tuning.json");
    let out = succeeds(&["tune", "--shape", "1,2,2,64,64,16", "--seconds=2", "--verbose", "--file", &path]);
    assert!(out.contains("kept in") && out.contains("times as fast as the planner's"), "{out}");
    let first = json(&std::fs::read_to_string(&path).unwrap());
    assert_eq!((&first["format"], &first["version"]), (&"wgpu-attention tuning".into(), &4.into()));
    assert_eq!(first["entries"].as_array().unwrap().len(), 1);
    // Another class is another entry; the same class replaces its own.
    succeeds(&[
        "tune",
        "--shape",
        "1,2,2,64,64,16,1",
        "--shape",
        "1,2,2,60,60,16",
        "--seconds=1",
        "--file",
        &path,
    ]);
    let both = json(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(both["entries"].as_array().unwrap().len(), 2, "{both}");

    let out = succeeds(&["bench", "--shape", "1,2,2,64,64,16", "--seconds=600", &format!("--tuning={path}")]);
    assert!(out.contains("tuned"), "{out}");
    let before = std::fs::read_dir(folder.path()).unwrap().count();
    succeeds(&["tune", "--shape", "1,2,2,64,64,16", "--seconds=1", "--dry-run"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before);
    assert!(Path::new(&path).is_file());
}
