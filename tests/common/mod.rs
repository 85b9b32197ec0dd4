//! What the tests on a device share: one adapter for each test binary, seeded data, guarded memory, and reports that say enough
//! to repeat a failure.

#![allow(dead_code)] // each test binary uses its own part of it

/// Waits for a future: on this thread, or in a browser (`examples/web/numerics`), where threads may not wait, by a way of its own.
#[cfg(target_arch = "wasm32")]
pub use crate::block_on;
#[cfg(not(target_arch = "wasm32"))]
pub use pollster::block_on;

pub mod row_paths;

use std::cell::RefCell;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use wgpu_attention::{
    AdapterClass, Attention, BufferRef, Buffers, Caps, DType, Error, Inputs, Kernel, LengthScale, MaskFormat,
    NormGains, Normalizer, Outputs, Plan, PlanOptions, Problem, Shape, Sink, Stat, TableData, Temperature,
    Tensor, headless, reference, reference::Bounded, validate, wgpu,
};

/// Set to 1 to let the tests that need an adapter be skipped, loudly, where there is none.
const ALLOW_NO_ADAPTER: &str = "WGPU_ATTENTION_ALLOW_NO_ADAPTER";

/// The adapter of this test binary, and one `Attention` on it so that tests share compiled variants.
pub struct Gpu {
    pub adapter: wgpu::Adapter,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub attention: Attention,
    /// Name, driver and back end.
    pub name: String,
}

impl Gpu {
    /// Whether the matrix kernel can run here.
    pub fn has_matrices(&self) -> bool {
        !self.attention.caps().matrix_sizes.is_empty()
    }

    /// All kernels that this device has, for [`run`] and [`check`], which give the matrix kernel the case in f16.
    pub fn kernels(&self) -> impl Iterator<Item = Kernel> + use<> {
        let matrix = self.has_matrices().then_some(Kernel::Matrix);
        KERNELS.into_iter().chain(matrix)
    }
}

/// The device, or an early return from a test that is allowed to be skipped.
#[macro_export]
macro_rules! gpu {
    () => {
        match $crate::common::gpu() {
            Some(gpu) => gpu,
            None => return,
        }
    };
}

/// The device of this test binary; `None` only where the environment allows a run without one.
pub fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Result<Gpu, String>> = OnceLock::new();
    match GPU.get_or_init(open) {
        Ok(gpu) => {
            take_turns(gpu);
            Some(gpu)
        }
        Err(why) if std::env::var(ALLOW_NO_ADAPTER).as_deref() == Ok("1") => {
            say(&format!("SKIPPED for want of an adapter: {} ({why})", test_name()));
            None
        }
        Err(why) => panic!(
            "this test needs a graphics adapter and there is none: {why}.\n\
             A software one will do; on Debian and Ubuntu: apt-get install mesa-vulkan-drivers libvulkan1\n\
             To run only the tests that need none, set {ALLOW_NO_ADAPTER}=1."
        ),
    }
}

