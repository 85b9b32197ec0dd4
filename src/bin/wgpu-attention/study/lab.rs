//! What every experiment needs: a device, a seed, and a bar that moves.

use crate::fail::Result;
use crate::gpu::Gpu;
use indicatif::ProgressBar;
use wgpu_attention::softmax::Softmax;
use wgpu_attention::{Inputs, Outputs, PlanOptions, Problem, ScoreStage};

#[derive(Debug)]
pub(super) struct Lab {
    pub gpu: Gpu,
    /// The operation by itself, on the same device.
    pub softmax: Softmax,
    pub options: PlanOptions,
    pub seed: u64,
    pub quick: bool,
    pub bar: ProgressBar,
}

/// What the fused pass says of each row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rows {
    pub lse: Vec<f32>,
    pub entropy: Vec<f32>,
    pub row_max: Vec<f32>,
}

impl Lab {
    /// The fused pass. The problem has to ask for all three statistics: those that it does not ask for are empty.
    pub(super) fn run(&self, problem: &Problem, inputs: &Inputs<'_>) -> Result<Rows> {
        let outputs = self.outputs(problem, inputs)?;
        Ok(Rows {
            lse: outputs.lse.unwrap_or_default(),
            entropy: outputs.entropy.unwrap_or_default(),
            row_max: outputs.row_max.unwrap_or_default(),
        })
    }

    /// The fused pass, with what it attended to.
    pub(super) fn outputs(&self, problem: &Problem, inputs: &Inputs<'_>) -> Result<Outputs> {
        let Gpu { attention, queue, .. } = &self.gpu;
        Ok(attention.run_with_blocking(queue, problem, inputs, &self.options)?)
    }

    /// Scores of one head, by the slow path: (seq_q, seq_k).
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
