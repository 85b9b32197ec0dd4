//! Problem -> plan, in pure Rust: which passes, how they are cut up, and what they need.

use super::problem::Problem;
use super::shader::{Params, Pass, Variant};
use crate::buffers::BufferRef;
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::kernel::{Access, Kernel, PipelineKey};
use crate::layout::View;
use crate::needs::{Limit, Need};
use crate::plan::{Tables, Tiles, base_params};
use crate::program::{Dispatch, Part, Planned, Program, Role, Shader, Wanted, fold};
use crate::shader::params;
use crate::shape::Stats;
use crate::sharpness::Temperature;
use crate::tensor::Tensor;
use core::fmt;

/// The caller's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Q,
    K,
    V,
    Lse,
    Dout,
    Dlse,
    Bias,
    Mask,
    Tables,
    Dq,
    Dk,
    Dv,
    Dbias,
    Dsinks,
    Dtemperature,
}

impl Caller {
    pub(crate) const COUNT: usize = 15;
    pub(crate) const ALL: [Caller; Caller::COUNT] = [
        Caller::Q,
        Caller::K,
        Caller::V,
        Caller::Lse,
        Caller::Dout,
        Caller::Dlse,
        Caller::Bias,
        Caller::Mask,
        Caller::Tables,
        Caller::Dq,
        Caller::Dk,
        Caller::Dv,
        Caller::Dbias,
        Caller::Dsinks,
        Caller::Dtemperature,
    ];

    pub(crate) fn field(self) -> &'static str {
        match self {
            Caller::Q => "q",
            Caller::K => "k",
            Caller::V => "v",
            Caller::Lse => "lse",
            Caller::Dout => "dout",
            Caller::Dlse => "dlse",
            Caller::Bias => "bias",
            Caller::Mask => "mask",
            Caller::Tables => "tables",
            Caller::Dq => "dq",
            Caller::Dk => "dk",
            Caller::Dv => "dv",
            Caller::Dbias => "dbias",
            Caller::Dsinks => "dsinks",
            Caller::Dtemperature => "dtemperature",
        }
    }

    pub(crate) fn is_written(self) -> bool {
        use Caller::{Dbias, Dk, Dq, Dsinks, Dtemperature, Dv};
        matches!(self, Dq | Dk | Dv | Dbias | Dsinks | Dtemperature)
    }

    pub(crate) fn why(self) -> &'static str {
        match self {
            Caller::Dlse => "Problem::with_lse",
            Caller::Bias => "the forward problem has a bias",
            Caller::Mask => "the forward problem has a mask",
            Caller::Tables => "an option of the forward problem reads a table",
            Caller::Dbias => "Problem::with_bias",
            Caller::Dsinks => "Problem::with_sinks",
            Caller::Dtemperature => "Problem::with_temperature",
            _ => "every call reads or writes it",
        }
    }

    pub(crate) fn hint(self) -> &'static str {
        match self {
            Caller::Dlse => "ask for it with Problem::with_lse",
            Caller::Dbias => "ask for it with Problem::with_bias",
            Caller::Dsinks => "ask for it with Problem::with_sinks",
            Caller::Dtemperature => "ask for it with Problem::with_temperature",
            _ => "the forward problem does not have it",
        }
    }
}

/// Everything that is decided before a device is involved. Its `Display` explains it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    problem: Problem,
    tables: Tables,
    threads: u32,
    key: PipelineKey,
    program: Program<Variant>,
}

/// Threads of a workgroup: as many keys, or rows, are looked at together.
const THREADS: u32 = 64;
/// Numbers kept of a row, as in `shaders/backward/kept.wgsl`.
const KEPT: u64 = 3;
const WHOLE: &str =
    "call once for each batch, or for some heads at a time: here a tensor has to fit one binding";

/// One pass: its items, and the operations that each of them takes.
struct Work {
    pass: Pass,
    items: u64,
    /// Items of a workgroup.
    share: u64,
    operations: u64,
    /// Rounds of all loops of one thread.
    rounds: u64,
}

impl Plan {
    /// Plans a problem for a device's capabilities.
    ///
    /// # Errors
    /// What [`Problem::check`] finds; [`Error::LimitExceeded`] where the device cannot do it.
    pub fn new(problem: &Problem, caps: &Caps) -> Result<Plan> {
        problem.check()?;
        let forward = &problem.forward;
        let threads = THREADS.min(1 << caps.threads().max(1).ilog2());
        let tiles = Tiles { threads, row_groups: 1, keys_per_thread: 1, dim_chunk: 1, v_chunk: 0 };
        let key = PipelineKey { stats: Stats::default(), ..PipelineKey::new(forward, Kernel::Naive, tiles)? };
        let mut plan = Plan {
            problem: problem.clone(),
            tables: Tables::new(forward),
            threads,
            key,
            program: Program::new("attention backward".to_owned(), caps),
        };
        plan.program.require(plan.needs(), caps)?;
        plan.program.scratch_bytes = plan.kept_bytes();
        for work in plan.passes() {
            plan.add(&work, caps)?;
        }
        Ok(plan)
    }

