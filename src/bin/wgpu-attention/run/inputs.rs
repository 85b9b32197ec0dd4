//! From files to a problem with its inputs.

use super::Args;
use crate::arrays::{self, Array, Kind, Tensors};
use crate::fail::{Fail, Result};
use crate::work::Work;
use std::path::Path;
use wgpu_attention::case::Case;
use wgpu_attention::{Alignment, Broadcast, Layout, OwnedInputs, Problem, Shape};

/// What the files hold.
pub(super) struct Loaded {
    pub work: Work,
    /// Axes of the tensors in the files; out gets as many.
    pub axes: usize,
    pub name: String,
    /// Where a case says that rows stand, for flags that make something count from there.
    pub positions: (Alignment, Option<Vec<i32>>),
    /// Texts of the keys, in one list or one for each batch.
    pub tokens: Vec<Vec<String>>,
}

pub(super) fn load(args: &Args) -> Result<Loaded> {
    let names = match args.names.as_deref() {
        None => ["q", "k", "v"],
        Some([q, k, v]) => [q, k, v].map(String::as_str),
        Some(names) => {
            return Err(Fail::usage(format!("--names has {} names, but expected are 3: Q,K,V", names.len())));
        }
    };
    if let Some(word) = args.files.iter().find(|path| Kind::of(path).is_err() && !path.exists()) {
        return Err(Fail::file(
            word,
            "is no .npy or .safetensors file (a value of a flag that may go without follows after =, as in --causal=top-left)",
        ));
    }
    let unused = |what| {
        Err(Fail::usage(format!("--names names the tensors of a .safetensors file, but given is {what}")))
    };
    let arrays = match args.files.as_slice() {
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
                if args.names.is_some() {
                    return unused("a case file");
                }
                return from_case(one, args);
            }
            let [q, k, v] = names.map(|name| tensors.get(one, name));
            [q?, k?, v?]
        }
        [q, k, v] => {
            if args.names.is_some() {
                return unused("three .npy files");
            }
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
    from_arrays(arrays, args)
}

fn from_case(path: &Path, args: &Args) -> Result<Loaded> {
    let case = Case::read(path)?;
    for (flag, given) in [
        ("--layout", args.layout.is_some()),
        ("--cu-seqlens-q", args.cu_seqlens_q.is_some()),
        ("--cu-seqlens-k", args.cu_seqlens_k.is_some()),
    ] {
        if given {
            return Err(Fail::file(
                path,
                format_args!("is a case file, which says that itself: leave out {flag}"),
            ));
        }
    }
    let Some(work) = case.work() else {
        let missing = case.missing().join(", ");
        return Err(Fail::file(path, format_args!("needs what this version cannot do: {missing}")));
    };
    if work.gradients().is_some() {
        return Err(Fail::file(path, "has gradients (dout), which `check` computes and `run` does not"));
    }
    let (alignment, offsets) = work.positions();
    let batches = 0..work.problem().shape.batch as usize;
    let mut tokens: Vec<_> = batches.filter_map(|b| case.tokens(b).map(<[_]>::to_vec)).collect();
    // One list for all comes back once for each batch.
    tokens.dedup();
    Ok(Loaded {
        work: Work { problem: work.problem().clone(), own: work.owned_inputs().clone() },
        axes: 4,
        name: case.name().to_owned(),
        positions: (alignment, offsets.map(<[_]>::to_vec)),
        tokens,
    })
}

