//! `bench`: how fast the kernels are on this adapter, against its own ceilings.

mod compare;
mod csv;
mod operations;
mod page;
pub(crate) mod problems;
pub(crate) mod report;
mod suite;
mod text;

use crate::fail::{Fail, Result};
use crate::output;
use crate::run::flags::DTypeArg;
use problems::{Item, Preset};
use report::Report;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use wgpu_attention::Kernel;

/// Time the kernels on this adapter, check each answer first, and set the times against the adapter's own ceilings
///
/// Without --preset and --shape: the preset quick. What the figures mean is told in docs/benchmarking.md. Exit status: 1 when an answer
/// was wrong (it is not timed then).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Problems by name
    #[arg(long)]
    preset: Option<Preset>,
    /// A problem: batch, q heads, kv heads, queries, keys, head dim, and 1 for causal. Any number of times
    #[arg(long = "shape", value_name = "B,Hq,Hkv,Sq,Sk,D[,1]", value_parser = problems::shape)]
    shapes: Vec<Item>,
    /// How q, k, v and out are stored
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: DTypeArg,
    /// Only this member of the family, or beside the family a .wgsl file with a kernel of your own (docs/benchmarking.md has the
    /// contract). Any number of times. matrix is not there unasked: it takes f16 only, and asks wgpu for experimental features
    #[arg(long = "kernel", value_name = "NAME|FILE.wgsl", value_parser = kernel)]
    kernels: Vec<KernelArg>,
    /// How long all of it may take, about. What is left out for that is listed; default: 60, for models and sweep 600
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: Option<u64>,
    /// Take the wall clock even where the adapter has timestamps
    #[arg(long)]
    wall: bool,
    /// Add what `tune` found on this adapter, from this file (default: the one in the user's cache folder)
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    tuning: Option<Option<PathBuf>>,
    /// Add rows that another program measured: one JSON object a line with peer, shape, causal, ms and gflops
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// Compare with the JSON of an earlier run
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Write everything as JSON; - for standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the rows as CSV; - for standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Part of the name of the adapter to use, in any case (see `info`); default: the system's choice
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
}

/// `--kernel`.
#[derive(Debug, Clone, PartialEq)]
enum KernelArg {
    Member(Kernel),
    File(PathBuf),
}

fn kernel(text: &str) -> Result<KernelArg, String> {
    if text.ends_with(".wgsl") {
        return Ok(KernelArg::File(text.into()));
    }
    let names = Kernel::ALL.map(Kernel::name).join(", ");
    Kernel::ALL
        .into_iter()
        .find(|k| k.name() == text)
        .map(KernelArg::Member)
        .ok_or_else(|| format!("expected is one of {names}, or a .wgsl file"))
}

fn is_stdout(path: Option<&PathBuf>) -> bool {
    path.is_some_and(|p| p.as_os_str() == "-")
}

impl Args {
    fn items(&self) -> Vec<Item> {
        let preset = match (self.preset, self.shapes.is_empty()) {
            (None, true) => Some(Preset::Quick),
            (preset, _) => preset,
        };
        let items = preset.map(Preset::items).unwrap_or_default();
        problems::with_dtype(items.into_iter().chain(self.shapes.clone()).collect(), self.dtype.into())
    }

    fn time(&self) -> Duration {
        let seconds = match self.preset {
            Some(Preset::Models | Preset::Sweep) => 600,
            _ => 60,
        };
        Duration::from_secs(self.seconds.unwrap_or(seconds))
    }

    /// Members of the family that are asked for; where none is, all that need nothing experimental.
    fn members(&self) -> Vec<Kernel> {
        let named: Vec<Kernel> = self
            .kernels
            .iter()
            .filter_map(|k| match k {
                KernelArg::Member(kernel) => Some(*kernel),
                KernelArg::File(_) => None,
            })
            .collect();
        if named.is_empty() {
            Kernel::ALL.into_iter().filter(|k| *k != Kernel::Matrix).collect()
        } else {
            named
        }
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        self.kernels.iter().filter_map(|k| match k {
            KernelArg::File(path) => Some(path.as_path()),
            KernelArg::Member(_) => None,
        })
    }
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    if is_stdout(args.json.as_ref()) && is_stdout(args.csv.as_ref()) {
        return Err(Fail::usage("--json and --csv cannot both go to standard output"));
    }
    let file = |path: &Option<PathBuf>| path.clone().filter(|path| path.as_os_str() != "-");
    let [json_file, csv_file] = [&args.json, &args.csv].map(file);
    let written =
        [("--json", json_file.as_deref()), ("--csv", csv_file.as_deref()), ("--html", args.html.as_deref())];
    // --json over the file of --compare is a baseline that moves on.
    output::check(&written, &args.peer.as_deref().into_iter().collect::<Vec<_>>())?;
    let before = args.compare.as_deref().map(compare::read).transpose()?;
    let report = suite::run(args)?;
    let changes = before.as_ref().map(|before| compare::changes(before, &report));

    let to_stdout = is_stdout(args.json.as_ref()) || is_stdout(args.csv.as_ref());
    for (path, text) in
        [(&args.json, json as fn(&Report) -> Result<String>), (&args.csv, |r| Ok(csv::text(r)))]
    {
        match path {
            Some(path) if path.as_os_str() == "-" => write!(out, "{}", text(&report)?)?,
            Some(path) => output::write(path, text(&report)?.as_bytes())?,
            None => {}
        }
    }
    if let Some(path) = &args.html {
        output::write(path, page::html(&report, changes.as_deref()).as_bytes())?;
    }
    if !to_stdout {
        text::print(&report, out)?;
    }
    if let (Some(before), Some(changes)) = (&before, &changes) {
        // Standard output may be a file of one format.
        if to_stdout {
            text::print_changes(before, &report, changes, &mut std::io::stderr())?;
        } else {
            text::print_changes(before, &report, changes, out)?;
        }
    }
    if let Some(wrong) = report.left_out.iter().find(|l| l.wrong) {
        return Err(Fail::Wrong(format!("{} on {}: {}", wrong.kernel, wrong.problem, wrong.because)));
    }
    let nothing = report.rows.is_empty() && report.operations.is_empty();
    if let (true, Some(first)) = (nothing, report.left_out.first()) {
        return Err(Fail::Wrong(format!(
            "nothing was measured: {} on {}: {}",
            first.kernel, first.problem, first.because
        )));
    }
    Ok(ExitCode::SUCCESS)
}

/// One document, with each row on a line of its own.
fn json(report: &Report) -> Result<String> {
    let fail = |e: serde_json::Error| Fail::usage(e.to_string());
    let mut members = Vec::new();
    let value = serde_json::to_value(report).map_err(fail)?;
    for (name, member) in value.as_object().into_iter().flatten() {
        let text = match member.as_array() {
            Some(list) if !list.is_empty() => {
                let lines: Vec<String> = list
                    .iter()
                    .map(serde_json::to_string)
                    .collect::<std::result::Result<_, _>>()
                    .map_err(fail)?;
                format!("[\n{}\n]", lines.join(",\n"))
            }
            _ => serde_json::to_string(member).map_err(fail)?,
        };
        members.push(format!("{}: {text}", serde_json::to_string(name).map_err(fail)?));
    }
    Ok(format!("{{\n{}\n}}\n", members.join(",\n")))
}
