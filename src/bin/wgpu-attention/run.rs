//! `run`: attention of tensors in files.

pub(crate) mod flags;
mod inputs;
mod options;
mod results;

use crate::arrays::Kind;
use crate::fail::{Fail, Result};
use crate::gpu::{GpuArgs, PlanArgs};
use crate::heatmap::Heatmap;
use crate::output;
use crate::work::Work;
use flags::{
    AlibiArg, AlignArg, DTypeArg, DropoutArg, Integers, LengthArg, MaskFormatArg, Numbers, SinksArg,
    StageArg, User,
};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use wgpu_attention::{
    AdaptiveTemperature, DType, Layout, Normalizer, QkNorm, Scale, ScoreStage, Sequences, Window, reference,
};

/// Compute attention of q, k and v from files
///
/// Example: wgpu-attention run q.npy k.npy v.npy --causal --temperature 0.7 --entropy --check -o result.safetensors
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Three .npy files (q, k, v) or one .safetensors file; of a case file the options are read too, and flags go
    /// before them
    #[arg(required = true, num_args = 1..=3, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Names of the tensors in a .safetensors file [default: q,k,v]
    #[arg(long, value_name = "Q,K,V", value_delimiter = ',', num_args = 1)]
    names: Option<Vec<String>>,
    /// Order of the axes, for all tensors or for q, k, v and out: bhsd is (batch, heads, seq, head_dim), bshd (batch, seq, heads,
    /// head_dim). Without a batch axis there is one batch [default: bhsd]
    #[arg(long, value_parser = flags::layouts, value_name = "ORDER|Q,K,V,OUT")]
    layout: Option<[Layout; 4]>,
    /// Storage on the device: f32, f16 or bf16, for q, k and v or for each; f32 numbers in the files are rounded to it
    /// [default: as in the files]
    #[arg(long, value_parser = flags::dtypes, value_name = "TYPE|Q,K,V")]
    dtype: Option<[DType; 3]>,
    /// Storage of out on the device; files get it as f32 [default: f32, or as the case says]
    #[arg(long, value_name = "TYPE")]
    out_dtype: Option<DTypeArg>,

    /// Multiplier of q.k: a number, `rsqrt` for 1/sqrt(head_dim), or `C/d` for C/head_dim [default: rsqrt]
    #[arg(long, value_parser = flags::scale, allow_hyphen_values = true, value_name = "NUMBER|rsqrt|C/d", help_heading = SHARPNESS)]
    scale: Option<Scale>,
    /// Divisor of the scaled scores: below 1 is sharper, above 1 is flatter [default: 1]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = SHARPNESS)]
    temperature: Option<f32>,
    /// One temperature for each query head: numbers, or a .npy file of them
    #[arg(long, value_parser = flags::numbers, allow_hyphen_values = true, value_name = "LIST|FILE.npy", help_heading = SHARPNESS)]
    temperature_per_head: Option<Numbers>,
    /// One temperature for each row, (batch, q_heads, seq_q)
    #[arg(long, value_name = "FILE.npy", conflicts_with = "temperature_per_head", help_heading = SHARPNESS)]
    temperature_per_row: Option<PathBuf>,
    /// Normalise q and k before their product: l2 (x / max(|x|, EPS)) or rms (x / sqrt(mean x^2 + EPS)) [default EPS: 1e-12, 1e-6]
    #[arg(long, value_parser = flags::qk_norm, value_name = "l2|rms|l2=EPS|rms=EPS", help_heading = SHARPNESS)]
    qk_norm: Option<QkNorm>,
    /// Gains of normalised q: one for each dim, or for each head and dim
    #[arg(
        long, value_parser = flags::numbers, allow_hyphen_values = true, requires = "k_gain",
        value_name = "LIST|FILE.npy", help_heading = SHARPNESS
    )]
    q_gain: Option<Numbers>,
    /// Gains of normalised k
    #[arg(
        long, value_parser = flags::numbers, allow_hyphen_values = true, requires = "q_gain",
        value_name = "LIST|FILE.npy", help_heading = SHARPNESS
    )]
    k_gain: Option<Numbers>,
    /// Multiplier that grows with the number n of keys a row sees, or with its position: ssmax=LIST (s ln n, an s for each query
    /// head; or a .npy file), logn=TRAIN_LEN, llama4=COEF,FLOOR, yarn=FACTOR
    #[arg(long, value_parser = flags::length_scale, value_name = "KIND=VALUE", help_heading = SHARPNESS)]
    length_scale: Option<LengthArg>,

    /// Causal mask: key j is visible to query i when j <= i + offset. An offset for all, or one for each batch
    #[arg(
        long, require_equals = true, num_args = 0..=1, default_missing_value = "bottom-right",
        value_parser = flags::align, value_name = "bottom-right|bottom-right-valid|top-left|OFFSET|LIST", help_heading = MASKS
    )]
    causal: Option<AlignArg>,
    /// Sliding window: query i, at position p = i + offset, sees keys p - LEFT to p + RIGHT, and the first KEEP_FIRST; `-` or
    /// `none` for no limit
    #[arg(long, value_parser = flags::window, allow_hyphen_values = true, value_name = "LEFT,RIGHT[,KEEP_FIRST]", help_heading = MASKS)]
    window: Option<Window>,
    /// The offset that windows, ALiBi and length scales count from, where there is no --causal [default: bottom-right]
    #[arg(
        long, value_parser = flags::align, allow_hyphen_values = true, conflicts_with = "causal",
        value_name = "bottom-right|bottom-right-valid|top-left|OFFSET|LIST", help_heading = MASKS
    )]
    align: Option<AlignArg>,
    /// Starts of packed sequences in q, from 0 to its rows: q is (heads, rows, head_dim), or with --layout bshd (rows, heads,
    /// head_dim), with a first axis of 1 or without
    #[arg(long, allow_hyphen_values = true, value_name = "LIST", value_delimiter = ',', num_args = 1, help_heading = MASKS)]
    cu_seqlens_q: Option<Vec<u32>>,
    /// Starts of packed sequences in k and v
    #[arg(long, allow_hyphen_values = true, value_name = "LIST", value_delimiter = ',', num_args = 1, help_heading = MASKS)]
    cu_seqlens_k: Option<Vec<u32>>,
    /// The document of each query, batch after batch: a row sees only keys of its own (int32)
    #[arg(
        long, value_parser = flags::integers, allow_hyphen_values = true, value_name = "LIST|FILE.npy",
        requires = "documents_k", help_heading = MASKS
    )]
    documents_q: Option<Integers>,
    /// The document of each key
    #[arg(
        long, value_parser = flags::integers, allow_hyphen_values = true, value_name = "LIST|FILE.npy",
        requires = "documents_q", help_heading = MASKS
    )]
    documents_k: Option<Integers>,
    /// Valid queries of each batch: the rows after them are written as 0
    #[arg(long, allow_hyphen_values = true, value_name = "LIST", value_delimiter = ',', num_args = 1, help_heading = MASKS)]
    q_len: Option<Vec<u32>>,
    /// Valid keys of each batch
    #[arg(long, allow_hyphen_values = true, value_name = "LIST", value_delimiter = ',', num_args = 1, help_heading = MASKS)]
    kv_len: Option<Vec<u32>>,
    /// Which pairs may attend, bool or uint8 (not 0: yes); broadcasts to (batch, q_heads, seq_q, seq_k) as in numpy, so three
    /// axes are (q_heads, seq_q, seq_k)
    #[arg(long, value_name = "FILE.npy", help_heading = MASKS)]
    mask: Option<PathBuf>,
    /// How the mask is stored on the device [default: bytes]
    #[arg(long, value_name = "FORMAT", help_heading = MASKS)]
    mask_format: Option<MaskFormatArg>,
    /// A file with a mask of your own: `fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool`
    #[arg(long, value_name = "FILE.wgsl", help_heading = MASKS)]
    mask_mod: Option<PathBuf>,

    /// Soft cap C: scores become C tanh(score / C), before bias and masks
    #[arg(long, value_name = "C", allow_hyphen_values = true, help_heading = SCORES)]
    softcap: Option<f32>,
    /// Numbers to add to the scores, float32 or float16 (-inf masks); broadcasts as --mask does
    #[arg(long, value_name = "FILE.npy", help_heading = SCORES)]
    bias: Option<PathBuf>,
    /// Storage of the bias on the device [default: as in the file]
    #[arg(long, value_name = "TYPE", help_heading = SCORES)]
    bias_dtype: Option<DTypeArg>,
    /// A file with a function of the score of your own:
    /// `fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32`
    #[arg(long, value_name = "FILE.wgsl", help_heading = SCORES)]
    score_mod: Option<PathBuf>,
    /// What `param_f32(n)` and `param_u32(n)` of your own functions read: numbers, floats where they have a point and else
    /// unsigned integers; or a .npy file of float32 or int32
    #[arg(long, value_parser = flags::user, allow_hyphen_values = true, value_name = "LIST|FILE.npy", help_heading = SCORES)]
    user_params: Option<User>,
    /// ALiBi: subtracts slope times distance. Slopes for each query head: numbers, or a .npy file [default: the standard ones]
    #[arg(
        long, require_equals = true, num_args = 0..=1, default_missing_value = "standard",
        value_parser = flags::alibi, value_name = "LIST|FILE.npy", help_heading = SCORES
    )]
    alibi: Option<AlibiArg>,
    /// A logit in the denominator that belongs to no key: `zero` (softmax off by one), or one for each query head
    #[arg(long, value_parser = flags::sinks, allow_hyphen_values = true, value_name = "zero|LIST|FILE.npy", help_heading = SCORES)]
    sinks: Option<SinksArg>,

    /// What makes weights of scores: softmax, sparsemax, entmax15, or sigmoid=BIAS, where the bias is a number, `seq-k` (-ln of the
    /// number of keys) or `visible` (-ln of how many a row sees) [default: softmax]
    #[arg(long, value_parser = flags::normalizer, value_name = "KIND", help_heading = WEIGHTS)]
    normalizer: Option<Normalizer>,
    /// Each row attends to the K keys with the largest scores only
    #[arg(long, allow_hyphen_values = true, value_name = "K", help_heading = WEIGHTS)]
    top_k: Option<u32>,
    /// A sharper softmax for rows of high entropy H: scores times max(1, C4 H^4 + ... + C0) where H > ABOVE [default: the
    /// paper's numbers, arXiv 2410.01104]
    #[arg(
        long, require_equals = true, num_args = 0..=1, default_missing_value = "paper",
        value_parser = flags::adaptive, value_name = "C4,C3,C2,C1,C0,ABOVE", help_heading = SHARPNESS
    )]
    adaptive_temperature: Option<AdaptiveTemperature>,
    /// Dropout on the weights: the probability that one is dropped, and the two numbers from which follows which
    #[arg(long, value_parser = flags::dropout, allow_hyphen_values = true, value_name = "RATE,SEED[,OFFSET]", help_heading = WEIGHTS)]
    dropout: Option<DropoutArg>,

    /// Write the result here: .npy for out alone, .safetensors for out and what else is asked for
    #[arg(short, long, value_name = "FILE", help_heading = RESULTS)]
    output: Option<PathBuf>,
    /// Also the log-sum-exp of each row
    #[arg(long, help_heading = RESULTS)]
    lse: bool,
    /// Also the entropy of each row, in nats
    #[arg(long, help_heading = RESULTS)]
    entropy: bool,
    /// Also the largest score of each row
    #[arg(long, help_heading = RESULTS)]
    row_max: bool,
    /// Also the scores of all pairs at a stage, as `scores` in the file of -o. A slow path: head by head, with memory for
    /// every score
    #[arg(long, value_name = "STAGE", requires = "output", help_heading = RESULTS)]
    scores: Option<StageArg>,
    /// Draw the probabilities of one head (computed on the CPU in float64)
    #[arg(long, value_name = "FILE.svg|FILE.png", help_heading = RESULTS)]
    heatmap: Option<PathBuf>,
    /// Query head of the heatmap
    #[arg(long, default_value_t = 0, allow_hyphen_values = true, requires = "heatmap", help_heading = RESULTS)]
    head: u32,
    /// Batch of the heatmap
    #[arg(long, default_value_t = 0, allow_hyphen_values = true, requires = "heatmap", help_heading = RESULTS)]
    batch: u32,
    /// Compare with float64; exit status 1 where a number is beyond its error bound
    #[arg(long, help_heading = RESULTS)]
    check: bool,
    /// Write a case file with the inputs, the options and the float64 outputs
    #[arg(long, value_name = "FILE", help_heading = RESULTS)]
    save_case: Option<PathBuf>,
    /// Refuse q, k, v and bias with NaN or infinity (but for -inf in the bias), which a device may or may not carry into the result
    #[arg(long, help_heading = RESULTS)]
    check_finite: bool,
    #[command(flatten)]
    gpu: GpuArgs,
    #[command(flatten)]
    plan: PlanArgs,
}

