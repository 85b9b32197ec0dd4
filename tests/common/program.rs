//! Runs the program `wgpu-attention` and looks at what it says.

#![allow(dead_code, unreachable_pub)]

use std::process::{Command, Output};

pub fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wgpu-attention")).args(args).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The exit code, after stdout and stderr.
pub fn finish(args: &[&str]) -> (String, String, i32) {
    let output = program(args);
    // Said by Wayland's library, which EGL asks, where nobody is logged in at a screen.
    let ours = |line: &&str| !line.contains("XDG_RUNTIME_DIR");
    let err = text(&output.stderr).split_inclusive('\n').filter(ours).collect();
    (text(&output.stdout), err, output.status.code().unwrap())
}

#[track_caller]
pub fn succeeds(args: &[&str]) -> String {
    let (out, err, code) = finish(args);
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    assert!(!err.contains("error"), "{err}");
    out
}

/// Fails with a code and one line that has all these words.
#[track_caller]
pub fn fails(args: &[&str], code: i32, words: &[&str]) {
    let (out, err, got) = finish(args);
    assert_eq!(got, code, "{args:?}: {out}{err}");
    assert!(err.starts_with("error: ") && err.lines().count() == 1, "{err}");
    for word in words {
        assert!(err.contains(word), "{word:?} is not in {err:?}");
    }
}

/// Whether there is an adapter; without one the test fails, unless the environment allows it.
pub fn adapter(test: &str) -> bool {
    let (_, err, code) = finish(&["info"]);
    if code == 0 {
        return true;
    }
    let allowed = std::env::var_os("WGPU_ATTENTION_ALLOW_NO_ADAPTER").is_some_and(|v| v == "1");
    assert!(
        allowed && code == 3,
        "{err}. Set WGPU_ATTENTION_ALLOW_NO_ADAPTER=1 to skip what needs an adapter."
    );
    eprintln!("SKIPPED {test}: {err}");
    false
}
