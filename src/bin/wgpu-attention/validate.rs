//! `validate`: is this device right? Random problems over all options, against float64.

mod families;
mod operations;

use crate::fail::{Fail, Result};
use crate::gpu::{Gpu, GpuArgs};
use crate::output;
use families::{Family, families};
use indicatif::ProgressBar;
use operations::{Checked, Operations};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use wgpu_attention::{Error, Kernel, Outputs, PlanOptions, Problem, TileMask, validate};

/// Compute random problems over all options together and compare every number with float64
///
/// A problem that fails is made smaller while it still fails, and written as a case file into this folder. Exit status: 0 when
/// every number was within its error bound, 1 when one was not. Nearly all of the time goes into compiling shaders.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// 2000 problems in place of 60, however long they take
    #[arg(long)]
    full: bool,
    /// How many problems, however long they take
    #[arg(long, value_name = "N", conflicts_with = "full", value_parser = clap::value_parser!(u64).range(1..))]
    problems: Option<u64>,
    /// The first problem; the others follow
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Begin no further problem after so many seconds [default: 120; none with --full and --problems]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Print an object: adapter, driver, seed, asked, problems, seconds, refused, families, failures
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
/// Who gave no number is not kept waiting longer, but for the problem that is being computed.
const SECONDS: u64 = 120;

#[derive(Debug, Serialize)]
struct Summary {
    adapter: String,
    driver: String,
    seed: u64,
    /// How many problems were asked for.
    asked: u64,
    /// How many there was time for.
    problems: u64,
    seconds: f64,
    /// Problems that the library refuses on this device for some kernel.
    refused: u64,
    families: Vec<Family>,
    failures: Vec<Failure>,
}

/// A problem that came out wrong.
#[derive(Debug, Serialize)]
struct Failure {
    seed: u64,
    /// The kernel, and what is done about mask tiles where it is something; or the operation.
    way: String,
    /// Of attention.
    kernel: Option<&'static str>,
    /// The error as a share of its bound; null where it is not finite, or where there is no answer.
    worst: Option<f64>,
    reason: String,
    /// The case, where a case file can say it.
    file: Option<PathBuf>,
    /// The problem, made smaller where it was among the first to fail.
    problem: String,
}

/// What came of one problem in one way.
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

    /// For the table.
    fn worst(&self) -> f64 {
        match *self {
            Outcome::Compared(share) if share.is_nan() => f64::INFINITY,
            Outcome::Compared(share) => share,
            Outcome::Refused | Outcome::Failed(_) => 0.0,
        }
    }
}

/// One way of computing a problem.
#[derive(Debug, Clone, Copy)]
struct Way {
    kernel: Kernel,
    tiles: Tiles,
}

/// What is done about mask tiles.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Tiles {
    /// What the planner chooses.
    Planned,
    /// They are classified.
    Classified,
    /// They were classified by a call before.
    BlockMask,
}

impl Way {
    /// Every kernel, or one, and for the tiled one what can be done about mask tiles.
    fn all(one: Option<Kernel>) -> Vec<Way> {
        // The matrix kernel only where it is asked for: without, there is no device with matrices.
        let unasked = || Kernel::ALL.into_iter().filter(|kernel| *kernel != Kernel::Matrix).collect();
        let kernels = one.map_or_else(unasked, |kernel| vec![kernel]);
        let mut all: Vec<Way> = kernels.iter().map(|&kernel| Way { kernel, tiles: Tiles::Planned }).collect();
        if kernels.contains(&Kernel::Tiled) {
            all.extend(
                [Tiles::Classified, Tiles::BlockMask].map(|tiles| Way { kernel: Kernel::Tiled, tiles }),
            );
        }
        all
    }

    /// Whether it is one for a problem. Of all kernels those that know it are compared; one that was asked for refuses.
    fn is_for(self, problem: &Problem, asked: bool) -> bool {
        let contents = problem.mask.is_some()
            || problem.bias.is_some()
            || problem.documents
            || problem.mask_mod.is_some();
        match self.tiles {
            Tiles::Planned => asked || self.kernel.supports(problem),
            _ => contents,
        }
    }

