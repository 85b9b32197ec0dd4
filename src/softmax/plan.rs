//! Problem -> plan, in pure Rust: how many threads share a row, how rows are cut up, and why.

use super::problem::{Problem, RowLayout, RowTemperature};
use super::shader::{Params, Pass, Rows, Variant};
use super::share::Share;
use crate::buffers::BufferRef;
use crate::caps::Caps;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::needs::{Limit, Need};
use crate::program::{Dispatch, Part, Planned, Program, Role, Shader, Wanted, fold};
use crate::shader::tensor::Access;
use core::fmt;
use core::ops::Range;

/// The caller's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// x; backward, the result of the forward call.
    X,
    /// The result; backward, dx.
    Out,
    Temperature,
    /// Statistics; backward, the gradients of the temperatures.
    Stats,
    DOut,
}

impl Caller {
    pub(crate) const COUNT: usize = 5;
    pub(crate) const ALL: [Caller; 5] =
        [Caller::X, Caller::Out, Caller::Temperature, Caller::Stats, Caller::DOut];

    pub(crate) fn why(self) -> &'static str {
        match self {
            Caller::Temperature => "RowTemperature::PerRow",
            Caller::Stats => "a statistic, or the gradient of the temperature",
            _ => "its plan reads or writes it",
        }
    }

    pub(crate) fn hint(self) -> &'static str {
        match self {
            Caller::X => "the result takes the place of x: use Buffers::in_place",
            Caller::Temperature => "ask for it with RowTemperature::PerRow",
            Caller::Stats => "ask for a statistic, as with Problem::with_lse",
            _ => "the plan has no such buffer",
        }
    }
}

/// Which statistic a range of the stats buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stat {
    /// Natural log of the sum of exp(x / tau), f32.
    Lse,
    /// Entropy in nats, f32.
    Entropy,
    /// Place of the largest element, u32.
    Argmax,
    /// Gradient of the row's temperature, f32; backward.
    DTemperature,
}

/// Everything that is decided before a device is involved. Its `Display` explains it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    problem: Problem,
    backward: Option<bool>,
    share: Share,
    slices: usize,
    program: Program<Variant>,
}

/// Rounds of the search for a sparse threshold, as in `sparse.wgsl`.
const ROUNDS: u32 = 8;
/// Words of a partial result, as in `partials.wgsl`.
const WORDS: u64 = 8;

impl Plan {
    /// Plans a problem for a device's capabilities.
    ///
    /// # Errors
    /// What [`Problem::check`] finds; [`Error::LimitExceeded`] where the device cannot do it and cutting it up does not help: a
    /// single row has to fit one binding.
    pub fn new(problem: &Problem, caps: &Caps) -> Result<Plan> {
        Self::make(problem, None, caps)
    }

    /// Plans the gradient of a problem: dx and, if asked for, that of each row's temperature. Reads the result of the forward call and
    /// the gradient that comes in, both in `Problem::out_layout`; dx is in `Problem::x_layout`.
    ///
    /// # Errors
    /// As [`Plan::new`]; [`Error::Value`] for a layout of x in which elements share a place.
    pub fn backward(problem: &Problem, temperature: bool, caps: &Caps) -> Result<Plan> {
        // The roles of the layouts change: what was read is written.
        let gradient = Problem {
            x_layout: problem.out_layout,
            out_layout: problem.x_layout,
            x_type: DType::F32,
            in_place: false,
            lse: false,
            entropy: false,
            argmax: false,
            ..problem.clone()
        };
        problem.check()?;
        Self::make(&gradient, Some(temperature), caps)
    }

    fn make(problem: &Problem, backward: Option<bool>, caps: &Caps) -> Result<Plan> {
        problem.check()?;
        let share = Share::new(problem, backward.is_some(), caps);
        let direction = if backward.is_some() { " backward" } else { "" };
        let label = format!("{}{direction} {}", problem.kind.name(), problem.len);
        let mut plan =
            Plan { problem: problem.clone(), backward, share, slices: 0, program: Program::new(label, caps) };
        // Rows that a workgroup takes one after the other are rounds of a loop.
        while plan.share.lots > 1 && plan.iterations() > caps.loop_iterations() {
            plan.share.lots /= 2;
        }
        plan.program.require(plan.needs(), caps)?;
        plan.program.subgroup = share.subgroup.then_some(share.threads);
        plan.program.wide_words = share.access == Access::Wide;
        plan.cut(caps)?;
        Ok(plan)
    }

