//! Problem -> plan, in pure Rust: a dispatch for each step, slices, and where the settings go.

use super::chain::{Chain, Step};
use super::problem::{Finish, Problem, Seed};
use super::shader::{COUNTS, Params, Pass, Variant};
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
/// Words of a step's settings.
const WORDS: u32 = 4;

/// Everything that is decided before a device is involved. Its `Display` explains it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    problem: Problem,
    threads: u32,
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
        // Two sizes, so that few variants are compiled.
        let cpu = caps.class == AdapterClass::Cpu;
        // A processor that plays a GPU takes the threads of a workgroup in turn at each barrier: a guess, not measured.
        let small = problem.vocab <= SHORT || (cpu && iterations(problem, 64) <= caps.loop_iterations());
        let useful = if small { 64 } else { 256 };
        let threads = (1 << caps.threads().max(1).ilog2()).min(useful);
        let program = Program::new("sampling".to_owned(), caps);
        // Workgroups that share a row: enough to keep a device busy with one sequence.
        let groups = problem.vocab.div_ceil(threads * PER_THREAD).min(if cpu { 8 } else { 64 });
        let mut plan = Plan { problem: problem.clone(), threads, groups, slices: 0, program };
        plan.program.require(plan.needs(), caps)?;
        plan.cut(caps)?;
        Ok(plan)
    }

    /// What is dispatched for a slice, with the place of its settings, and whether it goes through listed tokens.
    fn passes(&self) -> Vec<(Pass, u32, bool)> {
        let p = &self.problem;
        let mut all = vec![(Pass::Begin, 0, false)];
        let mut listed = false;
        for (step, at) in p.chain.steps().iter().zip((0..).map(|n| HEAD + n * WORDS)) {
            if matches!(step, Step::TopK(_)) && self.narrows() && !listed {
                all.extend([(Pass::Maxima, at, false), (Pass::Narrow, at, false)]);
                listed = true;
            }
            all.push((Pass::from(step), at, listed));
        }
        all.push((Pass::Finish { gumbel: p.finish == Finish::Gumbel, log_probs: p.log_probs }, 0, listed));
        all
    }

    /// Whether a first top-k leaves a list for the steps after it.
    fn narrows(&self) -> bool {
        self.problem.vocab > SHORT && self.problem.chain.has("top_k")
    }

    /// Where the sections of a slice's scratch are, in words: list, maxima and counts, and the end. The logits come first.
    fn sections(&self, rows: u32, caps: &Caps) -> [u64; 4] {
        let all = u64::from(rows) * u64::from(self.problem.vocab);
        if !self.narrows() {
            return [all; 4];
        }
        let maxima = 2 * all;
        // A binding of its own.
        let counts = (maxima + u64::from(rows) * u64::from(self.groups * self.threads))
            .next_multiple_of(Self::aligned(DType::F32, caps));
        [all, maxima, counts, counts + u64::from(rows)]
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
                needed: self.threads.into(),
                advice: "ask for a device that can run compute shaders, or plan for this one",
            },
            Need {
                // Seven 64-bit sums for each thread, and a number.
                what: "a workgroup",
                limit: Limit::WorkgroupMemory,
                needed: u64::from(self.threads) * 56 + 16,
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
                needed: iterations(&self.problem, self.threads),
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
        let scratch = self.sections(rows, caps)[3] * 4;
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
        let scratch = sections[3] * 4;
        for (pass, step, listed) in self.passes() {
            let begin = pass == Pass::Begin;
            let dtype = if begin { dtype } else { DType::F32 };
            let shader = Variant { pass, threads: self.threads, listed, dtype };
            let shared = begin || matches!(pass, Pass::Maxima | Pass::Narrow);
            let groups = u64::from(rows) * if shared { self.groups.into() } else { 1 };
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
                step,
                history: problem.history,
                bias: problem.bias,
                total_rows: problem.rows,
                bits: problem.vocab.next_power_of_two().ilog2(),
                groups: self.groups,
                // Within a binding.
                list: sections[0] as u32,
                maxima: sections[1] as u32,
                counts: sections[2] as u32,
            };
            let parts = shader
                .slots()
                .iter()
                .map(|(slot, role)| match *role {
                    // What one counts with is not bound twice.
                    Role::Scratch if slot.number == COUNTS => {
                        Part { start: sections[2] * 4, bytes: scratch - sections[2] * 4 }
                    }
                    Role::Scratch if pass == Pass::Narrow => Part { start: 0, bytes: sections[2] * 4 },
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

    /// Dispatches of all slices: one for each step, two around them, and two before the first top-k of a large vocabulary.
    pub fn dispatches(&self) -> usize {
        self.program.dispatches.len()
    }

    /// Parts that the rows are cut into.
    pub fn slices(&self) -> usize {
        self.slices
    }

    /// Bytes of device memory beside inputs and outputs: the logits as the chain changes them, and the tokens that a top-k may leave.
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

/// The most rounds that one thread makes in all loops of a step together. Selecting sweeps most often: 11 times for the key, 8 for
/// equal ones, four times around that, and each sum takes its steps.
fn iterations(problem: &Problem, threads: u32) -> u64 {
    let sweep = u64::from(problem.vocab.div_ceil(threads)) + 1;
    let sum = 8 * (u64::from(threads.ilog2()) + 1);
    let select = 24 * (sweep + sum + 1) + 256;
    let list = |n: u32| u64::from(n.div_ceil(threads)) * (u64::from(n) + 1) + 1;
    select.max(list(problem.history)).max(list(problem.bias))
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
            "dispatches  {} for {} rows in {} slices, workgroups of {} threads: one for a step of a row, {} where the whole row is read",
            self.dispatches(),
            p.rows,
            self.slices,
            self.threads,
            self.groups
        )?;
        write!(f, "memory      {} bytes of scratch", self.scratch_bytes())
    }
}