    fn passes(&self) -> Vec<Work> {
        let p = &self.problem;
        let s = &p.forward.shape;
        let n = u64::from;
        let (rows, keys) = (s.rows(), n(s.batch) * n(s.kv_heads) * n(s.seq_k));
        let threads = n(self.threads);
        let (qk4, v4) = (n(s.head_dim_qk.div_ceil(4)), n(s.head_dim_v.div_ceil(4)));
        let pair = qk4 + v4 + 3;
        // Rounds of a workgroup that goes through a number of others, a tile at a time.
        let tiles = |others: u32, columns: u64| {
            n(others).div_ceil(threads) * (pair + columns.div_ceil(threads) * (threads + 1) + 1) + 1
        };
        let operations = |others: u64, products: u64| others.saturating_mul(8 * products);
        let seen = n(s.group()) * n(s.seq_q);
        let work = |pass, items, share, operations, rounds| Work { pass, items, share, operations, rounds };
        let mut all = vec![
            work(Pass::Prepare, rows.max(self.tables.bytes() / 4), threads, 8, 0),
            work(
                Pass::RowSums,
                rows,
                1,
                operations(n(s.seq_k), qk4 + v4),
                n(s.seq_k).div_ceil(threads) * pair + 10,
            ),
            work(Pass::Dq, rows, 1, operations(n(s.seq_k), 2 * qk4 + v4), tiles(s.seq_k, qk4)),
            work(Pass::Dk, keys, 1, operations(seen, 2 * qk4 + v4), n(s.group()) * tiles(s.seq_q, qk4) + 1),
            work(Pass::Dv, keys, 1, operations(seen, qk4 + v4), n(s.group()) * tiles(s.seq_q, v4) + 1),
        ];
        if let (true, Some((_, sizes))) = (p.dbias, p.forward.bias) {
            let full = [s.batch, s.q_heads, s.seq_q, s.seq_k];
            let [b, h, i, j] = [0, 1, 2, 3].map(|d| if sizes.0[d] == 1 { n(full[d]) } else { 1 });
            let pairs = [b, h, i, j].iter().fold(1u64, |all, &n| all.saturating_mul(n));
            let rounds = b.saturating_mul(h * (i.saturating_mul(j.saturating_mul(pair + 1) + 2) + 2) + 2);
            let items = p.bias_elements();
            all.push(work(Pass::Dbias, items, threads, operations(pairs, qk4 + v4), rounds));
        }
        if p.dtemperature {
            all.push(work(Pass::TemperatureRows, rows, threads, 8 * qk4, qk4 + 1));
            let sums = match p.forward.temperature {
                Temperature::Value(_) => Some(1),
                Temperature::PerHead => Some(s.q_heads),
                Temperature::PerRow => None,
            };
            if let Some(sums) = sums {
                let each = rows / n(sums.max(1));
                all.push(work(Pass::TemperatureSums, n(sums), 1, each, each.div_ceil(threads) + 10));
            }
        }
        if p.dsinks {
            let each = n(s.batch) * n(s.seq_q);
            all.push(work(Pass::SinkSums, n(s.q_heads), 1, 8 * each, each.div_ceil(threads) + 10));
        }
        all
    }

    /// The dispatches of a pass: as many as keep each of them short.
    fn add(&mut self, work: &Work, caps: &Caps) -> Result<()> {
        let groups = work.items.div_ceil(work.share);
        let per_group = work.operations.saturating_mul(work.share).max(1);
        let most = (caps.flops_per_dispatch() / per_group).max(1);
        let (grad, views) = self.grad(work.pass)?;
        let shader = Variant { pass: work.pass, key: self.key.clone(), grad, dlse: self.problem.dlse };
        let parts: Vec<Part> = shader
            .slots()
            .iter()
            .map(|(_, role)| match *role {
                Role::Scratch => self.kept_bytes(),
                Role::Caller(n) => Caller::ALL.get(n).map_or(0, |&caller| self.bytes(caller)),
            })
            .map(|bytes| Part { start: 0, bytes })
            .collect();
        let mut first = 0;
        while first < groups {
            let count = most.min(groups - first);
            let workgroups = fold(count, caps).ok_or(Error::LimitExceeded {
                what: "the largest dispatch of this problem".to_owned(),
                limit: "max_compute_workgroups_per_dimension",
                needed: count.isqrt() + 1,
                available: caps.max_compute_workgroups_per_dimension.into(),
                advice: WHOLE,
            })?;
            let mut params = self.params(views)?;
            // Items were checked to fit 32 bits.
            (params.start, params.end) =
                ((first * work.share) as u32, ((first + count) * work.share).min(work.items) as u32);
            params.forward.groups_x = workgroups[0];
            self.program.dispatches.push(Dispatch {
                shader: shader.clone(),
                params,
                parts: parts.clone(),
                workgroups,
            });
            first += count;
        }
        Ok(())
    }

