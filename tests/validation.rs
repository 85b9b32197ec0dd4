//! What the API checks and makes, on wgpu's noop device: everything but the numbers.

#[path = "common/mod.rs"]
mod common;

use common::shape;
use wgpu_attention::{
    AdapterClass, Alignment, Attention, Broadcast, BufferRef, Buffers, Caps, DType, Error, Inputs, Kernel,
    Layout, MaskBuffers, MaskFormat, Plan, PlanOptions, Prepared, Problem, Shape, Stats, Strides,
    Temperature, Tensor, TileMask, Tiles, wgpu,
};

struct Noop {
    device: wgpu::Device,
    queue: wgpu::Queue,
    attention: Attention,
}

fn noop() -> Noop {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    let attention = Attention::new(&device);
    Noop { device, queue, attention }
}

impl Noop {
    fn buffer(&self, bytes: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("validation"),
            size: bytes,
            usage,
            mapped_at_creation: false,
        })
    }

    fn storage(&self, bytes: u64) -> wgpu::Buffer {
        self.buffer(bytes, wgpu::BufferUsages::STORAGE)
    }

    fn prepare(&self, problem: &Problem) -> Prepared {
        self.attention.prepare_blocking(&self.attention.plan(problem).unwrap()).unwrap()
    }

    /// Fails if wgpu has anything to say against what `f` does.
    fn no_errors<T>(&self, f: impl FnOnce() -> T) -> T {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let x = f();
        let error = pollster::block_on(scope.pop());
        assert!(error.is_none(), "{}", error.unwrap());
        x
    }
}

/// 2 x 2 x 3 x 8 numbers of q and out, 2 x 1 x 5 x 8 of k and v.
fn problem() -> Problem {
    Problem::new(shape([2, 2, 1, 3, 5, 8, 8]))
}

const Q_BYTES: u64 = 2 * 2 * 3 * 8 * 4;
const K_BYTES: u64 = 2 * 5 * 8 * 4;

#[test]
fn buffers_that_are_just_large_enough_are_bound_and_smaller_ones_are_not() {
    let gpu = noop();
    let prepared = gpu.prepare(&problem());
    let sizes = [Q_BYTES, K_BYTES, K_BYTES, Q_BYTES];
    let bind = |sizes: [u64; 4]| {
        let [q, k, v, out] = sizes.map(|bytes| gpu.storage(bytes));
        prepared.bind(&Buffers::new(&q, &k, &v, &out)).map(|_| ())
    };
    assert_eq!(gpu.no_errors(|| bind(sizes)), Ok(()));
    for (n, field) in ["q", "k", "v", "out"].into_iter().enumerate() {
        let mut small = sizes;
        small[n] -= 4;
        let want = Error::BufferTooSmall { field, needed: sizes[n], available: sizes[n] - 4 };
        assert_eq!(bind(small), Err(want));
    }
}

#[test]
fn an_offset_counts_against_the_size() {
    let gpu = noop();
    let prepared = gpu.prepare(&problem());
    let (q, k, out) = (gpu.storage(Q_BYTES), gpu.storage(K_BYTES + 256), gpu.storage(Q_BYTES));
    let k_at = |offset| BufferRef { buffer: &k, offset };
    let bind = |offset| prepared.bind(&Buffers::new(&q, k_at(offset), k_at(0), &out)).map(|_| ());
    assert_eq!(gpu.no_errors(|| bind(256)), Ok(()));
    assert_eq!(
        bind(512),
        Err(Error::BufferTooSmall { field: "k", needed: K_BYTES, available: K_BYTES - 256 })
    );
    // Beyond the end of the buffer, as far as a number goes.
    let far = u64::MAX / 256 * 256;
    assert_eq!(bind(far), Err(Error::BufferTooSmall { field: "k", needed: K_BYTES, available: 0 }));
}

#[test]
fn misaligned_offsets() {
    let gpu = noop();
    let prepared = gpu.prepare(&problem());
    let alignment = u64::from(gpu.device.limits().min_storage_buffer_offset_alignment);
    assert!(alignment >= 16);
    let (q, k, out) = (gpu.storage(Q_BYTES), gpu.storage(K_BYTES + 1024), gpu.storage(Q_BYTES));
    for offset in [1, 4, alignment - 4, alignment + 1] {
        let bound = prepared.bind(&Buffers::new(&q, BufferRef { buffer: &k, offset }, &k, &out));
        assert_eq!(bound.map(|_| ()), Err(Error::Offset { field: "k", offset, alignment }));
    }
}