const SHARPNESS: &str = "Sharpness";
const MASKS: &str = "Masks";
const SCORES: &str = "Scores";
const WEIGHTS: &str = "Weights";
const RESULTS: &str = "Results";

pub(crate) fn main(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    args.check_outputs()?;
    let mut loaded = inputs::load(args)?;
    args.apply(&mut loaded)?;
    let work = &loaded.work;
    let (problem, inputs) = (&work.problem, work.inputs());
    inputs.check(problem)?;
    if args.check_finite {
        inputs.check_finite(problem)?;
    }
    if args.heatmap.is_some() {
        args.check_head(work)?;
    }
    let in_float64 = args.check || args.save_case.is_some() || args.heatmap.is_some();
    if in_float64 && (problem.score_mod.is_some() || problem.mask_mod.is_some()) {
        return Err(Fail::usage(
            "float64 on the CPU runs no WGSL: leave out --check, --save-case and --heatmap, or score_mod and mask_mod",
        ));
    }
    let stage = args.scores.map(ScoreStage::from);
    if stage.is_some() && (problem.packed_q.is_some() || problem.packed_k.is_some()) {
        return Err(Fail::usage("--scores: packed sequences have no scores of one shape"));
    }

    let gpu = args.gpu.open()?;
    let plan = gpu.attention.plan_with(problem, &args.plan.over(args.gpu.plan_options()))?;
    if let Some(stage) = stage {
        results::check_scores(&gpu, work, stage)?;
    }
    let start = std::time::Instant::now();
    let result = pollster::block_on(gpu.attention.run_plan(&gpu.queue, &plan, &inputs))?;
    let time = start.elapsed();
    writeln!(out, "adapter  {}, driver {}", gpu.info.name, gpu.driver())?;
    if plan.slices().is_empty() {
        writeln!(out, "kernel   none: there is nothing to compute")?;
    } else {
        writeln!(out, "kernel   {}", plan.key())?;
        writeln!(out, "because  {}", plan.reason())?;
        writeln!(
            out,
            "time     {:.1} ms, with compiling, upload and reading back",
            time.as_secs_f64() * 1e3
        )?;
    }
    results::summary(work, &result, out)?;
    let scores = stage.map(|stage| results::scores(&gpu, work, stage)).transpose()?;
    if let (Some(stage), Some(scores)) = (stage, &scores) {
        writeln!(out, "scores   {} {}, by the slow path (head by head)", scores.len(), stage.name())?;
    }
    if let Some(path) = &args.output {
        output::write(path, &results::contents(path, &loaded, &result, scores.as_ref())?)?;
        writeln!(out, "wrote    {}", path.display())?;
    }

    if let Some(reason) = plan.classes_reason() {
        writeln!(out, "tiles    mask tiles classified: {reason}")?;
    }
    if let Some(reason) = plan.f16_reason() {
        writeln!(out, "f16      {reason}")?;
    }
    if let Some(reason) = plan.words_reason() {
        writeln!(out, "words    {reason}")?;
    }
    if !in_float64 {
        return Ok(ExitCode::SUCCESS);
    }
    let bar = output::bar(1, "computing in float64");
    let truth = reference::truth(problem, &inputs)?;
    let true_scores = stage.map(|stage| results::true_scores(work, stage)).transpose()?;
    bar.finish_and_clear();
    if let Some(path) = &args.heatmap {
        let map = Heatmap::of_truth(problem, &inputs, [args.batch, args.head])?;
        output::write(path, &results::picture(path, &map, &loaded, args)?)?;
        writeln!(out, "wrote    {} (probabilities computed on the CPU in float64)", path.display())?;
    }
    if let Some(path) = &args.save_case {
        let expected = true_scores.as_deref().unwrap_or_default();
        let mut case = work.case(&loaded.name, &truth, expected)?.with_tokens(loaded.tokens.clone())?;
        if let Some(stage) = stage {
            let scores: Vec<f32> = expected.iter().map(|x| x.value as f32).collect();
            case = case.with_scores(stage, &scores)?;
        }
        output::write(path, &case.to_bytes()?)?;
        writeln!(out, "wrote    {} (outputs are those of float64)", path.display())?;
    }
    if args.check {
        let truth = truth.of_kernel(plan.kernel());
        results::check(&truth, &result, scores.as_ref().zip(true_scores.as_ref()), out)
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

impl Args {
    /// Everything about the output files that can be wrong before there is something to write.
    fn check_outputs(&self) -> Result<()> {
        let written = [
            ("-o", self.output.as_deref()),
            ("--heatmap", self.heatmap.as_deref()),
            ("--save-case", self.save_case.as_deref()),
        ];
        output::check(&written, &self.files.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
        if let Some(path) = &self.heatmap
            && !matches!(path.extension().and_then(|e| e.to_str()), Some("svg" | "png"))
        {
            return Err(Fail::file(path, "a heatmap is written as .svg or .png"));
        }
        if let Some(path) = &self.output
            && Kind::of(path)? == Kind::Npy
            && (self.lse || self.entropy || self.row_max || self.scores.is_some())
        {
            return Err(Fail::file(
                path,
                "a .npy file holds one tensor, but statistics or scores were asked for too: write a .safetensors file",
            ));
        }
        if let Some(path) = &self.save_case
            && Kind::of(path)? != Kind::Safetensors
        {
            return Err(Fail::file(path, "a case file is a .safetensors file"));
        }
        Ok(())
    }

    /// Refuses a heatmap of nothing before the work is done.
    fn check_head(&self, work: &Work) -> Result<()> {
        let shape = &work.problem.shape;
        for (flag, at, size) in [("--batch", self.batch, shape.batch), ("--head", self.head, shape.q_heads)] {
            if at >= size {
                return Err(Fail::usage(format!("{flag} is {at}, but expected is a number below {size}")));
            }
        }
        let inputs = work.inputs();
        let sequences = Sequences::new(&work.problem, &inputs.tables);
        let (queries, keys) = (sequences.queries(self.batch), sequences.keys(self.batch));
        if queries == 0 || keys == 0 {
            return Err(Fail::usage(format!("--heatmap: {queries} queries on {keys} keys make no picture")));
        }
        Ok(())
    }
}
