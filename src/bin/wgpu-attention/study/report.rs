//! What the JSON file holds: the run, and what each chapter measured.

use super::chapter::Chapter;
use super::gradient::{self, Gradient};
use super::lab::Lab;
use super::scales::{self, Scales};
use super::smoothing::{self, Smoothing};
use super::temperature::{self, Temperatures};
use super::variance::{self, Variance};
use crate::fail::Result;
use serde::Serialize;

/// How the numbers came about.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub command: String,
    pub version: &'static str,
    pub adapter: String,
    pub driver: String,
    pub seed: u64,
    pub quick: bool,
}

impl Facts {
    pub(super) fn list(&self) -> Vec<(&'static str, String)> {
        vec![
            ("made by", self.command.clone()),
            ("wgpu-attention", self.version.to_owned()),
            ("adapter", self.adapter.clone()),
            ("driver", self.driver.clone()),
            ("seed", self.seed.to_string()),
        ]
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub facts: Facts,
    pub variance: Variance,
    pub scales: Scales,
    pub temperature: Temperatures,
    pub smoothing: Smoothing,
    pub gradient: Gradient,
}

/// Steps of the progress bar.
pub(super) const STEPS: usize =
    variance::STEPS + scales::STEPS + temperature::STEPS + smoothing::STEPS + gradient::STEPS;

impl Report {
    /// Everything, with the user's own scale beside the known ones.
    pub(super) fn measure(lab: &Lab, facts: Facts, scale: Option<f32>) -> Result<Report> {
        Ok(Report {
            facts,
            variance: variance::measure(lab)?,
            scales: scales::measure(lab, scale)?,
            temperature: temperature::measure(lab)?,
            smoothing: smoothing::measure(lab)?,
            gradient: gradient::measure(lab)?,
        })
    }

    pub(super) fn chapters(&self) -> Vec<Chapter> {
        vec![
            self.variance.chapter(),
            self.scales.chapter(),
            self.temperature.chapter(),
            self.smoothing.chapter(),
            self.gradient.chapter(),
        ]
    }
}