#[test]
fn buffers_without_storage_usage() {
    let gpu = noop();
    let prepared = gpu.prepare(&problem().with_lse());
    for (n, field) in ["q", "k", "v", "out", "stats"].into_iter().enumerate() {
        let buffers: Vec<_> = (0..5)
            .map(|m| match n == m {
                true => gpu.buffer(4096, wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::UNIFORM),
                false => gpu.storage(4096),
            })
            .collect();
        let [q, k, v, out, stats] = &buffers[..] else { unreachable!() };
        let bound = prepared.bind(&Buffers::new(q, k, v, out).stats(stats));
        assert_eq!(bound.map(|_| ()), Err(Error::BufferUsage { field, usage: "STORAGE" }));
    }
}

#[test]
fn what_is_written_shares_no_buffer() {
    let gpu = noop();
    let prepared = gpu.prepare(&problem().with_kv_len().with_lse());
    let b: Vec<_> = (0..6).map(|_| gpu.storage(8192)).collect();
    // Which buffer q, k, v, out, stats and tables are in.
    let bind = |at: [usize; 6]| {
        let [q, k, v, out, stats, tables] = at.map(|n| &b[n]);
        prepared.bind(&Buffers::new(q, k, v, out).stats(stats).tables(tables)).map(|_| ())
    };
    for allowed in [[0, 1, 2, 3, 4, 5], [0, 0, 0, 3, 4, 5], [0, 1, 2, 3, 4, 0]] {
        assert_eq!(gpu.no_errors(|| bind(allowed)), Ok(()), "{allowed:?}");
    }
    for (at, written, read) in [
        ([0, 1, 2, 0, 4, 5], "out", "q"),
        ([0, 1, 2, 1, 4, 5], "out", "k"),
        ([0, 1, 2, 2, 4, 5], "out", "v"),
        ([0, 1, 2, 3, 3, 5], "out", "stats"),
        ([0, 1, 2, 3, 4, 3], "out", "tables"),
        ([0, 1, 2, 3, 0, 5], "stats", "q"),
        ([0, 1, 2, 3, 4, 4], "stats", "tables"),
    ] {
        assert_eq!(bind(at), Err(Error::Aliased { written, read }), "{at:?}");
    }
    // At different offsets of one buffer it is one buffer all the same.
    let far = BufferRef { buffer: &b[0], offset: 4096 };
    let bound = prepared.bind(&Buffers::new(&b[0], &b[1], &b[2], far).stats(&b[4]).tables(&b[5]));
    assert_eq!(bound.map(|_| ()), Err(Error::Aliased { written: "out", read: "q" }));
}

/// The buffer of a block mask is one that a call reads, though the library made it.
#[test]
fn a_block_mask_shares_no_buffer_with_what_is_written() {
    let gpu = noop();
    let sizes = Broadcast([1, 1, 1, 8192]);
    let problem = Problem::new(Shape { seq_q: 1, ..Shape::self_attention(1, 1, 8192, 1) });
    let problem = problem.mask(MaskFormat::Bits, sizes).with_lse();
    let options = PlanOptions::kernel(Kernel::Tiled).tile_mask(TileMask::Classified);
    let plan = gpu.attention.plan_with(&problem, &options).unwrap();
    let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
    let b: Vec<_> = (0..6).map(|_| gpu.storage(1 << 16)).collect();
    let buffers = Buffers::new(&b[0], &b[1], &b[2], &b[3]).mask(&b[4]).stats(&b[5]);
    let block_mask = prepared.block_mask_blocking(&buffers).unwrap();
    let bind = |buffers: Buffers<'_>| prepared.bind(&buffers.block_mask(&block_mask)).map(|_| ());
    assert_eq!(bind(buffers), Ok(()));
    let out = Buffers { out: block_mask.buffer().into(), ..buffers };
    assert_eq!(bind(out), Err(Error::Aliased { written: "out", read: "block_mask" }));
    let stats = buffers.stats(block_mask.buffer());
    assert_eq!(bind(stats), Err(Error::Aliased { written: "stats", read: "block_mask" }));
}

