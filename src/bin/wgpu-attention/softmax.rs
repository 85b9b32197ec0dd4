//! `softmax`: softmax, log-softmax, sparsemax or entmax of a tensor in a file.

use crate::arrays::{self, Array, Kind as FileKind};
use crate::fail::{Fail, Result};
use crate::output;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use wgpu_attention::softmax::{self, Inputs, Kind, Problem, RowTemperature, Softmax};
use wgpu_attention::{DType, headless};

/// Compute softmax(x / temperature) along an axis of a tensor from a file
///
/// Example: wgpu-attention softmax logits.npy --temperature 0.7 --entropy --check -o probabilities.npy
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A .npy file of float32 (or float16, widened); -inf has probability 0
    #[arg(value_name = "FILE.npy")]
    file: PathBuf,
    /// The function
    #[arg(long, value_enum, default_value = "softmax")]
    kind: KindArg,
    /// Divisor of x: below 1 is sharper, above 1 is flatter [default: 1]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    temperature: Option<f32>,
    /// A temperature for each row, in the order of the other axes
    #[arg(long, value_name = "FILE.npy", conflicts_with = "temperature")]
    temperature_per_row: Option<PathBuf>,
    /// The axis that sums to 1, from 0, or from -1 backwards
    #[arg(long, default_value_t = -1, allow_hyphen_values = true)]
    axis: i64,
    /// Also the log-sum-exp of each row (softmax and log-softmax)
    #[arg(long)]
    lse: bool,
    /// Also the entropy of each row, in nats (softmax and log-softmax)
    #[arg(long)]
    entropy: bool,
    /// Also the place of each row's largest element
    #[arg(long)]
    argmax: bool,
    /// Write the result here: .npy for out alone, .safetensors for out and what else is asked for (argmax as F32)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Compare with float64; exit status 1 where a number is beyond its error bound
    #[arg(long)]
    check: bool,
    /// Part of the name of the adapter to use, in any case (see `info`); default: the system's choice
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum KindArg {
    Softmax,
    LogSoftmax,
    Sparsemax,
    Entmax15,
}

impl From<KindArg> for Kind {
    fn from(arg: KindArg) -> Self {
        match arg {
            KindArg::Softmax => Kind::Softmax,
            KindArg::LogSoftmax => Kind::LogSoftmax,
            KindArg::Sparsemax => Kind::Sparsemax,
            KindArg::Entmax15 => Kind::Entmax15,
        }
    }
}

impl Args {
    fn problem(&self, shape: &[usize]) -> Result<Problem> {
        let axes = shape.len() as i64;
        let axis = if self.axis < 0 { self.axis + axes } else { self.axis };
        let Some(axis) = usize::try_from(axis).ok().filter(|&axis| axis < shape.len()) else {
            return Err(Fail::usage(format!(
                "--axis is {}, but {} has the shape {shape:?}",
                self.axis,
                self.file.display()
            )));
        };
        let sizes: Option<Vec<u32>> = shape.iter().map(|&n| u32::try_from(n).ok()).collect();
        let sizes = sizes.ok_or_else(|| Fail::file(&self.file, "has an axis of 2^32 elements or more"))?;
        let mut problem = Problem::along_axis(&sizes, axis)?.kind(self.kind.into());
        problem.temperature = match &self.temperature_per_row {
            Some(_) => RowTemperature::PerRow,
            None => RowTemperature::Value(self.temperature.unwrap_or(1.0)),
        };
        (problem.lse, problem.entropy, problem.argmax) = (self.lse, self.entropy, self.argmax);
        Ok(problem)
    }
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let target = match &args.output {
        Some(path) => {
            output::check(&[("-o", Some(path))], &[&args.file])?;
            Some((path, FileKind::of(path)?))
        }
        None => None,
    };
    if (args.lse || args.entropy || args.argmax) && matches!(target, Some((_, FileKind::Npy))) {
        let why = "a .npy file holds one tensor";
        return Err(Fail::usage(format!("--lse, --entropy and --argmax need -o FILE.safetensors: {why}")));
    }
    let x = arrays::read_npy(&args.file)?;
    let problem = args.problem(&x.shape)?;
    let taus = args.temperature_per_row.as_deref().map(arrays::read_npy).transpose()?;
    let mut inputs = Inputs::new(&x.numbers);
    inputs.temperature = taus.as_ref().map(|taus| taus.numbers.as_slice());
    inputs.check(&problem)?;

    let mut options = headless::Options::default();
    options.adapter = args.adapter.clone();
    let gpu = headless::open_blocking(&options)?;
    let softmax = Softmax::new(&gpu.device);
    let plan = softmax.plan(&problem)?;
    let result = pollster::block_on(softmax.run_plan(&gpu.queue, &plan, &inputs))?;
    writeln!(out, "adapter     {}", gpu.adapter.get_info().name)?;
    writeln!(out, "{plan}")?;
    let mean =
        |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / numbers.len().max(1) as f64;
    if let Some(entropy) = &result.entropy {
        let mean = mean(entropy);
        writeln!(
            out,
            "entropy     {mean:.4} nats in the mean of the rows, of {:.4} for uniform ones",
            f64::from(problem.len).ln()
        )?;
    }

    if let Some((path, kind)) = target {
        let array =
            |shape: &[usize], numbers: Vec<f32>| Array { shape: shape.to_vec(), numbers, dtype: DType::F32 };
        let whole = array(&x.shape, result.out.clone());
        let bytes = match kind {
            FileKind::Npy => arrays::npy(&whole)?,
            FileKind::Safetensors => {
                let rows = [problem.row_count() as usize];
                let mut all = BTreeMap::from([("out", whole)]);
                let argmax =
                    result.argmax.as_ref().map(|argmax| argmax.iter().map(|&at| at as f32).collect());
                for (name, numbers) in
                    [("lse", result.lse.clone()), ("entropy", result.entropy.clone()), ("argmax", argmax)]
                {
                    if let Some(numbers) = numbers {
                        all.insert(name, array(&rows, numbers));
                    }
                }
                arrays::safetensors(&all)?
            }
        };
        output::write(path, &bytes)?;
        writeln!(out, "wrote       {}", path.display())?;
    }
    if args.check {
        let bar = output::bar(1, "computing in float64");
        let comparison = softmax::truth(&problem, &inputs)?.compare(&result);
        bar.finish_and_clear();
        writeln!(
            out,
            "check       largest error {:.1e}, {:.1} % of its bound at the worst",
            comparison.max_abs,
            comparison.worst * 100.0
        )?;
        if comparison.unspecified > 0 {
            let count = comparison.unspecified;
            writeln!(
                out,
                "            {count} numbers have no true value (NaN in float64) and were not compared"
            )?;
        }
        if !comparison.passes() {
            return Err(Fail::Wrong(format!(
                "element {} of {} is beyond its error bound",
                comparison.at, comparison.field
            )));
        }
    }
    Ok(ExitCode::SUCCESS)
}