/// One test at a time on OpenGL: wgpu has one context there, for which a thread waits only some seconds before it panics, while
/// another may well be compiling for longer. The turn ends with the test's thread.
fn take_turns(gpu: &Gpu) {
    static TURN: Mutex<()> = Mutex::new(());
    thread_local! {
        static MINE: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
    }
    if gpu.adapter.get_info().backend == wgpu::Backend::Gl {
        MINE.with_borrow_mut(|mine| {
            mine.get_or_insert_with(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
        });
    }
}

fn open() -> Result<Gpu, String> {
    let mut options = headless::Options::default();
    // Safety: what wgpu's cooperative matrices do is what these tests are there to see.
    options.experimental = unsafe { wgpu::ExperimentalFeatures::enabled() };
    let opened = block_on(headless::open(&options)).map_err(|e| e.to_string())?;
    let attention = opened.attention();
    let headless::Gpu { adapter, device, queue } = opened;
    let info = adapter.get_info();
    if info.backend == wgpu::Backend::Noop {
        return Err("only wgpu's noop back end was found, which computes nothing".to_owned());
    }
    let name = format!("{} ({} {}, {})", info.name, info.driver, info.driver_info, info.backend);
    say(&format!("adapter: {name}"));
    let sizes = &attention.caps().matrix_sizes;
    if sizes.is_empty() {
        say("no cooperative matrices of f16 with f32 sums here: the matrix kernel is LEFT OUT of all tests");
    } else {
        say(&format!("with cooperative matrices {sizes:?} wide: the matrix kernel runs too"));
    }
    Ok(Gpu { adapter, device, queue, attention, name })
}

/// The name of the running test.
pub fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// Prints past libtest's capture, so that skips and adapters are seen in passing runs too.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

// ---- random numbers -----------------------------------------------------------------------------------------

/// SplitMix64: small, seeded, the same on every platform.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Any in a range, both ends included.
    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Near enough to a standard normal: variance 1, tails to 4.2.
    pub fn normal(&mut self) -> f32 {
        ((0..6).map(|_| self.unit()).sum::<f64>() - 3.0) as f32 * std::f32::consts::SQRT_2
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

// ---- cases --------------------------------------------------------------------------------------------------

/// A problem with its inputs.
#[derive(Debug, Clone)]
pub struct Case {
    pub problem: Problem,
    pub seed: u64,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub cu_seqlens_q: Option<Vec<u32>>,
    pub cu_seqlens_k: Option<Vec<u32>>,
    pub documents_q: Option<Vec<i32>>,
    pub documents_k: Option<Vec<i32>>,
    pub q_len: Option<Vec<u32>>,
    pub kv_len: Option<Vec<u32>>,
    pub causal_offset: Option<Vec<i32>>,
    pub temperature: Option<Vec<f32>>,
    pub alibi_slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
    pub ssmax: Option<Vec<f32>>,
    pub q_gain: Option<Vec<f32>>,
    pub k_gain: Option<Vec<f32>>,
    pub dropout: Option<[u32; 2]>,
    pub user: Option<Vec<u32>>,
    pub bias: Option<Vec<f32>>,
    pub mask: Option<Vec<u8>>,
    /// A bound on out's error above this share of the largest |v| would show nothing, and fails the test.
    pub vacuous: f64,
}

impl Case {
    /// Normally distributed q, k, v and, where the problem reads tables, random lengths (any from 0 to all), offsets and
    /// temperatures. What a strided layout leaves out is NaN.
    pub fn new(problem: Problem, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut fill = |tensor| {
            let view = problem.view(tensor).expect("a view");
            let mut data = vec![f32::NAN; view.extent() as usize];
            for at in indices(&problem, tensor) {
                data[view.index(at) as usize] = rng.normal();
            }
            data
        };
        let (q, k, v) = (fill(Tensor::Q), fill(Tensor::K), fill(Tensor::V));
        let s = problem.shape;
        let cu_seqlens_q = problem.packed_q.map(|total| starts(&mut rng, total, s.batch, s.seq_q));
        let cu_seqlens_k = problem.packed_k.map(|total| starts(&mut rng, total, s.batch, s.seq_k));
        // Stretches of one document, with one in ten out of place.
        let mut documents = |total: Option<u32>, seq: u32| {
            let (batch, seq) = total.map_or((s.batch, seq), |total| (1, total));
            let each = i64::from(seq / 4 + 1);
            let any = |n: i64, rng: &mut Rng| if rng.chance(0.1) { -1 } else { (n / each) as i32 };
            (0..batch).flat_map(|_| (0..seq.into()).map(|n| any(n, &mut rng)).collect::<Vec<_>>()).collect()
        };
        let documents_q = problem.documents.then(|| documents(problem.packed_q, s.seq_q));
        let documents_k = problem.documents.then(|| documents(problem.packed_k, s.seq_k));
        let mut lens = |most: u32| (0..s.batch).map(|_| rng.range(0, most.into()) as u32).collect();
        let q_len = problem.q_len.then(|| lens(s.seq_q));
        let kv_len = problem.kv_len.then(|| lens(s.seq_k));
        let per_batch = problem.alignment == wgpu_attention::Alignment::PerBatch;
        let (low, high) = (-i64::from(s.seq_q) - 2, i64::from(s.seq_k) + 2);
        let causal_offset = per_batch.then(|| (0..s.batch).map(|_| rng.range(low, high) as i32).collect());
        let temperatures = match problem.temperature {
            Temperature::PerHead => Some(u64::from(s.q_heads)),
            Temperature::PerRow => Some(problem.rows()),
            _ => None,
        };
        let temperature =
            temperatures.map(|n| (0..n).map(|_| 10f64.powf(rng.unit() * 2.0 - 1.0) as f32).collect());
        let heads = s.q_heads as usize;
        let alibi_slopes = problem.alibi.then(|| wgpu_attention::alibi_slopes(s.q_heads));
        let sinks = (problem.sink == Sink::PerHead).then(|| rng.normals(heads));
        let ssmax = (problem.length_scale == LengthScale::Ssmax)
            .then(|| (0..heads).map(|_| rng.unit() as f32 + 0.1).collect());
        let dim = s.head_dim_qk as usize;
        let mut gains = |heads: u32| match problem.qk_norm.map(|norm| norm.gains) {
            None | Some(NormGains::None) => None,
            Some(NormGains::Shared) => Some(rng.normals(dim)),
            Some(_) => Some(rng.normals(heads as usize * dim)),
        };
        let (q_gain, k_gain) = (gains(s.q_heads), gains(s.kv_heads));
        // Every sixth pair is hidden, by either.
        let extent = |tensor| problem.view(tensor).expect("a view").extent() as usize;
        let bias = problem.bias.is_some().then(|| {
            let any = |_| if rng.chance(1.0 / 6.0) { f32::NEG_INFINITY } else { 2.0 * rng.normal() };
            (0..extent(Tensor::Bias)).map(any).collect()
        });
        let mask = problem.mask.map(|(format, _)| {
            let keeps: Vec<bool> = (0..extent(Tensor::Mask)).map(|_| rng.chance(5.0 / 6.0)).collect();
            match format {
                MaskFormat::Bits => keeps
                    .chunks(8)
                    .map(|bits| bits.iter().rev().fold(0, |byte, &keep| byte << 1 | u8::from(keep)))
                    .collect(),
                // Any byte but 0 means yes.
                _ => keeps.iter().map(|&keep| if keep { rng.range(1, 255) as u8 } else { 0 }).collect(),
            }
        });
        let dropout = problem.dropout.map(|_| [seed as u32, 1]);
        Case {
            problem,
            seed,
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            documents_q,
            documents_k,
            q_len,
            kv_len,
            causal_offset,
            temperature,
            alibi_slopes,
            sinks,
            ssmax,
            q_gain,
            k_gain,
            dropout,
            user: None,
            bias,
            mask,
            vacuous: 1e-3,
        }
    }

    /// The inputs that belong to a problem which `validate` draws.
    pub fn drawn(problem: Problem, seed: u64) -> Self {
        let own = validate::inputs(&problem, seed).expect("inputs");
        Case {
            problem,
            seed,
            q: own.q,
            k: own.k,
            v: own.v,
            cu_seqlens_q: own.cu_seqlens_q,
            cu_seqlens_k: own.cu_seqlens_k,
            documents_q: own.documents_q,
            documents_k: own.documents_k,
            q_len: own.q_len,
            kv_len: own.kv_len,
            causal_offset: own.causal_offset,
            temperature: own.temperature,
            alibi_slopes: own.alibi_slopes,
            sinks: own.sinks,
            ssmax: own.ssmax,
            q_gain: own.q_gain,
            k_gain: own.k_gain,
            dropout: own.dropout,
            user: own.user,
            bias: own.bias,
            mask: own.mask,
            vacuous: 1e-3,
        }
    }

    /// Accepts a weaker proof: for sharp softmaxes, whose weights f32 knows only so well.
    pub fn vacuous_above(mut self, share: f64) -> Self {
        self.vacuous = share;
        self
    }

    pub fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(&self.q, &self.k, &self.v);
        inputs.tables = self.tables();
        inputs.bias = self.bias.as_deref();
        inputs.mask = self.mask.as_deref();
        inputs
    }

    pub fn tables(&self) -> TableData<'_> {
        TableData {
            cu_seqlens_q: self.cu_seqlens_q.as_deref(),
            cu_seqlens_k: self.cu_seqlens_k.as_deref(),
            documents_q: self.documents_q.as_deref(),
            documents_k: self.documents_k.as_deref(),
            q_len: self.q_len.as_deref(),
            kv_len: self.kv_len.as_deref(),
            causal_offset: self.causal_offset.as_deref(),
            temperature: self.temperature.as_deref(),
            alibi_slopes: self.alibi_slopes.as_deref(),
            sinks: self.sinks.as_deref(),
            ssmax: self.ssmax.as_deref(),
            q_gain: self.q_gain.as_deref(),
            k_gain: self.k_gain.as_deref(),
            dropout: self.dropout,
            user: self.user.as_deref(),
        }
    }

    /// With q, k and v in f16, for the matrix kernel; `None` where f16 does not hold the inputs, or that kernel does not have an option.
    pub fn in_halves(&self) -> Option<Case> {
        let mut case = self.clone();
        case.problem.dtypes[..3].fill(DType::F16);
        // Weights in f16 are known to 2^-11 of their sum: that is 1, but dropout makes large ones of those that it keeps, and those of a sigmoid
        // sum to as many as there are.
        let kept = case.problem.dropout.map_or(1.0, |dropout| f64::from(1.0 - dropout.rate));
        let sum = match case.problem.normalizer {
            Normalizer::Sigmoid { .. } => f64::from(case.problem.shape.seq_k),
            _ => 1.0,
        };
        case.vacuous += 1e-3 * sum / kept;
        let holds = |x: &f32| !x.is_finite() || x.abs() <= 65504.0;
        let held = [&self.q, &self.k, &self.v].into_iter().flatten().all(holds);
        (held && Kernel::Matrix.supports(&case.problem)).then_some(case)
    }

    /// The case as a kernel takes it.
    pub fn for_kernel(&self, kernel: Option<Kernel>) -> Case {
        let halves = self.problem.dtypes[..3] == [DType::F16; 3];
        match kernel {
            Some(Kernel::Matrix) if !halves => self.in_halves().expect("a case that f16 holds"),
            _ => self.clone(),
        }
    }

    pub fn truth(&self) -> reference::Truth {
        validate::truth(&self.problem, &self.inputs()).expect("the reference")
    }

    /// Sets one number of a tensor.
    pub fn set(&mut self, tensor: Tensor, at: [u32; 4], x: f32) {
        let at = self.problem.view(tensor).expect("a view").index(at) as usize;
        match tensor {
            Tensor::Q => self.q[at] = x,
            Tensor::K => self.k[at] = x,
            Tensor::V => self.v[at] = x,
            _ => unreachable!("not an input of every problem"),
        }
    }

    /// Sets every number of a tensor from its (batch, head, seq, dim).
    pub fn fill(&mut self, tensor: Tensor, f: impl Fn([u32; 4]) -> f32) {
        for at in indices(&self.problem, tensor) {
            self.set(tensor, at, f(at));
        }
    }
}