/// A block mask is made of what hides keys, and of nothing else.
#[test]
fn a_block_mask_takes_only_the_buffers_of_masks() {
    let gpu = noop();
    let problem = Problem::new(Shape { seq_q: 64, ..Shape::self_attention(1, 1, 8192, 64) });
    let problem = problem.mask(MaskFormat::Bytes, Broadcast([1, 1, 1, 8192])).with_kv_len().with_lse();
    let options = PlanOptions::kernel(Kernel::Tiled).tile_mask(TileMask::Classified);
    let plan = gpu.attention.plan_with(&problem, &options).unwrap();
    let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
    let (mask, tables, stats, small) =
        (gpu.storage(8192), gpu.storage(256), gpu.storage(4096), gpu.storage(4));
    let make = |buffers: MaskBuffers<'_>| prepared.block_mask_blocking(buffers).map(drop);
    let masks = MaskBuffers::default().mask(&mask).tables(&tables);
    let block_mask = gpu.no_errors(|| prepared.block_mask_blocking(masks).unwrap());
    gpu.no_errors(|| {
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        block_mask.encode(&mut encoder);
        gpu.queue.submit([encoder.finish()]);
    });
    // Of the buffers of a call the others are not looked at: here they are too small, and one is missing.
    let call = Buffers::new(&small, &small, &small, &small).mask(&mask).tables(&tables);
    gpu.no_errors(|| prepared.block_mask_blocking(&call).unwrap());
    assert!(matches!(prepared.bind(&call.stats(&stats)), Err(Error::BufferTooSmall { field: "q", .. })));
    // What it is made of has to be right.
    let missing = make(MaskBuffers::default().tables(&tables));
    assert!(matches!(missing, Err(Error::Missing { field: "mask", .. })));
    let unused = make(masks.bias(&mask));
    assert!(matches!(unused, Err(Error::Unused { field: "bias", .. })));
    let too_small = make(masks.mask(&small));
    assert_eq!(too_small, Err(Error::BufferTooSmall { field: "mask", needed: 8192, available: 4 }));
}

#[test]
fn statistics_and_tables_are_given_exactly_where_they_are_used() {
    let gpu = noop();
    let b: Vec<_> = (0..6).map(|_| gpu.storage(4096)).collect();
    let plain = Buffers::new(&b[0], &b[1], &b[2], &b[3]);
    let bind = |problem: Problem, buffers: Buffers<'_>| gpu.prepare(&problem).bind(&buffers).map(|_| ());
    let missing = |r| matches!(r, Err(Error::Missing { field: "tables", .. }));
    assert!(matches!(bind(problem().with_lse(), plain), Err(Error::Missing { field: "stats", .. })));
    assert!(missing(bind(problem().with_kv_len(), plain)));
    assert!(missing(bind(problem().causal(Alignment::PerBatch), plain)));
    assert!(missing(bind(problem().temperature(Temperature::PerHead), plain)));
    assert!(missing(bind(problem().temperature(Temperature::PerRow), plain)));
    let unused = bind(problem(), plain.stats(&b[4]));
    assert!(matches!(unused, Err(Error::Unused { field: "stats", .. })));
    let unused = bind(problem().causal(Alignment::BottomRight), plain.tables(&b[5]));
    assert!(matches!(unused, Err(Error::Unused { field: "tables", .. })));
    let full = problem().with_kv_len().with_lse();
    assert_eq!(gpu.no_errors(|| bind(full, plain.stats(&b[4]).tables(&b[5]))), Ok(()));
}

