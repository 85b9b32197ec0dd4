//! `tune`: find the fastest kernel and tiles for this adapter, and remember them.

use crate::bench::problems::{self, Item, Preset};
use crate::bench::report::Row;
use crate::fail::{Fail, Result};
use crate::gpu::Gpu;
use crate::html;
use crate::output;
use crate::run::flags::DTypeArg;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use wgpu_attention::tune::{Outcome, Tuner, Tuning, TuningError};

/// Time kernels and tile sizes on this adapter, and keep the fastest in a file for `Attention::with_tuning` and `bench --tuning`
///
/// Each answer is checked before it is timed. Nothing else of this program tunes, or reads the file unasked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A problem: batch, q heads, kv heads, queries, keys, head dim, and 1 for causal. Any number of times
    #[arg(long = "shape", value_name = "B,Hq,Hkv,Sq,Sk,D[,1]", value_parser = problems::shape)]
    shapes: Vec<Item>,
    /// Problems by name; default without --shape: quick
    #[arg(long)]
    preset: Option<Preset>,
    /// How q, k, v and out are stored
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: DTypeArg,
    /// How long each problem may take
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: u64,
    /// Stop at this share of the adapter's lowest roof
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share, allow_hyphen_values = true)]
    enough: f64,
    /// The file; default: the one in the user's cache folder
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Show what was found and keep nothing
    #[arg(long, conflicts_with = "file")]
    dry_run: bool,
    /// List every candidate with its time
    #[arg(long)]
    verbose: bool,
    /// Try the matrix kernel too, which takes f16 only and rounds weights to f16; asks wgpu for experimental features
    #[arg(long)]
    matrices: bool,
    /// Part of the name of the adapter to use, in any case (see `info`); default: the system's choice
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "expected is a number above 0 and at most 1".to_owned())
}

/// A tuning file with its own name before what is wrong with it.
pub(crate) fn read(path: &Path, read: fn(&Path) -> Result<Tuning, TuningError>) -> Result<Tuning> {
    read(path).map_err(|error| match error {
        // Has the name.
        TuningError::Io { .. } => Fail::usage(error.to_string()),
        error => Fail::file(path, error),
    })
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let usage = |e: wgpu_attention::tune::TuningError| Fail::usage(e.to_string());
    let file = match (&args.file, args.dry_run) {
        (_, true) => None,
        (Some(file), false) => Some(file.clone()),
        (None, false) => Some(Tuning::default_path().map_err(usage)?),
    };
    // A file that cannot be read is not to be found out, and still less overwritten, after minutes of work.
    let mut tuning = match &file {
        Some(file) => read(file, Tuning::load_or_new)?,
        None => Tuning::default(),
    };
    let preset = match (args.preset, args.shapes.is_empty()) {
        (None, true) => Some(Preset::Quick),
        (preset, _) => preset,
    };
    let items =
        preset.map(Preset::items).unwrap_or_default().into_iter().chain(args.shapes.clone()).collect();
    let items = problems::with_dtype(items, args.dtype.into());
    let gpu = Gpu::open(args.adapter.as_deref(), args.matrices)?;
    writeln!(out, "adapter  {}\ndriver   {}\ncommand  {}", gpu.info.name, gpu.driver(), html::command())?;

    let tuner = Tuner::new_blocking(&gpu.attention, &gpu.queue)?
        .time(Duration::from_secs(args.seconds))
        .enough(args.enough);
    let bar = output::bar(items.len(), "tuning");
    for item in &items {
        let tuned = tuner.tune_blocking(&item.problem)?;
        bar.inc(1);
        bar.suspend(|| -> Result<()> {
            writeln!(out, "\n{}\n  {tuned}", Row::of(&item.name, &item.problem).problem())?;
            for candidate in tuned.candidates.iter().filter(|_| args.verbose) {
                let outcome = match &candidate.outcome {
                    Outcome::Timed(samples) => format!("{:.3} ms", samples.median() * 1e3),
                    Outcome::Wrong(worst) => format!("wrong, {worst:.1} times its bound"),
                    Outcome::Refused(error) => error.to_string(),
                    other => format!("{other:?}"),
                };
                writeln!(out, "    {}: {outcome}", candidate.name)?;
            }
            Ok(())
        })?;
        tuning.insert(&tuned);
        // After each problem, so that a run that is ended early has not been in vain.
        if let Some(file) = &file {
            tuning.save(file).map_err(usage)?;
        }
    }
    bar.finish_and_clear();
    match &file {
        Some(file) => writeln!(out, "\nkept in {}", file.display())?,
        None => writeln!(out, "\nnothing was kept")?,
    }
    Ok(ExitCode::SUCCESS)
}