/// Starts of packed sequences with lengths as they come, which add up.
pub fn starts(rng: &mut Rng, total: u32, batch: u32, longest: u32) -> Vec<u32> {
    let mut starts = vec![0];
    for b in 0..batch {
        let left = total - starts[b as usize];
        let others = u64::from(batch - 1 - b) * u64::from(longest);
        let least = u64::from(left).saturating_sub(others) as i64;
        starts.push(starts[b as usize] + rng.range(least, left.min(longest).into()) as u32);
    }
    starts
}

/// All (batch, head, seq, dim) of a tensor, in that order.
pub fn indices(problem: &Problem, tensor: Tensor) -> Vec<[u32; 4]> {
    let [b, h, s, d] = problem.view(tensor).expect("a view").sizes();
    let mut all = Vec::new();
    for b in 0..b {
        for h in 0..h {
            for s in 0..s {
                all.extend((0..d).map(|d| [b, h, s, d]));
            }
        }
    }
    all
}

/// (batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v).
pub fn shape(numbers: [u32; 7]) -> Shape {
    let [batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v] = numbers;
    Shape { batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v }
}

/// Sets or clears a causal mask.
pub fn set_causal(problem: &mut Problem, causal: Option<wgpu_attention::Alignment>) {
    problem.causal = causal.is_some();
    problem.alignment = causal.unwrap_or_default();
}

