//! What every experiment needs: a device, a seed, and a bar that moves.

use crate::fail::Result;
use crate::gpu::Gpu;
use indicatif::ProgressBar;
use wgpu_attention::{Inputs, Problem, ScoreStage};

#[derive(Debug)]
pub(super) struct Lab {
    pub gpu: Gpu,
    pub seed: u64,
    pub quick: bool,
    pub bar: ProgressBar,
}

impl Lab {
    /// Scores of one head as the GPU has them: (seq_q, seq_k).
    pub(super) fn scores(
        &self,
        problem: &Problem,
        inputs: &Inputs<'_>,
        stage: ScoreStage,
        [batch, head]: [u32; 2],
    ) -> Result<Vec<f32>> {
        let rows = 0..problem.shape.seq_q;
        Ok(self.gpu.attention.scores_blocking(
            &self.gpu.queue,
            problem,
            inputs,
            stage,
            [batch, head],
            rows,
        )?)
    }
}
