//! `cargo bench --features cli --bench attention -- [ARGUMENTS]`: the program's `bench`, with cargo's release build. All arguments are
//! the program's (`--help` lists them).

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    // Cargo itself says --bench to whatever it runs as one.
    let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let status = Command::new(env!("CARGO_BIN_EXE_wgpu-attention")).arg("bench").args(arguments).status();
    match status.map(|s| s.code()) {
        Ok(Some(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Ok(None) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
