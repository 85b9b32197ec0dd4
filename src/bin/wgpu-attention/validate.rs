//! `validate`: is this device right? Random problems over all options, against float64.

mod families;
mod random;
mod shrink;

use crate::fail::{Fail, Result};
use crate::gpu::{Gpu, GpuArgs};
use crate::output;
use crate::work::Work;
use families::{Family, families};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wgpu_attention::case::Case;
use wgpu_attention::{Error, Kernel, PlanOptions, Problem, reference};

/// Compute random problems over all options together and compare every number with float64
///
/// A problem that fails is made smaller while it still fails, and written as a case file into this folder. Exit status: 0 when
/// every number was within its error bound, 1 when one was not.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// 2000 problems in place of 60
    #[arg(long)]
    full: bool,
    /// How many problems
    #[arg(long, value_name = "N", conflicts_with = "full", value_parser = clap::value_parser!(u64).range(1..))]
    problems: Option<u64>,
    /// The first problem; the others follow
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print an object: adapter, driver, seed, problems, refused, families, failures
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gpu: GpuArgs,
}

/// Failures that are made smaller and written to files. A device that is always wrong is to say so within minutes, and not to
/// fill a folder.
const EXAMINED: usize = 4;
const DEFAULT: u64 = 60;
const FULL: u64 = 2000;

#[derive(Debug, Serialize)]
struct Summary {
    adapter: String,
    driver: String,
    seed: u64,
    problems: u64,
    /// Problems that the library refuses on this device for some kernel.
    refused: u64,
    families: Vec<Family>,
    failures: Vec<Failure>,
}

/// A problem that came out wrong.
#[derive(Debug, Serialize)]
struct Failure {
    seed: u64,
    kernel: &'static str,
    /// The error as a share of its bound; null where it is not finite, or where there is no answer.
    worst: Option<f64>,
    reason: String,
    /// The case, where a case file can say it.
    file: Option<PathBuf>,
    /// The problem, made smaller where it was among the first to fail.
    problem: String,
}

/// What came of one problem on one kernel.
enum Outcome {
    /// The largest error as a share of its bound.
    Compared(f64),
    Refused,
    Failed(String),
}

