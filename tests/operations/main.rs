//! The operations beside attention, on a device, against float64 and its bounds.

#[path = "../common/mod.rs"]
mod common;

mod bug_reports;
mod sampling;
mod sampling_distribution;
mod shaders;
mod softmax;
mod softmax_backward;
mod sources;