    /// How the gradient of a pass is stored, and where it is.
    fn grad(&self, pass: Pass) -> Result<(Access, Option<View>)> {
        let which = match pass {
            Pass::Dq | Pass::TemperatureRows => 0,
            Pass::Dk => 1,
            Pass::Dv => 2,
            _ => return Ok((Access::Vec4, None)),
        };
        let view = self.problem.view(which)?;
        Ok((if view.is_vec4() { Access::Vec4 } else { Access::Scalar }, Some(view)))
    }

    fn params(&self, grad: Option<View>) -> Result<Params> {
        let forward = &self.problem.forward;
        let s = &forward.shape;
        let view = |tensor| forward.view(tensor);
        let (q, k, v, out) = (view(Tensor::Q)?, view(Tensor::K)?, view(Tensor::V)?, view(Tensor::Out)?);
        let (bias, mask) = (view(Tensor::Bias)?, view(Tensor::Mask)?);
        let base = base_params(forward, &self.tables);
        let grad = grad.unwrap_or(q);
        Ok(Params {
            forward: params::Params {
                q: place(&q),
                k: place(&k),
                v: place(&v),
                out: place(&out),
                bias: place(&bias),
                mask: place(&mask),
                q_dim: step(&q),
                k_dim: step(&k),
                v_dim: step(&v),
                out_dim: step(&out),
                bias_key: step(&bias),
                mask_key: step(&mask),
                batches: s.batch,
                heads: s.q_heads,
                rows: s.seq_q,
                ..base
            },
            dout: place(&out),
            grad: place(&grad),
            dout_dim: step(&out),
            grad_dim: step(&grad),
            bias: forward.bias.map_or([0; 4], |(_, sizes)| sizes.0),
            tables: (self.tables.bytes() / 4) as u32,
            inverse_temperature: match forward.temperature {
                Temperature::Value(tau) => (1.0 / f64::from(tau)) as f32,
                _ => 0.0,
            },
            ..Params::default()
        })
    }

    fn needs(&self) -> Vec<Need> {
        let need = |what, limit, needed, advice| Need { what, limit, needed, advice };
        let bindings = 6 + u64::from(self.key.bias.is_some()) + u64::from(self.key.mask.is_some());
        let default_limits = "ask for a device with WebGPU's default limits";
        let mut all = vec![
            need("the bindings of this problem", Limit::StorageBuffers, bindings, default_limits),
            need(
                "a workgroup",
                Limit::Threads,
                self.threads.into(),
                "ask for a device that can run compute shaders, or plan for this one",
            ),
            need("a workgroup", Limit::WorkgroupMemory, u64::from(self.threads) * 4, default_limits),
            need("what is kept of all rows", Limit::Indexed, self.kept_bytes(), WHOLE),
        ];
        for caller in Caller::ALL {
            all.push(need(caller.field(), Limit::Indexed, self.bytes(caller), WHOLE));
        }
        for (tensor, dtype) in Tensor::MAIN.into_iter().zip(self.problem.forward.dtypes).take(3) {
            let elements = self.bytes(Caller::ALL[tensor as usize]) / 4 * u64::from(32 / dtype.bits());
            all.push(need(tensor.name(), Limit::Numbers, elements, WHOLE));
        }
        for work in self.passes() {
            all.push(need(
                "a thread that goes through all keys or rows",
                Limit::LoopIterations,
                work.rounds,
                "this release of Mesa's llvmpipe leaves loops too early: take a newer one or another adapter",
            ));
            let items = work.items.saturating_mul(work.share.max(self.threads.into()));
            all.push(need("the threads of a pass", Limit::Numbers, items, WHOLE));
        }
        all
    }

