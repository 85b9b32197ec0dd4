//! Problem -> plan, in pure Rust: a dispatch for each step, slices, and where the settings go.

use super::chain::{Chain, Step};
use super::problem::{Finish, Problem, Seed};
use super::shader::{COUNTS, PART_ROUNDS, Params, Pass, Phase, Variant};
use crate::buffers::BufferRef;
use crate::caps::{AdapterClass, Caps};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::needs::{Limit, Need};
use crate::program::{Dispatch, Part, Planned, Program, Role, Shader, Wanted, fold};
use core::fmt;

/// The caller's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Logits,
    Settings,
    History,
    Bias,
    Allowed,
    Out,
}

impl Caller {
    pub(crate) const COUNT: usize = 6;
    pub(crate) const ALL: [Caller; 6] =
        [Caller::Logits, Caller::Settings, Caller::History, Caller::Bias, Caller::Allowed, Caller::Out];

    /// Its name in errors.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Caller::Logits => "logits",
            Caller::Settings => "settings",
            Caller::History => "history",
            Caller::Bias => "bias",
            Caller::Allowed => "allowed",
            Caller::Out => "out",
        }
    }
}

/// Words of a row's settings before those of its steps: seed, seed, offset, and one that is not in use.
const HEAD: u32 = 4;
/// A vocabulary up to this has a small workgroup, and no list.
const SHORT: u32 = 1024;
/// Logits of a thread, where many workgroups share a row.
const PER_THREAD: u32 = 16;
/// Workgroups that share a row at most.
const MOST_GROUPS: u32 = 64;
/// Words that a part of a row leaves for the next pass, and the row itself; as in `shaders/sampling/notes.wgsl`.
const NOTES_OF_PART: u64 = 16;
/// Words of a step's settings.
const WORDS: u32 = 4;

/// Everything that is decided before a device is involved. Its `Display` explains it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    problem: Problem,
    team: Team,
    groups: u32,
    slices: usize,
    program: Program<Variant>,
}

impl Plan {
    /// Plans a problem for a device's capabilities.
    ///
    /// # Errors
    /// What [`Problem::check`] finds; [`Error::LimitExceeded`] where the device cannot do it and cutting it up by rows does not help.
    pub fn new(problem: &Problem, caps: &Caps) -> Result<Plan> {
        problem.check()?;
        let team = Team::new(problem, caps);
        let program = Program::new("sampling".to_owned(), caps);
        // Workgroups that share a row: enough to keep a device busy with one sequence. A processor is with fewer, but the shares of a top-k
        // are their threads.
        let most = match caps.class == AdapterClass::Cpu && !problem.chain.has("top_k") {
            true => MOST_GROUPS / 4,
            false => MOST_GROUPS,
        };
        let groups = problem.vocab.div_ceil(team.sharing * PER_THREAD).min(most);
        let mut plan = Plan { problem: problem.clone(), team, groups, slices: 0, program };
        plan.program.require(plan.needs(), caps)?;
        plan.cut(caps)?;
        let all = plan.program.dispatches.iter();
        plan.program.subgroup = all.map(|d| &d.shader).find(|s| s.subgroup).map(|s| s.threads);
        Ok(plan)
    }

