//! Compiling for wasm32: with the standard library that rustup has, or with one that is built from Debian's sources.
//!
//! The sources belong to a compiler of the same version, so that path uses Debian's own (`rustc-web`, the one that Firefox and Chromium are built
//! with, which follows new releases of Rust) and leaves rustup's alone.

use crate::adapter::first_that_works;
use crate::install::apt;
use crate::steps::{self, say};
use crate::system::System;
use std::path::Path;
use std::process::{Command, Stdio};

pub(crate) const TARGET: &str = "wasm32-unknown-unknown";
const PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "lld-19"];
/// What the linting command needs beside.
const CLIPPY: &str = "rust-web-clippy";
/// Where Debian has it all, whatever comes first in PATH.
const BIN: &str = "/usr/bin";
const LINKER: &str = "wasm-ld-19";

/// Where the standard library comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Std {
    Rustup,
    Debian,
}

impl Std {
    pub(crate) fn named(word: Option<&String>) -> Result<Self, String> {
        match word.map(String::as_str) {
            Some("rustup") => Ok(Std::Rustup),
            Some("debian") => Ok(Std::Debian),
            _ => Err("--std needs rustup or debian".to_owned()),
        }
    }

    /// Sees to it that there is one: `wanted`, or rustup's where it can be had, else Debian's. `oldest` is the least version of Rust
    /// that will do.
    pub(crate) fn ensure(wanted: Option<Self>, oldest: u32, lints: bool) -> Result<Self, String> {
        if wanted != Some(Std::Debian) {
            if has_target() {
                return Ok(Std::Rustup);
            }
            let missing = format!("rustup has no standard library for {TARGET}, and could not add it");
            if wanted == Some(Std::Rustup) {
                return Err(missing);
            }
            say(&format!("{missing}: building it from Debian's sources"));
        }
        install(lints)?;
        let version = output(Command::new(Path::new(BIN).join("rustc")).arg("--version"))
            .ok_or("Debian's rustc cannot be started")?;
        match minor(&version) {
            Some(found) if found >= oldest => Ok(Std::Debian),
            _ => Err(format!(
                "Rust 1.{oldest} is needed, but Debian's is {}: its security archive has newer ones",
                version.trim()
            )),
        }
    }

    /// `cargo VERB` for wasm.
    pub(crate) fn cargo(self, verb: &str) -> Command {
        let mut cargo = match self {
            Std::Rustup => {
                let mut cargo = steps::cargo();
                cargo.arg(verb);
                cargo
            }
            Std::Debian => {
                let mut cargo = Command::new(Path::new(BIN).join("cargo"));
                let path = std::env::var("PATH").unwrap_or_default();
                cargo.arg(verb).arg("-Zbuild-std=std,panic_abort");
                cargo.env("PATH", format!("{BIN}:{path}")).env("RUSTC", Path::new(BIN).join("rustc"));
                // A released compiler builds a standard library only when told that it may.
                cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", LINKER);
                // What rustup's cargo, which started this program, has set for its own compiler.
                cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("LD_LIBRARY_PATH").env_remove("CARGO");
                cargo
            }
        };
        cargo.args(["--target", TARGET]);
        cargo
    }
}

/// Whether rustup's standard library is there, or can be fetched.
fn has_target() -> bool {
    let there = || {
        let folder = output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]));
        folder.is_some_and(|folder| Path::new(folder.trim()).is_dir())
    };
    there()
        || (Command::new("rustup").args(["target", "add", TARGET]).status().is_ok_and(|s| s.success())
            && there())
}

fn install(lints: bool) -> Result<(), String> {
    let packages: Vec<&str> = PACKAGES.into_iter().chain(lints.then_some(CLIPPY)).collect();
    let installed = |package: &&str| {
        let status = output(Command::new("dpkg-query").args(["-W", "-f=${db:Status-Abbrev}", package]));
        status.is_some_and(|status| status.starts_with("ii"))
    };
    if packages.iter().all(installed) {
        return Ok(());
    }
    let names = packages.join(" ");
    let system = System::look();
    let Some(attempts) = apt(&system, &packages) else {
        return Err(format!(
            "the standard library for {TARGET} is missing: `rustup target add {TARGET}` installs it; on Debian, \
             `apt-get install {names}` brings its sources"
        ));
    };
    say(&format!("installing {names}"));
    first_that_works(&attempts)
}

/// What a command says, where it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The second number of a version, as in `rustc 1.96.0 (...)` and `1.88`.
pub(crate) fn minor(version: &str) -> Option<u32> {
    let numbers = version.trim().trim_start_matches("rustc ").strip_prefix("1.")?;
    let end = numbers.find(|c: char| !c.is_ascii_digit()).unwrap_or(numbers.len());
    numbers[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(minor("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\n"), Some(96));
        assert_eq!(minor("1.88"), Some(88));
        assert_eq!(minor("rustc 2.0.0"), None);
        assert_eq!(minor(""), None);
    }

    #[test]
    fn debians_cargo_builds_its_own_standard_library() {
        let cargo = Std::Debian.cargo("build");
        assert_eq!(cargo.get_program(), "/usr/bin/cargo");
        assert_eq!(
            steps::line(&cargo),
            "cargo build -Zbuild-std=std,panic_abort --target wasm32-unknown-unknown"
        );
        let environment: Vec<_> = cargo.get_envs().collect();
        assert!(environment.contains(&("RUSTC_BOOTSTRAP".as_ref(), Some("1".as_ref()))));
        assert!(environment.contains(&("RUSTUP_TOOLCHAIN".as_ref(), None)));
    }

    #[test]
    fn rustups_cargo_is_told_only_the_target() {
        assert!(
            steps::line(&Std::Rustup.cargo("clippy")).ends_with(" clippy --target wasm32-unknown-unknown")
        );
    }
}
