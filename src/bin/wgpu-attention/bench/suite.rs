//! The run: for each problem, each kernel; checked, then timed, within the time there is.

use super::Args;
use super::operations::{self, Bench};
use super::problems::{Item, Preset};
use super::report::{CheckedRows, FORMAT, LeftOut, Machine, Report, Row, Spread, VERSION, scaling};
use crate::fail::{Fail, Result};
use crate::gpu::Gpu;
use crate::html;
use crate::{output, tune};
use indicatif::ProgressBar;
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};
use wgpu_attention::measure::{Cost, CustomKernel, Effort, Ready, Roofs, Stopwatch, Work};
use wgpu_attention::tune::Tuning;
use wgpu_attention::{Attention, Error, Kernel, Plan, PlanOptions};

/// What is put beside each other for each problem.
enum Subject {
    Member(Kernel),
    Tuned,
    Custom(CustomKernel),
}

impl Subject {
    fn name(&self) -> &str {
        match self {
            Subject::Member(kernel) => kernel.name(),
            Subject::Tuned => "tuned",
            Subject::Custom(kernel) => kernel.name(),
        }
    }

    /// Whose roof it is held against.
    fn kernel(&self) -> Kernel {
        match self {
            Subject::Member(kernel) => *kernel,
            // What was tuned may be any, and what is one's own may do anything: both are held against what all have.
            Subject::Tuned | Subject::Custom(_) => Kernel::Tiled,
        }
    }

    /// Of the lowest roof, as long as nothing is known of it.
    fn guess(&self) -> f64 {
        match self {
            Subject::Member(Kernel::Naive) | Subject::Custom(_) => 0.01,
            _ => 0.1,
        }
    }
}

struct Suite {
    gpu: Gpu,
    tuned: Option<Attention>,
    stopwatch: Stopwatch,
    roofs: Roofs,
    end: Instant,
    /// For each figure.
    effort: Duration,
    /// Variants that are compiled already.
    compiled: HashSet<String>,
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
}

/// Why there is no row.
enum Skip {
    /// Nothing is wrong with it.
    Because(String),
    Wrong(String),
    Fail(Fail),
}

