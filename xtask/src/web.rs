//! `web`: the crate as wasm, its npm package, and the page around it. In `target/web`:
//!
//! ```text
//! site/          the page: for any folder of any static host
//! site/package/  the npm package, which the page uses like anybody else
//! site/cases/    the case files, with a list
//! numerics/      with --numerics: the bodies of tests/numerics, for the test of the page
//! ```

use crate::serve;
use crate::steps::{self, run, say};
use crate::wasm::{self, Std, TARGET};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const WASM: &str = "wgpu_attention_bg.wasm";

/// What stands behind `web`.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    serve: bool,
    build: bool,
    port: u16,
    /// Where the standard library for wasm has to come from, unless that does not matter.
    std: Option<Std>,
    lints: bool,
    numerics: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { serve: false, build: true, port: 8000, std: None, lints: false, numerics: false }
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--serve" => options.serve = true,
            "--no-build" => options.build = false,
            "--lints" => options.lints = true,
            "--numerics" => options.numerics = true,
            "--std" => options.std = Some(Std::named(words.next())?),
            "--port" => {
                let port = words.next().and_then(|port| port.parse().ok());
                options.port = port.ok_or("--port needs a number from 0 (any free port) to 65535")?;
            }
            other => {
                return Err(format!(
                    "web does not know {other:?}: --serve, --port N, --no-build, --numerics, --lints or --std rustup|debian was \
                     expected"
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
        let builder = Builder::new(&root, &target, &options)?;
        say("building the page");
        builder.page(&site)?;
        if options.numerics {
            say("building tests/numerics for the browser");
            builder.numerics(&target.join("numerics"))?;
        }
        if options.lints {
            say("lints of what is built for the browser");
            builder.lints()?;
        }
    }
    if options.serve {
        serve::serve(&site, options.port)?;
    }
    Ok(())
}

/// What both wasm files are made with.
struct Builder {
    root: PathBuf,
    source: PathBuf,
    target: PathBuf,
    std: Std,
}

impl Builder {
    fn new(root: &Path, target: &Path, options: &Options) -> Result<Self, String> {
        let source = root.join("examples/web");
        let oldest = manifest_value(&source, "rust-version")?;
        let oldest = wasm::minor(&oldest).ok_or(format!("rust-version {oldest} is no version of Rust"))?;
        let std = Std::ensure(options.std, oldest, options.lints)?;
        Ok(Builder { root: root.to_owned(), source, target: target.to_owned(), std })
    }

    /// The page with the package in it, made beside the one that there is, which stays until the new one is whole.
    fn page(&self, site: &Path) -> Result<(), String> {
        let (page, old) = (site, self.target.join("site-before"));
        let site = &self.target.join("site-new");
        clear(site)?;
        let package = site.join("package");
        make(&package)?;
        self.compile("wgpu-attention-web", "wgpu_attention", &package)?;
        shrink(&package.join(WASM))?;

        copy_all(&self.source.join("static"), site)?;
        copy_all(&self.source.join("npm"), &package)?;
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            copy(&self.root.join(licence), &package.join(licence))?;
        }
        let manifest = package.join("package.json");
        let version = manifest_value(&self.root, "version")?;
        write(&manifest, &read(&manifest)?.replace("\"VERSION\"", &format!("\"{version}\"")))?;
        cases(&self.root, site)?;
        // For the visit without a network.
        list(&site.join("files.json"), files(site, "")?)?;
        clear(&old)?;
        if page.exists() {
            rename(page, &old)?;
        }
        rename(site, page)?;
        report(page, &page.join("package").join(WASM));
        clear(&old)
    }

    /// tests/numerics as a wasm file, with the page that runs it.
    fn numerics(&self, folder: &Path) -> Result<(), String> {
        clear(folder)?;
        make(folder)?;
        self.compile("numerics", "numerics", folder)?;
        copy_all(&self.source.join("numerics/page"), folder)
    }

    /// Compiles a crate and writes JavaScript around it, under a name of its own.
    fn compile(&self, package: &str, name: &str, folder: &Path) -> Result<(), String> {
        run(self.at(self.std.cargo("build")).args(["--release", "--package", package]))?;
        let file = format!("release/{}.wasm", package.replace('-', "_"));
        let wasm = self.target.join(TARGET).join(file);
        let mut bindgen = self.at(steps::cargo());
        bindgen.args(["run", "--quiet", "--package", "bindgen", "--"]);
        run(bindgen.arg(wasm).arg(name).arg(folder))
    }

    fn lints(&self) -> Result<(), String> {
        let packages = ["--release", "--package", "wgpu-attention-web", "--package", "numerics"];
        run(self.at(self.std.cargo("clippy")).args(packages).args(["--", "-D", "warnings"]))
    }

    fn at(&self, mut cargo: Command) -> Command {
        cargo.current_dir(&self.source).env("CARGO_TARGET_DIR", &self.target);
        cargo
    }
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
            names.push(name);
        }
    }
    list(&to.join("list.json"), names)
}

/// All files of a folder, by their way from it.
fn files(folder: &Path, prefix: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for file in entries(folder)? {
        let name = format!("{prefix}{}", file.file_name().unwrap_or_default().to_string_lossy());
        match file.is_dir() {
            true => names.extend(files(&file, &format!("{name}/"))?),
            false => names.push(name),
        }
    }
    Ok(names)
}

/// Writes names as JSON. They are those of this repository's files, with nothing in them that JSON would have to escape.
fn list(file: &Path, mut names: Vec<String>) -> Result<(), String> {
    names.sort();
    let lines: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    write(file, &format!("[\n{}\n]\n", lines.join(",\n")))
}

/// The first value of this name in the manifest of a folder.
fn manifest_value(folder: &Path, name: &str) -> Result<String, String> {
    let manifest = folder.join("Cargo.toml");
    let text = read(&manifest)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
    Ok(line.ok_or(format!("{} has no {name}", manifest.display()))?.trim_matches('"').to_owned())
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
        assert_eq!(parse(&[]), Ok(Options::default()));
        let all = parse(&words("--serve --port 0 --no-build --std debian --lints --numerics"));
        let std = Some(Std::Debian);
        let expected = Options { serve: true, build: false, port: 0, std, lints: true, numerics: true };
        assert_eq!(all, Ok(expected));
        assert!(parse(&words("--std nightly")).is_err_and(|e| e.contains("rustup or debian")));
        assert!(parse(&words("--port")).is_err_and(|e| e.contains("65535")));
        assert!(parse(&words("--port 70000")).is_err_and(|e| e.contains("65535")));
        assert!(parse(&words("--watch")).is_err_and(|e| e.contains("--watch")));
    }

    /// What a browser runs too may wait only by `common::block_on`. Found here, it need not be found by the build for wasm.
    #[test]
    fn tests_for_the_browser_wait_in_its_way() {
        let crate_root = steps::root().join("examples/web/numerics/src");
        let text = read(&crate_root.join("lib.rs")).expect("the list of files");
        let files: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("#[path = \"")?.strip_suffix("\"]")).collect();
        assert!(files.len() > 4, "{files:?}");
        for file in files {
            let text = read(&crate_root.join(file)).expect("a file of tests");
            for word in ["_blocking(", "std::thread::spawn", "std::time::Instant"] {
                assert!(
                    !text.contains(word),
                    "{file} has {word}: use common::block_on, or take it off the list"
                );
            }
        }
    }
}
