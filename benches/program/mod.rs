//! Bench targets that are the program's `bench`, with cargo's release build.

use std::process::{Command, ExitCode};

/// `bench` with some arguments and those of the command line.
pub fn bench(first: &[&str]) -> ExitCode {
    // Cargo itself says --bench to whatever it runs as one.
    let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let program = env!("CARGO_BIN_EXE_wgpu-attention");
    let status = Command::new(program).arg("bench").args(first).args(arguments).status();
    match status.map(|s| s.code()) {
        Ok(Some(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Ok(None) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