#[test]
fn small_statistics_and_tables() {
    let gpu = noop();
    let mut problem = problem().with_kv_len().temperature(Temperature::PerRow);
    problem.stats = Stats::ALL;
    let prepared = gpu.prepare(&problem);
    let (stats, tables) = (prepared.plan().stats_bytes(), prepared.plan().tables().bytes());
    assert_eq!((stats, tables), (3 * 12 * 4, (2 + 12) * 4));
    let b: Vec<_> = (0..4).map(|_| gpu.storage(4096)).collect();
    let bind = |stats, tables| {
        let (stats, tables) = (gpu.storage(stats), gpu.storage(tables));
        prepared.bind(&Buffers::new(&b[0], &b[1], &b[2], &b[3]).stats(&stats).tables(&tables)).map(|_| ())
    };
    assert_eq!(gpu.no_errors(|| bind(stats, tables)), Ok(()));
    let small = Error::BufferTooSmall { field: "stats", needed: stats, available: stats - 4 };
    assert_eq!(bind(stats - 4, tables), Err(small));
    let small = Error::BufferTooSmall { field: "tables", needed: tables, available: tables - 4 };
    assert_eq!(bind(stats, tables - 4), Err(small));
}

/// Nothing to compute: any buffers will do, and nothing is recorded.
#[test]
fn an_empty_problem_binds_anything() {
    let gpu = noop();
    for numbers in [[0, 2, 1, 3, 5, 8, 8], [2, 0, 0, 3, 5, 8, 8], [2, 2, 1, 0, 5, 8, 8]] {
        let tiny = gpu.storage(4);
        gpu.no_errors(|| {
            let prepared = gpu.prepare(&Problem::new(shape(numbers)));
            let bound = prepared.bind(&Buffers::new(&tiny, &tiny, &tiny, &tiny)).unwrap();
            assert_eq!(bound.slices(), 0);
            record(&gpu, &bound);
        });
    }
}

/// No keys: k and v may be as small as a buffer can be.
#[test]
fn without_keys_nothing_is_asked_of_k_and_v() {
    let gpu = noop();
    for kernel in common::KERNELS {
        let problem = Problem::new(shape([2, 2, 1, 3, 0, 8, 8])).with_lse();
        let plan = gpu.attention.plan_with(&problem, &PlanOptions::kernel(kernel)).unwrap();
        let (q, tiny, out, stats) =
            (gpu.storage(Q_BYTES), gpu.storage(4), gpu.storage(Q_BYTES), gpu.storage(48));
        gpu.no_errors(|| {
            let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
            record(&gpu, &prepared.bind(&Buffers::new(&q, &tiny, &tiny, &out).stats(&stats)).unwrap());
        });
    }
}

fn record(gpu: &Noop, bound: &wgpu_attention::Bound) {
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    bound.encode(&mut encoder);
    gpu.queue.submit([encoder.finish()]);
}

/// Every binding of every variant agrees with its shader, as wgpu sees it: layouts, sizes, usages, dispatch limits.
#[test]
fn many_variants_are_made_bound_and_recorded_without_a_complaint() {
    let gpu = noop();
    let odd = Layout::Strided(Strides { offset: 3, batch: 4000, head: 1000, seq: 37, dim: 2 });
    let mut variants = 0;
    for kernel in common::KERNELS {
        for (numbers, layout) in [
            ([2, 2, 1, 3, 5, 8, 8], Layout::Bhsd),
            ([2, 4, 2, 70, 90, 64, 64], Layout::Bshd),
            ([2, 2, 2, 9, 9, 5, 7], odd),
            ([1, 1, 1, 1, 1, 1, 1], Layout::Bhsd),
            ([1, 1, 1, 9, 30, 576, 512], Layout::Bhsd),
        ] {
            for n in 0..8 {
                let mut problem = Problem::new(shape(numbers)).layout(layout);
                if !kernel.supports(&problem) {
                    assert_eq!((kernel, numbers[5]), (Kernel::Rows, 576));
                    continue;
                }
                problem.stats = Stats { lse: n & 1 != 0, entropy: n & 2 != 0, row_max: n & 4 != 0 };
                (problem.q_len, problem.kv_len) = (n & 4 != 0, n & 1 != 0);
                common::set_causal(
                    &mut problem,
                    [None, Some(Alignment::TopLeft), Some(Alignment::PerBatch)][n % 3],
                );
                problem.temperature = [
                    Temperature::Value(1.0),
                    Temperature::PerHead,
                    Temperature::PerRow,
                    Temperature::Value(2.0),
                ][n / 2];
                let plan = gpu.attention.plan_with(&problem, &PlanOptions::kernel(kernel)).unwrap();
                gpu.no_errors(|| {
                    let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
                    let [q, k, v, out] = Tensor::MAIN.map(|t| gpu.storage(plan.tensor_bytes(t)));
                    let (stats, tables) =
                        (gpu.storage(plan.stats_bytes().max(4)), gpu.storage(plan.tables().bytes().max(4)));
                    let mut buffers = Buffers::new(&q, &k, &v, &out);
                    if plan.stats_bytes() > 0 {
                        buffers = buffers.stats(&stats);
                    }
                    if plan.tables().bytes() > 0 {
                        buffers = buffers.tables(&tables);
                    }
                    record(&gpu, &prepared.bind(&buffers).unwrap());
                });
                variants += 1;
            }
        }
    }
    // The row kernel does not take heads of 576.
    assert_eq!(variants, 112);
    assert_eq!(gpu.attention.compiled(), variants);
}

