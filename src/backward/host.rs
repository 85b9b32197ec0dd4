//! The one-shot call: host slices in, host vectors out.

use super::{Backward, Buffers, Plan, Problem};
use crate::buffers::BufferRef;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::plan::tables::present;
use crate::tensor::Tensor;

/// Host inputs of a problem.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Inputs<'a> {
    /// Those of the forward pass.
    pub forward: crate::Inputs<'a>,
    /// (batch, q_heads, seq_q): lse as the forward pass gives it.
    pub lse: &'a [f32],
    /// The gradient of out, in `out_layout`.
    pub dout: &'a [f32],
    /// (batch, q_heads, seq_q): the gradient of lse, for [`Problem::with_lse`].
    pub dlse: Option<&'a [f32]>,
}

impl<'a> Inputs<'a> {
    /// Without a gradient of lse.
    pub fn new(forward: crate::Inputs<'a>, lse: &'a [f32], dout: &'a [f32]) -> Self {
        Inputs { forward, lse, dout, dlse: None }
    }

    /// With a gradient of lse.
    pub fn dlse(mut self, dlse: &'a [f32]) -> Self {
        self.dlse = Some(dlse);
        self
    }

    /// Checks lengths and values against a problem.
    ///
    /// # Errors
    /// What [`Problem::check`] and [`crate::Inputs::check`] find, [`Error::Length`], [`Error::Missing`] or [`Error::Unused`].
    pub fn check(&self, problem: &Problem) -> Result<()> {
        problem.check()?;
        self.forward.check(&problem.forward)?;
        let (extent, rows) = (problem.forward.view(Tensor::Out)?.extent(), problem.forward.shape.rows());
        // A strided tensor may lie in a longer slice, a packed one is exactly its elements.
        let packed = !matches!(problem.forward.out_layout, Layout::Strided(_));
        for (field, slice, expected, exact) in
            [("dout", self.dout, extent, packed), ("lse", self.lse, rows, true)]
        {
            let got = slice.len() as u64;
            if got < expected || (exact && got != expected) {
                return Err(Error::Length { field, got, expected });
            }
        }
        let why = ("Problem::with_lse", "ask for it with Problem::with_lse");
        present("dlse", self.dlse.map(<[f32]>::len), problem.dlse.then_some(rows), why)
    }
}

/// Host gradients of a problem. Places that a strided layout leaves out hold anything.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gradients {
    /// Of q.
    pub dq: Vec<f32>,
    /// Of k: the sum over the query heads that read it.
    pub dk: Vec<f32>,
    /// Of v: the sum over the query heads that read it.
    pub dv: Vec<f32>,
    /// Of the bias, packed in the order of its sizes, where asked for.
    pub dbias: Option<Vec<f32>>,
    /// (q_heads): of the sinks, where asked for.
    pub dsinks: Option<Vec<f32>>,
    /// (1), (q_heads) or (batch, q_heads, seq_q): of the temperature, where asked for.
    pub dtemperature: Option<Vec<f32>>,
}

impl Backward {
    /// Computes gradients of host slices: plans, compiles what is not compiled yet, makes its buffers, uploads, **submits to `queue`** and
    /// reads back. A loop is better off with [`Backward::prepare`].
    ///
    /// # Errors
    /// What [`Inputs::check`], [`Plan::new`] and [`Backward::prepare`] find; [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn run(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        inputs: &Inputs<'_>,
    ) -> Result<Gradients> {
        inputs.check(problem)?;
        self.run_plan(queue, &self.plan(problem)?, inputs).await
    }

    /// [`Backward::run`] for a plan made before.
    ///
    /// # Errors
    /// As [`Backward::run`].
    pub async fn run_plan(&self, queue: &wgpu::Queue, plan: &Plan, inputs: &Inputs<'_>) -> Result<Gradients> {
        let problem = plan.problem();
        inputs.check(problem)?;
        let (forward, given) = (&problem.forward, &inputs.forward);
        let prepared = self.prepare(plan).await?;
        let [q_type, k_type, v_type, _] = forward.dtypes;
        let q = self.upload("q", &q_type.encode(given.q)).await?;
        let k = self.upload("k", &k_type.encode(given.k)).await?;
        let v = self.upload("v", &v_type.encode(given.v)).await?;
        let lse = self.upload("lse", inputs.lse).await?;
        let dout = self.upload("dout", inputs.dout).await?;
        let mut results = Vec::new();
        for (name, bytes) in ["dq", "dk", "dv", "dbias", "dsinks", "dtemperature"].into_iter().zip(
            plan.gradient_bytes().into_iter().chain([
                plan.dbias_bytes(),
                plan.dsinks_bytes(),
                plan.dtemperature_bytes(),
            ]),
        ) {
            results.push((self.result(name, bytes).await?, bytes));
        }
        let at = |n: usize| BufferRef::from(&results[n].0);
        let mut buffers = Buffers::new(
            [(&q).into(), (&k).into(), (&v).into()],
            [(&lse).into(), (&dout).into()],
            [at(0), at(1), at(2)],
        );
        let dlse = self.upload("dlse", inputs.dlse.unwrap_or_default()).await?;
        if problem.dlse {
            buffers = buffers.dlse(&dlse);
        }
        let bias_type = forward.bias.map_or(DType::F32, |bias| bias.0);
        let bias = self.upload("bias", &bias_type.encode(given.bias.unwrap_or_default())).await?;
        if given.bias.is_some() {
            buffers = buffers.bias(&bias);
        }
        let mut bytes = given.mask.unwrap_or_default().to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let mask = self.upload("mask", &bytes).await?;
        if given.mask.is_some() {
            buffers = buffers.mask(&mask);
        }
        let tables = self.upload("tables", &plan.tables().pack(forward, &given.tables)?).await?;
        if plan.tables().bytes() > 0 {
            buffers = buffers.tables(&tables);
        }
        for (asked, n) in [(problem.dbias, 3), (problem.dsinks, 4), (problem.dtemperature, 5)] {
            if asked {
                buffers = match n {
                    3 => buffers.dbias(at(3)),
                    4 => buffers.dsinks(at(4)),
                    _ => buffers.dtemperature(at(5)),
                };
            }
        }
        let bound = prepared.bind(&buffers)?;
        let wanted: Vec<_> = results.iter().map(|(buffer, bytes)| (buffer, *bytes)).collect();
        let words = self.submit(queue, &bound, &wanted).await?;
        let mut lists = words.into_iter().map(|words| words.into_iter().map(f32::from_bits).collect());
        let mut next = || lists.next().unwrap_or_default();
        let [dq, dk, dv, dbias, dsinks, dtemperature] = core::array::from_fn(|_| next());
        Ok(Gradients {
            dq,
            dk,
            dv,
            dbias: problem.dbias.then_some(dbias),
            dsinks: problem.dsinks.then_some(dsinks),
            dtemperature: problem.dtemperature.then_some(dtemperature),
        })
    }

    /// [`Backward::run`] for code that is not async: waits for the device.
    ///
    /// # Errors
    /// As [`Backward::run`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_blocking(
        &self,
        queue: &wgpu::Queue,
        problem: &Problem,
        inputs: &Inputs<'_>,
    ) -> Result<Gradients> {
        pollster::block_on(self.run(queue, problem, inputs))
    }
}
