//! `run`: attention of tensors in files.

use crate::arrays::{self, Array, Kind, Tensors};
use crate::fail::{Fail, Result};
use crate::gpu::GpuArgs;
use crate::heatmap::Heatmap;
use crate::output;
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wgpu_attention::case::{Case, Tolerance};
use wgpu_attention::reference::{self, Bounded, Truth};
use wgpu_attention::{Alignment, Inputs, Layout, Outputs, Problem, Scale, Shape, Temperature};

/// Compute attention of q, k and v from files
///
/// Example: wgpu-attention run q.npy k.npy v.npy --causal --temperature 0.7 --entropy --check -o result.safetensors
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Three .npy files (q, k, v) or one .safetensors file; of a case file the options are read too, and flags go
    /// before them
    #[arg(required = true, num_args = 1..=3, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Names of the tensors in a .safetensors file
    #[arg(long, value_name = "Q,K,V", value_delimiter = ',', num_args = 1, default_value = "q,k,v")]
    names: Vec<String>,
    /// Order of the axes: bhsd is (batch, heads, seq, head_dim). Without a batch axis there is one batch
    #[arg(long)]
    layout: Option<LayoutArg>,
    /// Multiplier of q.k: a number, `rsqrt` for 1/sqrt(head_dim), or `C/d` for C/head_dim [default: rsqrt]
    #[arg(long, value_parser = scale, allow_hyphen_values = true, value_name = "NUMBER|rsqrt|C/d")]
    scale: Option<Scale>,
    /// Divisor of the scaled scores: below 1 is sharper, above 1 is flatter [default: 1]
    #[arg(long, value_name = "NUMBER")]
    temperature: Option<f32>,
    /// One temperature for each query head: numbers, or a .npy file of them
    #[arg(long, value_name = "LIST|FILE.npy")]
    temperature_per_head: Option<String>,
    /// Causal mask: key j is visible to query i when j <= i + offset. An offset for all, or one for each batch
    #[arg(
        long, require_equals = true, num_args = 0..=1, default_missing_value = "bottom-right",
        value_parser = causal, value_name = "bottom-right|top-left|OFFSET|LIST"
    )]
    causal: Option<CausalArg>,
    /// Valid keys of each batch
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 1)]
    kv_len: Option<Vec<u32>>,
    /// Write the result here: .npy for out alone, .safetensors for out and statistics
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also the log-sum-exp of each row
    #[arg(long)]
    lse: bool,
    /// Also the entropy of each row, in nats
    #[arg(long)]
    entropy: bool,
    /// Also the largest score of each row
    #[arg(long)]
    row_max: bool,
    /// Draw the probabilities of one head (computed on the CPU in float64)
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    heatmap: Option<PathBuf>,
    /// Query head of the heatmap
    #[arg(long, default_value_t = 0, requires = "heatmap")]
    head: u32,
    /// Batch of the heatmap
    #[arg(long, default_value_t = 0, requires = "heatmap")]
    batch: u32,
    /// Compare with float64; exit status 1 where a number is beyond its error bound
    #[arg(long)]
    check: bool,
    /// Write a case file with the inputs, the options and the float64 outputs
    #[arg(long, value_name = "FILE")]
    save_case: Option<PathBuf>,
    #[command(flatten)]
    gpu: GpuArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayoutArg {
    /// (batch, heads, seq, head_dim)
    Bhsd,
    /// (batch, seq, heads, head_dim)
    Bshd,
}

#[derive(Debug, Clone)]
enum CausalArg {
    All(Alignment),
    PerBatch(Vec<i32>),
}

fn scale(text: &str) -> Result<Scale, String> {
    let number = |text: &str| text.trim().parse::<f32>().ok().filter(|x| x.is_finite());
    match text.strip_suffix("/d") {
        _ if text == "rsqrt" => Some(Scale::RsqrtHeadDim),
        Some(numerator) => number(numerator).map(|numerator| Scale::PerHeadDim { numerator }),
        None => number(text).map(Scale::Value),
    }
    .ok_or_else(|| "expected is a number, `rsqrt`, or a number and `/d`".to_owned())
}