impl Outcome {
    fn wrong(&self) -> bool {
        match self {
            // NaN is wrong, too.
            Outcome::Compared(worst) => !matches!(worst.partial_cmp(&1.0), Some(o) if o.is_le()),
            Outcome::Refused => false,
            Outcome::Failed(_) => true,
        }
    }
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let problems = args.problems.unwrap_or(if args.full { FULL } else { DEFAULT });
    let Some(end) = args.seed.checked_add(problems) else {
        return Err(Fail::usage(format!("--seed is {}, too large for {problems} problems", args.seed)));
    };
    let gpu = args.gpu.open()?;
    let kernels: Vec<(Kernel, PlanOptions)> = match args.gpu.kernel {
        Some(kernel) => vec![(kernel.into(), args.gpu.plan_options())],
        // The matrix kernel only where it is asked for: others have no device with matrices.
        None => Kernel::ALL
            .into_iter()
            .filter(|kernel| *kernel != Kernel::Matrix)
            .map(|kernel| (kernel, PlanOptions::kernel(kernel)))
            .collect(),
    };
    let mut summary = Summary {
        adapter: gpu.info.name.clone(),
        driver: gpu.driver(),
        seed: args.seed,
        problems,
        refused: 0,
        families: vec![Family::new("all")],
        failures: Vec::new(),
    };
    let bar = output::bar(usize::try_from(problems).unwrap_or(usize::MAX), "validating");
    for seed in args.seed..end {
        let problem = random::problem(seed);
        let (mut worst, mut wrong, mut refused) = (0.0f64, false, false);
        // A kernel that was asked for refuses what it does not know; of all, those that know it are compared.
        let known = |kernel: Kernel| args.gpu.kernel.is_some() || kernel.supports(&problem);
        for (kernel, options) in kernels.iter().filter(|(kernel, _)| known(*kernel)) {
            let outcome = outcome(&gpu, &problem, seed, options)?;
            match outcome {
                Outcome::Compared(share) if !share.is_nan() => worst = worst.max(share),
                Outcome::Compared(_) => worst = f64::INFINITY,
                Outcome::Refused => refused = true,
                Outcome::Failed(_) => {}
            }
            if outcome.wrong() {
                wrong = true;
                let mut failure = Failure::new(&problem, seed, *kernel, outcome);
                if summary.failures.len() < EXAMINED {
                    bar.set_message("making a failure smaller");
                    failure.examine(&gpu, &problem, options)?;
                    bar.set_message("validating");
                }
                bar.suspend(|| report(&failure));
                summary.failures.push(failure);
            }
        }
        summary.refused += u64::from(refused);
        for name in families(&problem) {
            let at = summary.families.iter().position(|f| f.name == name).unwrap_or_else(|| {
                summary.families.push(Family::new(name));
                summary.families.len() - 1
            });
            summary.families[at].count(worst, wrong);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    families::sort(&mut summary.families);

    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&summary).map_err(|e| Fail::usage(e.to_string()))?)?;
    } else {
        print(&summary, out)?;
    }
    Ok(if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a problem with the inputs of a seed. Errors are those that no other problem would be spared.
fn outcome(gpu: &Gpu, problem: &Problem, seed: u64, options: &PlanOptions) -> Result<Outcome> {
    let work = random::work(problem, seed)?;
    let inputs = work.inputs();
    match gpu.attention.run_with_blocking(&gpu.queue, problem, &inputs, options) {
        Ok(result) => {
            let truth =
                reference::truth(problem, &inputs)?.of_kernel(options.kernel.unwrap_or(Kernel::Tiled));
            Ok(Outcome::Compared(truth.compare(&result).worst))
        }
        Err(Error::LimitExceeded { .. } | Error::KernelUnavailable { .. }) => Ok(Outcome::Refused),
        Err(error @ Error::DeviceLost(_)) => Err(error.into()),
        Err(error) => Ok(Outcome::Failed(error.to_string())),
    }
}

impl Failure {
    fn new(problem: &Problem, seed: u64, kernel: Kernel, outcome: Outcome) -> Self {
        let (worst, reason) = match outcome {
            Outcome::Failed(error) => (None, error),
            Outcome::Compared(share) => {
                (share.is_finite().then_some(share), "beyond the error bound".to_owned())
            }
            Outcome::Refused => (None, "refused".to_owned()),
        };
        Failure { seed, kernel: kernel.name(), worst, reason, file: None, problem: format!("{problem:?}") }
    }

    /// Makes the problem smaller, and leaves a case file in the folder that the user is in.
    fn examine(&mut self, gpu: &Gpu, problem: &Problem, options: &PlanOptions) -> Result<()> {
        let seed = self.seed;
        let small = shrink::shrink(problem, |candidate| {
            outcome(gpu, candidate, seed, options).is_ok_and(|outcome| outcome.wrong())
        });
        self.problem = format!("{small:?}");
        if Case::says(&small).is_ok() {
            let name = format!("wgpu-attention-failure-{seed}-{}", self.kernel);
            self.file = Some(write_case(&random::work(&small, seed)?, &name, Path::new(""))?);
        }
        Ok(())
    }
}

fn write_case(work: &Work, name: &str, folder: &Path) -> Result<PathBuf> {
    let truth = reference::truth(&work.problem, &work.inputs())?;
    let path = folder.join(format!("{name}.safetensors"));
    output::write(&path, &work.case(name, &truth, &[])?.to_bytes()?)?;
    Ok(path)
}

fn share(worst: f64) -> String {
    if worst.is_finite() { format!("{:.1} %", worst * 100.0) } else { "no number".to_owned() }
}

/// On stderr, while the others still run.
fn report(failure: &Failure) {
    let Failure { seed, kernel, worst, reason, file, problem } = failure;
    let worst = worst.map_or(String::new(), |worst| format!(" ({})", share(worst)));
    eprintln!("FAIL seed {seed}, kernel {kernel}: {reason}{worst}");
    match file {
        Some(file) => eprintln!("     made smaller: {}", file.display()),
        None => eprintln!("     {problem}"),
    }
    eprintln!("     repeat: wgpu-attention validate --seed {seed} --problems 1 --kernel {kernel}");
}

fn print(summary: &Summary, out: &mut impl Write) -> Result<()> {
    writeln!(out, "adapter  {}, driver {}", summary.adapter, summary.driver)?;
    writeln!(out, "seeds    {} to {}", summary.seed, summary.seed + (summary.problems - 1))?;
    writeln!(out)?;
    writeln!(out, "{:26} {:>8} {:>22} {:>8}", "option", "problems", "worst share of bound", "failures")?;
    for family in &summary.families {
        let Family { name, problems, worst, failures } = family;
        writeln!(out, "{name:26} {problems:>8} {:>22} {failures:>8}", share(*worst))?;
    }
    writeln!(out)?;
    if summary.refused > 0 {
        writeln!(out, "{} problems are beyond what this device can do, and were refused", summary.refused)?;
    }
    let failed = summary.families.first().map_or(0, |all| all.failures);
    match failed {
        0 => writeln!(out, "all {} problems were within the error bound of f32", summary.problems)?,
        _ => writeln!(
            out,
            "{failed} of {} problems FAILED: the lines above the table say which",
            summary.problems
        )?,
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_left_as_a_case_that_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut written = 0;
        for seed in 0..200 {
            let mut problem = random::problem(seed);
            problem.shape.seq_q = problem.shape.seq_q.min(4);
            problem.packed_q = problem.packed_q.map(|total| total.min(4 * problem.shape.batch));
            if problem.bias.is_some() || problem.mask.is_some() || Case::says(&problem).is_err() {
                continue;
            }
            let work = random::work(&problem, seed).unwrap();
            let path = write_case(&work, &format!("failure-{seed}"), folder.path()).unwrap();
            let case = Case::read(path).unwrap();
            assert!(case.missing().is_empty());
            written += 1;
        }
        assert!(written > 10, "{written}");
    }

    #[test]
    fn what_is_not_a_number_is_wrong() {
        for (share, wrong) in
            [(0.0, false), (1.0, false), (1.01, true), (f64::INFINITY, true), (f64::NAN, true)]
        {
            assert_eq!(Outcome::Compared(share).wrong(), wrong, "{share}");
        }
    }
}
