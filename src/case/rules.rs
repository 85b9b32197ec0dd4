//! Which tensors a case may have, with which shape and dtype. All checked before anything is computed.

use super::array::Array;
use super::error::CaseError;
use super::header::{Header, Op};
use crate::shape::Shape;
use crate::sharpness::LengthScale;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;

type Arrays = BTreeMap<String, Array>;

const ATTENTION: &[&str] = &[
    "q",
    "k",
    "v",
    "out",
    "bias",
    "mask",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "documents_q",
    "documents_k",
    "q_len",
    "kv_len",
    "causal_offset",
    "alibi_slopes",
    "sinks",
    "temperature_per_head",
    "temperature_per_row",
    "ssmax",
    "user",
    "q_gain",
    "k_gain",
    "lse",
    "entropy",
    "scores",
    "dout",
    "dq",
    "dk",
    "dv",
    "dbias",
    "dsinks",
    "dtemperature_per_head",
    "dtemperature",
];
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];
const F32: &[Dtype] = &[Dtype::F32];

/// Checks the tensors of a softmax: x and out, of one shape.
pub(super) fn softmax(header: &Header, arrays: &Arrays) -> Result<(), CaseError> {
    known(header.op, arrays, &["x", "out"])?;
    let x = required(arrays, "x", "softmax is taken of it")?;
    let out = required(arrays, "out", "there is nothing to compare with")?;
    dtype("x", x, F32)?;
    dtype("out", out, F32)?;
    if x.shape.is_empty() {
        return Err(shape_error("x", x, "at least one axis".to_owned()));
    }
    exact("out", out, &x.shape)
}

/// Checks the tensors of an attention, and finds its shape.
pub(super) fn attention(header: &Header, arrays: &Arrays) -> Result<Shape, CaseError> {
    known(Op::Attention, arrays, ATTENTION)?;
    let needed = "attention reads it";
    let [q, k, v] =
        [required(arrays, "q", needed)?, required(arrays, "k", needed)?, required(arrays, "v", needed)?];
    required(arrays, "out", "there is nothing to compare with")?;
    dtype("q", q, FLOATS)?;

    let [q_batch, hq, q_rows, d] = sizes("q", q, header.bshd)?;
    let [k_batch, hkv, k_rows, kd] = sizes("k", k, header.bshd)?;
    let [_, _, _, dv] = sizes("v", v, header.bshd)?;
    let (b, sq) = unpacked(arrays, "q", "cu_seqlens_q", [q_batch, q_rows])?;
    let (kb, sk) = unpacked(arrays, "k", "cu_seqlens_k", [k_batch, k_rows])?;
    if (kb, kd) != (b, d) {
        return Err(shape_error("k", k, format!("batch {b} and head dim {d} as q has them ({:?})", q.shape)));
    }
    let order = |b, h, s, d| if header.bshd { vec![b, s, h, d] } else { vec![b, h, s, d] };
    let q_shape = order(q_batch, hq, q_rows, d);
    let (k_shape, v_shape) = (order(k_batch, hkv, k_rows, d), order(k_batch, hkv, k_rows, dv));
    let out_shape = order(q_batch, hq, q_rows, dv);
    let rows = vec![q_batch, hq, q_rows];
    let scores = [b, hq, sq, sk];

    for (name, array) in arrays {
        let name = name.as_str();
        let input_of = |name: &str| arrays.get(name).map(|a| a.shape.clone()).unwrap_or_default();
        let (types, shape): (&[Dtype], Vec<usize>) = match name {
            "q" => continue,
            "k" => (FLOATS, k_shape.clone()),
            "v" => (FLOATS, v_shape.clone()),
            "out" => (FLOATS, out_shape.clone()),
            "q_gain" | "k_gain" => {
                let heads = if name == "q_gain" { hq } else { hkv };
                if array.shape.len() == 1 { (F32, vec![d]) } else { (F32, vec![heads, d]) }
            }
            "bias" | "mask" => {
                dtype(name, array, if name == "mask" { &[Dtype::U8] } else { FLOATS })?;
                broadcasts(name, array, scores)?;
                continue;
            }
            // Were read to find the batch.
            "cu_seqlens_q" | "cu_seqlens_k" => continue,
            "documents_q" => (&[Dtype::I32], vec![q_batch, q_rows]),
            "documents_k" => (&[Dtype::I32], vec![k_batch, k_rows]),
            "q_len" | "kv_len" | "causal_offset" => (&[Dtype::I32], vec![b]),
            "user" => {
                dtype(name, array, &[Dtype::U32])?;
                if array.shape.len() != 1 {
                    return Err(shape_error(name, array, "(numbers)".to_owned()));
                }
                continue;
            }
            "alibi_slopes"
            | "sinks"
            | "ssmax"
            | "temperature_per_head"
            | "dsinks"
            | "dtemperature_per_head" => (F32, vec![hq]),
            "lse" | "entropy" | "temperature_per_row" => (F32, rows.clone()),
            "scores" => (FLOATS, scores.to_vec()),
            "dout" => (F32, out_shape.clone()),
            "dq" => (F32, q_shape.clone()),
            "dk" => (F32, k_shape.clone()),
            "dv" => (F32, v_shape.clone()),
            "dbias" => (F32, input_of("bias")),
            // "dtemperature", the last of the list.
            _ => (F32, vec![1]),
        };
        dtype(name, array, types)?;
        exact(name, array, &shape)?;
    }
    together(header, arrays)?;
    mask_values(arrays)?;
    counts(arrays, "q_len", sq, "from 0 to the number of queries")?;
    counts(arrays, "kv_len", sk, "from 0 to the number of keys")?;
    token_counts(header, b, sk)?;
    let shape = Shape::from_sizes([b, hq, hkv, sq, sk, d, dv])?;
    shape.check()?;
    Ok(shape)
}