fn causal(text: &str) -> Result<CausalArg, String> {
    let numbers: Result<Vec<i32>, _> = text.split(',').map(|n| n.trim().parse()).collect();
    match (text, numbers.as_deref()) {
        ("bottom-right", _) => Ok(CausalArg::All(Alignment::BottomRight)),
        ("top-left", _) => Ok(CausalArg::All(Alignment::TopLeft)),
        (_, Ok(&[one])) => Ok(CausalArg::All(Alignment::Offset(one))),
        (_, Ok(many)) => Ok(CausalArg::PerBatch(many.to_vec())),
        _ => Err("expected is `bottom-right`, `top-left`, an integer, or one for each batch".to_owned()),
    }
}

/// A problem with its data.
struct Work {
    problem: Problem,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    kv_len: Option<Vec<u32>>,
    causal_offset: Option<Vec<i32>>,
    temperature: Option<Vec<f32>>,
    /// Axes of the tensors in the files; out gets as many.
    axes: usize,
    name: String,
}

impl Work {
    fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(&self.q, &self.k, &self.v);
        inputs.tables.kv_len = self.kv_len.as_deref();
        inputs.tables.causal_offset = self.causal_offset.as_deref();
        inputs.tables.temperature = self.temperature.as_deref();
        inputs
    }
}

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    check_outputs(args)?;
    let work = args.apply(args.load()?)?;
    let (problem, inputs) = (&work.problem, work.inputs());
    inputs.check(problem)?;
    if args.heatmap.is_some() {
        check_head(args, &problem.shape)?;
    }

    let gpu = args.gpu.open()?;
    let plan = gpu.attention.plan_with(problem, &args.gpu.plan_options())?;
    let start = std::time::Instant::now();
    let result = pollster::block_on(gpu.attention.run_plan(&gpu.queue, &plan, &inputs))?;
    let time = start.elapsed();
    writeln!(out, "adapter  {}, driver {}", gpu.info.name, gpu.driver())?;
    writeln!(out, "kernel   {}", plan.key())?;
    writeln!(out, "because  {}", plan.reason())?;
    writeln!(out, "time     {:.1} ms, with compiling, upload and reading back", time.as_secs_f64() * 1e3)?;
    summary(&work, &result, out)?;
    if let Some(path) = &args.output {
        output::write(path, &contents(path, &work, &result)?)?;
        writeln!(out, "wrote    {}", path.display())?;
    }

    let truth = if args.check || args.save_case.is_some() || args.heatmap.is_some() {
        let bar = output::bar(1, "computing in float64");
        let truth = reference::truth(problem, &inputs)?;
        bar.finish_and_clear();
        truth
    } else {
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(path) = &args.heatmap {
        let map = Heatmap::new(problem, &inputs, [args.batch, args.head], |row| truth.lse[row].value)?;
        output::write(path, &picture(path, &map, &work, args)?)?;
        writeln!(out, "wrote    {} (probabilities computed on the CPU in float64)", path.display())?;
    }
    if let Some(path) = &args.save_case {
        output::write(path, &case(&work, &truth)?.to_bytes()?)?;
        writeln!(out, "wrote    {} (outputs are those of float64)", path.display())?;
    }
    if args.check { check(&truth, &result, out) } else { Ok(ExitCode::SUCCESS) }
}

/// Everything about the output files that can be wrong before there is something to write.
fn check_outputs(args: &Args) -> Result<()> {
    for path in [&args.output, &args.heatmap, &args.save_case].into_iter().flatten() {
        output::check_folder(path)?;
    }
    if let Some(path) = &args.heatmap
        && !matches!(path.extension().and_then(|e| e.to_str()), Some("svg" | "png"))
    {
        return Err(Fail::file(path, "a heatmap is written as .svg or .png"));
    }
    if let Some(path) = &args.output
        && Kind::of(path)? == Kind::Npy
        && (args.lse || args.entropy || args.row_max)
    {
        return Err(Fail::file(
            path,
            "a .npy file holds one tensor, but statistics were asked for too: write a .safetensors file",
        ));
    }
    if let Some(path) = &args.save_case
        && Kind::of(path)? != Kind::Safetensors
    {
        return Err(Fail::file(path, "a case file is a .safetensors file"));
    }
    Ok(())
}

