//! The one-shot calls: host slices in, host vectors out.

use super::plan::{Plan, Stat};
use super::problem::{Problem, RowLayout, RowTemperature};
use super::{Buffers, Softmax};
use crate::error::{Error, Result};
use crate::plan::tables::present;

/// Host inputs of a problem.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Inputs<'a> {
    /// The numbers, in `Problem::x_layout`.
    pub x: &'a [f32],
    /// A temperature for each row, for [`RowTemperature::PerRow`]: normal numbers above 0.
    pub temperature: Option<&'a [f32]>,
}

impl<'a> Inputs<'a> {
    /// Without temperatures.
    pub fn new(x: &'a [f32]) -> Self {
        Inputs { x, temperature: None }
    }

    /// With a temperature for each row.
    pub fn temperature(mut self, temperature: &'a [f32]) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Checks lengths and values against a problem.
    ///
    /// # Errors
    /// What [`Problem::check`] finds, [`Error::Length`], [`Error::Missing`], [`Error::Unused`] or [`Error::Value`].
    pub fn check(&self, problem: &Problem) -> Result<()> {
        problem.check()?;
        check_length("x", self.x, problem, &problem.x_layout)?;
        check_temperature(self.temperature, problem)
    }
}

/// A strided tensor may lie in a longer slice, one without gaps is exactly its elements.
fn check_length(field: &'static str, slice: &[f32], problem: &Problem, layout: &RowLayout) -> Result<()> {
    let (got, expected) = (slice.len() as u64, problem.extent(layout));
    let packed = expected == problem.row_count() * u64::from(problem.len);
    if got < expected || (packed && got != expected) {
        return Err(Error::Length { field, got, expected });
    }
    Ok(())
}

fn check_temperature(temperature: Option<&[f32]>, problem: &Problem) -> Result<()> {
    let per_row = problem.temperature == RowTemperature::PerRow;
    present(
        "temperature",
        temperature.map(<[f32]>::len),
        per_row.then(|| problem.row_count()),
        ("RowTemperature::PerRow", "ask for it with RowTemperature::PerRow"),
    )?;
    match temperature.unwrap_or_default().iter().find(|tau| !(tau.is_normal() && **tau > 0.0)) {
        Some(tau) => Err(Error::value("temperature", tau, "a normal number above 0 in every row")),
        None => Ok(()),
    }
}

/// Host results of a problem.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outputs {
    /// The result, in `Problem::out_layout`; places that it leaves out are 0, or as in x where it took the place of x.
    pub out: Vec<f32>,
    /// One for each row, where asked for.
    pub lse: Option<Vec<f32>>,
    /// One for each row, where asked for.
    pub entropy: Option<Vec<f32>>,
    /// One for each row, where asked for.
    pub argmax: Option<Vec<u32>>,
}

/// Host gradients of a problem.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gradients {
    /// Of x, in `Problem::x_layout`; places that it leaves out are 0.
    pub dx: Vec<f32>,
    /// (rows), where asked for: of each row's temperature. Where one temperature is that of all rows, the sum of these numbers is its
    /// gradient.
    pub d_temperature: Option<Vec<f32>>,
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&w| f32::from_bits(w)).collect()
}