impl Shape {
    /// Sizes in the order batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v.
    fn from_sizes(sizes: [usize; 7]) -> Result<Shape, CaseError> {
        let mut small = [0u32; 7];
        for (small, size) in small.iter_mut().zip(sizes) {
            *small = u32::try_from(size)
                .map_err(|_| crate::Error::value("a size", size, "below 2^32 in every axis"))?;
        }
        let [batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v] = small;
        Ok(Shape { batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v })
    }
}

/// Tensors and keys that only make sense with each other.
fn together(header: &Header, arrays: &Arrays) -> Result<(), CaseError> {
    let has = |name: &str| arrays.contains_key(name);
    let why = "dout is there, so the gradients of q, k and v are expected";
    for tensor in ["dq", "dk", "dv"] {
        if has("dout") && !has(tensor) {
            return Err(CaseError::MissingTensor { tensor, why });
        }
    }
    let gradients = ["dq", "dk", "dv", "dbias", "dsinks", "dtemperature_per_head", "dtemperature"];
    let needs = [
        (gradients.iter().any(|g| has(g)), "dout", "a gradient is expected, and it starts from dout"),
        (has("dbias"), "bias", "its gradient dbias is expected"),
        (has("dsinks"), "sinks", "their gradient dsinks is expected"),
        (
            has("dtemperature_per_head"),
            "temperature_per_head",
            "its gradient dtemperature_per_head is expected",
        ),
        (has("k_gain"), "q_gain", "k_gain is there, and q and k have gains together"),
        (has("q_gain"), "k_gain", "q_gain is there, and q and k have gains together"),
        (header.length_scale == LengthScale::Ssmax, "ssmax", "the key \"length_scale\" asks for it"),
        (header.scores.is_some(), "scores", "the key \"scores\" says what it holds"),
    ];
    for (needed, tensor, why) in needs {
        if needed && !has(tensor) {
            return Err(CaseError::MissingTensor { tensor, why });
        }
    }
    let mods = header.score_mod.is_some() || header.mask_mod.is_some();
    for (has, one, other, other_is_there) in [
        (
            has("temperature_per_row"),
            "the tensor \"temperature_per_row\"",
            "the tensor \"temperature_per_head\"",
            has("temperature_per_head"),
        ),
        (
            header.strides.iter().any(Option::is_some),
            "the key \"strides\"",
            "the layout \"bshd\"",
            header.bshd,
        ),
        (
            header.strides.iter().any(Option::is_some) || mods,
            "strides or user code",
            "gradients",
            has("dout"),
        ),
    ] {
        if has && other_is_there {
            return Err(CaseError::Both(one, other));
        }
    }
    for (there, key, needs) in [
        (has("ssmax"), "length_scale", header.length_scale == LengthScale::Ssmax),
        (has("user"), "score_mod", mods),
        (header.mask_bits, "mask", has("mask")),
    ] {
        if there && !needs {
            return Err(match key {
                "mask" => CaseError::MissingTensor {
                    tensor: key,
                    why: "the key \"mask_bits\" says how it is stored",
                },
                _ => CaseError::MissingKey(key),
            });
        }
    }
    if has("scores") && header.scores.is_none() {
        return Err(CaseError::MissingKey("scores"));
    }
    for (one, other) in [("documents_q", "documents_k"), ("documents_k", "documents_q")] {
        if has(one) && !has(other) {
            let why = "documents of queries and keys are compared with each other";
            return Err(CaseError::MissingTensor { tensor: other, why });
        }
    }
    for starts in ["cu_seqlens_q", "cu_seqlens_k"] {
        if has(starts) && has("scores") {
            return Err(CaseError::Both("packed sequences", "the tensor \"scores\""));
        }
        if has(starts) && !header.tokens.is_empty() {
            return Err(CaseError::Both("packed sequences", "the key \"tokens\""));
        }
    }
    if has("q_gain") && header.qk_norm.is_none() {
        return Err(CaseError::MissingKey("qk_norm"));
    }
    if let (Some(q), Some(k)) = (arrays.get("q_gain"), arrays.get("k_gain"))
        && q.shape.len() != k.shape.len()
    {
        return Err(shape_error("k_gain", k, format!("as many axes as q_gain has ({:?})", q.shape)));
    }
    if has("causal_offset") && header.causal_offset.is_some() {
        return Err(CaseError::Both("the key \"causal_offset\"", "the tensor \"causal_offset\""));
    }
    Ok(())
}