    /// The passes of one slice, with the number of workgroups for so many rows.
    fn passes(&self) -> Vec<Pass> {
        if self.share.chunks == 1 {
            return vec![Pass::Rows];
        }
        let mut all = vec![Pass::Chunk, Pass::Merge];
        if self.backward.is_none() && self.problem.kind.is_sparse() {
            for _ in 0..ROUNDS {
                all.extend([Pass::RoundChunk, Pass::RoundMerge]);
            }
            all.extend([Pass::LastChunk, Pass::LastMerge]);
        }
        all.push(Pass::Write);
        if self.backward == Some(true) {
            all.push(Pass::DTau);
        }
        all
    }

    fn workgroups(&self, pass: Pass, rows: u64) -> u64 {
        match pass {
            Pass::Rows => rows.div_ceil(self.share.rows_of_workgroup()),
            Pass::Merge | Pass::RoundMerge | Pass::LastMerge | Pass::DTau => rows,
            Pass::Chunk | Pass::RoundChunk | Pass::LastChunk | Pass::Write => {
                rows * u64::from(self.share.chunks)
            }
        }
    }

    /// Threads of the largest workgroup.
    fn threads(&self) -> u32 {
        self.share.threads.max(self.share.merge_threads)
    }

    /// What does not depend on how the problem is cut into slices.
    fn needs(&self) -> Vec<Need> {
        let default_limits = "ask for a device with WebGPU's default limits";
        vec![
            Need {
                // x, out, temperature, stats, partials and dy.
                what: "the bindings of this problem",
                limit: Limit::StorageBuffers,
                needed: 6,
                advice: default_limits,
            },
            Need {
                what: "a workgroup",
                limit: Limit::Threads,
                needed: self.threads().into(),
                advice: "ask for a device that can run compute shaders, or plan for this one",
            },
            Need {
                // What all threads add up, and what is left after the first step.
                what: "a workgroup",
                limit: Limit::WorkgroupMemory,
                needed: u64::from(self.threads()) * 48,
                advice: default_limits,
            },
            Need {
                what: "statistics or temperatures of all rows",
                limit: Limit::Indexed,
                needed: self.stats_bytes().max(self.problem.row_count() * 4),
                advice: "call once for a part of the rows",
            },
            Need {
                what: "a thread that goes through its part of a row",
                limit: Limit::LoopIterations,
                needed: self.iterations(),
                advice: "cut the row into several calls and merge them, or take a newer driver",
            },
        ]
    }

    /// The most rounds that one thread makes in all loops of a shader: sweeps over its tiles, partial results and steps of a
    /// merge, each with one round more in which it ends.
    fn iterations(&self) -> u64 {
        let tiles = self.share.chunk.div_ceil(self.share.tile());
        let sweep = u64::from(if tiles > 1 { tiles + 1 } else { 0 });
        // Both steps of a sum over lanes.
        let merge = 2 * 17;
        let partials = 2 * (u64::from(self.share.chunks.div_ceil(self.share.merge_threads)) + 1);
        let sweeps = if self.problem.kind.is_sparse() { u64::from(ROUNDS) + 3 } else { 3 };
        let row = sweeps * (sweep + 2 * merge + 5) + partials + u64::from(ROUNDS) + 1;
        u64::from(self.share.lots) * (row + 1) + 1
    }