    fn options(self) -> PlanOptions {
        let options = PlanOptions::kernel(self.kernel);
        match self.tiles {
            Tiles::Planned => options,
            _ => options.tile_mask(TileMask::Classified),
        }
    }

    /// Its line in the table.
    fn family(self) -> &'static str {
        match (self.tiles, self.kernel) {
            (Tiles::Classified, _) => "mask tiles classified",
            (Tiles::BlockMask, _) => "block mask",
            (_, Kernel::Tiled) => "kernel tiled",
            (_, Kernel::Rows) => "kernel rows",
            (_, Kernel::Matrix) => "kernel matrix",
            _ => "kernel naive",
        }
    }

    fn name(self) -> String {
        match self.tiles {
            Tiles::Planned => self.kernel.name().to_owned(),
            _ => format!("{}, {}", self.kernel, self.family()),
        }
    }
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let problems = args.problems.unwrap_or(if args.full { FULL } else { DEFAULT });
    let Some(end) = args.seed.checked_add(problems) else {
        return Err(Fail::usage(format!("--seed is {}, too large for {problems} problems", args.seed)));
    };
    let gpu = args.gpu.open()?;
    let asked = args.gpu.kernel.map(Kernel::from);
    let ways = Way::all(asked);
    // A kernel that was asked for is one of attention.
    let operations = asked.is_none().then(|| Operations::new(&gpu));
    let mut summary = Summary {
        adapter: gpu.info.name.clone(),
        driver: gpu.driver(),
        seed: args.seed,
        asked: problems,
        problems: 0,
        seconds: 0.0,
        refused: 0,
        families: vec![Family::new("all")],
        failures: Vec::new(),
    };
    let start = Instant::now();
    let seconds = args.seconds.or((!args.full && args.problems.is_none()).then_some(SECONDS));
    let bar = output::bar(usize::try_from(problems).unwrap_or(usize::MAX), "validating");
    let lines = output::lines(&bar);
    for seed in args.seed..end {
        // One at least.
        let over = seconds.is_some_and(|seconds| start.elapsed() >= Duration::from_secs(seconds));
        if over && summary.problems > 0 {
            break;
        }
        summary.attention(&gpu, seed, ways.iter().copied(), asked.is_some(), &bar)?;
        if let Some(operations) = &operations {
            let begin = |name| bar.set_message(format!("validating seed {seed}, {name}"));
            for checked in operations.check(seed, begin)? {
                summary.operation(checked, seed, &bar);
            }
        }
        summary.problems += 1;
        bar.inc(1);
    }
    drop(lines);
    bar.finish_and_clear();
    families::sort(&mut summary.families);
    summary.seconds = start.elapsed().as_secs_f64();

    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&summary).map_err(|e| Fail::usage(e.to_string()))?)?;
    } else {
        print(&summary, out)?;
    }
    Ok(if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a problem with the inputs of a seed. Errors are those that no other problem would be spared.
fn outcome(gpu: &Gpu, problem: &Problem, seed: u64, way: Way) -> Result<Outcome> {
    let own = validate::inputs(problem, seed)?;
    let inputs = own.as_inputs();
    let run = || -> Result<Outputs, Error> {
        let plan = gpu.attention.plan_with(problem, &way.options())?;
        let (attention, queue) = (&gpu.attention, &gpu.queue);
        match way.tiles {
            Tiles::BlockMask => {
                pollster::block_on(validate::run_block_mask(attention, queue, &plan, &inputs))
            }
            _ => pollster::block_on(attention.run_plan(queue, &plan, &inputs)),
        }
    };
    match run() {
        Ok(result) => {
            let truth = validate::truth(problem, &inputs)?.of_kernel(way.kernel);
            Ok(Outcome::Compared(truth.compare(&result).worst))
        }
        Err(Error::LimitExceeded { .. } | Error::KernelUnavailable { .. }) => Ok(Outcome::Refused),
        Err(error @ Error::DeviceLost(_)) => Err(error.into()),
        Err(error) => Ok(Outcome::Failed(error.to_string())),
    }
}

impl Summary {
    /// Counts a problem in a line of the table.
    fn count(&mut self, name: &'static str, worst: f64, wrong: bool) {
        let at = self.families.iter().position(|f| f.name == name).unwrap_or_else(|| {
            self.families.push(Family::new(name));
            self.families.len() - 1
        });
        self.families[at].count(worst, wrong);
    }

    /// Computes the problem of a seed in several ways.
    fn attention(
        &mut self,
        gpu: &Gpu,
        seed: u64,
        ways: impl Iterator<Item = Way>,
        asked: bool,
        bar: &ProgressBar,
    ) -> Result<()> {
        let problem = validate::problem(seed);
        let (mut worst, mut wrong, mut refused) = (0.0f64, false, false);
        for way in ways.filter(|way| way.is_for(&problem, asked)) {
            bar.set_message(format!("validating seed {seed}, {}", way.name()));
            let outcome = outcome(gpu, &problem, seed, way)?;
            let (of_way, failed) = (outcome.worst(), outcome.wrong());
            (worst, wrong) = (worst.max(of_way), wrong || failed);
            match outcome {
                Outcome::Refused => refused = true,
                _ => self.count(way.family(), of_way, failed),
            }
            if failed {
                let mut failure = Failure::new(&problem, seed, way, outcome);
                if self.failures.len() < EXAMINED {
                    bar.set_message(format!("making seed {seed}, {} smaller", way.name()));
                    failure.examine(gpu, &problem, way)?;
                }
                bar.suspend(|| report(&failure));
                self.failures.push(failure);
            }
        }
        self.refused += u64::from(refused);
        for name in families(&problem) {
            self.count(name, worst, wrong);
        }
        Ok(())
    }

    /// Counts a problem of an operation beside attention, which has a line of its own.
    fn operation(&mut self, Checked { family, problem, outcome }: Checked, seed: u64, bar: &ProgressBar) {
        let wrong = outcome.wrong();
        match outcome {
            Outcome::Refused => self.refused += 1,
            _ => self.count(family, outcome.worst(), wrong),
        }
        if wrong {
            let failure = Failure::of(problem, seed, family.to_owned(), None, outcome);
            bar.suspend(|| report(&failure));
            self.failures.push(failure);
        }
    }
}

impl Failure {
    fn new(problem: &Problem, seed: u64, way: Way, outcome: Outcome) -> Self {
        Self::of(format!("{problem:?}"), seed, way.name(), Some(way.kernel.name()), outcome)
    }

    fn of(problem: String, seed: u64, way: String, kernel: Option<&'static str>, outcome: Outcome) -> Self {
        let (worst, reason) = match outcome {
            Outcome::Failed(error) => (None, error),
            Outcome::Compared(share) => {
                (share.is_finite().then_some(share), "beyond the error bound".to_owned())
            }
            Outcome::Refused => (None, "refused".to_owned()),
        };
        Failure { seed, way, kernel, worst, reason, file: None, problem }
    }

    /// Makes the problem smaller, and leaves a case file in the folder that the user is in.
    fn examine(&mut self, gpu: &Gpu, problem: &Problem, way: Way) -> Result<()> {
        let seed = self.seed;
        let fails =
            |candidate: &Problem| outcome(gpu, candidate, seed, way).is_ok_and(|outcome| outcome.wrong());
        self.file = Some(write_reduced(self, problem, seed, Path::new(""), fails)?);
        Ok(())
    }
}

/// Makes a problem that fails smaller and writes it as a case file.
fn write_reduced(
    failure: &mut Failure,
    problem: &Problem,
    seed: u64,
    folder: &Path,
    fails: impl FnMut(&Problem) -> bool,
) -> Result<PathBuf> {
    let name =
        format!("wgpu-attention-failure-{seed}-{}", failure.way.replace([',', ' '], "-").replace("--", "-"));
    let reduced = validate::reduce(problem, seed, &name, fails);
    failure.problem = format!("{:?}", reduced.problem);
    let path = folder.join(format!("{name}.safetensors"));
    output::write(&path, &reduced.case?.to_bytes()?)?;
    Ok(path)
}

fn share(worst: f64) -> String {
    if worst.is_finite() { format!("{:.1} %", worst * 100.0) } else { "no number".to_owned() }
}

/// On stderr, while the others still run.
fn report(failure: &Failure) {
    let Failure { seed, way, kernel, worst, reason, file, problem } = failure;
    let worst = worst.map_or(String::new(), |worst| format!(" ({})", share(worst)));
    eprintln!("FAIL seed {seed}, {way}: {reason}{worst}");
    match file {
        Some(file) => eprintln!("     made smaller: {}", file.display()),
        None => eprintln!("     {problem}"),
    }
    let kernel = kernel.map_or(String::new(), |kernel| format!(" --kernel {kernel}"));
    eprintln!("     repeat: wgpu-attention validate --seed {seed} --problems 1{kernel}");
}

fn print(summary: &Summary, out: &mut impl Write) -> Result<()> {
    writeln!(out, "adapter  {}, driver {}", summary.adapter, summary.driver)?;
    let Summary { seed, asked, problems, seconds, .. } = *summary;
    writeln!(out, "seeds    {seed} to {}", seed + problems.saturating_sub(1))?;
    write!(out, "time     {seconds:.0} s")?;
    if problems < asked {
        write!(out, ", enough for {problems} of {asked} problems (--seconds gives more)")?;
    }
    writeln!(out)?;
    writeln!(out)?;
    writeln!(out, "{:29} {:>8} {:>22} {:>8}", "option", "problems", "worst share of bound", "failures")?;
    for family in &summary.families {
        let Family { name, problems, worst, failures } = family;
        writeln!(out, "{name:29} {problems:>8} {:>22} {failures:>8}", share(*worst))?;
    }
    writeln!(out)?;
    if summary.refused > 0 {
        writeln!(out, "{} problems are beyond what this device can do, and were refused", summary.refused)?;
    }
    let failed = summary.families.first().map_or(0, |all| all.failures);
    let others = summary.failures.iter().filter(|failure| failure.kernel.is_none()).count();
    match failed {
        0 => writeln!(out, "all {problems} problems were within the error bound of f32")?,
        _ => writeln!(out, "{failed} of {problems} problems FAILED: the lines above the table say which")?,
    }
    if others > 0 {
        writeln!(out, "{others} problems of softmax, sampling and gradients FAILED: see there")?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use wgpu_attention::case::Case;

    /// A problem counts as failed where it has some option: what is left of it has that and little else, and is written as a case
    /// that can be read.
    #[test]
    fn a_failure_is_left_as_a_small_case() {
        let folder = tempfile::tempdir().unwrap();
        for (name, has) in families::OPTIONS {
            let seed = (0..5000).find(|&seed| has(&validate::problem(seed))).unwrap();
            let problem = validate::problem(seed);
            let way = Way { kernel: Kernel::Naive, tiles: Tiles::Planned };
            let mut failure = Failure::new(&problem, seed, way, Outcome::Compared(2.0));
            let path = write_reduced(&mut failure, &problem, seed, folder.path(), has).unwrap();
            let case = Case::read(&path).unwrap();
            assert!(case.missing().is_empty(), "{name}");
            let left = case.work().unwrap().problem();
            assert!(has(left), "{name}: {left:?}");
            let others = families(left);
            assert!(left.shape.rows() <= 16 && others.len() <= 7, "{name}: {others:?} {:?}", left.shape);
        }
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
