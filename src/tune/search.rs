//! Which candidates are timed, in which order, and when it is enough.

use super::file::{CRATE_VERSION, DeviceName, Entry, class};
use super::near::neighbours;
use crate::attention::Attention;
use crate::caps::{AdapterClass, Caps};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, PipelineKey};
use crate::measure::{Cost, Effort, Limit, Roofs, Samples, Stopwatch, Work};
use crate::plan::{Plan, PlanOptions, Tiles};
use crate::problem::Problem;
use core::fmt;
use std::collections::HashSet;
use std::time::Duration;
#[cfg(not(target_arch = "wasm32"))]
use std::time::Instant;
#[cfg(target_arch = "wasm32")]
use web_time::Instant;

/// Times kernels and tiles on a device.
#[derive(Debug)]
pub struct Tuner {
    attention: Attention,
    queue: wgpu::Queue,
    stopwatch: Stopwatch,
    roofs: Roofs,
    time: Duration,
    enough: f64,
}

/// What was tried.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// As [`PlanOptions`].
    pub options: PlanOptions,
    /// The variant's name, or what was asked for where there is no plan.
    pub name: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a candidate.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// Right, and timed.
    Timed(Samples),
    /// Not right, and so not timed: the largest error as a share of its bound (infinite where numbers were missing).
    Wrong(f64),
    /// It cannot run this problem on this device.
    Refused(Error),
}

/// Why the search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The best is near the adapter's roof.
    Roof,
    /// Nothing near the best is better.
    Settled,
    /// The time was over.
    Time,
}

/// What a tuner found for a problem.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Tuned {
    /// The choice: pass it to [`Attention::plan_with`], or keep it in a [`Tuning`](super::Tuning).
    pub options: PlanOptions,
    /// The name of the chosen variant.
    pub name: String,
    /// All candidates in the order of trying; the planner's choice is the first.
    pub candidates: Vec<Candidate>,
    /// Why the search ended.
    pub stop: Stop,
    /// The share of the lowest roof that the choice reaches, and which roof that is.
    pub share: (f64, Limit),
    entry: Entry,
}

impl Tuned {
    /// The choice as a file keeps it.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// How many times as fast as the planner's choice; 1 where that is the best.
    pub fn gain(&self) -> f64 {
        self.entry.planned_seconds / self.entry.seconds
    }
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (share, limit) = self.share;
        write!(
            f,
            "{}: {:.3} ms, {:.2} times as fast as the planner's {:.3} ms, {:.0} % of the {limit} roof; {} tried, until {}",
            self.name,
            self.entry.seconds * 1e3,
            self.gain(),
            self.entry.planned_seconds * 1e3,
            share * 100.0,
            self.candidates.len(),
            match self.stop {
                Stop::Roof => "near the roof",
                Stop::Settled => "nothing near was faster",
                Stop::Time => "the time was over",
            }
        )
    }
}

/// Gains below this are noise, and the planner's choice stays.
const WORTH: f64 = 1.03;

impl Tuner {
    /// Sets up a stopwatch and measures the adapter's roofs, which takes about a second.
    ///
    /// # Errors
    /// As [`Attention::prepare`].
    pub async fn new(attention: &Attention, queue: &wgpu::Queue) -> Result<Self> {
        let stopwatch = Stopwatch::new(attention, queue).await?;
        let roofs = Roofs::measure(attention, &stopwatch, Duration::from_secs(1)).await?;
        Ok(Tuner {
            attention: attention.clone(),
            queue: queue.clone(),
            stopwatch,
            roofs,
            time: Duration::from_secs(20),
            enough: 0.8,
        })
    }

