//! Numbers on a real adapter, every one of them against float64 within its own argued bound, and all of them through memory that
//! is poisoned and guarded (see `common`). One binary, so that tests share compiled variants.

#[path = "../common/mod.rs"]
mod common;

mod adaptive;
mod adversarial;
mod block_masks;
mod causal;
mod dense;
mod documents;
mod dropout;
mod empty;
mod entmax;
mod heads;
mod layouts;
mod leaks;
mod length_scales;
mod lengths;
mod matrix;
mod native_f16;
mod one_shot;
mod packed;
mod qk_norm;
mod rows;
mod scores;
mod shapes;
mod sharpness;
mod sigmoid;
mod slicing;
mod stats;
mod storage;
mod tiles;
mod top_k;
mod wide_words;
mod windows;
