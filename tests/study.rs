//! The study's numbers against theory, with stated confidence. One run of `study --quick`, many questions.

use serde_json::Value;
use std::process::Command;
use std::sync::OnceLock;

/// How far, in standard errors, a number may be from theory: two-sided 6e-7 for each number of a normal distribution. All tests
/// of this file together ask for less than 200 numbers, so a study that is right fails here for one seed of 8000.
const FAR: f64 = 5.0;

struct Run {
    stdout: String,
    html: String,
    json: Value,
}

/// Nothing where there is no adapter and the environment allows it.
fn run() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (html, json) = (at("study.html"), at("study.json"));
        let output = Command::new(env!("CARGO_BIN_EXE_wgpu-attention"))
            .args(["study", "--quick", "--html", &html, "--json", &json])
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        if output.status.code() == Some(3)
            && std::env::var_os("WGPU_ATTENTION_ALLOW_NO_ADAPTER").is_some_and(|v| v == "1")
        {
            eprintln!("SKIPPED the study: {stderr}");
            return None;
        }
        assert!(output.status.success(), "{stdout}{stderr}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        Some(Run {
            stdout,
            html: std::fs::read_to_string(&html).unwrap(),
            json: serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap(),
        })
    })
    .as_ref()
}

/// The study, or the end of the test.
macro_rules! study {
    () => {
        match run() {
            Some(run) => run,
            None => return,
        }
    };
}

#[track_caller]
fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} is not a number in {value}"))
}

#[track_caller]
fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field} is not a list in {value}"))
}

#[test]
fn the_page_asks_for_nothing() {
    let Run { html, .. } = study!();
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    for word in ["prefers-color-scheme: dark", "@media print", "width=device-width", "default-src 'none'"] {
        assert!(html.contains(word), "{word}");
    }
    for word in ["http://", "https://", "<script", "<link", "<img", "@import", "url(", "src=", "NaN", "inf"] {
        assert!(
            !html.contains(word),
            "{word}: {:?}",
            html.find(word).map(|at| &html[at.saturating_sub(80)..at + 20])
        );
    }
}

#[test]
fn every_plot_says_how_it_was_made_and_has_a_table() {
    let Run { html, json, .. } = study!();
    let command = json["command"].as_str().unwrap();
    assert!(command.starts_with("wgpu-attention study --quick"));
    let plots = html.matches("<figure class=\"chart\">").count();
    assert!(plots >= 5);
    assert_eq!(html.matches("class=\"source\"").count(), plots);
    assert!(html.matches(command).count() > plots);
    for section in html.split("<section>").skip(1) {
        assert!(!section.contains("<figure") || section.contains("<table"), "{section}");
    }
}

#[test]
fn the_run_is_named_everywhere() {
    let Run { stdout, html, json } = study!();
    assert_eq!(json["seed"], 1);
    assert_eq!(json["quick"], true);
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    for field in ["adapter", "driver", "command", "version"] {
        let value = json[field].as_str().unwrap();
        assert!(!value.is_empty() && stdout.contains(value) && html.contains(value), "{field}");
    }
}

#[test]
fn the_variance_of_q_k_is_the_head_dim() {
    let Run { json, .. } = study!();
    let variance = &json["variance"];
    let rows = list(variance, "independent");
    assert_eq!(rows.len(), 10);
    for row in rows {
        let d = number(row, "head_dim");
        let (value, error) = (number(row, "variance"), number(row, "standard_error"));
        assert!((value - d).abs() < FAR * error, "{row}");
        // The band is narrow enough to mean something: other powers of d are far outside.
        assert!(error < 0.1 * d, "{row}");
    }
}

#[test]
fn scores_of_aligned_q_and_k_grow_like_the_head_dim() {
    let Run { json, .. } = study!();
    let rows = list(&json["variance"], "correlated");
    assert_eq!(rows.len(), 20);
    for row in rows {
        let theory = number(row, "correlation") * number(row, "head_dim");
        assert!((number(row, "mean") - theory).abs() < FAR * number(row, "standard_error"), "{row}");
    }
    // Weights of a token's own key at correlation 0.5: with 1/sqrt(d) they go to 1, with 8/d they stay, and both agree at 64.
    let weight = |d: u64, n: usize| {
        let row = rows.iter().find(|r| r["correlation"] == 0.5 && r["head_dim"] == d).unwrap();
        row["weight"][n].as_f64().unwrap()
    };
    assert!((weight(64, 1) - weight(64, 2)).abs() < 1e-5);
    assert!(weight(8, 1) < 0.1 && weight(4096, 1) > 0.99);
    assert!((weight(1024, 2) - weight(4096, 2)).abs() < 0.05);
}
