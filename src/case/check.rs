//! Running a case and comparing what comes out with what it expects.

use super::{Case, GradientWork, Tolerance, Work};
use crate::attention::Attention;
use crate::backward::{self, Backward, Gradients};
use crate::error::Error;
use crate::host::Outputs;
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::plan::PlanOptions;
use crate::scores::ScoreStage;
use crate::sharpness::Temperature;
use crate::tensor::Tensor;
use core::fmt;

/// What came of a case.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The case's name.
    pub name: String,
    /// The attention kernel that ran, if one did.
    pub kernel: Option<Kernel>,
    /// Whether something was computed and compared.
    pub computed: bool,
    /// Largest absolute error over all outputs.
    pub max_abs: f64,
    /// Largest error relative to the expected value, over values that are not 0.
    pub max_rel: f64,
    /// Why the case failed; `None` where it passed.
    pub failure: Option<Failure>,
}

impl Report {
    /// Whether every number was within the case's tolerance.
    pub fn passes(&self) -> bool {
        self.failure.is_none()
    }
}

/// Why a case failed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Failure {
    /// The library cannot do all that the case asks for.
    Missing(Vec<&'static str>),
    /// The library refused it.
    Refused(Error),
    /// A number is off. This is the first.
    Off {
        /// The tensor.
        output: &'static str,
        /// Where in it.
        index: Vec<usize>,
        /// What the device computed.
        got: f32,
        /// What the case expects.
        want: f32,
        /// How far they may be apart.
        allowed: f64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Missing(parts) => {
                write!(f, "missing in this version: {}", parts.join(", "))
            }
            Failure::Refused(error) => write!(f, "{error}"),
            Failure::Off { output, index, got, want, allowed } => {
                write!(f, "{output}{index:?} is {got:e}, expected {want:e} within {allowed:.1e}")
            }
        }
    }
}

impl Case {
    /// Computes the case on a device (this **submits to `queue`**) and compares every output with the expected one.
    ///
    /// Whatever goes wrong is a failure in the report: a case is never skipped.
    pub async fn check(&self, attention: &Attention, queue: &wgpu::Queue, options: &PlanOptions) -> Report {
        let mut report = Report {
            name: self.name().to_owned(),
            kernel: None,
            computed: false,
            max_abs: 0.0,
            max_rel: 0.0,
            failure: None,
        };
        if let Some(work) = self.softmax() {
            match work.run(attention.device(), queue).await {
                Ok(got) => {
                    report.computed = true;
                    report.compare("out", self.shape_of("out"), &got, work.expected(), self.tolerance());
                }
                Err(error) => report.failure = Some(Failure::Refused(error)),
            }
            return report;
        }
        let Some(work) = self.work() else {
            report.failure = Some(Failure::Missing(self.missing().to_vec()));
            return report;
        };
        let plan = match attention.plan_with(work.problem(), options) {
            Ok(plan) => plan,
            Err(error) => return Report { failure: Some(Failure::Refused(error)), ..report },
        };
        let got = match attention.run_plan(queue, &plan, &work.inputs()).await {
            Ok(got) => got,
            Err(error) => return Report { failure: Some(Failure::Refused(error)), ..report },
        };
        report.kernel = Some(plan.kernel());
        report.computed = true;
        let want = work.expected();
        // In the order of the axes, as the file has them.
        let (mut got_out, mut want_out) = (got.out.clone(), want.out.clone());
        if let (Layout::Strided(_), Ok(view)) = (work.problem().out_layout, work.problem().view(Tensor::Out))
        {
            (got_out, want_out) = (view.gather(&got_out), view.gather(&want_out));
        }
        for (output, got, want) in [
            ("out", Some(&got_out), Some(&want_out)),
            ("lse", got.lse.as_ref(), want.lse.as_ref()),
            ("entropy", got.entropy.as_ref(), want.entropy.as_ref()),
        ] {
            if let (Some(got), Some(want)) = (got, want) {
                report.compare(output, self.shape_of(output), got, want, self.tolerance());
            }
        }
        if let Some((stage, want)) = work.scores() {
            match self.scores(attention, queue, stage).await {
                Ok(got) => {
                    report.compare("scores", self.shape_of("scores"), &got, want, self.tolerance());
                }
                Err(error) => report.failure = report.failure.or(Some(Failure::Refused(error))),
            }
        }
        if let Some(gradients) = work.gradients() {
            match self.gradients(attention, queue, gradients, &got).await {
                Ok(got) => {
                    let want = gradients.expected();
                    let of_temperature = match work.problem().temperature {
                        Temperature::PerHead => "dtemperature_per_head",
                        _ => "dtemperature",
                    };
                    for (output, got, want) in [
                        ("dq", Some(&got.dq), Some(&want.dq)),
                        ("dk", Some(&got.dk), Some(&want.dk)),
                        ("dv", Some(&got.dv), Some(&want.dv)),
                        ("dbias", got.dbias.as_ref(), want.dbias.as_ref()),
                        ("dsinks", got.dsinks.as_ref(), want.dsinks.as_ref()),
                        (of_temperature, got.dtemperature.as_ref(), want.dtemperature.as_ref()),
                    ] {
                        if let (Some(got), Some(want)) = (got, want) {
                            report.compare(output, self.shape_of(output), got, want, self.tolerance());
                        }
                    }
                }
                Err(error) => report.failure = report.failure.or(Some(Failure::Refused(error))),
            }
        }
        report
    }

