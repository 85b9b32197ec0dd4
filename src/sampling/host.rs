//! The one-shot call: host slices in, tokens out.

use super::chain::Chain;
use super::plan::{Caller, Plan};
use super::problem::{Problem, Seed};
use super::{Buffers, Sampler};
use crate::error::{Error, Result};
use crate::plan::tables::present;

/// Host inputs of a problem.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Inputs<'a> {
    /// A row of logits for each sequence, `Problem::stride` apart.
    pub logits: &'a [f32],
    /// A seed for each row.
    pub seeds: &'a [Seed],
    /// A chain for each row, with the steps of the problem's and other numbers.
    pub chains: Option<&'a [Chain]>,
    /// (rows, `Problem::history`): tokens, `u32::MAX` where there is none.
    pub history: Option<&'a [u32]>,
    /// (rows, `Problem::bias`): a token, `u32::MAX` where there is none, and its bias: finite, or -inf.
    pub bias: Option<&'a [(u32, f32)]>,
    /// (rows, [`Problem::allowed_words`]): a bit for each token, the lowest first.
    pub allowed: Option<&'a [u32]>,
}

impl<'a> Inputs<'a> {
    /// Without what only some chains need.
    pub fn new(logits: &'a [f32], seeds: &'a [Seed]) -> Self {
        Inputs { logits, seeds, chains: None, history: None, bias: None, allowed: None }
    }

    /// With a chain for each row.
    pub fn chains(mut self, chains: &'a [Chain]) -> Self {
        self.chains = Some(chains);
        self
    }

    /// With histories.
    pub fn history(mut self, history: &'a [u32]) -> Self {
        self.history = Some(history);
        self
    }

    /// With biases.
    pub fn bias(mut self, bias: &'a [(u32, f32)]) -> Self {
        self.bias = Some(bias);
        self
    }

    /// With masks of allowed tokens.
    pub fn allowed(mut self, allowed: &'a [u32]) -> Self {
        self.allowed = Some(allowed);
        self
    }

    /// Checks lengths and values against a problem.
    ///
    /// # Errors
    /// What [`Problem::check`] finds, [`Error::Length`], [`Error::Missing`], [`Error::Unused`] or [`Error::Value`].
    pub fn check(&self, problem: &Problem) -> Result<()> {
        problem.check()?;
        let rows = u64::from(problem.rows);
        let (got, expected) = (self.logits.len() as u64, problem.extent(problem.rows));
        // Rows that lie apart may lie in a longer slice, others are exactly their elements.
        let packed = problem.stride == u64::from(problem.vocab);
        if got < expected || (packed && got != expected) {
            return Err(Error::Length { field: "logits", got, expected });
        }
        let each = |words: u32| (words > 0).then_some(rows * u64::from(words));
        let masks = if problem.chain.has("allowed") { problem.allowed_words() } else { 0 };
        let needs = |name| ("the chain has a step that reads it", name);
        present(
            "history",
            self.history.map(<[u32]>::len),
            each(problem.history),
            needs("ask for it with Problem::with_history"),
        )?;
        present(
            "bias",
            self.bias.map(<[(u32, f32)]>::len),
            each(problem.bias),
            needs("ask for it with Problem::with_bias"),
        )?;
        let biases = self.bias.unwrap_or_default();
        if let Some((_, bias)) = biases.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            return Err(Error::value("bias", bias, "a finite number, or -inf to rule a token out"));
        }
        present("allowed", self.allowed.map(<[u32]>::len), each(masks), needs("add Chain::allowed"))
    }
}

/// Host results.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draws {
    /// A token for each row; `None` where every token was out.
    pub tokens: Vec<Option<u32>>,
    /// The log-probability of each token in the distribution that it was drawn from, where asked for; -inf where there is none.
    pub log_probs: Option<Vec<f32>>,
}

impl Sampler {
    /// Draws tokens from host slices: plans, compiles what is not compiled yet, makes its buffers, uploads, **submits to `queue`** and reads
    /// the tokens back. A loop, whose logits are on the device, is better off with [`Sampler::prepare`].
    ///
    /// # Errors
    /// What [`Inputs::check`], [`Plan::new`], [`Plan::settings`] and [`Sampler::prepare`] find; [`Error::OutOfMemory`],
    /// [`Error::DeviceLost`].
    pub async fn run(&self, queue: &wgpu::Queue, problem: &Problem, inputs: &Inputs<'_>) -> Result<Draws> {
        self.run_plan(queue, &self.plan(problem)?, inputs).await
    }

    /// [`Sampler::run`] for a plan made before.
    ///
    /// # Errors
    /// As [`Sampler::run`].
    pub async fn run_plan(&self, queue: &wgpu::Queue, plan: &Plan, inputs: &Inputs<'_>) -> Result<Draws> {
        let problem = plan.problem();
        inputs.check(problem)?;
        let words = plan.settings(inputs.seeds, inputs.chains)?;
        let prepared = self.prepare(plan).await?;
        let pairs: Vec<[u32; 2]> =
            inputs.bias.unwrap_or_default().iter().map(|&(token, bias)| [token, bias.to_bits()]).collect();
        let logits = self.upload("logits", &problem.dtype.encode(inputs.logits)).await?;
        let settings = self.upload("settings", &words).await?;
        let history = self.upload("history", inputs.history.unwrap_or_default()).await?;
        let bias = self.upload("bias", &pairs).await?;
        let allowed = self.upload("allowed", inputs.allowed.unwrap_or_default()).await?;
        let out = self.result("out", plan.out_bytes()).await?;
        let mut buffers = Buffers::new(&logits, &settings, &out);
        for (role, buffer) in
            [(Caller::History, &history), (Caller::Bias, &bias), (Caller::Allowed, &allowed)]
        {
            if plan.has(role) {
                buffers.roles[role as usize] = Some(buffer.into());
            }
        }
        let bound = prepared.bind(&buffers)?;
        let results = self.submit(queue, &bound, &[(&out, plan.out_bytes())]).await?;
        let (tokens, log_probs) = results[0].split_at(problem.rows as usize);
        Ok(Draws {
            tokens: tokens.iter().map(|&token| (token != u32::MAX).then_some(token)).collect(),
            log_probs: problem.log_probs.then(|| log_probs.iter().map(|&w| f32::from_bits(w)).collect()),
        })
    }

    /// [`Sampler::run`] for code that is not async: waits for the device.
    ///
    /// # Errors
    /// As [`Sampler::run`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_blocking(&self, queue: &wgpu::Queue, problem: &Problem, inputs: &Inputs<'_>) -> Result<Draws> {
        pollster::block_on(self.run(queue, problem, inputs))
    }
}
