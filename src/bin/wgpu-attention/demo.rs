//! `demo`: attention of real models at several temperatures, every output compared with float64.

use crate::captures::{CAPTURES, Capture};
use crate::fail::{Fail, Result};
use crate::gpu::{Gpu, GpuArgs};
use crate::heatmap::Heatmap;
use crate::{html, output, page, study};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use wgpu_attention::case::Work;
use wgpu_attention::reference::{self, Comparison};
use wgpu_attention::{Outputs, Problem, Temperature};

/// See it work: q, k and v of real models at several temperatures, checked against float64
///
/// Prints a table and writes a page with the attention heatmaps. Exit status 1 where any output is beyond its error bound.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = "wgpu-attention-demo.html")]
    html: PathBuf,
    /// One capture and three temperatures only
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    gpu: GpuArgs,
}

const TEMPERATURES: [f32; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
const QUICK: [f32; 3] = [0.5, 1.0, 2.0];
const REPEATS: usize = 9;

/// One capture at one temperature.
pub(crate) struct Measured {
    pub temperature: f32,
    pub outputs: Outputs,
    pub mean_entropy: f64,
    pub comparison: Comparison,
    pub time: Duration,
}

/// One capture, measured and drawn.
pub(crate) struct Section {
    pub title: String,
    pub about: &'static str,
    pub kernel: String,
    pub tokens: Vec<String>,
    pub measured: Vec<Measured>,
    pub heads: Vec<Head>,
}

/// One head over the temperatures.
pub(crate) struct Head {
    pub name: String,
    pub keys: usize,
    pub maps: Vec<Heatmap>,
    /// Of each row, from the GPU, for each temperature.
    pub entropy: Vec<Vec<f32>>,
    /// Keys that each row sees.
    pub visible: Vec<usize>,
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    output::check(&[("--html", Some(&args.html))], &[])?;
    let gpu = args.gpu.open()?;
    writeln!(out, "adapter  {}", gpu.info.name)?;
    writeln!(out, "driver   {}", gpu.driver())?;
    writeln!(out)?;
    let captures = if args.quick { &CAPTURES[..1] } else { &CAPTURES[..] };
    let temperatures = if args.quick { &QUICK[..] } else { &TEMPERATURES[..] };
    let bar = output::bar(captures.len() * temperatures.len(), "computing");
    let mut sections = Vec::new();
    for capture in captures {
        sections.push(section(&gpu, &args.gpu, capture, temperatures, || bar.inc(1))?);
    }
    bar.finish_and_clear();

    table(&sections, out)?;
    let facts = page::Facts {
        adapter: gpu.info.name.clone(),
        driver: gpu.driver(),
        compiled: gpu.attention.compiled(),
        command: html::command(),
        study: args.html.with_file_name(study::PAGE).is_file(),
    };
    output::write(&args.html, page::html(&facts, &sections)?.as_bytes())?;
    let wrong: Vec<String> = sections
        .iter()
        .flat_map(|s| s.measured.iter().filter(|m| !m.comparison.passes()).map(move |m| (s, m)))
        .map(|(s, m)| format!("{} at temperature {}", s.title, m.temperature))
        .collect();
    writeln!(out)?;
    writeln!(out, "page     {}", args.html.display())?;
    if !wrong.is_empty() {
        return Err(Fail::Wrong(format!("outputs beyond the error bound of f32: {}", wrong.join("; "))));
    }
    writeln!(
        out,
        "study    why 1/sqrt(d), and what every temperature, scale and smoothing does: {} study (--quick: less than a minute)",
        program()
    )?;
    writeln!(
        out,
        "next     your own tensors, as .npy or .safetensors: {} run q.npy k.npy v.npy --temperature 0.5 --check --heatmap map.svg",
        program()
    )?;
    Ok(ExitCode::SUCCESS)
}

fn section(
    gpu: &Gpu,
    args: &GpuArgs,
    capture: &Capture,
    temperatures: &[f32],
    step: impl Fn(),
) -> Result<Section> {
    let case = capture.case()?;
    let title = capture.title();
    let Some(work) = case.work() else {
        return Err(Fail::Wrong(format!("{title}: needs {}", case.missing().join(", "))));
    };
    let inputs = work.inputs();
    let mut kernel = String::new();
    let mut measured = Vec::new();
    for &temperature in temperatures {
        let problem = at(work, temperature);
        let plan = gpu.attention.plan_with(&problem, &args.plan_options())?;
        let (outputs, time) = gpu.timed(&plan, &inputs, REPEATS)?;
        let comparison = reference::truth(&problem, &inputs)?.of_kernel(plan.kernel()).compare(&outputs);
        let entropy = outputs.entropy.as_deref().unwrap_or_default();
        let mean_entropy = mean(entropy);
        kernel = plan.key().to_string();
        measured.push(Measured { temperature, outputs, mean_entropy, comparison, time });
        step();
    }
    let heads = heads(work, capture.batch, &measured)?;
    let tokens = case.tokens(capture.batch as usize).unwrap_or_default().to_vec();
    Ok(Section { title, about: capture.about, kernel, tokens, measured, heads })
}

/// A capture's problem at another temperature, with all statistics.
fn at(work: &Work, temperature: f32) -> Problem {
    work.problem()
        .clone()
        .temperature(Temperature::Value(temperature))
        .with_lse()
        .with_entropy()
        .with_row_max()
}

/// Three heads to show: the sharpest, the middle one and the flattest by mean entropy at the middle temperature.
fn heads(work: &Work, batch: u32, measured: &[Measured]) -> Result<Vec<Head>> {
    let s = work.problem().shape;
    let rows = |head: u32| {
        let first = (batch as usize * s.q_heads as usize + head as usize) * s.seq_q as usize;
        first..first + s.seq_q as usize
    };
    let entropy = |m: &Measured, head| -> Vec<f32> {
        let all = m.outputs.entropy.as_deref().unwrap_or_default();
        all.get(rows(head)).unwrap_or_default().to_vec()
    };
    let middle = &measured[measured.len() / 2];
    let mut order: Vec<(f64, u32)> = (0..s.q_heads).map(|h| (mean(&entropy(middle, h)), h)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let chosen = [
        (order.first(), "the sharpest"),
        (order.get(order.len() / 2), "in the middle"),
        (order.last(), "the flattest"),
    ];
    let mut heads = Vec::new();
    for (head, rank) in chosen {
        let Some(&(_, head)) = head else { continue };
        let mut maps = Vec::new();
        for m in measured {
            let lse = m.outputs.lse.as_deref().unwrap_or_default();
            let problem = at(work, m.temperature);
            maps.push(Heatmap::new(&problem, &work.inputs(), [batch, head], |row| {
                lse.get(row).map_or(f64::NAN, |&lse| f64::from(lse))
            })?);
        }
        let visible = (0..s.seq_q)
            .map(|i| {
                let scores = reference::scores(work.problem(), &work.inputs(), [batch, head, i])?;
                Ok(scores.iter().flatten().count())
            })
            .collect::<Result<_>>()?;
        heads.push(Head {
            name: format!("head {head}, {rank}"),
            keys: s.seq_k as usize,
            maps,
            entropy: measured.iter().map(|m| entropy(m, head)).collect(),
            visible,
        });
    }
    Ok(heads)
}

fn mean(numbers: &[f32]) -> f64 {
    numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / numbers.len().max(1) as f64
}

pub(crate) const TIMED: &str = "from submit to done with the data on the device, the median of 9 runs";
pub(crate) const ERRORS: &str = "the largest of out, log-sum-exp, entropy and row maximum, every element compared with float64; the bound is what f32 \
                                 rounding allows";

fn table(sections: &[Section], out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "{:34} {:>11} {:>12} {:>10} {:>9} {:>10}",
        "", "temperature", "mean entropy", "max error", "of bound", "time"
    )?;
    for section in sections {
        for m in &section.measured {
            writeln!(
                out,
                "{:34} {:>11} {:>7.3} nats {:>10.1e} {:>7.1} % {:>7.2} ms{}",
                section.title,
                m.temperature,
                m.mean_entropy,
                m.comparison.max_abs,
                m.comparison.worst * 100.0,
                m.time.as_secs_f64() * 1e3,
                if m.comparison.passes() { "" } else { "  WRONG" }
            )?;
        }
    }
    writeln!(out)?;
    for section in sections {
        writeln!(out, "kernel   {}: {}", section.title, section.kernel)?;
    }
    writeln!(out, "error    {ERRORS}")?;
    writeln!(out, "time     {TIMED}")?;
    Ok(())
}

/// How to call this program from here: its path, from the working directory where it is below that.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_else(|_| "wgpu-attention".into());
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(&path).display().to_string()
}
