//! Next-token logits of a real model, built into the program (made by `scripts/capture_logits.py`).

use crate::fail::{Fail, Result};
use safetensors::SafeTensors;
use serde::Deserialize;

const FILE: &[u8] = include_bytes!("logits.safetensors");

/// The logits of what comes after a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Logits {
    pub text: String,
    /// The best tokens: index and how it reads.
    pub top: Vec<(usize, String)>,
    pub values: Vec<f32>,
}

#[derive(Deserialize)]
struct Named {
    text: String,
    top: Vec<(usize, String)>,
}

/// All of them, and the model's name.
pub(super) fn read() -> Result<(String, Vec<Logits>)> {
    let broken = |e: &dyn std::fmt::Display| Fail::Wrong(format!("the built-in logits cannot be read: {e}"));
    let file = SafeTensors::deserialize(FILE).map_err(|e| broken(&e))?;
    let (_, header) = SafeTensors::read_metadata(FILE).map_err(|e| broken(&e))?;
    let meta = header.metadata().clone().unwrap_or_default();
    let named: Vec<Named> =
        serde_json::from_str(meta.get("rows").map_or("", String::as_str)).map_err(|e| broken(&e))?;
    let tensor = file.tensor("logits").map_err(|e| broken(&e))?;
    let length = tensor.shape().last().copied().unwrap_or(1).max(1);
    let halves = tensor.data().chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32());
    let values: Vec<f32> = halves.collect();
    let rows = named.into_iter().zip(values.chunks(length));
    let logits = rows.map(|(n, row)| Logits { text: n.text, top: n.top, values: row.to_vec() }).collect();
    Ok((meta.get("model").cloned().unwrap_or_default(), logits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_tokens_are_named_in_order() {
        let (model, logits) = read().unwrap();
        assert!(model.starts_with("SmolLM2"));
        assert_eq!(logits.len(), 2);
        for row in logits {
            assert_eq!(row.values.len(), 49152);
            let best = row.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(row.values[row.top[0].0], best);
            assert!(row.top.windows(2).all(|w| row.values[w[0].0] >= row.values[w[1].0]));
        }
    }
}