/// Refuses a heatmap of nothing before the work is done.
fn check_head(args: &Args, shape: &Shape) -> Result<()> {
    for (flag, at, size) in [("--batch", args.batch, shape.batch), ("--head", args.head, shape.q_heads)] {
        if at >= size {
            return Err(Fail::usage(format!("{flag} is {at}, but expected is a number below {size}")));
        }
    }
    if shape.seq_q == 0 || shape.seq_k == 0 {
        return Err(Fail::usage(format!(
            "--heatmap: {} queries on {} keys make no picture",
            shape.seq_q, shape.seq_k
        )));
    }
    Ok(())
}

impl Args {
    fn load(&self) -> Result<Work> {
        let [q_name, k_name, v_name] = self.names.as_slice() else {
            return Err(Fail::usage(format!(
                "--names has {} names, but expected are 3: Q,K,V",
                self.names.len()
            )));
        };
        let arrays = match self.files.as_slice() {
            [one] => {
                if Kind::of(one)? != Kind::Safetensors {
                    return Err(Fail::file(
                        one,
                        "is one .npy file, but expected are three (q, k, v), or one .safetensors",
                    ));
                }
                let bytes = arrays::read_bytes(one)?;
                let tensors = Tensors::read(one, &bytes)?;
                if tensors.is_case() {
                    return from_case(one, self.layout.is_some());
                }
                [tensors.get(one, q_name)?, tensors.get(one, k_name)?, tensors.get(one, v_name)?]
            }
            [q, k, v] => {
                for path in [q, k, v] {
                    if Kind::of(path)? != Kind::Npy {
                        return Err(Fail::file(
                            path,
                            "expected are three .npy files, or one .safetensors file alone",
                        ));
                    }
                }
                [arrays::read_npy(q)?, arrays::read_npy(k)?, arrays::read_npy(v)?]
            }
            _ => {
                return Err(Fail::usage(
                    "2 files were given, but expected are three .npy files or one .safetensors",
                ));
            }
        };
        let bshd = matches!(self.layout, Some(LayoutArg::Bshd));
        from_arrays(arrays, bshd)
    }

    /// The flags, over what the files said.
    fn apply(&self, mut work: Work) -> Result<Work> {
        let problem = &mut work.problem;
        if let Some(scale) = self.scale {
            problem.scale = scale;
        }
        if let Some(list) = &self.temperature_per_head {
            work.temperature = Some(temperatures(list)?);
            if let Temperature::Value(tau) = problem.temperature {
                divide_scale(problem, tau);
            }
            problem.temperature = Temperature::PerHead;
        }
        if let Some(tau) = self.temperature {
            if !(tau.is_finite() && tau > 0.0) {
                return Err(Fail::usage(format!("--temperature is {tau}, but expected is a number above 0")));
            }
            match problem.temperature {
                Temperature::Value(_) => problem.temperature = Temperature::Value(tau),
                // A problem has one temperature; the number beside the table goes into the scale.
                _ => divide_scale(problem, tau),
            }
        }
        match &self.causal {
            None => {}
            Some(CausalArg::All(causal)) => {
                problem.causal = true;
                problem.alignment = *causal;
                work.causal_offset = None;
            }
            Some(CausalArg::PerBatch(offsets)) => {
                problem.causal = true;
                problem.alignment = Alignment::PerBatch;
                work.causal_offset = Some(offsets.clone());
            }
        }
        if let Some(lens) = &self.kv_len {
            problem.kv_len = true;
            work.kv_len = Some(lens.clone());
        }
        problem.stats.lse = self.lse;
        problem.stats.entropy = self.entropy;
        problem.stats.row_max = self.row_max;
        Ok(work)
    }
}

fn divide_scale(problem: &mut Problem, tau: f32) {
    if tau != 1.0 {
        let scale = problem.scale.value(problem.shape.head_dim_qk) / f64::from(tau);
        problem.scale = Scale::Value(scale as f32);
    }
}

