//! Attention of real models, built into the program.

use crate::fail::Result;
use wgpu_attention::case::Case;

/// q, k and v as they were in a real model on real text.
#[derive(Debug)]
pub(crate) struct Capture {
    pub model: &'static str,
    pub layer: &'static str,
    pub about: &'static str,
    /// The batch that pages show.
    pub batch: u32,
    file: &'static [u8],
}

macro_rules! shipped {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/", $name, ".safetensors"))
    };
}

pub(crate) const CAPTURES: [Capture; 3] = [
    Capture {
        model: "SmolLM2-135M-Instruct",
        layer: "layer 12",
        about: "A language model: causal, grouped-query (3 query heads read one key/value head), head dim 64.",
        batch: 0,
        file: shipped!("real_smollm2_layer12"),
    },
    Capture {
        model: "SmolLM2-135M-Instruct",
        layer: "layer 0",
        about: "The same model's first layer. A label n=m says that position n holds the same token as position m.",
        batch: 0,
        file: shipped!("real_smollm2_layer0"),
    },
    Capture {
        model: "all-MiniLM-L6-v2",
        layer: "layer 0",
        about: "A sentence encoder: every token sees every valid token of its batch, head dim 32.",
        batch: 1,
        file: shipped!("real_minilm_layer0"),
    },
];

impl Capture {
    pub(crate) fn title(&self) -> String {
        format!("{}, {}", self.model, self.layer)
    }

    pub(crate) fn case(&self) -> Result<Case> {
        Ok(Case::from_bytes(self.file)?)
    }
}