// ---- guarded memory -----------------------------------------------------------------------------------------

/// NaN bits that fill outputs before a call: an element that still has them was not written.
pub const POISON: u32 = 0xffc0_dead;
/// NaN bits before and after every binding.
pub const GUARD: u32 = 0x7fc0_beef;
/// Words after a binding.
const TAIL: usize = 64;

/// A buffer with guard words on both sides of what is bound.
pub struct Guarded {
    pub buffer: wgpu::Buffer,
    pub lead: u64,
    pub words: usize,
}

impl Guarded {
    pub fn new(gpu: &Gpu, label: &str, words: &[u32]) -> Self {
        Self::between(gpu, label, words, u64::from(alignment(gpu)), TAIL)
    }

    /// Exactly as long as it has to be, with nothing around it.
    pub fn exact(gpu: &Gpu, label: &str, words: &[u32]) -> Self {
        Self::between(gpu, label, words, 0, 0)
    }

    fn between(gpu: &Gpu, label: &str, words: &[u32], lead: u64, tail: usize) -> Self {
        let mut all = vec![GUARD; lead as usize / 4];
        all.extend_from_slice(words);
        all.extend(std::iter::repeat_n(GUARD, tail));
        if all.is_empty() {
            all.push(GUARD); // no buffer is empty
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let size = 4 * all.len() as u64;
        let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        });
        gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(&all));
        Guarded { buffer, lead, words: words.len() }
    }

    pub fn floats(gpu: &Gpu, label: &str, numbers: &[f32]) -> Self {
        Self::new(gpu, label, bytemuck::cast_slice(numbers))
    }

    /// Numbers in a storage type, padded to whole words.
    pub fn stored(gpu: &Gpu, label: &str, dtype: DType, numbers: &[f32]) -> Self {
        Self::bytes(gpu, label, &dtype.encode(numbers))
    }

    /// Bytes, padded to whole words.
    pub fn bytes(gpu: &Gpu, label: &str, bytes: &[u8]) -> Self {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0xa5);
        Self::new(gpu, label, bytemuck::pod_collect_to_vec::<u8, u32>(&bytes).as_slice())
    }

    pub fn poisoned(gpu: &Gpu, label: &str, bytes: u64) -> Self {
        Self::new(gpu, label, &vec![POISON; bytes as usize / 4])
    }

    pub fn at(&self) -> BufferRef<'_> {
        BufferRef { buffer: &self.buffer, offset: self.lead }
    }

    /// The words between the guards, after checking these.
    pub fn read(&self, gpu: &Gpu, what: &str) -> Vec<u32> {
        let all = read_words(gpu, &self.buffer);
        let lead = self.lead as usize / 4;
        for (at, &word) in all.iter().enumerate() {
            if at < lead || at >= lead + self.words {
                assert_eq!(
                    word,
                    GUARD,
                    "{what}: word {at} outside of {lead}..{} was written",
                    lead + self.words
                );
            }
        }
        all[lead..lead + self.words].to_vec()
    }
}