impl Softmax {
    /// Computes a problem on host slices: plans, compiles what is not compiled yet, makes its buffers, uploads, **submits to `queue`** and
    /// reads back. A loop is better off with [`Softmax::prepare`].
    ///
    /// # Errors
    /// What [`Inputs::check`], [`Plan::new`] and [`Softmax::prepare`] find; [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn run(&self, queue: &wgpu::Queue, problem: &Problem, inputs: &Inputs<'_>) -> Result<Outputs> {
        inputs.check(problem)?;
        self.run_plan(queue, &self.plan(problem)?, inputs).await
    }

    /// [`Softmax::run`] for a plan made before.
    ///
    /// # Errors
    /// As [`Softmax::run`].
    pub async fn run_plan(&self, queue: &wgpu::Queue, plan: &Plan, inputs: &Inputs<'_>) -> Result<Outputs> {
        let problem = plan.problem();
        inputs.check(problem)?;
        let prepared = self.prepare(plan).await?;
        let x = self.upload("x", &problem.x_type.encode(inputs.x)).await?;
        let apart;
        let (mut buffers, out) = if problem.in_place {
            (Buffers::in_place(&x), &x)
        } else {
            apart = self.result("out", plan.out_bytes()).await?;
            (Buffers::new(&x, &apart), &apart)
        };
        let temperature = self.upload("temperature", inputs.temperature.unwrap_or_default()).await?;
        if inputs.temperature.is_some() {
            buffers = buffers.temperature(&temperature);
        }
        let stats = self.result("stats", plan.stats_bytes()).await?;
        if plan.stats_bytes() > 0 {
            buffers = buffers.stats(&stats);
        }
        let bound = prepared.bind(&buffers)?;
        let results = [(out, plan.out_bytes()), (&stats, plan.stats_bytes())];
        let words = self.submit(queue, &bound, &results).await?;
        let stat = |stat| {
            let range = plan.stats_range(stat)?;
            words[1].get(range.start as usize / 4..range.end as usize / 4)
        };
        Ok(Outputs {
            out: floats(&words[0]),
            lse: stat(Stat::Lse).map(floats),
            entropy: stat(Stat::Entropy).map(floats),
            argmax: stat(Stat::Argmax).map(<[u32]>::to_vec),
        })
    }

    /// [`Softmax::run`] for code that is not async: waits for the device.
    ///
    /// # Errors
    /// As [`Softmax::run`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_blocking(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        inputs: &Inputs<'_>,
    ) -> Result<Outputs> {
        pollster::block_on(self.run(queue, problem, inputs))
    }

    /// The gradient of a problem on host slices, from the result of the forward call and the gradient that comes in, both in
    /// `Problem::out_layout`; `temperature` are the temperatures of [`RowTemperature::PerRow`], `with_temperature` asks for their
    /// gradient. **Submits to `queue`.**
    ///
    /// # Errors
    /// As [`Softmax::run`].
    pub async fn run_backward(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        [out, d_out]: [&[f32]; 2],
        temperature: Option<&[f32]>,
        with_temperature: bool,
    ) -> Result<Gradients> {
        let plan = self.plan_backward(problem, with_temperature)?;
        check_length("out", out, problem, &problem.out_layout)?;
        check_length("d_out", d_out, problem, &problem.out_layout)?;
        check_temperature(temperature, problem)?;
        let prepared = self.prepare(&plan).await?;
        let out = self.upload("out", out).await?;
        let d_out = self.upload("d_out", d_out).await?;
        let dx = self.result("dx", plan.out_bytes()).await?;
        let mut buffers = Buffers::backward(&out, &d_out, &dx);
        let taus = self.upload("temperature", temperature.unwrap_or_default()).await?;
        if temperature.is_some() {
            buffers = buffers.temperature(&taus);
        }
        let stats = self.result("d_temperature", plan.stats_bytes()).await?;
        if plan.stats_bytes() > 0 {
            buffers = buffers.stats(&stats);
        }
        let bound = prepared.bind(&buffers)?;
        let results = [(&dx, plan.out_bytes()), (&stats, plan.stats_bytes())];
        let words = self.submit(queue, &bound, &results).await?;
        Ok(Gradients { dx: floats(&words[0]), d_temperature: with_temperature.then(|| floats(&words[1])) })
    }

    /// [`Softmax::run_backward`] for code that is not async: waits for the device.
    ///
    /// # Errors
    /// As [`Softmax::run`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_backward_blocking(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        numbers: [&[f32]; 2],
        temperature: Option<&[f32]>,
        with_temperature: bool,
    ) -> Result<Gradients> {
        pollster::block_on(self.run_backward(queue, problem, numbers, temperature, with_temperature))
    }
}