    /// Halves the box of rows until one fits, and makes the dispatches of all boxes.
    fn cut(&mut self, caps: &Caps) -> Result<()> {
        let all = self.problem.rows;
        if self.problem.row_count() == 0 {
            return Ok(());
        }
        let mut size = all;
        while let Some(limit) = self.too_much(size, caps) {
            match size {
                [o, _] if o > 1 => size[0] = size[0].div_ceil(2),
                [_, n] if n > 1 => size[1] = size[1].div_ceil(2),
                _ => {
                    let (name, needed, available) = limit;
                    return Err(Error::LimitExceeded {
                        what: "one row".to_owned(),
                        limit: name,
                        needed,
                        available,
                        advice: "ask for a device with larger limits (helpful_limits); shorter rows, or rows whose elements are \
                                 closer together, fit as well",
                    });
                }
            }
        }
        for o in (0..all[0]).step_by(size[0] as usize) {
            for n in (0..all[1]).step_by(size[1] as usize) {
                let rows = [size[0].min(all[0] - o), size[1].min(all[1] - n)];
                self.slice([o, n], rows, caps);
                self.slices += 1;
            }
        }
        Ok(())
    }

    /// Elements that a binding may start before the first one, because it starts at an aligned place.
    fn aligned(dtype: DType, caps: &Caps) -> u64 {
        u64::from(caps.min_storage_buffer_offset_alignment.max(16)) * 8 / u64::from(dtype.bits())
    }

    /// The tensors' layouts and types; that of dy is as that of x.
    fn layouts(&self) -> Vec<(&RowLayout, DType)> {
        let problem = &self.problem;
        let mut all = vec![(&problem.out_layout, DType::F32)];
        if !problem.in_place {
            all.push((&problem.x_layout, problem.x_type));
        }
        all
    }

    fn scratch(&self, rows: u64) -> u64 {
        if self.share.chunks == 1 { 0 } else { rows * (u64::from(self.share.chunks) + 1) * WORDS * 4 }
    }

    /// The limit that a box of rows does not keep: name, need, available.
    fn too_much(&self, rows: [u32; 2], caps: &Caps) -> Option<(&'static str, u64, u64)> {
        const BINDING: &str = "max_storage_buffer_binding_size";
        let count = u64::from(rows[0]) * u64::from(rows[1]);
        let binding = caps.max_storage_buffer_binding_size.min(4 * u64::from(u32::MAX));
        for (layout, dtype) in self.layouts() {
            let reach = self.problem.reach(layout, rows).saturating_add(Self::aligned(dtype, caps));
            let needed = dtype.bytes(reach);
            if needed > binding || reach > u32::MAX.into() {
                return Some((BINDING, needed, binding));
            }
        }
        if self.scratch(count) > binding {
            return Some((BINDING, self.scratch(count), binding));
        }
        let most = u64::from(caps.max_compute_workgroups_per_dimension);
        for pass in self.passes() {
            let groups = self.workgroups(pass, count);
            // Twice: a folded dispatch has some workgroups in vain, and threads are numbered in 32 bits.
            if fold(groups, caps).is_none() || 2 * groups * u64::from(self.threads()) > u64::from(u32::MAX) {
                return Some(("max_compute_workgroups_per_dimension", groups, most * most));
            }
        }
        // A guess of what an element takes, in operations; a single row is never too much.
        let operations = count.saturating_mul(self.problem.len.into()).saturating_mul(40);
        let most = caps.flops_per_dispatch();
        (count > 1 && operations > most).then_some(("operations of a dispatch", operations, most))
    }

