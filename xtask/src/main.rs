//! The commands of this repository: `cargo xtask demo`, `test`, `web`, `setup`, `help`.
//!
//! `adapter` sees to it that there is something to compute on, `install` decides what that takes, `system` looks at the
//! machine, `steps` runs programs; `web` makes the page for browsers, `wasm` finds it a
//! compiler and `serve` serves it. No dependencies, so that the first line on the screen comes at once.

mod adapter;
mod install;
mod serve;
mod steps;
mod system;
mod wasm;
mod web;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask COMMAND [ARGUMENTS]

  demo [ARGUMENTS]   builds the program and runs `wgpu-attention demo ARGUMENTS`
  test [ARGUMENTS]   runs `cargo test --all-features --workspace ARGUMENTS`; every test must find an adapter
  web [--serve]      builds the page and the npm package into target/web/site; --serve shows it on this machine
                     (--port N, 8000; 0 for any that is free; --no-build for the page as it is). --numerics builds
                     tests/numerics for the browser too, --lints checks what is built. --std rustup|debian says where the
                     standard library for wasm has to come from: from rustup, or built from Debian's sources
  setup              builds the program and sees to it that there is an adapter
  help               this text

demo, test and setup first ask the program whether the machine has a graphics adapter. On Debian and Ubuntu machines that
have none, Mesa's software Vulkan driver is installed (apt-get, as root or through sudo). Elsewhere one line says
what to install.
";

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Demo,
    Test,
    Web,
    Setup,
    Help,
}

fn parse(word: Option<&str>) -> Result<Command, String> {
    match word {
        Some("demo") => Ok(Command::Demo),
        Some("test") => Ok(Command::Test),
        Some("web") => Ok(Command::Web),
        Some("setup") => Ok(Command::Setup),
        None | Some("help" | "--help" | "-h") => Ok(Command::Help),
        Some(other) => {
            Err(format!("there is no command {other:?}: demo, test, web, setup or help was expected"))
        }
    }
}

fn run(command: &Command, arguments: &[String]) -> Result<(), String> {
    match command {
        Command::Help => {
            print!("{HELP}");
            return Ok(());
        }
        Command::Web => return web::web(arguments),
        Command::Setup if !arguments.is_empty() => {
            return Err(format!("setup takes no arguments, but was given {arguments:?}"));
        }
        _ => {}
    }
    let program = steps::build_program()?;
    let found = adapter::ensure(&program)?;
    match command {
        Command::Demo => steps::demo(&program, arguments),
        Command::Test => steps::test(arguments),
        Command::Setup | Command::Web | Command::Help => {
            println!("{found}");
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let arguments = words.get(1..).unwrap_or_default();
    match parse(words.first().map(String::as_str)).and_then(|command| run(&command, arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_known_by_their_names() {
        assert_eq!(parse(Some("demo")), Ok(Command::Demo));
        assert_eq!(parse(Some("test")), Ok(Command::Test));
        assert_eq!(parse(Some("web")), Ok(Command::Web));
        assert_eq!(parse(Some("setup")), Ok(Command::Setup));
        assert_eq!(parse(Some("--help")), Ok(Command::Help));
        assert_eq!(parse(None), Ok(Command::Help));
    }

    #[test]
    fn an_unknown_command_is_named_and_so_is_what_was_expected() {
        let message = parse(Some("bench")).unwrap_err();
        assert!(message.contains("bench") && message.contains("demo, test, web, setup or help"), "{message}");
    }
}
