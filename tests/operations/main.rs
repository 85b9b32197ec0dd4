//! The operations beside attention, on a device, against float64 and its bounds.

#[path = "../common/mod.rs"]
mod common;

mod shaders;
mod softmax;
mod softmax_backward;
mod sources;