impl From<Error> for Skip {
    fn from(error: Error) -> Self {
        match error {
            // The next row would not fare better.
            Error::DeviceLost(_) => Skip::Fail(error.into()),
            error => Skip::Because(error.to_string()),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let start = Instant::now();
    let items = args.items();
    let customs: Vec<CustomKernel> = args.files().map(read_kernel).collect::<Result<_>>()?;
    let peers = args.peer.as_deref().map(read_peers).transpose()?.unwrap_or_default();
    let tuning = args.tuning.as_ref().map(|path| read_tuning(path.as_deref())).transpose()?;
    let matrices = args.kernels.contains(&super::KernelArg::Member(Kernel::Matrix));
    let gpu = Gpu::open(args.adapter.as_deref(), matrices)?;
    let time = args.time();
    let bar = output::bar(1, "ceilings");
    let (stopwatch, roofs) = pollster::block_on(async {
        let stopwatch = match args.wall {
            true => Stopwatch::wall(&gpu.attention, &gpu.queue),
            false => Stopwatch::new(&gpu.attention, &gpu.queue).await?,
        };
        let roofs =
            Roofs::measure(&gpu.attention, &stopwatch, (time / 20).min(Duration::from_secs(3))).await?;
        Ok::<_, Error>((stopwatch, roofs))
    })?;

    let subjects: Vec<Subject> = args
        .members()
        .into_iter()
        .map(Subject::Member)
        .chain(tuning.is_some().then_some(Subject::Tuned))
        .chain(customs.into_iter().map(Subject::Custom))
        .collect();
    let operations = args.preset == Some(Preset::Operations);
    let number = (items.len() * subjects.len()) as u32 + if operations { operations::FIGURES } else { 0 };
    let number = number.max(1);
    let mut suite = Suite {
        tuned: tuning.map(|tuning| gpu.attention.clone().with_tuning(tuning)),
        gpu,
        stopwatch,
        roofs,
        end: start + time,
        effort: (time * 6 / 10 / number).clamp(Duration::from_millis(50), Duration::from_secs(2)),
        compiled: HashSet::new(),
        rows: Vec::new(),
        left_out: Vec::new(),
    };
    suite.all(&items, &subjects, &bar)?;
    let mut measured = Vec::new();
    if operations {
        let Suite { gpu, stopwatch, roofs, end, effort, .. } = &suite;
        let (rows, left_out) = (Vec::new(), Vec::new());
        let mut bench = Bench { gpu, stopwatch, roofs, end: *end, effort: *effort, rows, left_out };
        bench.run(&bar)?;
        measured = bench.rows;
        let left_out = bench.left_out;
        suite.left_out.extend(left_out);
    }
    bar.finish_and_clear();

    for peer in peers {
        // Beside ours, and not in place of them.
        if let Some(last) = suite.rows.iter().rposition(|row| row.is_like(&peer)) {
            let ours = &suite.rows[last];
            let share = rounded(ours.share * ours.ms / peer.ms);
            let gb_s = rounded(ours.gb_s * ours.ms / peer.ms);
            let (limit, intensity) = (ours.limit, ours.intensity);
            suite.rows.insert(last + 1, Row { share, gb_s, limit, intensity, ..peer });
        }
    }
    let info = &suite.gpu.info;
    let machine = Machine {
        adapter: info.name.clone(),
        driver: suite.gpu.driver(),
        kind: format!("{:?}", info.device_type),
        crate_version: env!("CARGO_PKG_VERSION").to_owned(),
        system: format!(
            "{} {}, {} processors{}",
            std::env::consts::OS,
            std::env::consts::ARCH,
            std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            if cfg!(debug_assertions) { ", debug build" } else { "" }
        ),
        clock: suite.stopwatch.clock(),
        clock_because: suite.stopwatch.why().to_owned(),
    };
    Ok(Report {
        format: FORMAT.to_owned(),
        version: VERSION,
        command: html::command(),
        machine,
        roofs: suite.roofs,
        scaling: scaling(&suite.rows),
        rows: suite.rows,
        operations: measured,
        left_out: suite.left_out,
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn read_kernel(path: &Path) -> Result<CustomKernel> {
    let text = std::fs::read_to_string(path).map_err(|e| Fail::file(path, e))?;
    let name = path.file_name().map_or_else(|| "kernel".into(), |n| n.to_string_lossy().into_owned());
    CustomKernel::new(&name, &text).map_err(|e| Fail::file(path, e))
}

fn read_peers(path: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).map_err(|e| Fail::file(path, e))?;
    let row = |line: &str| {
        let row: Row = serde_json::from_str(line)
            .map_err(|e| Fail::file(path, format_args!("a line is no row of a peer: {e}")))?;
        let peer = row.peer.clone().ok_or_else(|| Fail::file(path, "a line does not say its peer"))?;
        if !(row.ms.is_finite() && row.ms > 0.0) {
            return Err(Fail::file(path, format_args!("{} ms is no time", row.ms)));
        }
        Ok(Row { kernel: peer, ..row })
    };
    // Drivers and runtimes print warnings between the rows.
    let rows: Vec<Row> =
        text.lines().map(str::trim).filter(|line| line.starts_with('{')).map(row).collect::<Result<_>>()?;
    if rows.is_empty() {
        return Err(Fail::file(path, "has no line with a JSON object"));
    }
    Ok(rows)
}

fn read_tuning(path: Option<&Path>) -> Result<Tuning> {
    if let Some(path) = path {
        return tune::read(path, Tuning::load);
    }
    let path = Tuning::default_path().map_err(|e| Fail::usage(e.to_string()))?;
    if !path.exists() {
        let why = "does not exist: find choices for this adapter with `wgpu-attention tune` first";
        return Err(Fail::file(&path, why));
    }
    tune::read(&path, Tuning::load)
}

impl Suite {
    /// All kernels on all problems: the cheap problems first, so that what time is too short for are the dear ones, and what
    /// is known of a kernel by then says how long these would take.
    fn all(&mut self, items: &[Item], subjects: &[Subject], bar: &ProgressBar) -> Result<()> {
        // Steps of about a millisecond, so that the time left is one.
        let steps = |item: &Item| -> Vec<u64> {
            subjects.iter().map(|subject| (self.expected(item, subject) * 1e3).max(1.0) as u64).collect()
        };
        let costs: Vec<Vec<u64>> = items.iter().map(steps).collect();
        bar.set_length(costs.iter().flatten().sum());
        bar.set_message("measuring");
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by(|&a, &b| self.floor(&items[a]).total_cmp(&self.floor(&items[b])));
        // As they were asked for.
        let (mut rows, mut left_out) = (Vec::new(), Vec::new());
        for at in order {
            let (item, first_row, first_left) = (&items[at], self.rows.len(), self.left_out.len());
            self.item(item, subjects, &costs[at], bar)?;
            rows.extend((first_row..self.rows.len()).map(|n| (at, n)));
            left_out.extend((first_left..self.left_out.len()).map(|n| (at, n)));
        }
        rows.sort_unstable();
        left_out.sort_unstable();
        self.rows = rows.into_iter().map(|(_, n)| self.rows[n].clone()).collect();
        self.left_out = left_out.into_iter().map(|(_, n)| self.left_out[n].clone()).collect();
        Ok(())
    }

    fn item(&mut self, item: &Item, subjects: &[Subject], costs: &[u64], bar: &ProgressBar) -> Result<()> {
        // Inputs and their right answer take time, too.
        let any = subjects.iter().any(|subject| self.no_time(item, subject).is_none());
        let work = any.then(|| pollster::block_on(Work::new(&self.gpu.attention, &item.problem)));
        for (subject, cost) in subjects.iter().zip(costs) {
            let row = match (&work, self.no_time(item, subject)) {
                (Some(Ok(work)), None) => self.row(item, work, subject),
                (Some(Err(error)), _) => Err(error.clone().into()),
                (_, Some(because)) => Err(Skip::Because(because)),
                (None, None) => Err(Skip::Because("there was no time for its inputs (--seconds)".to_owned())),
            };
            bar.inc(*cost);
            let (because, wrong) = match row {
                Ok(row) => {
                    self.rows.push(row);
                    continue;
                }
                Err(Skip::Because(because)) => (because, false),
                Err(Skip::Wrong(because)) => (because, true),
                Err(Skip::Fail(fail)) => return Err(fail),
            };
            let kernel = subject.name().to_owned();
            let problem = Row::of(&item.name, &item.problem).problem();
            self.left_out.push(LeftOut { problem, kernel, because, wrong });
        }
        Ok(())
    }

    /// Seconds of one call at best.
    fn floor(&self, item: &Item) -> f64 {
        Cost::of(&item.problem).map_or(0.0, |cost| cost.floor(&self.roofs).0)
    }

    /// Seconds that a row takes, as far as can be guessed beforehand.
    fn expected(&self, item: &Item, subject: &Subject) -> f64 {
        self.effort.as_secs_f64() + 4.0 * self.expected_call(item, subject)
    }

    /// Seconds of one call, by the share that the same kernel reached last of the same roof.
    fn expected_call(&self, item: &Item, subject: &Subject) -> f64 {
        let Ok(cost) = Cost::of(&item.problem) else { return 0.0 };
        let (floor, limit) = cost.floor_of(&self.roofs, subject.kernel());
        let known = self.rows.iter().rev().find(|row| row.kernel == subject.name() && row.limit == limit);
        floor / known.map_or_else(|| subject.guess(), |row| row.share).max(1e-6)
    }

    /// Why a row is left out for time, if it is.
    fn no_time(&self, item: &Item, subject: &Subject) -> Option<String> {
        let left = self.end.saturating_duration_since(Instant::now()).as_secs_f64();
        // To be checked, and timed twice.
        let expected = 3.0 * self.expected_call(item, subject);
        (expected > left)
            .then(|| format!("it would take about {expected:.1e} s, and {left:.1} s are left (--seconds)"))
    }

    fn row(&mut self, item: &Item, work: &Work, subject: &Subject) -> Result<Row, Skip> {
        let planned = self.gpu.attention.plan(&item.problem)?.kernel();
        match subject {
            Subject::Member(kernel) => {
                let plan = self.gpu.attention.plan_with(&item.problem, &PlanOptions::kernel(*kernel))?;
                let row = self.planned_row(item, work, &plan, subject)?;
                Ok(Row { planned: planned == *kernel, ..row })
            }
            Subject::Tuned => {
                let Some(tuned) = &self.tuned else {
                    return Err(Skip::Because("there is no tuning".to_owned()));
                };
                let plan = tuned.plan(&item.problem)?;
                if plan == self.gpu.attention.plan(&item.problem)? {
                    return Err(Skip::Because(
                        "this class of problems was not tuned on this adapter".to_owned(),
                    ));
                }
                self.planned_row(item, work, &plan, subject)
            }
            Subject::Custom(kernel) => {
                let name = format!("{} {}", kernel.name(), kernel.source(&item.problem));
                let start = Instant::now();
                let ready = pollster::block_on(work.prepare_custom(kernel))?;
                let compiling = self.compiled.insert(name).then(|| start.elapsed());
                self.measured_row(item, work, &ready, subject, kernel.name(), compiling)
            }
        }
    }

    fn planned_row(&mut self, item: &Item, work: &Work, plan: &Plan, subject: &Subject) -> Result<Row, Skip> {
        let variant = plan.key().to_string();
        let start = Instant::now();
        pollster::block_on(self.gpu.attention.warm_up(std::slice::from_ref(plan)))?;
        let compiling = self.compiled.insert(variant.clone()).then(|| start.elapsed());
        let ready = pollster::block_on(work.prepare(plan))?;
        self.measured_row(item, work, &ready, subject, &variant, compiling)
    }

    fn measured_row(
        &self,
        item: &Item,
        work: &Work,
        ready: &Ready,
        subject: &Subject,
        variant: &str,
        // What compiling took, where the variant is new.
        compiling: Option<Duration>,
    ) -> Result<Row, Skip> {
        let checked = pollster::block_on(work.check(&self.gpu.queue, ready))?;
        if !checked.passes() {
            let worst = checked.comparison.worst;
            return Err(Skip::Wrong(match checked.unwritten {
                0 => format!("wrong: an error of {worst:.1} times its bound"),
                n => format!("wrong: {n} of {} rows hold NaN or infinity, or were not written", checked.of),
            }));
        }
        let left = self.end.saturating_duration_since(Instant::now());
        let mut effort = Effort::default();
        effort.time = self.effort;
        effort.give_up = Some(left / 8);
        let times = pollster::block_on(self.stopwatch.measure(ready, &effort))?;
        let [encode, finish] = ready.host_cost(self.gpu.attention.device());
        let cost = Cost::of(&item.problem)?;
        let (floor, limit) = cost.floor_of(&self.roofs, subject.kernel());
        let median = times.samples.median().max(1e-9);
        let [q1, q3] = times.samples.quartiles();
        Ok(Row {
            kernel: subject.name().to_owned(),
            ms: rounded(median * 1e3),
            gflops: rounded(cost.flops as f64 / median / 1e9),
            kv_gb_s: rounded(cost.kv_bytes as f64 / median / 1e9),
            gb_s: rounded(cost.bytes as f64 / median / 1e9),
            variant: variant.to_owned(),
            share: rounded(floor / median),
            limit,
            intensity: rounded(cost.intensity()),
            spread: Some(Spread {
                min_ms: rounded(times.samples.min() * 1e3),
                q1_ms: rounded(q1 * 1e3),
                q3_ms: rounded(q3 * 1e3),
                samples: times.samples.seconds().len(),
                calls: times.calls,
            }),
            first_call_ms: compiling.map(|t| rounded((t + checked.took).as_secs_f64() * 1e3)),
            encode_us: Some(rounded(encode * 1e6)),
            finish_us: Some(rounded(finish * 1e6)),
            slices: ready.parts(),
            checked: Some(CheckedRows {
                rows: checked.rows,
                of: checked.of,
                worst: rounded(checked.comparison.worst),
            }),
            ..Row::of(&item.name, &item.problem)
        })
    }
}

/// Five digits: more is noise.
pub(super) fn rounded(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}