#[test]
fn equal_keys_are_compiled_once() {
    let gpu = noop();
    for sk in 1..50 {
        for sq in [1, 2, 3] {
            gpu.prepare(&Problem::new(shape([1, 2, 1, sq, sk, 8, 8])));
        }
    }
    assert_eq!(gpu.attention.compiled(), 1);
    let plans = [gpu.attention.plan(&problem().with_lse()).unwrap(), gpu.attention.plan(&problem()).unwrap()];
    pollster::block_on(gpu.attention.warm_up(&plans)).unwrap();
    assert_eq!(gpu.attention.compiled(), 2);
    assert_eq!(gpu.attention.clone().compiled(), 2, "clones share");
}

/// wgpu names an object by its label when something is wrong with it: the variant's name must be there.
#[test]
fn objects_are_labelled_with_the_variant() {
    let gpu = noop();
    let prepared = gpu.prepare(&problem());
    let label = prepared.plan().key().to_string();
    assert!(label.starts_with("attention/tiled d8x8"), "{label}");
    let b: Vec<_> = (0..4).map(|_| gpu.storage(4096)).collect();
    b[2].destroy();
    let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
    let _ = prepared.bind(&Buffers::new(&b[0], &b[1], &b[2], &b[3]));
    let error = pollster::block_on(scope.pop()).expect("a destroyed buffer is an error").to_string();
    assert!(error.contains(&label), "{label} is not in: {error}");
    assert!(error.contains("validation"), "nor the caller's label: {error}");
}