fn from_arrays([q, k, v]: [Array; 3], args: &Args) -> Result<Loaded> {
    let layouts = args.layout.unwrap_or_default();
    let bshd = layouts.map(|layout| layout == Layout::Bshd);
    let axes = q.shape.len();
    let order = |bshd| if bshd { "(batch, seq, heads, head_dim)" } else { "(batch, heads, seq, head_dim)" };
    for (name, array, bshd) in [("q", &q, bshd[0]), ("k", &k, bshd[1]), ("v", &v, bshd[2])] {
        let order = order(bshd);
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
    let sizes = |name: &str, array: &Array, bshd: bool| -> Result<[u32; 4]> {
        let [b, x, y, d] = last_axes(&array.shape).ok_or_else(|| {
            Fail::usage(format!("{name} has shape {:?}, beyond 2^32 in an axis", array.shape))
        })?;
        Ok(if bshd { [b, y, x, d] } else { [b, x, y, d] })
    };
    let [q_batch, q_heads, q_rows, head_dim_qk] = sizes("q", &q, bshd[0])?;
    let [k_batch, kv_heads, k_rows, k_dim] = sizes("k", &k, bshd[1])?;
    let [v_batch, v_heads, v_seq, head_dim_v] = sizes("v", &v, bshd[2])?;
    let (batch, seq_q) = unpacked("q", q_batch, q_rows, args.cu_seqlens_q.as_deref())?;
    let (k_of, seq_k) = unpacked("k", k_batch, k_rows, args.cu_seqlens_k.as_deref())?;
    let shapes = format!("q {:?}, k {:?}, v {:?}", q.shape, k.shape, v.shape);
    for (name, got, rule, expected) in [
        ("the batch of k", k_of, "that of q", batch),
        ("the batch of v", v_batch, "that of k", k_batch),
        ("the head dim of k", k_dim, "that of q", head_dim_qk),
        ("the heads of v", v_heads, "those of k", kv_heads),
        ("the length of v", v_seq, "that of k", k_rows),
    ] {
        if got != expected {
            return Err(Fail::usage(format!(
                "shapes do not fit: {name}: {got}, but expected is {rule}: {expected}; found as {}: {shapes}",
                if bshd[..3] == [bshd[0]; 3] { order(bshd[0]) } else { "--layout says" }
            )));
        }
    }
    let shape = Shape { batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v };
    let [q_layout, k_layout, v_layout, out_layout] = layouts;
    let mut problem = Problem::new(shape).layouts(q_layout, k_layout, v_layout, out_layout);
    (problem.dtypes[0], problem.dtypes[1], problem.dtypes[2]) = (q.dtype, k.dtype, v.dtype);
    problem.packed_q = args.cu_seqlens_q.as_ref().map(|_| q_rows);
    problem.packed_k = args.cu_seqlens_k.as_ref().map(|_| k_rows);
    let mut own = OwnedInputs::new([q.numbers, k.numbers, v.numbers]);
    (own.cu_seqlens_q, own.cu_seqlens_k) = (args.cu_seqlens_q.clone(), args.cu_seqlens_k.clone());
    let work = Work { problem, own };
    let positions = (Alignment::default(), None);
    Ok(Loaded { work, axes, name: "saved".to_owned(), positions, tokens: Vec::new() })
}

/// Batch and length of what lies in a tensor: its own, or those of the sequences that are packed in it.
fn unpacked(name: &str, batch: u32, rows: u32, starts: Option<&[u32]>) -> Result<(u32, u32)> {
    let Some(starts) = starts else {
        return Ok((batch, rows));
    };
    if batch != 1 {
        return Err(Fail::usage(format!(
            "{name} has a batch of {batch}, but packed sequences are one batch"
        )));
    }
    let end = starts.last().copied().unwrap_or_default();
    if end != rows {
        return Err(Fail::usage(format!("--cu-seqlens-{name} ends at {end}, but {name} has {rows} rows")));
    }
    let longest = starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
    // As many as the command line holds.
    Ok((starts.len().saturating_sub(1) as u32, longest.unwrap_or(0)))
}

/// Sizes of up to four axes, counted from the last as numpy does.
fn last_axes(shape: &[usize]) -> Option<[u32; 4]> {
    let mut sizes = [1u32; 4];
    for (size, &n) in sizes.iter_mut().rev().zip(shape.iter().rev()) {
        *size = u32::try_from(n).ok()?;
    }
    (shape.len() <= 4).then_some(sizes)
}

/// Sizes of a dense input that broadcasts to (batch, q_heads, seq_q, seq_k).
pub(super) fn broadcast(path: &Path, shape: &[usize], problem: &Problem) -> Result<Broadcast> {
    let s = &problem.shape;
    let full = [s.batch, s.q_heads, s.seq_q, s.seq_k];
    match last_axes(shape) {
        Some(sizes) if sizes.iter().zip(full).all(|(&n, full)| n == full || n == 1) => Ok(Broadcast(sizes)),
        _ => Err(Fail::file(
            path,
            format_args!(
                "has shape {shape:?}, but expected is one that broadcasts to (batch, q_heads, seq_q, seq_k) = {full:?}"
            ),
        )),
    }
}

/// One number for each row, (batch, q_heads, seq_q), where the first axes may be left out if they are 1.
pub(super) fn per_row(path: &Path, problem: &Problem) -> Result<Vec<f32>> {
    let array = arrays::read_npy(path)?;
    let s = &problem.shape;
    let full = match problem.packed_q {
        Some(total) => [1, 1, s.q_heads, total],
        None => [1, s.batch, s.q_heads, s.seq_q],
    };
    if array.shape.len() > 3 || last_axes(&array.shape) != Some(full) {
        return Err(Fail::file(
            path,
            format_args!(
                "has shape {:?}, but expected is (batch, q_heads, seq_q) = {:?}",
                array.shape,
                &full[1..]
            ),
        ));
    }
    Ok(array.numbers)
}