fn mask_values(arrays: &Arrays) -> Result<(), CaseError> {
    let mask = arrays.get("mask").map(|m| m.bytes.as_slice()).unwrap_or_default();
    match mask.iter().position(|&x| x > 1) {
        None => Ok(()),
        Some(at) => {
            Err(CaseError::Element { tensor: "mask", found: mask[at].to_string(), at, expected: "0 or 1" })
        }
    }
}

/// Batch and longest length of what lies in a tensor: its own, or those of the sequences that are packed in it.
fn unpacked(
    arrays: &Arrays,
    tensor: &'static str,
    starts: &'static str,
    [batch, rows]: [usize; 2],
) -> Result<(usize, usize), CaseError> {
    let Some(array) = arrays.get(starts) else {
        return Ok((batch, rows));
    };
    dtype(starts, array, &[Dtype::I32])?;
    if array.shape.len() != 1 || array.shape == [0] {
        return Err(shape_error(starts, array, "(batch + 1)".to_owned()));
    }
    if batch != 1 {
        return Err(CaseError::Shape {
            tensor: tensor.to_owned(),
            found: arrays.get(tensor).map(|a| a.shape.clone()).unwrap_or_default(),
            expected: format!("a batch of 1, because {starts} is there"),
        });
    }
    let sums = array.to_i32();
    let expected = "prefix sums of lengths, from 0 to the rows of the tensor";
    let wrong =
        |at: usize| Err(CaseError::Element { tensor: starts, found: sums[at].to_string(), at, expected });
    if sums[0] != 0 {
        return wrong(0);
    }
    if let Some(at) = sums.windows(2).position(|pair| pair[1] < pair[0]) {
        return wrong(at + 1);
    }
    if usize::try_from(sums[sums.len() - 1]) != Ok(rows) {
        return wrong(sums.len() - 1);
    }
    // None is negative, because they grow from 0.
    let longest = sums.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0);
    Ok((sums.len() - 1, longest))
}