    /// What is dispatched for a slice.
    fn stages(&self) -> Vec<Stage> {
        let p = &self.problem;
        let steps = p.chain.steps();
        let narrowing = self.narrowing();
        // What was the largest of a share stays good for a top-k while steps only keep the largest.
        let maxima = narrowing.is_some_and(|at| steps[..at].iter().all(Step::keeps_largest));
        let mut chain = Stages { all: Vec::new(), facts: Facts::OfBegin, used: false };
        let mut listed = false;
        for (number, (step, at)) in steps.iter().zip((0..).map(|n| HEAD + n * WORDS)).enumerate() {
            if narrowing == Some(number) {
                let passes = [(!maxima).then_some(Pass::Maxima), Some(Pass::Threshold), Some(Pass::Narrow)];
                passes.into_iter().flatten().for_each(|pass| chain.push(pass, at, false));
                listed = true;
            }
            match step {
                Step::Temperature(_) if self.parts() && !listed => {
                    chain.push_with_facts(Pass::TemperatureParts, at);
                }
                Step::MinP(_) if self.parts() && !listed => chain.push_with_facts(Pass::MinPParts, at),
                Step::TopP(_) | Step::Typical(_) if self.parts() && !listed => {
                    chain.keep(matches!(step, Step::Typical(_)), at);
                }
                _ => chain.push(Pass::from(step), at, listed),
            }
        }
        let (gumbel, log_probs) = (p.finish == Finish::Gumbel, p.log_probs);
        if self.parts() && !listed {
            chain.need_facts();
            if gumbel || log_probs {
                chain.push(Pass::Draw { gumbel, log_probs }, 0, false);
            }
            chain.push(Pass::Merge { gumbel, log_probs }, 0, false);
        } else {
            chain.push(Pass::Finish { gumbel, log_probs }, 0, listed);
        }
        let begin = Pass::Begin { maxima, facts: chain.used };
        chain.all.insert(0, Stage { pass: begin, at: 0, listed: false, round: 0 });
        chain.all
    }

    /// The first top-k of the chain that leaves a list for itself and the steps after it, where a row is long.
    fn narrowing(&self) -> Option<usize> {
        let k = |step: &Step| matches!(step, Step::TopK(k) if *k > 0);
        let first = self.problem.chain.steps().iter().position(k);
        first.filter(|_| self.problem.vocab > SHORT)
    }

    /// Whether workgroups share a row in steps that go through all of it.
    fn parts(&self) -> bool {
        self.problem.vocab > SHORT
    }

    /// Where the sections of a slice's scratch are, in words. The logits come first.
    fn sections(&self, rows: u32, caps: &Caps) -> Sections {
        let rows = u64::from(rows);
        let all = rows * u64::from(self.problem.vocab);
        let stages = self.stages();
        // Two of them, which change places.
        let notes = match stages.iter().any(|stage| stage.pass.leaves_notes()) {
            true => rows * NOTES_OF_PART * (1 + u64::from(self.groups)),
            false => 0,
        };
        let list = all + 2 * notes;
        if !stages.iter().any(|stage| stage.pass.counts()) {
            return Sections {
                notes: [all, all + notes],
                list,
                maxima: list,
                chosen: list,
                thresholds: list,
                counts: list,
                end: list,
            };
        }
        let shares = rows * u64::from(self.shares());
        let maxima = list + all;
        let thresholds = maxima + 2 * shares;
        // A binding of its own.
        let counts = (thresholds + rows).next_multiple_of(Self::aligned(DType::F32, caps));
        Sections {
            notes: [all, all + notes],
            list,
            maxima,
            chosen: maxima + shares,
            thresholds,
            counts,
            end: counts + 2 * rows,
        }
    }

    /// Shares of a row, one for each thread of its workgroups.
    fn shares(&self) -> u32 {
        self.groups * self.team.sharing
    }

    fn settings_words(&self) -> u32 {
        HEAD + WORDS * self.problem.chain.steps().len() as u32
    }

