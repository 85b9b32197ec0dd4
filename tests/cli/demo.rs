//! `demo`.

use super::*;

#[test]
fn demo_writes_a_page_that_asks_for_nothing() {
    if !adapter("demo_writes_a_page_that_asks_for_nothing") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("page.html");
    let out = succeeds(&["demo", "--html", path.to_str().unwrap()]);
    for word in [
        "adapter",
        "driver",
        "kernel",
        "SmolLM2",
        "MiniLM",
        "0.25",
        "nats",
        "of bound",
        "page.html",
        "study",
        "next",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert_eq!(page.matches("<img class=\"map\"").count(), 3 * 3 * 5);
    for word in ["prefers-color-scheme: dark", "@media print", "wgpu-attention demo --html"] {
        assert!(page.contains(word), "{word}");
    }
    for word in ["http://", "https://", "<link", "@import", "url(", "class=\"wrong\"", "NaN"] {
        assert!(!page.contains(word), "{word}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let quick = succeeds(&["demo", "--quick", "--kernel", "naive", "--html", path.to_str().unwrap()]);
    assert!(quick.contains("naive") && !quick.contains("MiniLM"), "{quick}");
}