    /// [`Tuner::new`] for code that is not async.
    ///
    /// # Errors
    /// As [`Tuner::new`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn new_blocking(attention: &Attention, queue: &wgpu::Queue) -> Result<Self> {
        pollster::block_on(Self::new(attention, queue))
    }

    /// How long one problem may take; 20 seconds by default. The planner's choice is always timed; no other candidate is begun that
    /// would not be done in time if it took as long as the longest before it.
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// The share of the lowest roof that is good enough to stop at; 0.8 by default.
    pub fn enough(mut self, share: f64) -> Self {
        self.enough = share;
        self
    }

    /// The adapter's roofs.
    pub fn roofs(&self) -> &Roofs {
        &self.roofs
    }

    /// Times the planner's choice, then neighbours of the best so far (each size doubled or halved), then the other kernels. Every
    /// answer is checked against float64 before it is timed, and what is not right is not chosen.
    ///
    /// # Errors
    /// As [`Work::new`], and as [`Attention::prepare`] for the planner's own choice.
    pub async fn tune(&self, problem: &Problem) -> Result<Tuned> {
        let start = Instant::now();
        let work = Work::new(&self.attention, problem).await?;
        let floor = Cost::of(problem)?.floor(&self.roofs);
        let mut search = Search {
            tuner: self,
            work,
            floor,
            start,
            longest: Duration::ZERO,
            tried: HashSet::new(),
            candidates: Vec::new(),
            best: None,
        };
        // Not Attention::plan, which may itself be tuned.
        let planned = Plan::new(problem, self.attention.caps(), &PlanOptions::default())?;
        let Some(planned_seconds) = search.try_plan(&planned).await? else {
            return Err(Error::KernelUnavailable {
                kernel: planned.kernel().name(),
                reason: "the planner's own choice gives wrong numbers on this device; please report it"
                    .to_owned(),
            });
        };
        let stop = search.go(&planned).await?;
        search.finish(&planned, planned_seconds, stop)
    }

    /// [`Tuner::tune`] for code that is not async.
    ///
    /// # Errors
    /// As [`Tuner::tune`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn tune_blocking(&self, problem: &Problem) -> Result<Tuned> {
        pollster::block_on(self.tune(problem))
    }
}

struct Search<'a> {
    tuner: &'a Tuner,
    work: Work,
    floor: (f64, Limit),
    start: Instant,
    /// Of the candidates so far.
    longest: Duration,
    tried: HashSet<PipelineKey>,
    candidates: Vec<Candidate>,
    best: Option<(PlanOptions, f64)>,
}