/// Bytes at whose multiples the device binds storage buffers.
pub fn alignment(gpu: &Gpu) -> u32 {
    gpu.device.limits().min_storage_buffer_offset_alignment.max(16)
}

/// All of a buffer, once everything submitted is done.
pub fn read_words(gpu: &Gpu, buffer: &wgpu::Buffer) -> Vec<u32> {
    let staging = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("test readback"),
        size: buffer.size(),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = encoder(gpu);
    encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
    let submission = gpu.queue.submit([encoder.finish()]);
    let (sender, mapped) = futures::channel::oneshot::channel();
    staging.map_async(wgpu::MapMode::Read, .., |result| drop(sender.send(result)));
    // A browser polls by itself, and does nothing here.
    gpu.device
        .poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: None })
        .expect("waiting for the device");
    block_on(mapped).expect("an answer").expect("mapping for the readback");
    let bytes = staging.get_mapped_range(..).expect("a mapped range").to_vec();
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub fn encoder(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("test") })
}

/// The buffers of a case, guarded and poisoned.
pub struct Bench {
    pub q: Guarded,
    pub k: Guarded,
    pub v: Guarded,
    pub out: Guarded,
    pub bias: Option<Guarded>,
    pub mask: Option<Guarded>,
    pub stats: Option<Guarded>,
    pub tables: Option<Guarded>,
}

