//! The program `wgpu-attention`: look at adapters, run attention on files, check cases, validate a device, see it work, study it,
//! see how fast it is.

// But for one line in gpu.rs, where wgpu wants it.
#![deny(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod arrays;
mod bench;
mod captures;
mod check;
mod demo;
mod fail;
mod gpu;
mod heatmap;
mod html;
mod info;
mod output;
mod page;
mod plot;
mod run;
mod softmax;
mod study;
mod tune;
mod validate;
mod work;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Exact attention in WGSL compute shaders, checked against float64.
#[derive(Debug, Parser)]
#[command(name = "wgpu-attention", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done and right, 1 a result is wrong or the device failed, 2 the command line or a \
                          file cannot be used, 3 no graphics adapter.";

#[derive(Debug, Subcommand)]
enum Command {
    Info(info::Args),
    Run(Box<run::Args>),
    Softmax(softmax::Args),
    Check(check::Args),
    Validate(validate::Args),
    Demo(demo::Args),
    Bench(bench::Args),
    Tune(tune::Args),
    Study(study::Args),
}

fn main() -> ExitCode {
    // Usage errors end here, with clap's message and exit code 2.
    let cli = Cli::parse();
    let mut out = std::io::stdout().lock();
    let result = match &cli.command {
        Command::Info(args) => info::main(args, &mut out),
        Command::Run(args) => run::main(args, &mut out),
        Command::Softmax(args) => softmax::main(args, &mut out),
        Command::Check(args) => check::main(args, &mut out),
        Command::Validate(args) => validate::main(args, &mut out),
        Command::Demo(args) => demo::main(args, &mut out),
        Command::Bench(args) => bench::main(args, &mut out),
        Command::Tune(args) => tune::main(args, &mut out),
        Command::Study(args) => study::main(args, &mut out),
    };
    match result {
        Ok(code) => code,
        Err(fail) => fail.report(),
    }
}
