//! `validate`.

use super::*;

#[test]
fn validate_counts_each_option() {
    if !adapter("validate_counts_each_option") {
        return;
    }
    let args = ["validate", "--problems", "4", "--seed", "25", "--kernel", "tiled"];
    let out = succeeds(&args);
    for word in ["adapter", "seeds    25 to 28", "worst share of bound", "all 4 problems were within"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let summary: serde_json::Value =
        serde_json::from_str(&succeeds(&[&args[..], &["--json"]].concat())).unwrap();
    assert_eq!((&summary["seed"], &summary["problems"]), (&25.into(), &4.into()));
    assert_eq!(summary["failures"], serde_json::json!([]));
    let all = &summary["families"][0];
    assert_eq!((&all["name"], &all["problems"], &all["failures"]), (&"all".into(), &4.into(), &0.into()));
    assert!(all["worst"].as_f64().unwrap() <= 1.0);
    fails(&["validate", "--seed", "18446744073709551615"], 2, &["--seed", "too large"]);
    let unknown = ["validate", "--adapter", "no such adapter"];
    fails(&unknown, 3, &["\"no such adapter\" in its name; there ", summary["adapter"].as_str().unwrap()]);
    let (_, err, _) = finish(&unknown);
    assert!(err.contains("--adapter") && !err.contains("install"), "{err}");
}

/// No more problems than there is time for, lines that say how far it is where stderr is no terminal, and each operation in the table.
#[test]
fn validate_keeps_to_its_time_and_tells_where_it_is() {
    if !adapter("validate_keeps_to_its_time_and_tells_where_it_is") {
        return;
    }
    let (out, err, code) = finish(&["validate", "--full", "--seconds", "1", "--seed", "9"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.starts_with("validating") && err.contains(": 0 of 2000, "), "{err}");
    assert!(out.contains(" of 2000 problems (--seconds gives more)"), "{out}");
    for word in [
        "kernel tiled",
        "operation sampling",
        "gradient of softmax",
        "gradient of attention",
        "were within the error bound",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let place = |word| out.find(word).unwrap();
    assert!(
        place("kernel tiled") < place("operation ") && place("operation ") < place("gradient of"),
        "{out}"
    );

    let args = ["validate", "--kernel", "naive", "--full", "--seconds", "1", "--json"];
    let summary: serde_json::Value = serde_json::from_str(&finish(&args).0).unwrap();
    assert_eq!(summary["asked"], 2000);
    let computed = summary["problems"].as_u64().unwrap();
    assert!((1..2000).contains(&computed), "{computed}");
    assert_eq!(summary["families"][0]["problems"], computed);
    assert!(summary["seconds"].as_f64().unwrap() >= 1.0);
}
