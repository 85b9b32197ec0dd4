//! What is measured: shapes on the command line and presets.

use wgpu_attention::{Alignment, DType, Problem, Shape, Window};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// The page for browsers has these presets, too, and no command line.
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub(crate) enum Preset {
    /// A few sizes, some seconds on a graphics card
    Quick,
    /// Layers of BERT, GPT-2, GPT-3, Llama 3, Gemma 2, Whisper and ViT
    Models,
    /// Sequence lengths from 128 to 4096 by head dims from 32 to 256
    Sweep,
    /// Softmax and sampling, not attention
    Operations,
}

/// A problem to be measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    /// Whose problem it is; empty for none's.
    pub name: String,
    pub problem: Problem,
}

impl Item {
    fn new(name: &str, [b, hq, hkv, sq, sk, d]: [u32; 6], causal: bool) -> Self {
        Item { name: name.to_owned(), problem: problem([b, hq, hkv, sq, sk, d], causal) }
    }
}

fn problem([batch, q_heads, kv_heads, seq_q, seq_k, dim]: [u32; 6], causal: bool) -> Problem {
    let shape = Shape { batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk: dim, head_dim_v: dim };
    let problem = Problem::new(shape);
    if causal { problem.causal(Alignment::BottomRight) } else { problem }
}

/// `--shape B,Hq,Hkv,Sq,Sk,D[,1]`: the last for a causal mask, whose last query sees the last key.
pub(crate) fn shape(text: &str) -> Result<Item, String> {
    let rule = "expected is B,Hq,Hkv,Sq,Sk,D, or with ,1 at the end for causal";
    let numbers: Vec<u32> =
        text.split(',').map(|n| n.trim().parse().map_err(|_| rule.to_owned())).collect::<Result<_, _>>()?;
    let (shape, causal) = match numbers.as_slice() {
        &[b, hq, hkv, sq, sk, d] | &[b, hq, hkv, sq, sk, d, 0] => ([b, hq, hkv, sq, sk, d], false),
        &[b, hq, hkv, sq, sk, d, 1] => ([b, hq, hkv, sq, sk, d], true),
        _ => return Err(rule.to_owned()),
    };
    let item = Item::new("", shape, causal);
    item.problem.check().map_err(|e| e.to_string())?;
    if item.problem.shape.is_empty() || item.problem.shape.seq_k == 0 {
        return Err("a size of 0 leaves nothing to measure".to_owned());
    }
    Ok(item)
}

impl Preset {
    pub(crate) fn items(self) -> Vec<Item> {
        match self {
            Preset::Quick => [
                ([1, 4, 4, 512, 512, 64], false),
                ([1, 4, 4, 512, 512, 64], true),
                ([1, 4, 4, 1024, 1024, 64], false),
                ([1, 4, 4, 1024, 1024, 64], true),
                ([1, 4, 4, 512, 512, 128], false),
                ([1, 8, 2, 1, 1024, 64], true),
            ]
            .into_iter()
            .map(|(shape, causal)| Item::new("", shape, causal))
            .collect(),
            Preset::Models => models(),
            Preset::Sweep => sweep(),
            // No attention among them: operations.rs has them.
            Preset::Operations => Vec::new(),
        }
    }
}

/// One layer each, as its authors describe it.
fn models() -> Vec<Item> {
    let mut gemma_local = Item::new("Gemma 2 9B, local layer", [1, 16, 8, 8192, 8192, 256], true);
    // Layers take turns: every second one sees the last 4096 keys. All cap their scores at 50 (arXiv 2408.00118).
    gemma_local.problem = gemma_local.problem.window(Window::last(4096)).softcap(50.0);
    let mut gemma = Item::new("Gemma 2 9B, global layer", [1, 16, 8, 8192, 8192, 256], true);
    gemma.problem = gemma.problem.softcap(50.0);
    vec![
        Item::new("ViT-B/16, 224 pixels", [1, 12, 12, 197, 197, 64], false),
        Item::new("BERT-base", [1, 12, 12, 512, 512, 64], false),
        Item::new("GPT-2, prompt", [1, 12, 12, 1024, 1024, 64], true),
        Item::new("GPT-2, a token", [1, 12, 12, 1, 1024, 64], true),
        Item::new("Whisper small, encoder", [1, 12, 12, 1500, 1500, 64], false),
        Item::new("Whisper small, cross-attention of a token", [1, 12, 12, 1, 1500, 64], false),
        Item::new("Llama 3 8B, prompt", [1, 32, 8, 2048, 2048, 128], true),
        Item::new("Llama 3 8B, a token", [1, 32, 8, 1, 8192, 128], true),
        Item::new("GPT-3 175B, prompt", [1, 96, 96, 2048, 2048, 128], true),
        Item::new("GPT-3 175B, a token", [1, 96, 96, 1, 2048, 128], true),
        gemma_local,
        gemma,
    ]
}

fn sweep() -> Vec<Item> {
    let mut items = Vec::new();
    for seq in [128, 256, 512, 1024, 2048, 4096] {
        for dim in [32, 64, 128, 256] {
            for causal in [false, true] {
                items.push(Item::new("", [1, 4, 4, seq, seq, dim], causal));
            }
        }
    }
    items
}

/// With another storage for all four tensors.
pub(crate) fn with_dtype(items: Vec<Item>, dtype: DType) -> Vec<Item> {
    items.into_iter().map(|item| Item { problem: item.problem.dtype(dtype), ..item }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_of_a_preset_is_a_problem_with_work_in_it() {
        for preset in [Preset::Quick, Preset::Models, Preset::Sweep] {
            let items = preset.items();
            assert!(items.len() >= 6);
            for item in items {
                assert_eq!(item.problem.check(), Ok(()), "{}", item.name);
                assert!(item.problem.flops() > 0);
            }
        }
    }

    #[test]
    fn shapes_are_read_as_the_peer_reads_them() {
        let item = shape("2,8,4,16,32,64,1").unwrap();
        let s = item.problem.shape;
        assert_eq!((s.batch, s.q_heads, s.kv_heads, s.seq_q, s.seq_k), (2, 8, 4, 16, 32));
        assert_eq!((s.head_dim_qk, s.head_dim_v, item.problem.causal), (64, 64, true));
        // pairs = min(SK, SK - SQ + i + 1) over the rows: 17 to 32.
        assert_eq!(item.problem.visible_pairs(), 2 * 8 * (17..=32).sum::<u64>());
        assert!(!shape("1,1,1,2,2,4,0").unwrap().problem.causal);
        for wrong in
            ["", "1,2,3", "1,1,1,2,2,4,2", "1,3,2,4,4,8", "1,1,1,2,2,x", "0,1,1,2,2,4", "1,1,1,2,0,4"]
        {
            assert!(shape(wrong).is_err(), "{wrong}");
        }
    }
}
