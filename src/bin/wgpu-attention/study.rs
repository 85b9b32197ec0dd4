//! `study`: how sharp the softmax is, and what each knob does to it, measured.

mod chapter;
mod cumulants;
mod estimate;
mod gradient;
mod jacobian;
mod lab;
mod logits;
mod methods;
mod normal;
mod page;
mod report;
mod scales;
mod smoothing;
mod split;
mod temperature;
mod variance;

use crate::fail::{Fail, Result};
use crate::gpu::GpuArgs;
use crate::{html, output};
use lab::Lab;
use report::{Facts, Report};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use wgpu_attention::softmax::Softmax;
use wgpu_attention::{Problem, Scale, Shape};

/// The page, where nothing else is asked for.
pub(crate) const PAGE: &str = "wgpu-attention-study.html";

/// Measure what scale and temperature do to the softmax, on random and on real q and k, and write a page about it
///
/// Why 1/sqrt(d), what each temperature does, how much gradient gets through: theory beside measurements by the library's own
/// kernels on this machine. Prints the tables; the page has plots and words as well.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = PAGE)]
    html: PathBuf,
    /// Write the numbers to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fewer repeats and sizes: less than a minute on two processor cores without a GPU
    #[arg(long)]
    quick: bool,
    /// A scale of your own, to stand beside 1/sqrt(d) and the others
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    scale: Option<f32>,
    /// Where the random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    gpu: GpuArgs,
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    output::check(&[("--html", Some(&args.html)), ("--json", args.json.as_deref())], &[])?;
    // Before any work, with the library's own words for a scale that it would refuse.
    if let Some(scale) = args.scale {
        Problem::new(Shape::self_attention(1, 1, 1, 1)).scale(Scale::Value(scale)).check()?;
    }
    let gpu = args.gpu.open()?;
    let facts = Facts {
        command: html::command(),
        version: env!("CARGO_PKG_VERSION"),
        adapter: gpu.info.name.clone(),
        driver: gpu.driver(),
        seed: args.seed,
        quick: args.quick,
    };
    let lab = Lab {
        softmax: Softmax::new(gpu.attention.device()),
        gpu,
        options: args.gpu.plan_options(),
        seed: args.seed,
        quick: args.quick,
        bar: output::bar(report::STEPS, "measuring"),
    };
    let report = Report::measure(&lab, facts, args.scale)?;
    lab.bar.finish_and_clear();

    let chapters = report.chapters();
    for (name, value) in report.facts.list() {
        writeln!(out, "{name:14}  {value}")?;
    }
    page::text(&chapters, out)?;
    output::write(&args.html, page::html(&report.facts, &chapters).as_bytes())?;
    writeln!(out, "\npage            {}", args.html.display())?;
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report).map_err(|e| Fail::usage(e.to_string()))?;
        output::write(path, (json + "\n").as_bytes())?;
        writeln!(out, "numbers         {}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