impl Bench {
    pub fn new(gpu: &Gpu, plan: &Plan, case: &Case) -> Self {
        let words = plan.tables().pack(&case.problem, &case.tables()).expect("the tables");
        Self::with_tables(gpu, plan, case, &words)
    }

    /// With table contents of the device's own, which nobody has checked.
    pub fn with_tables(gpu: &Gpu, plan: &Plan, case: &Case, tables: &[u32]) -> Self {
        Bench {
            q: Guarded::stored(gpu, "q", case.problem.dtypes[0], &case.q),
            k: Guarded::stored(gpu, "k", case.problem.dtypes[1], &case.k),
            v: Guarded::stored(gpu, "v", case.problem.dtypes[2], &case.v),
            bias: case.problem.bias.map(|(dtype, _)| {
                Guarded::stored(gpu, "bias", dtype, case.bias.as_deref().unwrap_or_default())
            }),
            mask: case.mask.as_ref().map(|mask| Guarded::bytes(gpu, "mask", mask)),
            out: Guarded::poisoned(gpu, "out", plan.tensor_bytes(Tensor::Out)),
            stats: (plan.stats_bytes() > 0).then(|| Guarded::poisoned(gpu, "stats", plan.stats_bytes())),
            tables: (!tables.is_empty()).then(|| Guarded::new(gpu, "tables", tables)),
        }
    }

    pub fn buffers(&self) -> Buffers<'_> {
        let mut buffers = Buffers::new(self.q.at(), self.k.at(), self.v.at(), self.out.at());
        if let Some(bias) = &self.bias {
            buffers = buffers.bias(bias.at());
        }
        if let Some(mask) = &self.mask {
            buffers = buffers.mask(mask.at());
        }
        if let Some(stats) = &self.stats {
            buffers = buffers.stats(stats.at());
        }
        if let Some(tables) = &self.tables {
            buffers = buffers.tables(tables.at());
        }
        buffers
    }

    /// The results, after checking that all of them were written and nothing else was.
    pub fn read(&self, gpu: &Gpu, plan: &Plan) -> Outputs {
        let what = |name: &str| format!("{} on {}: {name} of\n{plan}", test_name(), gpu.name);
        let words = self.out.read(gpu, &what("out"));
        let view = plan.problem().view(Tensor::Out).expect("a view");
        // Element by element, two to a word where they are 16 bits wide.
        let dtype = plan.problem().dtypes[Tensor::Out as usize];
        let per_word = 32 / dtype.bits() as usize;
        let element = |word: u32, n: usize| match per_word {
            1 => word,
            _ => word >> (16 * (n % 2)) & 0xffff,
        };
        let mut inside = vec![false; words.len() * per_word];
        for at in indices(plan.problem(), Tensor::Out) {
            inside[view.index(at) as usize] = true;
        }
        for (at, &inside) in inside.iter().enumerate() {
            let written = element(words[at / per_word], at) != element(POISON, at);
            if inside {
                assert!(written, "{}: element {at} was not written", what("out"));
            } else {
                assert!(!written, "{}: place {at}, which the layout leaves out, was written", what("out"));
            }
        }
        let mut out = dtype.decode(bytemuck::cast_slice(&words));
        out.truncate(view.extent() as usize);
        for (x, inside) in out.iter_mut().zip(inside) {
            *x = if inside { *x } else { 0.0 };
        }
        let stats = self.stats.as_ref().map(|s| s.read(gpu, &what("stats"))).unwrap_or_default();
        for (at, &word) in stats.iter().enumerate() {
            assert_ne!(word, POISON, "{}: element {at} was not written", what("stats"));
        }
        let stat = |stat| {
            let range = plan.stats_range(stat)?;
            let words = &stats[range.start as usize / 4..range.end as usize / 4];
            Some(words.iter().map(|&w| f32::from_bits(w)).collect())
        };
        for (name, guarded) in [("q", &self.q), ("k", &self.k), ("v", &self.v)] {
            guarded.read(gpu, &what(name));
        }
        Outputs { out, lse: stat(Stat::Lse), entropy: stat(Stat::Entropy), row_max: stat(Stat::RowMax) }
    }
}