#[test]
fn an_impossible_variant_is_an_error_before_the_driver_is_asked() {
    let gpu = noop();
    // Planned for a device that has more than this one.
    let mut caps = gpu.attention.caps().clone();
    caps.max_compute_workgroup_storage_size = u32::MAX;
    caps.max_compute_invocations_per_workgroup = 1024;
    caps.max_compute_workgroup_size_x = 1024;
    let tiles = Tiles { threads: 1024, row_groups: 64, keys_per_thread: 16, dim_chunk: 64, v_chunk: 0 };
    let plan = wgpu_attention::Plan::new(&problem(), &caps, &PlanOptions::tiles(tiles)).unwrap();
    let had = gpu.attention.compiled();
    match gpu.attention.prepare_blocking(&plan) {
        Err(Error::LimitExceeded { limit, .. }) => {
            assert_eq!(limit, "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    assert_eq!(gpu.attention.compiled(), had, "nothing was compiled");
}

#[test]
fn contexts_come_and_go() {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    let x = [0.0; 2 * 2 * 3 * 8];
    let k = [0.0; 2 * 5 * 8];
    for _ in 0..100 {
        let attention = Attention::new(&device);
        attention.run_blocking(&queue, &problem(), &Inputs::new(&x, &k, &k)).unwrap();
    }
    // The app's device outlives every context.
    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 16,
        usage: wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    queue.write_buffer(&buffer, 0, &[1; 16]);
    assert!(pollster::block_on(scope.pop()).is_none());
    // And devices of their own.
    for _ in 0..100 {
        let gpu = noop();
        gpu.attention.run_blocking(&gpu.queue, &problem(), &Inputs::new(&x, &k, &k)).unwrap();
    }
}

/// A tensor beyond what the device makes in one piece.
#[test]
fn a_buffer_beyond_the_device_is_a_typed_error() {
    let limits = wgpu::Limits {
        max_buffer_size: 1 << 20,
        max_storage_buffer_binding_size: 1 << 20,
        ..Default::default()
    };
    let (device, queue) =
        wgpu::Device::noop(&wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() });
    let attention = Attention::new(&device);
    let problem = Problem::new(shape([2, 1, 1, 20_000, 1, 8, 8]));
    let (q, k) = (vec![0.0; 2 * 20_000 * 8], [0.0; 16]);
    match attention.run_blocking(&queue, &problem, &Inputs::new(&q, &k, &k)) {
        Err(Error::LimitExceeded { limit: "max_buffer_size", needed, available, .. }) => {
            assert_eq!((needed, available), (2 * 20_000 * 8 * 4, 1 << 20));
        }
        other => panic!("{other:?}"),
    }
    // And a small call works after it.
    let small = Problem::new(shape([1, 1, 1, 2, 2, 8, 8]));
    attention.run_blocking(&queue, &small, &Inputs::new(&k, &k, &k)).unwrap();
}

#[test]
fn a_destroyed_device_is_an_error_and_not_a_panic() {
    let gpu = noop();
    let (x, k) = ([0.0; 2 * 2 * 3 * 8], [0.0; 2 * 5 * 8]);
    let inputs = Inputs::new(&x, &k, &k);
    gpu.attention.run_blocking(&gpu.queue, &problem(), &inputs).unwrap();
    gpu.device.destroy();
    let again = gpu.attention.run_blocking(&gpu.queue, &problem(), &inputs);
    assert!(matches!(again, Err(Error::DeviceLost(_))), "{again:?}");
    let compiled = gpu.attention.prepare_blocking(&gpu.attention.plan(&problem().with_lse()).unwrap());
    assert!(matches!(compiled, Err(Error::DeviceLost(_))), "{:?}", compiled.map(|_| ()));
}

#[test]
fn a_plan_for_another_device_is_refused() {
    let gpu = noop();
    let limits = gpu.device.limits();
    let problem = Problem::new(shape([1, 2, 2, 100, 300, 64, 64]));
    let plan_with = |change: &dyn Fn(&mut Caps)| {
        let mut caps = Caps::from_limits(&limits, AdapterClass::Discrete);
        change(&mut caps);
        caps
    };
    let own = plan_with(&|_| {});
    assert!(Plan::new(&problem, &own, &PlanOptions::default()).unwrap().fits(&own).is_ok());
    let limit_of = |plan: &Plan, caps: &Caps| match plan.fits(caps) {
        Err(Error::LimitExceeded { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    let plan = Plan::new(&problem, &own, &PlanOptions::default()).unwrap();
    for (limit, caps) in [
        ("max_loop_iterations", plan_with(&|c| c.max_loop_iterations = 100)),
        ("max_compute_workgroup_storage_size", plan_with(&|c| c.max_compute_workgroup_storage_size = 4096)),
        ("max_storage_buffer_binding_size", plan_with(&|c| c.max_storage_buffer_binding_size = 4096)),
        ("max_compute_workgroups_per_dimension", plan_with(&|c| c.max_compute_workgroups_per_dimension = 1)),
        ("max_storage_buffers_per_shader_stage", plan_with(&|c| c.max_storage_buffers_per_shader_stage = 3)),
        ("min_storage_buffer_offset_alignment", plan_with(&|c| c.min_storage_buffer_offset_alignment = 4096)),
        ("min_uniform_buffer_offset_alignment", plan_with(&|c| c.min_uniform_buffer_offset_alignment = 4096)),
        (
            "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
            plan_with(&|c| c.max_compute_invocations_per_workgroup = 8),
        ),
    ] {
        assert_eq!(limit_of(&plan, &caps), limit);
    }

    // And a device asks: here of a plan whose bindings are aligned for one that asks for less.
    let loose = plan_with(&|c| c.min_storage_buffer_offset_alignment = 16);
    assert!(limits.min_storage_buffer_offset_alignment > 16);
    let plan = Plan::new(&problem, &loose, &PlanOptions::default()).unwrap();
    let result = gpu.attention.prepare_blocking(&plan);
    assert!(matches!(result, Err(Error::LimitExceeded { .. })), "{result:?}");
    let warmed = pollster::block_on(gpu.attention.warm_up(&[plan]));
    assert!(matches!(warmed, Err(Error::LimitExceeded { .. })), "{warmed:?}");
}

/// NaN and infinity are found wherever they are, and -inf in a bias is none of them: it hides.
#[test]
fn non_finite_numbers_are_found_by_field_and_index() {
    let problem = problem().bias(DType::F32, Broadcast([1, 1, 3, 5])).with_kv_len().with_q_len();
    let ([q, k], bias) = ([2 * 2 * 3 * 8, 2 * 5 * 8].map(|n| vec![1f32; n]), vec![f32::NEG_INFINITY; 15]);
    let (q_len, kv_len) = ([3, 3], [5, 3]);
    let check = |problem: &Problem, [q, k, v, bias]: [&[f32]; 4]| {
        Inputs::new(q, k, v).bias(bias).q_len(&q_len).kv_len(&kv_len).check_finite(problem)
    };
    assert_eq!(check(&problem, [&q, &k, &k, &bias]), Ok(()));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (field, at) in [
            ("q", 0),
            ("q", 37),
            ("q", q.len() - 1),
            ("k", 0),
            ("k", 21),
            ("k", 39 + 24),
            ("v", 0),
            ("v", 21),
            ("v", 39 + 24),
            ("bias", 0),
            ("bias", 7),
            ("bias", 14),
        ] {
            let spoilt = |name: &str, right: &[f32]| {
                let mut numbers = right.to_vec();
                if name == field {
                    numbers[at] = bad;
                }
                numbers
            };
            let all = [spoilt("q", &q), spoilt("k", &k), spoilt("v", &k), spoilt("bias", &bias)];
            match check(&problem, all.each_ref().map(Vec::as_slice)) {
                Ok(()) => assert!(field == "bias" && bad == f32::NEG_INFINITY, "{bad} at {field}[{at}]"),
                Err(Error::NotFinite { field: found, index, value, stored }) => {
                    assert_eq!((found, index), (field, at as u64));
                    assert_eq!((value.to_bits(), stored.to_bits()), (bad.to_bits(), bad.to_bits()));
                }
                other => panic!("{bad} at {field}[{at}]: {other:?}"),
            }
        }
    }
    // The last two keys of the second batch are beyond its valid ones.
    let mut padded = k.clone();
    padded[40 + 24..].fill(f32::NAN);
    assert_eq!(check(&problem, [&q, &padded, &padded, &bias]), Ok(()));
    padded[40 + 23] = f32::NAN;
    let found = check(&problem, [&q, &padded, &k, &bias]);
    assert!(matches!(found, Err(Error::NotFinite { field: "k", index: 63, .. })), "{found:?}");
    // Rounded to 16 bits it is infinite.
    let mut large = q.clone();
    large[5] = 70000.0;
    assert_eq!(check(&problem, [&large, &k, &k, &bias]), Ok(()));
    let halves = problem.dtype(DType::F16);
    let found = check(&halves, [&large, &k, &k, &bias]);
    assert_eq!(found, Err(Error::NotFinite { field: "q", index: 5, value: 70000.0, stored: f32::INFINITY }));
    // A slice of the wrong length is that first.
    let found = check(&halves, [&large[1..], &k, &k, &bias]);
    assert!(matches!(found, Err(Error::Length { field: "q", .. })), "{found:?}");
}

/// Packed sequences have valid lengths of their own.
#[test]
fn numbers_beyond_a_packed_sequence_s_valid_keys_may_be_anything() {
    let problem = Problem::new(shape([2, 1, 1, 5, 5, 4, 4])).packed(10, 10).with_kv_len();
    let (starts, kv_len, fine) = ([0, 5, 10], [3, 5], vec![1f32; 40]);
    let check = |k: &[f32]| {
        Inputs::new(&fine, k, &fine).cu_seqlens(&starts, &starts).kv_len(&kv_len).check_finite(&problem)
    };
    for key in 0..10 {
        let mut k = fine.clone();
        k[4 * key + 1] = f32::NAN;
        match check(&k) {
            Ok(()) => assert!((3..5).contains(&key), "key {key}"),
            Err(Error::NotFinite { field: "k", index, .. }) => {
                assert_eq!(index, 4 * key as u64 + 1);
                assert!(!(3..5).contains(&key), "key {key}");
            }
            other => panic!("key {key}: {other:?}"),
        }
    }
}