    fn kept_bytes(&self) -> u64 {
        self.tables.bytes() + KEPT * 4 * self.problem.forward.shape.rows()
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The small inputs and where they go: as in the plan of the forward pass.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Dispatches, one or more for each pass.
    pub fn dispatches(&self) -> usize {
        self.program.dispatches.len()
    }

    /// Bytes of device memory beside inputs, outputs and params: three numbers for each row, and a copy of the tables.
    pub fn scratch_bytes(&self) -> u64 {
        self.program.scratch_bytes
    }

    /// Bytes that the buffers of dq, dk and dv must have after their offsets.
    pub fn gradient_bytes(&self) -> [u64; 3] {
        [Caller::Dq, Caller::Dk, Caller::Dv].map(|caller| self.bytes(caller))
    }

    /// Bytes of dbias; 0 where it is not asked for.
    pub fn dbias_bytes(&self) -> u64 {
        self.bytes(Caller::Dbias)
    }

    /// Bytes of dsinks; 0 where they are not asked for.
    pub fn dsinks_bytes(&self) -> u64 {
        self.bytes(Caller::Dsinks)
    }

    /// Bytes of dtemperature; 0 where it is not asked for.
    pub fn dtemperature_bytes(&self) -> u64 {
        self.bytes(Caller::Dtemperature)
    }

    /// The WGSL of all passes, complete.
    pub fn shader_sources(&self) -> Vec<String> {
        self.program.shaders().into_iter().map(Shader::source).collect()
    }

    /// Whether the problem has a buffer, with elements or without.
    fn wants(&self, role: Caller) -> bool {
        let p = &self.problem;
        match role {
            Caller::Dlse => p.dlse,
            Caller::Bias => p.forward.bias.is_some(),
            Caller::Mask => p.forward.mask.is_some(),
            Caller::Tables => self.tables.bytes() > 0,
            Caller::Dbias => p.dbias,
            Caller::Dsinks => p.dsinks,
            Caller::Dtemperature => p.dtemperature,
            _ => true,
        }
    }

    /// Bytes of a caller's buffer; 0 where the plan does not have it.
    fn bytes(&self, role: Caller) -> u64 {
        let p = &self.problem;
        let forward = &p.forward;
        // The problem was checked, so its views exist.
        let tensor = |tensor| forward.bytes(tensor).unwrap_or(0);
        let grad = |which| p.view(which).map_or(0, |view| view.extent().saturating_mul(4));
        if !self.wants(role) {
            return 0;
        }
        match role {
            Caller::Q => tensor(Tensor::Q),
            Caller::K => tensor(Tensor::K),
            Caller::V => tensor(Tensor::V),
            Caller::Dout => forward.view(Tensor::Out).map_or(0, |view| view.extent().saturating_mul(4)),
            Caller::Lse | Caller::Dlse => 4 * forward.shape.rows(),
            Caller::Bias => tensor(Tensor::Bias),
            Caller::Mask => tensor(Tensor::Mask),
            Caller::Tables => self.tables.bytes(),
            Caller::Dq => grad(0),
            Caller::Dk => grad(1),
            Caller::Dv => grad(2),
            Caller::Dbias => 4 * p.bias_elements(),
            Caller::Dsinks => 4 * u64::from(forward.shape.q_heads),
            Caller::Dtemperature => 4 * p.temperatures(),
        }
    }
}

/// A whole tensor, from the start of its binding. Its extent was checked to fit 32 bits.
fn place(view: &View) -> params::View {
    let (t, [batches, heads, rows, _]) = (view.strides(), view.sizes());
    // A stride that is never taken may be anything, beyond 32 bits too.
    let step = |n: u32, step: u64| if n > 1 { step as u32 } else { 0 };
    params::View {
        base: t.offset as u32,
        batch: step(batches, t.batch),
        head: step(heads, t.head),
        seq: step(rows, t.seq),
    }
}

fn step(view: &View) -> u32 {
    if view.sizes()[3] > 1 { view.strides().dim as u32 } else { 0 }
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
        let wanted = |role: Caller| Wanted {
            field: role.field(),
            bytes: self.wants(role).then(|| self.bytes(role)),
            written: role.is_written(),
            why: role.why(),
            hint: role.hint(),
        };
        Caller::ALL.map(wanted).into()
    }

    fn given<'b, 'a: 'b>(buffers: &'b super::Buffers<'a>) -> &'b [Option<BufferRef<'a>>] {
        &buffers.roles
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "gradients of {}", self.key)?;
        writeln!(f, "dispatches  {} with workgroups of {} threads", self.dispatches(), self.threads)?;
        write!(
            f,
            "memory      {} bytes of scratch: three numbers for each row, and the tables",
            self.scratch_bytes()
        )
    }
}
