//! What a run writes, and how it is compared with float64.

use super::Args;
use super::inputs::Loaded;
use crate::arrays::{self, Array, Kind};
use crate::fail::{Fail, Result};
use crate::gpu::Gpu;
use crate::heatmap::Heatmap;
use crate::output;
use crate::work::Work;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use wgpu_attention::reference::{self, Bounded, Truth};
use wgpu_attention::{DType, Layout, Outputs, ScoreStage, Temperature, Tensor, View};

pub(super) fn summary(work: &Work, result: &Outputs, out: &mut impl Write) -> Result<()> {
    let s = &work.problem.shape;
    writeln!(
        out,
        "out      batch {}, {} heads, {} queries on {} keys, head dims {} and {}",
        s.batch, s.q_heads, s.seq_q, s.seq_k, s.head_dim_qk, s.head_dim_v
    )?;
    if let (Some(entropy), rows @ 1..) = (&result.entropy, work.problem.rows()) {
        let mean = entropy.iter().map(|&x| f64::from(x)).sum::<f64>() / rows as f64;
        writeln!(out, "entropy  {mean:.4} nats on average")?;
    }
    Ok(())
}

/// (batch, head) of every head.
fn heads(work: &Work) -> impl Iterator<Item = [u32; 2]> + use<> {
    let s = work.problem.shape;
    (0..s.batch).flat_map(move |b| (0..s.q_heads).map(move |h| [b, h]))
}

/// Says what [`scores`] would refuse, before anything is computed. Heads differ in their numbers only, so that one speaks for all.
pub(super) fn check_scores(gpu: &Gpu, work: &Work, stage: ScoreStage) -> Result<()> {
    let rows = 0..work.problem.shape.seq_q;
    heads(work).take(1).try_for_each(|at| {
        Ok(gpu.attention.check_scores(&work.problem, &work.inputs(), stage, at, rows.clone())?)
    })
}

/// The scores of all heads from the device, (batch, q_heads, seq_q, seq_k).
pub(super) fn scores(gpu: &Gpu, work: &Work, stage: ScoreStage) -> Result<Vec<f32>> {
    let s = &work.problem.shape;
    let bar = output::bar((s.batch as usize).saturating_mul(s.q_heads as usize), "computing scores");
    let mut all = Vec::new();
    for at in heads(work) {
        let (problem, inputs) = (&work.problem, work.inputs());
        all.extend(gpu.attention.scores_blocking(&gpu.queue, problem, &inputs, stage, at, 0..s.seq_q)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(all)
}

/// The same from float64.
pub(super) fn true_scores(work: &Work, stage: ScoreStage) -> Result<Vec<Bounded>> {
    let mut all = Vec::new();
    for [b, h] in heads(work) {
        for i in 0..work.problem.shape.seq_q {
            all.extend(reference::scores_at(&work.problem, &work.inputs(), stage, [b, h, i])?);
        }
    }
    Ok(all)
}

pub(super) fn contents(
    path: &Path,
    loaded: &Loaded,
    result: &Outputs,
    scores: Option<&Vec<f32>>,
) -> Result<Vec<u8>> {
    let Loaded { work, axes, .. } = loaded;
    let [b, h, i, d] = work.problem.view(Tensor::Out)?.sizes().map(|n| n as usize);
    let j = work.problem.shape.seq_k as usize;
    let full = if work.problem.out_layout == Layout::Bshd { [b, i, h, d] } else { [b, h, i, d] };
    let array = |shape: &[usize], numbers: &Vec<f32>| Array {
        shape: shape.to_vec(),
        numbers: numbers.clone(),
        dtype: DType::F32,
    };
    let out = match work.problem.out_layout {
        Layout::Strided(_) => {
            array(&full[4 - axes..], &in_order(&work.problem.view(Tensor::Out)?, &result.out))
        }
        _ => array(&full[4 - axes..], &result.out),
    };
    if Kind::of(path)? == Kind::Npy {
        return arrays::npy(&out);
    }
    let mut arrays = BTreeMap::from([("out", out)]);
    let (rows, pairs) = ([b, h, i], [b, h, i, j]);
    for (name, shape, numbers) in [
        ("lse", &rows[4 - axes..], result.lse.as_ref()),
        ("entropy", &rows[4 - axes..], result.entropy.as_ref()),
        ("row_max", &rows[4 - axes..], result.row_max.as_ref()),
        ("scores", &pairs[4 - axes..], scores),
    ] {
        if let Some(numbers) = numbers {
            arrays.insert(name, array(shape, numbers));
        }
    }
    arrays::safetensors(&arrays)
}

/// The numbers in the order of the axes, where a layout has them elsewhere.
fn in_order(view: &View, numbers: &[f32]) -> Vec<f32> {
    let [batches, heads, rows, dims] = view.sizes();
    let mut all = Vec::with_capacity(view.elements() as usize);
    for (b, h) in (0..batches).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        for (i, d) in (0..rows).flat_map(|i| (0..dims).map(move |d| (i, d))) {
            all.push(numbers[view.index([b, h, i, d]) as usize]);
        }
    }
    all
}

pub(super) fn picture(path: &Path, map: &Heatmap, loaded: &Loaded, args: &Args) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|e| e == "png") {
        return map.png((800 / map.rows.max(map.columns).max(1)).max(1));
    }
    let title = format!("{}: head {} of batch {}", loaded.name, args.head, args.batch);
    let problem = &loaded.work.problem;
    let factor = problem.factor();
    let about = match problem.temperature {
        Temperature::Value(_) => format!("probabilities in float64, scale / temperature = {factor:.4}"),
        Temperature::PerRow => format!("probabilities in float64, scale {factor:.4}, temperatures per row"),
        _ => format!("probabilities in float64, scale {factor:.4}, temperatures per head"),
    };
    Ok(map.svg(&title, &about)?.into_bytes())
}

pub(super) fn check(
    truth: &Truth,
    result: &Outputs,
    scores: Option<(&Vec<f32>, &Vec<Bounded>)>,
    out: &mut impl Write,
) -> Result<ExitCode> {
    writeln!(out, "check against float64:")?;
    let mut wrong = Vec::new();
    for (name, pair) in [
        ("out", Some((&result.out, &truth.out))),
        ("lse", result.lse.as_ref().map(|got| (got, &truth.lse))),
        ("entropy", result.entropy.as_ref().map(|got| (got, &truth.entropy))),
        ("row_max", result.row_max.as_ref().map(|got| (got, &truth.row_max))),
        ("scores", scores),
    ] {
        let Some((got, want)) = pair else { continue };
        let c = reference::compare(got, want);
        let verdict = if c.passes() { "pass" } else { "FAIL" };
        writeln!(
            out,
            "  {name:8} max error {:.2e}, relative {:.2e}, {:.1}% of the error bound  {verdict}",
            c.max_abs,
            c.max_rel,
            c.worst * 100.0
        )?;
        if c.unspecified > 0 {
            let all = got.len();
            writeln!(
                out,
                "           {} of {all} have no true value (NaN in float64) and were not compared",
                c.unspecified
            )?;
        }
        if !c.passes() {
            let pair = got.get(c.at).zip(want.get(c.at));
            let numbers = pair.map(|(got, want)| format!(" (got {got:e}, expected {:e})", want.value));
            wrong.push(format!("{name} at element {}{}", c.at, numbers.unwrap_or_default()));
        }
    }
    match wrong.as_slice() {
        [] => Ok(ExitCode::SUCCESS),
        _ => Err(Fail::Wrong(format!("beyond the error bound of f32: {}", wrong.join(", ")))),
    }
}