    fn needs(&self) -> Vec<Need> {
        let default_limits = "ask for a device with WebGPU's default limits";
        let mut all = vec![
            Need {
                what: "a workgroup",
                limit: Limit::Threads,
                needed: self.team.most().into(),
                advice: "ask for a device that can run compute shaders, or plan for this one",
            },
            Need {
                // Seven 64-bit sums for each thread, and a number.
                what: "a workgroup",
                limit: Limit::WorkgroupMemory,
                needed: u64::from(self.team.most()) * 56 + 16,
                advice: default_limits,
            },
            Need {
                // Scratch, settings, and one that a step has of its own.
                what: "the bindings of a step",
                limit: Limit::StorageBuffers,
                needed: 3,
                advice: default_limits,
            },
            Need {
                what: "a thread that goes through its part of the vocabulary",
                limit: Limit::LoopIterations,
                needed: self.team.iterations(&self.problem),
                advice: "this release of Mesa's llvmpipe leaves loops too early: take a newer one or another adapter, or a \
                         smaller vocabulary or history",
            },
        ];
        for role in Caller::ALL.into_iter().filter(|role| *role != Caller::Logits) {
            all.push(Need {
                what: role.field(),
                limit: Limit::Indexed,
                needed: self.bytes(role),
                advice: "call once for a part of the rows",
            });
        }
        all
    }

    /// Rows of a slice: as many as fit.
    fn cut(&mut self, caps: &Caps) -> Result<()> {
        let all = self.problem.rows;
        if all == 0 {
            return Ok(());
        }
        let mut rows = all;
        while let Some((limit, needed, available)) = self.too_much(rows, caps) {
            if rows == 1 {
                return Err(Error::LimitExceeded {
                    what: "one row of logits".to_owned(),
                    limit,
                    needed,
                    available,
                    advice: "ask for a device with larger limits (helpful_limits)",
                });
            }
            rows = rows.div_ceil(2);
        }
        for first in (0..all).step_by(rows as usize) {
            self.slice(first, rows.min(all - first), caps);
            self.slices += 1;
        }
        Ok(())
    }

    fn aligned(dtype: DType, caps: &Caps) -> u64 {
        u64::from(caps.min_storage_buffer_offset_alignment.max(16)) * 8 / u64::from(dtype.bits())
    }

    /// The limit that a slice of so many rows does not keep: name, need, available.
    fn too_much(&self, rows: u32, caps: &Caps) -> Option<(&'static str, u64, u64)> {
        let binding = caps.max_storage_buffer_binding_size.min(4 * u64::from(u32::MAX));
        let dtype = self.problem.dtype;
        let reach = self.problem.extent(rows).saturating_add(Self::aligned(dtype, caps));
        let logits = dtype.bytes(reach);
        let scratch = self.sections(rows, caps).end * 4;
        if logits.max(scratch) > binding {
            return Some(("max_storage_buffer_binding_size", logits.max(scratch), binding));
        }
        let groups = u64::from(rows) * u64::from(self.groups);
        if fold(groups, caps).is_none() {
            let most = u64::from(caps.max_compute_workgroups_per_dimension);
            return Some(("max_compute_workgroups_per_dimension", groups, most * most));
        }
        // A guess of what a step takes for each logit, in operations; a single row is never too much.
        let operations = u64::from(rows) * u64::from(self.problem.vocab) * 1000;
        let most = caps.flops_per_dispatch();
        (rows > 1 && operations > most).then_some(("operations of a dispatch", operations, most))
    }