fn counts(
    arrays: &Arrays,
    tensor: &'static str,
    most: usize,
    expected: &'static str,
) -> Result<(), CaseError> {
    let counts = arrays.get(tensor).map(Array::to_i32).unwrap_or_default();
    let fits = |n: &i32| usize::try_from(*n).is_ok_and(|n| n <= most);
    match counts.iter().position(|n| !fits(n)) {
        None => Ok(()),
        Some(at) => Err(CaseError::Element { tensor, found: counts[at].to_string(), at, expected }),
    }
}

fn token_counts(header: &Header, batch: usize, seq_k: usize) -> Result<(), CaseError> {
    let lists = &header.tokens;
    if !lists.is_empty()
        && ((lists.len() != 1 && lists.len() != batch) || lists.iter().any(|l| l.len() != seq_k))
    {
        let lengths: Vec<_> = lists.iter().map(Vec::len).collect();
        return Err(CaseError::Key {
            key: "tokens",
            found: format!("lists of {lengths:?} texts"),
            expected: "one text for each key, in one list or in one for each batch",
        });
    }
    Ok(())
}

fn known(op: Op, arrays: &Arrays, names: &[&'static str]) -> Result<(), CaseError> {
    match arrays.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            Err(CaseError::UnknownTensor { tensor: name.clone(), op: op.name(), known: names.join(", ") })
        }
    }
}

fn required<'a>(arrays: &'a Arrays, tensor: &'static str, why: &'static str) -> Result<&'a Array, CaseError> {
    arrays.get(tensor).ok_or(CaseError::MissingTensor { tensor, why })
}

/// (batch, heads, seq, dim) of a tensor in either layout.
fn sizes(tensor: &str, array: &Array, bshd: bool) -> Result<[usize; 4], CaseError> {
    match (array.shape.as_slice(), bshd) {
        (&[b, h, s, d], false) | (&[b, s, h, d], true) => Ok([b, h, s, d]),
        (_, false) => Err(shape_error(tensor, array, "(batch, heads, seq, head_dim)".to_owned())),
        (_, true) => Err(shape_error(tensor, array, "(batch, seq, heads, head_dim)".to_owned())),
    }
}

fn shape_error(tensor: &str, array: &Array, expected: String) -> CaseError {
    CaseError::Shape { tensor: tensor.to_owned(), found: array.shape.clone(), expected }
}

fn exact(tensor: &str, array: &Array, shape: &[usize]) -> Result<(), CaseError> {
    if array.shape == shape { Ok(()) } else { Err(shape_error(tensor, array, format!("{shape:?}"))) }
}

fn broadcasts(tensor: &str, array: &Array, to: [usize; 4]) -> Result<(), CaseError> {
    let fits = array.shape.len() <= 4
        && array.shape.iter().rev().zip(to.iter().rev()).all(|(&n, &to)| n == 1 || n == to);
    if fits { Ok(()) } else { Err(shape_error(tensor, array, format!("one that broadcasts to {to:?}"))) }
}

fn dtype(tensor: &str, array: &Array, allowed: &[Dtype]) -> Result<(), CaseError> {
    if allowed.contains(&array.dtype) {
        return Ok(());
    }
    let mut names: Vec<_> = allowed.iter().map(|d| format!("{d:?}")).collect();
    names.dedup();
    Err(CaseError::Dtype {
        tensor: tensor.to_owned(),
        found: format!("{:?}", array.dtype),
        expected: names.join(" or "),
    })
}
