//! Running cargo and the program.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// While this variable is set, tests that find no adapter say so and pass. `cargo xtask test` takes it away.
const ALLOW_NO_ADAPTER: &str = "WGPU_ATTENTION_ALLOW_NO_ADAPTER";

/// Builds the program, in the arrangement that the tests share.
///
/// The example is named for a reason: a build that has one resolves the features of dev-dependencies as `cargo test` does
/// (naga's other back ends, wgpu's `noop`). Without it wgpu would be compiled once for the program and once more for
/// the tests.
const BUILD: [&str; 8] = [
    "build",
    "--all-features",
    "--package",
    "wgpu-attention",
    "--bin",
    "wgpu-attention",
    "--example",
    "hello_attention",
];

const TEST: [&str; 3] = ["test", "--all-features", "--workspace"];

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// Builds the program and says where it is.
pub(crate) fn build_program() -> Result<PathBuf, String> {
    say("building wgpu-attention");
    run(cargo().args(BUILD))?;
    // Beside this program, whatever the target directory is called.
    let here = std::env::current_exe().map_err(|e| format!("cannot tell where this program is: {e}"))?;
    let program = here.with_file_name(format!("wgpu-attention{}", std::env::consts::EXE_SUFFIX));
    if !program.is_file() {
        return Err(format!("cargo built the program, but it is not at {}", program.display()));
    }
    Ok(program)
}

pub(crate) fn demo(program: &PathBuf, arguments: &[String]) -> Result<(), String> {
    run(with_runtime_dir(Command::new(program).arg("demo").args(arguments)))
}

pub(crate) fn test(arguments: &[String]) -> Result<(), String> {
    say("running the tests");
    run(with_runtime_dir(cargo().args(TEST).args(arguments).env_remove(ALLOW_NO_ADAPTER)))
}

/// Where a session has no runtime directory, as in containers, the Wayland library that GL drivers look for would print an
/// error about it, though nothing is wrong.
fn with_runtime_dir(command: &mut Command) -> &mut Command {
    const NAME: &str = "XDG_RUNTIME_DIR";
    if cfg!(target_os = "linux") && std::env::var_os(NAME).is_none() {
        command.env(NAME, std::env::temp_dir());
    }
    command
}

/// Cargo itself, the one that started this program.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// One line about what happens next.
pub(crate) fn say(what: &str) {
    eprintln!("xtask: {what}");
}

/// Runs a command with its output on the screen.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("cannot start {}: {e}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", line(command))) }
}

/// A command as it would be typed.
pub(crate) fn line(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(TEST).arg("--no-fail-fast");
        assert_eq!(line(&command), "cargo test --all-features --workspace --no-fail-fast");
    }

    #[test]
    fn a_failed_command_is_named() {
        let message = run(&mut Command::new("no-such-program-anywhere")).unwrap_err();
        assert!(message.contains("cannot start no-such-program-anywhere"), "{message}");
    }

    #[test]
    fn program_and_tests_are_built_with_the_same_features() {
        assert!(BUILD.contains(&"--all-features") && TEST.contains(&"--all-features"));
        assert!(BUILD.contains(&"--example"));
    }
}