    fn slice(&mut self, first: u32, rows: u32, caps: &Caps) {
        let problem = &self.problem;
        let start = u64::from(first) * problem.stride;
        let dtype = problem.dtype;
        let base = start % Self::aligned(dtype, caps);
        let logits =
            Part { start: dtype.bytes(start - base), bytes: dtype.bytes(base + problem.extent(rows)) };
        let sections = self.sections(rows, caps);
        let scratch = sections.end * 4;
        let mut notes = sections.notes;
        for Stage { pass, at, listed, round } in self.stages() {
            let shader = Variant::new(pass, listed, dtype, self.team.threads(pass), self.team.subgroup);
            let groups = u64::from(rows) * if pass.shares() { self.groups.into() } else { 1 };
            // too_much() has seen that it folds.
            let Some(workgroups) = fold(groups, caps) else { continue };
            let params = Params {
                vocab: problem.vocab,
                rows,
                first_row: first,
                groups_x: workgroups[0],
                logits: base as u32,
                // A slice of more than one row has it within its binding.
                stride: if rows > 1 { problem.stride as u32 } else { 0 },
                settings: self.settings_words(),
                step: at,
                history: problem.history,
                bias: problem.bias,
                total_rows: problem.rows,
                bits: problem.vocab.next_power_of_two().ilog2(),
                groups: self.groups,
                part: problem.vocab.div_ceil(self.groups),
                shares: self.shares(),
                // Within a binding.
                list: sections.list as u32,
                maxima: sections.maxima as u32,
                chosen: sections.chosen as u32,
                thresholds: sections.thresholds as u32,
                counts: sections.counts as u32,
                notes: notes[0] as u32,
                next_notes: notes[1] as u32,
                round,
                unused: 0,
            };
            if pass.leaves_notes() {
                notes.reverse();
            }
            let parts = shader
                .slots()
                .iter()
                .map(|(slot, role)| match *role {
                    // What one counts with is not bound twice.
                    Role::Scratch if slot.number == COUNTS => {
                        Part { start: sections.counts * 4, bytes: scratch - sections.counts * 4 }
                    }
                    Role::Scratch if pass.counts() => Part { start: 0, bytes: sections.counts * 4 },
                    Role::Scratch => Part { start: 0, bytes: scratch },
                    Role::Caller(n) if n == Caller::Logits as usize => logits,
                    Role::Caller(n) => Part { start: 0, bytes: self.bytes(Caller::ALL[n]) },
                })
                .collect();
            self.program.dispatches.push(Dispatch { shader, params, parts, workgroups });
        }
        self.program.scratch_bytes = self.program.scratch_bytes.max(scratch);
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Dispatches of all slices: one for each step or, where workgroups share a long row, up to eight; and some around them.
    pub fn dispatches(&self) -> usize {
        self.program.dispatches.len()
    }

    /// Parts that the rows are cut into.
    pub fn slices(&self) -> usize {
        self.slices
    }

    /// Bytes of device memory beside inputs and outputs: the logits as the chain changes them, and in a long vocabulary as much again for the
    /// tokens that a top-k, top-p or typical may leave.
    pub fn scratch_bytes(&self) -> u64 {
        self.program.scratch_bytes
    }

    /// Bytes of the buffer of logits.
    pub fn logits_bytes(&self) -> u64 {
        self.bytes(Caller::Logits)
    }

    /// Bytes of the buffer of settings, whose contents [`Plan::settings`] makes.
    pub fn settings_bytes(&self) -> u64 {
        self.bytes(Caller::Settings)
    }

    /// Bytes of the buffer that results come in: a token for each row (u32, `u32::MAX` where every token was out), then, where asked for,
    /// a log-probability for each row (f32).
    pub fn out_bytes(&self) -> u64 {
        self.bytes(Caller::Out)
    }

    /// Whether the problem has a buffer.
    pub(super) fn has(&self, role: Caller) -> bool {
        let p = &self.problem;
        match role {
            Caller::History => p.history > 0,
            Caller::Bias => p.bias > 0,
            Caller::Allowed => p.chain.has("allowed"),
            Caller::Logits | Caller::Settings | Caller::Out => true,
        }
    }

    /// Bytes of a caller's buffer; 0 where the plan does not have it.
    fn bytes(&self, role: Caller) -> u64 {
        let p = &self.problem;
        let words = match role {
            Caller::Logits => return p.dtype.bytes(p.extent(p.rows)),
            Caller::Settings => self.settings_words(),
            Caller::History => p.history,
            Caller::Bias => 2 * p.bias,
            Caller::Allowed if self.has(role) => p.allowed_words(),
            Caller::Allowed => 0,
            Caller::Out => 1 + u32::from(p.log_probs),
        };
        u64::from(words) * u64::from(p.rows) * 4
    }

    /// The contents of the buffer of settings: a seed for each row and, if the rows differ, a chain for each row, with the steps of the
    /// problem's own.
    ///
    /// # Errors
    /// [`Error::Length`] for another number of seeds or chains; [`Error::Value`] for a number outside its rule, or a chain of other steps.
    pub fn settings(&self, seeds: &[Seed], chains: Option<&[Chain]>) -> Result<Vec<u32>> {
        let problem = &self.problem;
        let expected = u64::from(problem.rows);
        for (field, got) in [("seeds", Some(seeds.len())), ("chains", chains.map(<[Chain]>::len))] {
            if let Some(got) = got
                && got as u64 != expected
            {
                return Err(Error::Length { field, got: got as u64, expected });
            }
        }
        let mut words = Vec::with_capacity(self.settings_bytes() as usize / 4);
        for (row, seed) in seeds.iter().enumerate() {
            let chain = chains.map_or(&problem.chain, |chains| &chains[row]);
            if !chain.same_steps(&problem.chain) {
                return Err(Error::value(
                    "chains",
                    chain,
                    "the steps of the problem's chain, in their order",
                ));
            }
            chain.check()?;
            // The two halves of the seed.
            words.extend([seed.seed as u32, (seed.seed >> 32) as u32, seed.offset, 0]);
            words.extend(chain.steps().iter().flat_map(|step| step.settings()));
        }
        Ok(words)
    }

    /// The WGSL of all shaders, complete.
    pub fn shader_sources(&self) -> Vec<String> {
        self.program.shaders().into_iter().map(Shader::source).collect()
    }
}

/// A dispatch of a slice: what, where its settings are among a row's, whether it goes through listed tokens, and the round of a search.
#[derive(Debug, Clone, Copy)]
struct Stage {
    pass: Pass,
    at: u32,
    listed: bool,
    round: u32,
}

/// Where the facts of a row (its largest and its smallest logit) are that a step by parts begins with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Facts {
    /// The first pass can leave them.
    OfBegin,
    /// The pass before has left them.
    Left,
    /// Logits have changed since.
    Stale,
}

