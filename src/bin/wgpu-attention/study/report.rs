//! What the JSON file holds: the run, and what each chapter measured.

use super::variance::Variance;
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
}