    fn slice(&mut self, first: [u32; 2], rows: [u32; 2], caps: &Caps) {
        let problem = &self.problem;
        let place = |layout: &RowLayout, dtype: DType| {
            let alignment = Self::aligned(dtype, caps);
            let start =
                layout.offset + u64::from(first[0]) * layout.outer + u64::from(first[1]) * layout.inner;
            let base = start % alignment;
            let reach = base + problem.reach(layout, rows);
            // Steps of dimensions that have one place do not matter, and may be anything. The others fit, as the reach does.
            let step = |n: u32, step: u64| if n > 1 { step as u32 } else { 0 };
            let view = Rows {
                base: base as u32,
                outer: step(rows[0], layout.outer),
                inner: step(rows[1], layout.inner),
                step: step(problem.len, layout.step),
            };
            (view, Part { start: dtype.bytes(start - base), bytes: dtype.bytes(reach) })
        };
        let (x, x_part) = place(&problem.x_layout, problem.x_type);
        let (out, out_part) = place(&problem.out_layout, DType::F32);
        let count = u64::from(rows[0]) * u64::from(rows[1]);
        let total = problem.row_count();
        let section = |on: bool, before: [bool; 2]| {
            let before = before.iter().filter(|&&b| b).count() as u64;
            if on { (before * total) as u32 } else { 0 }
        };
        let params = Params {
            x,
            out,
            dy: x,
            inner: rows[1],
            len: problem.len,
            rows: count as u32,
            first_row: first[0] * problem.rows[1] + first[1],
            groups_x: 0,
            chunks: self.share.chunks,
            chunk: self.share.chunk,
            inverse_tau: match problem.temperature {
                RowTemperature::Value(tau) => (1.0 / f64::from(tau)) as f32,
                RowTemperature::PerRow => 0.0,
            },
            lse: 0,
            entropy: section(problem.entropy, [problem.lse, false]),
            argmax: section(problem.argmax, [problem.lse, problem.entropy]),
            lots: self.share.lots,
        };
        let scratch = self.scratch(count);
        for pass in self.passes() {
            // too_much() has seen that it folds.
            let Some(workgroups) = fold(self.workgroups(pass, count), caps) else { continue };
            let (threads, lanes) = if pass.merges() {
                (self.share.merge_threads, self.share.merge_threads)
            } else {
                (self.share.threads, self.share.lanes)
            };
            let shader = Variant {
                pass,
                kind: problem.kind,
                backward: self.backward,
                per_row: problem.temperature == RowTemperature::PerRow,
                in_place: problem.in_place,
                stats: [problem.lse, problem.entropy, problem.argmax],
                dtype: problem.x_type,
                threads,
                lanes,
                vecs: self.share.vecs,
                one_tile: self.share.one_tile(),
                // A dispatch that is folded has some workgroups in vain, which whole rows bear.
                full: self.share.full && (pass == Pass::Rows || workgroups[1] == 1),
                access: self.share.access,
                subgroup: self.share.subgroup && threads == self.share.threads,
            };
            let whole = |bytes| Part { start: 0, bytes };
            let parts = shader
                .slots()
                .iter()
                .map(|(_, role)| match *role {
                    Role::Scratch => whole(scratch),
                    Role::Caller(n) if n == Caller::X as usize || n == Caller::DOut as usize => x_part,
                    Role::Caller(n) if n == Caller::Out as usize => out_part,
                    Role::Caller(n) if n == Caller::Temperature as usize => whole(total * 4),
                    Role::Caller(_) => whole(self.stats_bytes()),
                })
                .collect();
            let params = Params { groups_x: workgroups[0], ..params };
            self.program.dispatches.push(Dispatch { shader, params, parts, workgroups });
        }
        self.program.scratch_bytes = self.program.scratch_bytes.max(scratch);
    }

    /// The problem. Of a backward plan, with the layouts exchanged: what is read is in `x_layout`.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Why rows are shared out as they are.
    pub fn reason(&self) -> String {
        self.share.reason()
    }

    /// Workgroups that share one row; more than 1 for long rows.
    pub fn workgroups_per_row(&self) -> u32 {
        self.share.chunks
    }

    /// Parts that the rows are cut into, so that no dispatch takes too long or binds too much. 0 for an empty problem.
    pub fn slices(&self) -> usize {
        self.slices
    }

    /// Dispatches of all slices.
    pub fn dispatches(&self) -> usize {
        self.program.dispatches.len()
    }

    /// Bytes of device memory beside inputs, outputs and params: partial results of long rows.
    pub fn scratch_bytes(&self) -> u64 {
        self.program.scratch_bytes
    }

    /// Bytes that the buffer of x (backward: of the result) must have after its offset.
    pub fn x_bytes(&self) -> u64 {
        self.problem.x_type.bytes(self.problem.extent(&self.problem.x_layout))
    }