    /// The gradients, from what the forward pass gave.
    async fn gradients(
        &self,
        attention: &Attention,
        queue: &wgpu::Queue,
        work: &GradientWork,
        forward: &Outputs,
    ) -> Result<Gradients, Error> {
        let Some(inputs) = self.work().map(Work::inputs) else {
            return Ok(Gradients::default());
        };
        let lse = forward.lse.as_deref().unwrap_or_default();
        let inputs = backward::Inputs::new(inputs, lse, work.dout());
        Backward::new(attention.device()).run(queue, work.problem(), &inputs).await
    }

    /// The scores of all heads, by the slow path.
    async fn scores(
        &self,
        attention: &Attention,
        queue: &wgpu::Queue,
        stage: ScoreStage,
    ) -> Result<Vec<f32>, Error> {
        let mut all = Vec::new();
        let Some(work) = self.work() else {
            return Ok(all);
        };
        let (problem, inputs) = (work.problem(), work.inputs());
        let s = problem.shape;
        for b in 0..s.batch {
            for h in 0..s.q_heads {
                all.extend(attention.scores(queue, problem, &inputs, stage, [b, h], 0..s.seq_q).await?);
            }
        }
        Ok(all)
    }

    /// [`Case::check`] for code that is not async: waits for the device.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn check_blocking(
        &self,
        attention: &Attention,
        queue: &wgpu::Queue,
        options: &PlanOptions,
    ) -> Report {
        pollster::block_on(self.check(attention, queue, options))
    }
}

impl Report {
    fn compare(
        &mut self,
        output: &'static str,
        shape: &[usize],
        got: &[f32],
        want: &[f32],
        tolerance: Tolerance,
    ) {
        if got.len() != want.len() {
            let error = Error::Length { field: output, got: got.len() as u64, expected: want.len() as u64 };
            self.failure.get_or_insert(Failure::Refused(error));
        }
        for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
            if got == want || (got.is_nan() && want.is_nan()) {
                continue;
            }
            let abs = (f64::from(got) - f64::from(want)).abs();
            let size = f64::from(want).abs();
            // NaN and infinities that differ have no distance that max() would keep.
            self.max_abs = if abs.is_finite() { self.max_abs.max(abs) } else { f64::INFINITY };
            if want != 0.0 {
                let rel = abs / size;
                self.max_rel = if rel.is_finite() { self.max_rel.max(rel) } else { f64::INFINITY };
            }
            let allowed = if want.is_finite() { tolerance.atol + tolerance.rtol * size } else { 0.0 };
            if (abs > allowed || abs.is_nan()) && self.failure.is_none() {
                let index = index(shape, at);
                self.failure = Some(Failure::Off { output, index, got, want, allowed });
            }
        }
    }
}

/// The place in each axis of element `at`.
fn index(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &size) in index.iter_mut().zip(shape).rev() {
        *place = at % size.max(1);
        at /= size.max(1);
    }
    index
}