fn temperatures(list: &str) -> Result<Vec<f32>> {
    if list.ends_with(".npy") {
        let path = Path::new(list);
        let array = arrays::read_npy(path)?;
        if array.shape.len() != 1 {
            return Err(Fail::file(
                path,
                format_args!("has shape {:?}, but expected is (q_heads)", array.shape),
            ));
        }
        return Ok(array.numbers);
    }
    list.split(',')
        .map(|n| {
            n.trim().parse().map_err(|_| {
                Fail::usage(format!(
                    "--temperature-per-head has {n:?}, but expected are numbers with commas between, or a .npy file"
                ))
            })
        })
        .collect()
}

fn from_case(path: &Path, layout: bool) -> Result<Work> {
    let case = Case::read(path)?;
    if layout {
        return Err(Fail::file(path, "is a case file, which says its layout itself: leave out --layout"));
    }
    let Some(work) = case.work() else {
        let missing = case.missing().join(", ");
        return Err(Fail::file(path, format_args!("needs what this version cannot do: {missing}")));
    };
    let inputs = work.inputs();
    Ok(Work {
        problem: work.problem().clone(),
        q: inputs.q.to_vec(),
        k: inputs.k.to_vec(),
        v: inputs.v.to_vec(),
        kv_len: inputs.tables.kv_len.map(<[_]>::to_vec),
        causal_offset: inputs.tables.causal_offset.map(<[_]>::to_vec),
        temperature: inputs.tables.temperature.map(<[_]>::to_vec),
        axes: 4,
        name: case.name().to_owned(),
    })
}

fn from_arrays([q, k, v]: [Array; 3], bshd: bool) -> Result<Work> {
    let axes = q.shape.len();
    let order = if bshd { "(batch, seq, heads, head_dim)" } else { "(batch, heads, seq, head_dim)" };
    for (name, array) in [("q", &q), ("k", &k), ("v", &v)] {
        let enough = if bshd { 3 } else { 2 };
        if !(enough..=4).contains(&array.shape.len()) {
            return Err(Fail::usage(format!(
                "{name} has shape {:?}, but expected is {order}, where the first axes may be left out",
                array.shape
            )));
        }
        if array.shape.len() != axes {
            return Err(Fail::usage(format!("{name} has {} axes, but q has {axes}", array.shape.len())));
        }
    }
    let sizes = |name: &str, array: &Array| -> Result<[u32; 4]> {
        let mut sizes = [1u32; 4];
        for (size, &n) in sizes.iter_mut().rev().zip(array.shape.iter().rev()) {
            *size = u32::try_from(n).map_err(|_| {
                Fail::usage(format!("{name} has shape {:?}, beyond 2^32 in an axis", array.shape))
            })?;
        }
        let [b, x, y, d] = sizes;
        Ok(if bshd { [b, y, x, d] } else { sizes })
    };
    let [batch, q_heads, seq_q, head_dim_qk] = sizes("q", &q)?;
    let [k_batch, kv_heads, seq_k, k_dim] = sizes("k", &k)?;
    let [v_batch, v_heads, v_seq, head_dim_v] = sizes("v", &v)?;
    let shapes = format!("q {:?}, k {:?}, v {:?}", q.shape, k.shape, v.shape);
    for (name, got, rule, expected) in [
        ("the batch of k", k_batch, "that of q", batch),
        ("the batch of v", v_batch, "that of q", batch),
        ("the head dim of k", k_dim, "that of q", head_dim_qk),
        ("the heads of v", v_heads, "those of k", kv_heads),
        ("the length of v", v_seq, "that of k", seq_k),
    ] {
        if got != expected {
            return Err(Fail::usage(format!(
                "shapes do not fit: {name}: {got}, but expected is {rule}: {expected}; found as {order}: {shapes}"
            )));
        }
    }
    let shape = Shape { batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v };
    let layout = if bshd { Layout::Bshd } else { Layout::Bhsd };
    Ok(Work {
        problem: Problem::new(shape).layout(layout),
        q: q.numbers,
        k: k.numbers,
        v: v.numbers,
        kv_len: None,
        causal_offset: None,
        temperature: None,
        axes,
        name: "saved".to_owned(),
    })
}