    /// Bytes that the buffer of the result (backward: of dx) must have after its offset.
    pub fn out_bytes(&self) -> u64 {
        self.problem.extent(&self.problem.out_layout) * 4
    }

    /// Bytes of the stats buffer; 0 where nothing is asked for.
    pub fn stats_bytes(&self) -> u64 {
        self.numbers_of_stats() * self.problem.row_count() * 4
    }

    /// Statistics of each row.
    fn numbers_of_stats(&self) -> u64 {
        let on = [self.problem.lse, self.problem.entropy, self.problem.argmax, self.backward == Some(true)];
        on.iter().filter(|&&on| on).count() as u64
    }

    /// Where a statistic is in the stats buffer, in bytes: one number for each row. `None` where it was not asked for.
    pub fn stats_range(&self, stat: Stat) -> Option<Range<u64>> {
        let p = &self.problem;
        let (lse, entropy) = (u64::from(p.lse), u64::from(p.entropy));
        let (asked, before) = match stat {
            Stat::Lse => (p.lse, 0),
            Stat::Entropy => (p.entropy, lse),
            Stat::Argmax => (p.argmax, lse + entropy),
            Stat::DTemperature => (self.backward == Some(true), 0),
        };
        let bytes = p.row_count() * 4;
        asked.then_some(before * bytes..(before + 1) * bytes)
    }

    /// The WGSL of all shaders, complete.
    pub fn shader_sources(&self) -> Vec<String> {
        self.program.shaders().into_iter().map(Shader::source).collect()
    }

    /// Bytes of a caller's buffer; `None` where the plan does not have it.
    fn bytes(&self, role: Caller) -> Option<u64> {
        let p = &self.problem;
        let (on, bytes) = match role {
            Caller::X => (!p.in_place, self.x_bytes()),
            Caller::Out => (true, self.out_bytes()),
            Caller::Temperature => (p.temperature == RowTemperature::PerRow, p.row_count() * 4),
            Caller::Stats => (self.numbers_of_stats() > 0, self.stats_bytes()),
            Caller::DOut => (self.backward.is_some(), self.x_bytes()),
        };
        on.then_some(bytes)
    }

    /// A buffer's name in errors, and whether it is written.
    fn field(&self, role: Caller) -> (&'static str, bool) {
        match (role, self.backward.is_some()) {
            (Caller::X, false) => ("x", false),
            (Caller::X, true) => ("out", false),
            (Caller::Out, false) => ("out", true),
            (Caller::Out, true) => ("dx", true),
            (Caller::Temperature, _) => ("temperature", false),
            (Caller::Stats, _) => ("stats", true),
            (Caller::DOut, _) => ("d_out", false),
        }
    }
}

impl Planned for Plan {
    type Problem = Problem;
    type Shader = Variant;
    type Buffers<'a> = super::Buffers<'a>;

    fn of(problem: &Problem, caps: &Caps) -> Result<Self> {
        Self::new(problem, caps)
    }

    fn program(&self) -> &Program<Variant> {
        &self.program
    }

    fn wanted(&self) -> Vec<Wanted> {
        let wanted = |role: Caller| {
            let (field, written) = self.field(role);
            Wanted { field, bytes: self.bytes(role), written, why: role.why(), hint: role.hint() }
        };
        Caller::ALL.map(wanted).into()
    }

    fn given<'b, 'a: 'b>(buffers: &'b super::Buffers<'a>) -> &'b [Option<BufferRef<'a>>] {
        &buffers.roles
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups =
            self.program.dispatches.iter().map(|d| u64::from(d.workgroups[0]) * u64::from(d.workgroups[1]));
        writeln!(f, "kernel      {}", self.program.label)?;
        writeln!(f, "because     {}", self.reason())?;
        writeln!(
            f,
            "dispatches  {} with {} workgroups of {} threads",
            self.dispatches(),
            groups.sum::<u64>(),
            self.share.threads
        )?;
        write!(f, "memory      {} bytes of scratch", self.scratch_bytes())
    }
}
