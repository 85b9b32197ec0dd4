//! `web`: the crate as wasm, its npm package, and the page around it. In `target/web`:
//!
//! ```text
//! site/          the page: for any folder of any static host
//! site/package/  the npm package, which the page uses like anybody else
//! site/cases/    the case files, with a list
//! ```

use crate::serve;
use crate::steps::{self, run, say};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";
const WASM: &str = "wgpu_attention_bg.wasm";

/// What stands behind `web`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    serve: bool,
    build: bool,
    port: u16,
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { serve: false, build: true, port: 8000 };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--serve" => options.serve = true,
            "--no-build" => options.build = false,
            "--port" => {
                let port = words.next().and_then(|port| port.parse().ok());
                options.port = port.ok_or("--port needs a number from 0 (any free port) to 65535")?;
            }
            other => {
                return Err(format!(
                    "web does not know {other:?}: --serve, --port N or --no-build was expected"
                ));
            }
        }
    }
    Ok(options)
}

pub(crate) fn web(arguments: &[String]) -> Result<(), String> {
    let options = parse(arguments)?;
    let root = steps::root();
    let target = root.join("target/web");
    let site = target.join("site");
    if options.build {
        build(&root, &target, &site)?;
    }
    if options.serve {
        serve::serve(&site, options.port)?;
    }
    Ok(())
}

fn build(root: &Path, target: &Path, site: &Path) -> Result<(), String> {
    let source = root.join("examples/web");
    say("building the page");
    let wasm = compile(&source, target)?;

    // Made beside the page that there is, which stays until the new one is whole.
    let (page, old) = (site, target.join("site-before"));
    let site = &target.join("site-new");
    clear(site)?;
    let package = site.join("package");
    make(&package)?;
    let bindgen = ["run", "--quiet", "--package", "bindgen", "--"];
    let files = [wasm.as_os_str(), "wgpu_attention".as_ref(), package.as_os_str()];
    run(cargo(&source, target).args(bindgen).args(files))?;
    shrink(&package.join(WASM))?;

    copy_all(&source.join("static"), site)?;
    copy_all(&source.join("npm"), &package)?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        copy(&root.join(licence), &package.join(licence))?;
    }
    let manifest = package.join("package.json");
    let text = read(&manifest)?.replace("\"VERSION\"", &format!("\"{}\"", version(root)?));
    write(&manifest, &text)?;
    cases(root, site)?;
    clear(&old)?;
    if page.exists() {
        rename(page, &old)?;
    }
    rename(site, page)?;
    report(page, &page.join("package").join(WASM));
    clear(&old)
}

fn cargo(source: &Path, target: &Path) -> Command {
    let mut cargo = steps::cargo();
    cargo.current_dir(source).env("CARGO_TARGET_DIR", target);
    cargo
}

/// Compiles the crate with the standard library that rustup has. Where there is none and none can be had, the distribution's.
fn compile(source: &Path, target: &Path) -> Result<PathBuf, String> {
    let build = ["build", "--release", "--package", "wgpu-attention-web", "--target", TARGET];
    if has_target() {
        run(cargo(source, target).args(build))?;
    } else {
        return Err(format!(
            "the standard library for {TARGET} is missing: `rustup target add {TARGET}` installs it"
        ));
    }
    Ok(target.join(TARGET).join("release/wgpu_attention_web.wasm"))
}

fn has_target() -> bool {
    let there = || {
        let found = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
        found.is_ok_and(|found| Path::new(String::from_utf8_lossy(&found.stdout).trim()).is_dir())
    };
    there()
        || (Command::new("rustup").args(["target", "add", TARGET]).status().is_ok_and(|s| s.success())
            && there())
}

/// Makes the file smaller where `wasm-opt` is at hand; it does not have to be.
fn shrink(wasm: &Path) -> Result<(), String> {
    let smaller = wasm.with_extension("smaller");
    let done = Command::new("wasm-opt")
        .arg("-Oz")
        // What Rust's own WebAssembly may hold.
        .args(["--enable-bulk-memory", "--enable-mutable-globals", "--enable-nontrapping-float-to-int"])
        .args(["--enable-sign-ext", "--enable-reference-types", "--enable-multivalue"])
        .arg(wasm)
        .arg("-o")
        .arg(&smaller)
        .output()
        .is_ok_and(|output| output.status.success());
    match done {
        true => rename(&smaller, wasm),
        // Not there, or too old to know what Rust makes: either way the file is good as it is.
        false => Ok(()),
    }
}

/// The case files, with a list for a page that cannot look into a folder.
fn cases(root: &Path, site: &Path) -> Result<(), String> {
    let (from, to) = (root.join("tests/cases"), site.join("cases"));
    make(&to)?;
    let mut names = Vec::new();
    for file in entries(&from)? {
        if file.extension().is_some_and(|e| e == "safetensors") {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            copy(&file, &to.join(&name))?;
            names.push(format!("\"{name}\""));
        }
    }
    names.sort();
    write(&to.join("list.json"), &format!("[\n{}\n]\n", names.join(",\n")))
}

fn version(root: &Path) -> Result<String, String> {
    let manifest = read(&root.join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    Ok(line.ok_or("Cargo.toml has no version")?.trim_matches('"').to_owned())
}

fn report(site: &Path, wasm: &Path) {
    let size =
        |command: &mut Command| command.output().ok().filter(|o| o.status.success()).map(|o| o.stdout.len());
    let raw = fs::metadata(wasm).map(|m| m.len()).unwrap_or_default();
    let packed = [
        ("gzip", size(Command::new("gzip").arg("-9c").arg(wasm))),
        ("brotli", size(Command::new("brotli").args(["-c", "-q", "11"]).arg(wasm))),
    ];
    let packed = packed.map(|(name, size)| match size {
        Some(size) => format!("{name} {size}"),
        None => format!("{name} not measured: not installed"),
    });
    println!("{WASM}: {raw} bytes, {}", packed.join(", "));
    println!("page: {}", site.display());
}

fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    make(to)?;
    for file in entries(from)? {
        let to = to.join(file.file_name().unwrap_or_default());
        if file.is_dir() { copy_all(&file, &to)? } else { copy(&file, &to)? }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let fail = |e| format!("cannot read {}: {e}", folder.display());
    fs::read_dir(folder).map_err(fail)?.map(|entry| Ok(entry.map_err(fail)?.path())).collect()
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|e| format!("cannot copy {}: {e}", from.display()))
}

fn rename(from: &Path, to: &Path) -> Result<(), String> {
    fs::rename(from, to).map_err(|e| format!("cannot rename {}: {e}", from.display()))
}

fn clear(folder: &Path) -> Result<(), String> {
    match folder.exists() {
        true => fs::remove_dir_all(folder).map_err(|e| format!("cannot remove {}: {e}", folder.display())),
        false => Ok(()),
    }
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_behind_web() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse(&[]), Ok(Options { serve: false, build: true, port: 8000 }));
        let all = parse(&words("--serve --port 0 --no-build"));
        assert_eq!(all, Ok(Options { serve: true, build: false, port: 0 }));
        assert!(parse(&words("--port")).is_err_and(|e| e.contains("65535")));
        assert!(parse(&words("--port 70000")).is_err_and(|e| e.contains("65535")));
        assert!(parse(&words("--watch")).is_err_and(|e| e.contains("--watch")));
    }
}