/// Stages as they come.
struct Stages {
    all: Vec<Stage>,
    facts: Facts,
    /// Facts of the first pass are asked for.
    used: bool,
}

impl Stages {
    fn push(&mut self, pass: Pass, at: u32, listed: bool) {
        self.all.push(Stage { pass, at, listed, round: 0 });
        self.facts = if pass.leaves_notes() { Facts::Left } else { Facts::Stale };
    }

    fn need_facts(&mut self) {
        match self.facts {
            Facts::OfBegin => self.used = true,
            Facts::Left => {}
            Facts::Stale => self.push(Pass::Facts, 0, false),
        }
    }

    fn push_with_facts(&mut self, pass: Pass, at: u32) {
        self.need_facts();
        self.push(pass, at, false);
    }

    /// A step that keeps a share of the probability.
    fn keep(&mut self, typical: bool, at: u32) {
        self.push_with_facts(Pass::KeepParts { typical, phase: Phase::Target }, at);
        let pass = Pass::KeepParts { typical, phase: Phase::Round };
        self.all.extend((0..PART_ROUNDS).map(|round| Stage { pass, at, listed: false, round }));
        self.push(Pass::KeepParts { typical, phase: Phase::List }, at, false);
        self.push(Pass::KeepParts { typical, phase: Phase::Search }, at, true);
        self.push(Pass::KeepParts { typical, phase: Phase::Keep }, at, false);
    }
}

/// Sections of a slice's scratch.
#[derive(Debug, Clone, Copy)]
struct Sections {
    notes: [u64; 2],
    list: u64,
    maxima: u64,
    chosen: u64,
    thresholds: u64,
    counts: u64,
    end: u64,
}

/// Threads of a workgroup.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Team {
    /// Of passes whose workgroups share a row.
    sharing: u32,
    /// Of steps that go through a row some times.
    sweeping: u32,
    /// Of those that search it.
    searching: u32,
    /// A workgroup of so many is one subgroup.
    subgroup: Option<u32>,
}

