//! Seeing to it that there is an adapter.

use crate::install::{Advice, Attempt, advice};
use crate::steps::{line, run, say};
use crate::system::System;
use std::path::Path;
use std::process::{Command, Stdio};

/// The program's exit code for "no adapter".
const NO_ADAPTER: i32 = 3;

/// What the program said about adapters.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Found,
    None,
    Failed(String),
}

/// Asks for an adapter and, where there is none and this machine's packages are known, installs a software one. Returns
/// a line that says how it stands.
pub(crate) fn ensure(program: &Path) -> Result<String, String> {
    match ask(program)? {
        Answer::Found => {
            return Ok("There is a graphics adapter; `wgpu-attention info` describes it.".to_owned());
        }
        Answer::Failed(why) => return Err(why),
        Answer::None => {}
    }
    match advice(&System::look()) {
        Advice::Tell(what) => return Err(what),
        Advice::Install { why, attempts } => {
            say(&why);
            first_that_works(&attempts)?;
        }
    }
    match ask(program)? {
        Answer::Found => Ok("There is a graphics adapter now: Mesa's software Vulkan driver.".to_owned()),
        Answer::None => Err(still_none(&overrides())),
        Answer::Failed(why) => Err(why),
    }
}

/// Variables that keep drivers from being found, where they are set.
fn overrides() -> Vec<&'static str> {
    let names = ["WGPU_BACKEND", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_LOADER_DRIVERS_SELECT"];
    names.into_iter().filter(|name| std::env::var_os(name).is_some()).collect()
}

fn still_none(overrides: &[&str]) -> String {
    let hint = match overrides {
        [] => "`wgpu-attention info` says more".to_owned(),
        names => format!("{} in the environment may keep it from being found", names.join(" and ")),
    };
    format!("the driver is installed, but still no adapter is found: {hint}")
}

/// Runs the attempts in their order until one works.
pub(crate) fn first_that_works(attempts: &[Attempt]) -> Result<(), String> {
    let mut result = Ok(());
    for attempt in attempts {
        result = attempt.iter().try_for_each(|words| {
            let Some((program, arguments)) = words.split_first() else { return Ok(()) };
            let mut command = Command::new(program);
            command.args(arguments);
            say(&line(&command));
            run(&mut command)
        });
        if result.is_ok() {
            break;
        }
    }
    result
}

fn ask(program: &Path) -> Result<Answer, String> {
    let output = Command::new(program)
        .args(["info", "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot start {}: {e}", program.display()))?;
    Ok(answer(output.status.code(), &String::from_utf8_lossy(&output.stderr)))
}

fn answer(code: Option<i32>, complaint: &str) -> Answer {
    match code {
        Some(0) => Answer::Found,
        Some(NO_ADAPTER) => Answer::None,
        Some(code) => {
            Answer::Failed(format!("`wgpu-attention info` ended with code {code}: {}", complaint.trim()))
        }
        None => Answer::Failed(format!(
            "`wgpu-attention info` was ended by a signal, perhaps within a graphics driver: {}",
            complaint.trim()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_hide_the_driver_are_named() {
        assert!(still_none(&[]).ends_with("says more"));
        assert!(
            still_none(&["WGPU_BACKEND", "VK_DRIVER_FILES"]).contains("WGPU_BACKEND and VK_DRIVER_FILES")
        );
    }

    #[test]
    fn exit_codes_are_told_apart() {
        assert_eq!(answer(Some(0), ""), Answer::Found);
        assert_eq!(answer(Some(3), "none"), Answer::None);
        // A crash is not "no adapter": installing a driver would hide it.
        assert!(
            matches!(answer(Some(101), "panicked\n"), Answer::Failed(why) if why.ends_with("101: panicked"))
        );
        assert!(matches!(answer(None, ""), Answer::Failed(_)));
    }
}