// ---- running and comparing ----------------------------------------------------------------------------------

/// Runs a plan in guarded memory.
pub fn run_plan(gpu: &Gpu, plan: &Plan, case: &Case) -> Outputs {
    let bench = Bench::new(gpu, plan, case);
    run_bench(gpu, plan, &bench);
    bench.read(gpu, plan)
}

/// Runs a plan on buffers that are there.
pub fn run_bench(gpu: &Gpu, plan: &Plan, bench: &Bench) {
    let prepared = block_on(gpu.attention.prepare(plan)).unwrap_or_else(|e| panic!("preparing\n{plan}\n{e}"));
    let mut encoder = encoder(gpu);
    prepared.encode(&mut encoder, &bench.buffers()).expect("binding");
    gpu.queue.submit([encoder.finish()]);
}

pub fn plan(gpu: &Gpu, problem: &Problem, options: &PlanOptions) -> Plan {
    gpu.attention.plan_with(problem, options).unwrap_or_else(|e| panic!("planning {problem:?}: {e}"))
}

/// Runs a case in guarded memory, with no comparison.
pub fn run(gpu: &Gpu, case: &Case, options: &PlanOptions) -> Outputs {
    let case = &case.for_kernel(options.kernel);
    run_plan(gpu, &plan(gpu, &case.problem, options), case)
}

/// Runs a case and compares every number with float64.
pub fn check(gpu: &Gpu, case: &Case, options: &PlanOptions) -> Outputs {
    let case = &case.for_kernel(options.kernel);
    let plan = plan(gpu, &case.problem, options);
    let got = run_plan(gpu, &plan, case);
    assert_right(gpu, &plan, case, &case.truth(), &got);
    got
}

/// The tiled kernel with the tiles that a graphics card with WebGPU's default limits is given, whatever the adapter is: on a
/// processor the planner's own choice is another.
pub fn plan_as_card(gpu: &Gpu, problem: &Problem) -> Plan {
    let mut caps = gpu.attention.caps().clone();
    caps.class = AdapterClass::Discrete;
    let most = Caps::webgpu_default();
    caps.max_compute_workgroup_storage_size =
        caps.max_compute_workgroup_storage_size.min(most.max_compute_workgroup_storage_size);
    caps.max_compute_invocations_per_workgroup =
        caps.max_compute_invocations_per_workgroup.min(most.max_compute_invocations_per_workgroup);
    Plan::new(problem, &caps, &PlanOptions::kernel(Kernel::Tiled))
        .unwrap_or_else(|e| panic!("planning {problem:?}: {e}"))
}

/// The kernels that take every storage on every device. The matrix kernel, which takes only f16 and only where there are matrices,
/// comes by [`check_all`], which gives it the case in f16, by [`Gpu::kernels`] and by tests of its own.
pub const KERNELS: [Kernel; 3] = [Kernel::Tiled, Kernel::Rows, Kernel::Naive];

/// The kernels that a problem can be run with, on any device.
pub fn kernels(problem: &Problem) -> impl Iterator<Item = Kernel> + use<> {
    let problem = problem.clone();
    KERNELS.into_iter().filter(move |kernel| kernel.supports(&problem))
}

/// Runs a case with every kernel, and with the tiles of a graphics card too, and compares every number with float64.
pub fn check_all(gpu: &Gpu, case: &Case) {
    let truth = case.truth();
    let mut plans: Vec<Plan> =
        kernels(&case.problem).map(|kernel| plan(gpu, &case.problem, &PlanOptions::kernel(kernel))).collect();
    let card = plan_as_card(gpu, &case.problem);
    if plans.iter().all(|plan| plan.key() != card.key()) {
        plans.push(card);
    }
    for plan in plans {
        assert_right(gpu, &plan, case, &truth, &run_plan(gpu, &plan, case));
    }
    if gpu.has_matrices()
        && let Some(halves) = case.in_halves()
    {
        check(gpu, &halves, &PlanOptions::kernel(Kernel::Matrix));
    }
}