fn summary(work: &Work, result: &Outputs, out: &mut impl Write) -> Result<()> {
    let s = &work.problem.shape;
    writeln!(
        out,
        "out      batch {}, {} heads, {} queries on {} keys, head dims {} and {}",
        s.batch, s.q_heads, s.seq_q, s.seq_k, s.head_dim_qk, s.head_dim_v
    )?;
    if let (Some(entropy), rows @ 1..) = (&result.entropy, s.rows()) {
        let mean = entropy.iter().map(|&x| f64::from(x)).sum::<f64>() / rows as f64;
        writeln!(out, "entropy  {mean:.4} nats on average")?;
    }
    Ok(())
}

fn contents(path: &Path, work: &Work, result: &Outputs) -> Result<Vec<u8>> {
    let s = &work.problem.shape;
    let [b, h, i, d] = [s.batch, s.q_heads, s.seq_q, s.head_dim_v].map(|n| n as usize);
    let full = if work.problem.out_layout == Layout::Bshd { [b, i, h, d] } else { [b, h, i, d] };
    let out = Array { shape: full[4 - work.axes..].to_vec(), numbers: result.out.clone() };
    if Kind::of(path)? == Kind::Npy {
        return arrays::npy(&out);
    }
    let mut arrays = BTreeMap::from([("out", out)]);
    let rows = [b, h, i][4 - work.axes..].to_vec();
    for (name, numbers) in [("lse", &result.lse), ("entropy", &result.entropy), ("row_max", &result.row_max)]
    {
        if let Some(numbers) = numbers {
            arrays.insert(name, Array { shape: rows.clone(), numbers: numbers.clone() });
        }
    }
    arrays::safetensors(&arrays)
}

fn picture(path: &Path, map: &Heatmap, work: &Work, args: &Args) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|e| e == "png") {
        return map.png((800 / map.rows.max(map.columns).max(1)).max(1));
    }
    let title = format!("{}: head {} of batch {}", work.name, args.head, args.batch);
    let factor = work.problem.factor();
    let about = match work.problem.temperature {
        Temperature::Value(_) => format!("probabilities in float64, scale / temperature = {factor:.4}"),
        _ => format!("probabilities in float64, scale {factor:.4}, temperatures per head"),
    };
    Ok(map.svg(&title, &about)?.into_bytes())
}

/// A case whose tolerance is at least what float64 says f32 may be off.
fn case(work: &Work, truth: &Truth) -> Result<Case> {
    let problem = work.problem.clone().with_lse().with_entropy();
    let rtol = 2e-5;
    let beyond = |x: &Bounded| x.bound - rtol * x.value.abs();
    let atol = [&truth.out, &truth.lse, &truth.entropy]
        .into_iter()
        .flatten()
        .map(beyond)
        .filter(|x| x.is_finite())
        .fold(2e-6, f64::max);
    Ok(Case::new(
        work.name.clone(),
        &problem,
        &work.inputs(),
        &truth.outputs(&problem),
        Tolerance { rtol, atol },
    )?)
}

fn check(truth: &Truth, result: &Outputs, out: &mut impl Write) -> Result<ExitCode> {
    writeln!(out, "check against float64:")?;
    let mut wrong = Vec::new();
    for (name, got, want) in [
        ("out", Some(&result.out), &truth.out),
        ("lse", result.lse.as_ref(), &truth.lse),
        ("entropy", result.entropy.as_ref(), &truth.entropy),
        ("row_max", result.row_max.as_ref(), &truth.row_max),
    ] {
        let Some(got) = got else { continue };
        let c = reference::compare(got, want);
        let verdict = if c.passes() { "pass" } else { "FAIL" };
        writeln!(
            out,
            "  {name:8} max error {:.2e}, relative {:.2e}, {:.1}% of the error bound  {verdict}",
            c.max_abs,
            c.max_rel,
            c.worst * 100.0
        )?;
        if !c.passes() {
            wrong.push(format!("{name} at element {}", c.at));
        }
    }
    match wrong.as_slice() {
        [] => Ok(ExitCode::SUCCESS),
        _ => Err(Fail::Wrong(format!("beyond the error bound of f32: {}", wrong.join(", ")))),
    }
}
