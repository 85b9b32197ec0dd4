//! `check`: case files, one line each.

use crate::fail::{Fail, Result};
use crate::gpu::{Gpu, GpuArgs, PlanArgs};
use crate::output;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use wgpu_attention::case::{Case, CaseError, Failure, Report};

/// Compute case files and compare with the outputs they expect
///
/// Exit status: 0 when every file passed, 1 when one failed, 2 when one could not be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Case files (docs/case-format.md)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print an array of objects: file, name, kernel, max_abs, max_rel, pass, reason
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gpu: GpuArgs,
    #[command(flatten)]
    plan: PlanArgs,
}

/// A line of the report. Numbers that do not exist, or are not finite, are null in JSON.
#[derive(Debug, Serialize)]
struct Line {
    file: String,
    name: Option<String>,
    kernel: Option<String>,
    max_abs: Option<f64>,
    max_rel: Option<f64>,
    pass: bool,
    reason: Option<String>,
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    // Opened when the first case needs it: that a file is unreadable, or asks for too much, is known without.
    let mut gpu: Option<Gpu> = None;
    let mut lines = Vec::new();
    let mut unreadable = 0;
    let bar = output::bar(args.files.len(), "checking");
    for file in &args.files {
        let mut line = Line {
            file: file.display().to_string(),
            name: None,
            kernel: None,
            max_abs: None,
            max_rel: None,
            pass: false,
            reason: None,
        };
        match Case::read(file) {
            Ok(case) => {
                line.name = Some(case.name().to_owned());
                if case.missing().is_empty() {
                    let gpu = match &mut gpu {
                        Some(gpu) => gpu,
                        none => none.insert(args.gpu.open()?),
                    };
                    let options = args.plan.over(args.gpu.plan_options());
                    line.fill(case.check_blocking(&gpu.attention, &gpu.queue, &options));
                } else {
                    line.reason = Some(Failure::Missing(case.missing().to_vec()).to_string());
                }
            }
            Err(error) => {
                unreadable += 1;
                // The line names the file already.
                let error = match error {
                    CaseError::InFile { error, .. } => *error,
                    error => error,
                };
                line.reason = Some(error.to_string());
            }
        }
        bar.inc(1);
        lines.push(line);
    }
    bar.finish_and_clear();

    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&lines).map_err(|e| Fail::usage(e.to_string()))?)?;
    } else {
        print(&lines, unreadable, out)?;
    }
    Ok(match lines.iter().filter(|line| !line.pass).count() {
        0 => ExitCode::SUCCESS,
        _ if unreadable > 0 => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    })
}

impl Line {
    fn fill(&mut self, report: Report) {
        self.pass = report.passes();
        self.kernel = report.kernel.map(|k| k.to_string());
        if report.computed {
            (self.max_abs, self.max_rel) = (Some(report.max_abs), Some(report.max_rel));
        }
        self.reason = report.failure.map(|f| f.to_string());
    }
}

fn print(lines: &[Line], unreadable: usize, out: &mut impl Write) -> Result<()> {
    let name = |line: &Line| line.name.clone().unwrap_or_else(|| line.file.clone());
    let width = lines.iter().map(|l| name(l).chars().count()).max().unwrap_or(0);
    let number = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.1e}"));
    for line in lines {
        write!(
            out,
            "{:width$}  {:5}  abs {:>7}  rel {:>7}  ",
            name(line),
            line.kernel.as_deref().unwrap_or("-"),
            number(line.max_abs),
            number(line.max_rel)
        )?;
        match &line.reason {
            None => writeln!(out, "pass")?,
            Some(reason) => writeln!(out, "FAIL  {reason}")?,
        }
    }
    let passed = lines.iter().filter(|l| l.pass).count();
    write!(out, "{passed} of {} passed", lines.len())?;
    let failed = lines.len() - passed - unreadable;
    for (count, what) in [(failed, "failed"), (unreadable, "could not be read")] {
        if count > 0 {
            write!(out, ", {count} {what}")?;
        }
    }
    writeln!(out)?;
    Ok(())
}