impl Team {
    fn new(problem: &Problem, caps: &Caps) -> Team {
        let most = 1 << caps.threads().max(1).ilog2();
        if caps.class != AdapterClass::Cpu {
            // Two sizes, so that few variants are compiled.
            let threads = most.min(if problem.vocab <= SHORT { 64 } else { 256 });
            return Team { sharing: threads, sweeping: threads, searching: threads, subgroup: None };
        }
        // A processor that plays a GPU takes the threads of a workgroup in turn at each barrier, and goes through memory fastest where
        // they are one vector register. More, where older ones would leave loops too early.
        let subgroup = caps.subgroup_size.filter(|n| n.is_power_of_two() && *n <= most);
        let one = subgroup.unwrap_or(8).min(most);
        let fits = |rounds: &dyn Fn(u32) -> u64| {
            let sizes = [one, 64.min(most), 256.min(most)];
            sizes.into_iter().find(|&n| rounds(n) <= caps.loop_iterations()).unwrap_or(sizes[2])
        };
        Team {
            sharing: one,
            sweeping: fits(&|threads| sweeps(problem, threads)),
            searching: fits(&|threads| searches(problem, threads)),
            subgroup,
        }
    }

    fn threads(&self, pass: Pass) -> u32 {
        match pass {
            Pass::TopK | Pass::TopP | Pass::Typical | Pass::KeepParts { phase: Phase::Search, .. } => {
                self.searching
            }
            pass if pass.shares() => self.sharing,
            _ => self.sweeping,
        }
    }

    fn most(&self) -> u32 {
        self.sharing.max(self.sweeping).max(self.searching)
    }

    fn iterations(&self, problem: &Problem) -> u64 {
        sweeps(problem, self.sweeping).max(searches(problem, self.searching))
    }
}

/// Rounds that one thread makes at most in all loops of a step that searches a row: 11 sweeps for the key, 8 for equal ones, four around
/// that, and each sum takes its steps.
fn searches(problem: &Problem, threads: u32) -> u64 {
    24 * (sweep(problem.vocab, threads) + sum(threads) + 1) + 256
}

/// The same of all other steps: up to five sweeps and sums, divisions, and lists.
fn sweeps(problem: &Problem, threads: u32) -> u64 {
    let list = |n: u32| u64::from(n.div_ceil(threads)) * (u64::from(n) + 1) + 1;
    // In threshold.wgsl a thread has a share of each workgroup at most.
    let shares = 12 * (u64::from(MOST_GROUPS) + sum(threads) + 2);
    let steps = 5 * (sweep(problem.vocab, threads) + sum(threads) + 1) + 256;
    steps.max(shares).max(list(problem.history)).max(list(problem.bias))
}

fn sweep(tokens: u32, threads: u32) -> u64 {
    u64::from(tokens.div_ceil(threads)) + 1
}

fn sum(threads: u32) -> u64 {
    8 * (u64::from(threads.ilog2()) + 1)
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
            let (why, hint) = ("the chain has a step that reads it", "the chain has no step that reads it");
            Wanted {
                field: role.field(),
                bytes: self.has(role).then(|| self.bytes(role)),
                written: role == Caller::Out,
                why,
                hint,
            }
        };
        Caller::ALL.map(wanted).into()
    }

    fn given<'b, 'a: 'b>(buffers: &'b super::Buffers<'a>) -> &'b [Option<BufferRef<'a>>] {
        &buffers.roles
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.problem;
        writeln!(f, "chain       {}", p.chain)?;
        writeln!(f, "finish      {:?}", p.finish)?;
        writeln!(
            f,
            "dispatches  {} for {} rows in {} slices; a row has one workgroup of {} threads, or {} of {} threads where they share it",
            self.dispatches(),
            p.rows,
            self.slices,
            self.team.searching,
            self.groups,
            self.team.sharing
        )?;
        write!(f, "memory      {} bytes of scratch", self.scratch_bytes())
    }
}