impl Search<'_> {
    fn best_seconds(&self) -> f64 {
        self.best.map_or(f64::INFINITY, |b| b.1)
    }

    fn near_roof(&self) -> bool {
        self.floor.0 / self.best_seconds() >= self.tuner.enough
    }

    fn time_is_over(&self) -> bool {
        self.start.elapsed() + self.longest > self.tuner.time
    }

    /// Climbs from the planner's choice, from what it has for other adapters, and from the other kernels where they come near.
    async fn go(&mut self, planned: &Plan) -> Result<Stop> {
        let mut starts = vec![planned.options()];
        starts.extend(self.foreign_tiles().map(PlanOptions::tiles));
        starts.extend(Kernel::ALL.into_iter().filter(|k| *k != planned.kernel()).map(PlanOptions::kernel));
        let mut stop = Stop::Settled;
        for options in starts {
            if self.near_roof() {
                return Ok(Stop::Roof);
            }
            // Unlike other tiles, other kernels may be slower by a large factor.
            let left = self.tuner.time.saturating_sub(self.start.elapsed());
            let risk = if options.kernel == Some(planned.kernel()) { 1.0 } else { 50.0 };
            if self.time_is_over() || risk * self.best_seconds() > left.as_secs_f64() {
                stop = Stop::Time;
                continue;
            }
            if let Some(end) = self.climb(&options).await? {
                return Ok(end);
            }
        }
        Ok(stop)
    }

    /// What the planner would take on an adapter of the other kind.
    fn foreign_tiles(&self) -> Option<Tiles> {
        let caps = self.tuner.attention.caps();
        let class = match caps.class {
            AdapterClass::Cpu => AdapterClass::Discrete,
            _ => AdapterClass::Cpu,
        };
        Tiles::choose(self.work.problem(), &Caps { class, ..caps.clone() })
    }

    /// From a choice to the first neighbour that is faster, and on from there.
    async fn climb(&mut self, from: &PlanOptions) -> Result<Option<Stop>> {
        let caps = self.tuner.attention.caps();
        let Ok(start) = Plan::new(self.work.problem(), caps, from) else {
            return self.try_options(from).await.map(|_| None);
        };
        let mut here = start.options();
        let mut seconds = match self.try_plan(&start).await? {
            Some(seconds) => seconds,
            // Tried before: it is where the last climb began, or where one went.
            None => match self.timed(&here) {
                Some(seconds) => seconds,
                None => return Ok(None),
            },
        };
        // Nothing near is that much better.
        if seconds > 3.0 * self.best_seconds() {
            return Ok(None);
        }
        'climb: loop {
            let shape = self.work.problem().shape;
            let compiles_soon = |next: &PlanOptions| next.rows.is_none_or(|rows| rows.compiles_soon(&shape));
            for next in neighbours(&here).into_iter().filter(compiles_soon) {
                if self.near_roof() {
                    return Ok(Some(Stop::Roof));
                }
                if self.time_is_over() {
                    return Ok(Some(Stop::Time));
                }
                if let Some(faster) = self.try_options(&next).await?
                    && faster * WORTH < seconds
                {
                    (here, seconds) = (next, faster);
                    continue 'climb;
                }
            }
            return Ok(None);
        }
    }

    /// The time of what was tried before.
    fn timed(&self, options: &PlanOptions) -> Option<f64> {
        self.candidates.iter().find_map(|c| match &c.outcome {
            Outcome::Timed(samples) if c.options == *options => Some(samples.median()),
            _ => None,
        })
    }

    /// Its time; `None` where it was tried before, is refused or is wrong.
    async fn try_options(&mut self, options: &PlanOptions) -> Result<Option<f64>> {
        match Plan::new(self.work.problem(), self.tuner.attention.caps(), options) {
            Ok(plan) => self.try_plan(&plan).await,
            // That some neighbours do not fit is no news; that a kernel does not is.
            Err(error) => {
                if *options == options.kernel.map_or_else(PlanOptions::default, PlanOptions::kernel) {
                    let name = options.kernel.map_or("the planner's", Kernel::name).to_owned();
                    self.push(*options, name, Outcome::Refused(error));
                }
                Ok(None)
            }
        }
    }

    async fn try_plan(&mut self, plan: &Plan) -> Result<Option<f64>> {
        if !self.tried.insert(plan.key().clone()) {
            return Ok(None);
        }
        let options = plan.options();
        let begun = Instant::now();
        let name = plan.key().to_string();
        let ready = match self.work.prepare(plan).await {
            Ok(ready) => ready,
            // The planner's own choice must run; of another the driver may think what it likes.
            Err(error @ Error::Driver { .. }) if self.best.is_some() => {
                self.push(options, name, Outcome::Refused(error));
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let checked = self.work.check(&self.tuner.queue, &ready).await?;
        if !checked.passes() {
            let worst = if checked.unwritten > 0 { f64::INFINITY } else { checked.comparison.worst };
            self.push(options, name, Outcome::Wrong(worst));
            return Ok(None);
        }
        let effort = Effort {
            time: (self.tuner.time / 40).clamp(Duration::from_millis(20), Duration::from_millis(500)),
            least: 3,
            give_up: (self.best_seconds() < 1e6).then(|| Duration::from_secs_f64(1.5 * self.best_seconds())),
            ..Effort::default()
        };
        let times = self.tuner.stopwatch.measure(&ready, &effort).await?;
        let seconds = times.samples.median().max(1e-9);
        self.push(options, name, Outcome::Timed(times.samples));
        if seconds < self.best_seconds() {
            self.best = Some((options, seconds));
        }
        self.longest = self.longest.max(begun.elapsed());
        Ok(Some(seconds))
    }

    fn push(&mut self, options: PlanOptions, name: String, outcome: Outcome) {
        self.candidates.push(Candidate { options, name, outcome });
    }

    fn finish(self, planned: &Plan, planned_seconds: f64, stop: Stop) -> Result<Tuned> {
        let (options, seconds) = match self.best {
            Some((options, seconds)) if seconds * WORTH < planned_seconds => (options, seconds),
            _ => (planned.options(), planned_seconds),
        };
        let problem = self.work.problem();
        let plan = Plan::new(problem, self.tuner.attention.caps(), &options)?;
        let device = DeviceName::of(self.tuner.attention.device());
        let entry = Entry {
            adapter: device.adapter,
            driver: device.driver,
            crate_version: CRATE_VERSION.to_owned(),
            class: class(problem, planned.key()),
            options,
            seconds: rounded(seconds),
            planned_seconds: rounded(planned_seconds),
        };
        let share = (self.floor.0 / seconds, self.floor.1);
        let name = plan.key().to_string();
        Ok(Tuned { options, name, candidates: self.candidates, stop, share, entry })
    }
}

/// Five digits: more is noise, and short numbers come out of a file as they went in.
fn rounded(seconds: f64) -> f64 {
    format!("{seconds:.4e}").parse().unwrap_or(seconds)
}