/// Compares every number with float64, each within its own bound, and refuses bounds that show nothing.
pub fn assert_right(gpu: &Gpu, plan: &Plan, case: &Case, truth: &reference::Truth, got: &Outputs) {
    let truth = &truth.clone().of_kernel(plan.kernel());
    let head = || format!("{}, seed {}, on {}\n{plan}\n{:?}", test_name(), case.seed, gpu.name, case.problem);
    let largest = case.v.iter().filter(|v| v.is_finite()).fold(0f32, |m, v| m.max(v.abs()));
    let mut bounds: Vec<f64> = truth.out.iter().map(|x| x.bound).collect();
    bounds.sort_by(f64::total_cmp);
    // Now and then two scores are so near to each other that f32 may take either for the k-th largest: one row in fifty may be loose.
    let strays = if case.problem.top_k.is_some() { bounds.len() / 50 } else { 0 };
    let loosest = bounds.iter().rev().nth(strays).copied().unwrap_or(0.0) / f64::from(largest.max(1e-30));
    assert!(
        loosest <= case.vacuous,
        "{}\nthe bound is {loosest:e} of the largest |v|, which shows nothing",
        head()
    );
    let s = &case.problem.shape;
    let row = |at: usize| {
        let (i, rest) = (at as u64 % u64::from(s.seq_q), at as u64 / u64::from(s.seq_q));
        format!("row {i} of head {} of batch {}", rest % u64::from(s.q_heads), rest / u64::from(s.q_heads))
    };
    compare_one(&head, "out", Some(&got.out), &truth.out, |at| format!("place {at}"));
    for (name, asked, got, truth) in [
        ("lse", case.problem.stats.lse, &got.lse, &truth.lse),
        ("entropy", case.problem.stats.entropy, &got.entropy, &truth.entropy),
        ("row_max", case.problem.stats.row_max, &got.row_max, &truth.row_max),
    ] {
        assert_eq!(asked, got.is_some(), "{}\n{name} is there although not asked for, or is missing", head());
        compare_one(&head, name, got.as_deref(), truth, row);
    }
    assert!(truth.compare(got).passes(), "{}\nTruth::compare disagrees with the list above", head());
}

fn compare_one(
    head: &dyn Fn() -> String,
    name: &str,
    got: Option<&[f32]>,
    truth: &[Bounded],
    place: impl Fn(usize) -> String,
) {
    let Some(got) = got else { return };
    let comparison = reference::compare(got, truth);
    assert_eq!(comparison.unspecified, 0, "{}\n{name} has numbers without a true value", head());
    if comparison.passes() {
        return;
    }
    assert_eq!(got.len(), truth.len(), "{}\n{name} has the wrong length", head());
    let wrong: Vec<usize> =
        (0..got.len()).filter(|&n| !reference::compare(&got[n..=n], &truth[n..=n]).passes()).collect();
    let mut report = format!("{}\n{} of {} numbers of {name} are wrong:", head(), wrong.len(), got.len());
    for &n in wrong.iter().take(8) {
        let Bounded { value, bound } = truth[n];
        report += &format!("\n  {}: got {}, want {value} +- {bound:e}", place(n), got[n]);
    }
    panic!("{report}\n  worst: {} times its bound", comparison.worst);
}

/// Equal to the bit.
pub fn assert_same_bits(a: &Outputs, b: &Outputs, what: &str) {
    for (name, a, b) in [
        ("out", Some(&a.out), Some(&b.out)),
        ("lse", a.lse.as_ref(), b.lse.as_ref()),
        ("entropy", a.entropy.as_ref(), b.entropy.as_ref()),
        ("row_max", a.row_max.as_ref(), b.row_max.as_ref()),
    ] {
        assert_eq!(a.map(Vec::len), b.map(Vec::len), "{what}: {name}");
        let (Some(a), Some(b)) = (a, b) else { continue };
        if let Some(n) = (0..a.len()).find(|&n| a[n].to_bits() != b[n].to_bits()) {
            panic!("{what}: {name}[{n}] is {} in one and {} in the other", a[n], b[n]);
        }
    }
}

/// The error's field and rule, for tests of `Error::Value`.
pub fn value_error<T: std::fmt::Debug>(result: Result<T, Error>) -> (&'static str, String) {
    match result {
        Err(Error::Value { field, value, .. }) => (field, value),
        other => panic!("expected Error::Value, got {other:?}"),
    }
}
