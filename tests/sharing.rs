//! An app's device, shared: several calls in a submission, other work around them, several threads, dropped futures; and the same
//! bits every time.

#[path = "common/mod.rs"]
mod common;

use common::{
    Bench, Case, Gpu, Guarded, assert_right, assert_same_bits, encoder, plan, run, run_plan, shape,
};
use std::future::Future;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;
use wgpu_attention::{
    Alignment, Attention, Error, Kernel, Outputs, Plan, PlanOptions, Problem, Stats, Temperature, headless,
    wgpu,
};

fn with_stats(mut problem: Problem) -> Problem {
    problem.stats = Stats::ALL;
    problem
}

// ---- one submission -----------------------------------------------------------------------------------------

/// Different plans (with different scales, masks and temperatures) and one plan with different buffers, all at once.
#[test]
fn many_calls_in_one_submission_do_not_disturb_each_other() {
    let gpu = gpu!();
    let base = || Problem::new(shape([1, 2, 1, 9, 35, 8, 8]));
    let problems = [
        base(),
        base().temperature(Temperature::Value(0.1)),
        base().causal(Alignment::BottomRight),
        base().causal(Alignment::Offset(-3)),
        Problem::new(shape([2, 2, 1, 5, 20, 8, 8])),
    ];
    for kernel in common::KERNELS {
        let mut encoder = encoder(gpu);
        let mut calls = Vec::new();
        for round in 0..3 {
            for (n, problem) in problems.iter().enumerate() {
                let case = Case::new(problem.clone(), (10 * round + n) as u64).vacuous_above(1e-2);
                let plan = plan(gpu, problem, &PlanOptions::kernel(kernel));
                let bench = Bench::new(gpu, &plan, &case);
                let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
                prepared.encode(&mut encoder, &bench.buffers()).unwrap();
                calls.push((case, plan, bench));
            }
        }
        gpu.queue.submit([encoder.finish()]);
        for (case, plan, bench) in &calls {
            assert_right(gpu, plan, case, &case.truth(), &bench.read(gpu, plan));
        }
    }
}

/// One `Prepared`, whose naive scratch is shared, with other buffers each time, in one pass of the caller's.
#[test]
fn one_plan_with_other_buffers_in_one_pass() {
    let gpu = gpu!();
    for kernel in common::KERNELS {
        let cases: Vec<_> =
            (0..5).map(|seed| Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])), seed)).collect();
        let plan = plan(gpu, &cases[0].problem, &PlanOptions::kernel(kernel));
        let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
        let benches: Vec<_> = cases.iter().map(|case| Bench::new(gpu, &plan, case)).collect();
        let bound: Vec<_> = benches.iter().map(|b| prepared.bind(&b.buffers()).unwrap()).collect();
        let mut encoder = encoder(gpu);
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            bound.iter().for_each(|b| b.encode_in_pass(&mut pass));
        }
        gpu.queue.submit([encoder.finish()]);
        for (case, bench) in cases.iter().zip(&benches) {
            assert_right(gpu, &plan, case, &case.truth(), &bench.read(gpu, &plan));
        }
    }
}

/// The answer of one call is q of the next: the order within a submission holds.
#[test]
fn a_call_may_read_what_the_one_before_wrote() {
    let gpu = gpu!();
    for kernel in common::KERNELS {
        let case = Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])), 20);
        let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
        let first = run_plan(gpu, &plan, &case);
        let mut second = case.clone();
        second.q.clone_from(&first.out);
        let want = run_plan(gpu, &plan, &second);

        let (a, b) = (Bench::new(gpu, &plan, &case), Bench::new(gpu, &plan, &case));
        let prepared = gpu.attention.prepare_blocking(&plan).unwrap();
        let mut encoder = encoder(gpu);
        prepared.encode(&mut encoder, &a.buffers()).unwrap();
        let chained = wgpu_attention::Buffers { q: a.out.at(), ..b.buffers() };
        prepared.encode(&mut encoder, &chained).unwrap();
        gpu.queue.submit([encoder.finish()]);
        assert_same_bits(&b.read(gpu, &plan), &want, "a chain of two calls");
    }
}

/// A pass that already does other work, before and after, with the app's own pipeline.
#[test]
fn beside_other_work_in_the_callers_pass() {
    let gpu = gpu!();
    let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("other work"),
        source: wgpu::ShaderSource::Wgsl(
            "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
             @compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) { x[id.x] = x[id.x] * 2.0; }"
                .into(),
        ),
    });
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("other work"),
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    for kernel in common::KERNELS {
        let mut case = Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])), 21);
        let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
        let bench = Bench::new(gpu, &plan, &case);
        let doubled = |buffer: &Guarded| {
            gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &pipeline.get_bind_group_layout(0),
                entries: &[wgpu::BindGroupEntry {
                    binding: 0,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: &buffer.buffer,
                        offset: buffer.lead,
                        size: std::num::NonZeroU64::new(4 * buffer.words as u64),
                    }),
                }],
            })
        };
        let bound = gpu.attention.prepare_blocking(&plan).unwrap().bind(&bench.buffers()).unwrap();
        let mut encoder = encoder(gpu);
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            // v is doubled before the call, and out after it.
            for (buffer, before) in [(&bench.v, true), (&bench.out, false)] {
                if !before {
                    bound.encode_in_pass(&mut pass);
                }
                pass.set_pipeline(&pipeline);
                pass.set_bind_group(0, &doubled(buffer), &[]);
                pass.dispatch_workgroups(buffer.words as u32, 1, 1);
            }
        }
        gpu.queue.submit([encoder.finish()]);
        let mut got = bench.read(gpu, &plan);
        case.v.iter_mut().for_each(|v| *v *= 2.0);
        got.out.iter_mut().for_each(|x| *x /= 2.0);
        assert_right(gpu, &plan, &case, &case.truth(), &got);
    }
}

/// Slice by slice, in submissions of their own, as an app would that wants its frames in between.
#[test]
fn slices_in_submissions_of_their_own() {
    let gpu = gpu!();
    let case = Case::new(with_stats(Problem::new(shape([3, 4, 2, 19, 17, 8, 8]))), 22);
    let mut caps = gpu.attention.caps().clone();
    caps.max_storage_buffer_binding_size = 6000;
    let plan = Plan::new(&case.problem, &caps, &PlanOptions::default()).unwrap();
    let bench = Bench::new(gpu, &plan, &case);
    let bound = gpu.attention.prepare_blocking(&plan).unwrap().bind(&bench.buffers()).unwrap();
    assert!(bound.slices() > 1);
    // Any order will do, and a number beyond the last does nothing.
    for slice in (0..=bound.slices()).rev() {
        let mut encoder = encoder(gpu);
        bound.encode_slice(&mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()), slice);
        gpu.queue.submit([encoder.finish()]);
    }
    assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
}

#[test]
fn one_binding_encoded_many_times() {
    let gpu = gpu!();
    let case = Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])), 23);
    let plan = plan(gpu, &case.problem, &PlanOptions::default());
    let bench = Bench::new(gpu, &plan, &case);
    let bound = gpu.attention.prepare_blocking(&plan).unwrap().bind(&bench.buffers()).unwrap();
    for _ in 0..3 {
        let mut encoder = encoder(gpu);
        (0..10).for_each(|_| bound.encode(&mut encoder));
        gpu.queue.submit([encoder.finish()]);
    }
    assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
}

#[test]
fn timestamps_around_the_pass() {
    let gpu = gpu!();
    if !gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
        common::say(&format!("SKIPPED: {} has no TIMESTAMP_QUERY: {}", gpu.name, common::test_name()));
        return;
    }
    let case = Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])), 24);
    let plan = plan(gpu, &case.problem, &PlanOptions::default());
    let bench = Bench::new(gpu, &plan, &case);
    let bound = gpu.attention.prepare_blocking(&plan).unwrap().bind(&bench.buffers()).unwrap();
    let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
        label: Some("times"),
        ty: wgpu::QueryType::Timestamp,
        count: 2,
    });
    let times = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("times"),
        size: 16,
        usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    });
    let mut encoder = encoder(gpu);
    bound.encode_timed(
        &mut encoder,
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        }),
    );
    encoder.resolve_query_set(&queries, 0..2, &times, 0);
    gpu.queue.submit([encoder.finish()]);
    let words = common::read_words(gpu, &times);
    let time = |n: usize| u64::from(words[2 * n]) | u64::from(words[2 * n + 1]) << 32;
    assert!(time(0) != 0 && time(1) >= time(0), "from {} to {}", time(0), time(1));
    assert_right(gpu, &plan, &case, &case.truth(), &bench.read(gpu, &plan));
}

// ---- threads and futures ------------------------------------------------------------------------------------

/// wgpu's OpenGL back end has one context, which a thread holds while it waits for the device; others panic, inside wgpu, after
/// some seconds without it. So calls from several threads at once are for the other back ends.
fn threads_are_refused(gpu: &Gpu) -> bool {
    let refused = gpu.adapter.get_info().backend == wgpu::Backend::Gl;
    if refused {
        common::say(&format!(
            "SKIPPED: wgpu's OpenGL back end is for one thread at a time: {}",
            common::test_name()
        ));
    }
    refused
}

/// Fails instead of hanging for ever.
fn within(limit: Duration, work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match wait.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still at work after {limit:?}: a deadlock?"),
        _ => worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

#[test]
fn eight_threads_on_one_attention() {
    let gpu: &'static Gpu = gpu!();
    if threads_are_refused(gpu) {
        return;
    }
    let case = Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])).with_lse(), 30);
    let other = Case::new(Problem::new(shape([1, 2, 1, 4, 70, 8, 8])).with_lse(), 31);
    within(Duration::from_secs(60), move || {
        let call =
            move |case: &Case| gpu.attention.run_blocking(&gpu.queue, &case.problem, &case.inputs()).unwrap();
        let want = [call(&case), call(&other)];
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // An app's frame loop polls meanwhile.
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = gpu.device.poll(wgpu::PollType::Poll);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    let (case, other, want) = (&case, &other, &want);
                    scope.spawn(move || {
                        for n in 0..40 {
                            let which = (n + thread) % 2;
                            let got = call([case, other][which]);
                            assert_same_bits(&got, &want[which], &format!("call {n} of thread {thread}"));
                        }
                    })
                })
                .collect();
            let results: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok), "a thread failed");
        });
    });
}

/// Eight threads that all want the same new variant, and each a plan of its own.
#[test]
fn threads_that_compile_at_once() {
    let gpu: &'static Gpu = gpu!();
    if threads_are_refused(gpu) {
        return;
    }
    within(Duration::from_secs(60), move || {
        let attention = Attention::new(&gpu.device);
        let case = Case::new(Problem::new(shape([1, 1, 1, 9, 35, 8, 8])), 32);
        let truth = case.truth();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let options = PlanOptions::kernel(Kernel::Naive);
                    let got = attention
                        .run_with_blocking(&gpu.queue, &case.problem, &case.inputs(), &options)
                        .unwrap();
                    assert!(truth.compare(&got).passes());
                });
            }
        });
        assert_eq!(attention.compiled(), 1);
    });
}

/// A future that is dropped after any number of polls leaves nothing behind that disturbs the next call.
#[test]
fn futures_dropped_half_way() {
    let gpu = gpu!();
    let case = Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])).with_lse(), 33);
    let want = gpu.attention.run_blocking(&gpu.queue, &case.problem, &case.inputs()).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for polls in 0..4 {
        for _ in 0..10 {
            let inputs = case.inputs();
            let mut future = Box::pin(gpu.attention.run(&gpu.queue, &case.problem, &inputs));
            for _ in 0..polls {
                if future.as_mut().poll(&mut context).is_ready() {
                    break;
                }
            }
        }
        let got = gpu.attention.run_blocking(&gpu.queue, &case.problem, &case.inputs()).unwrap();
        assert_same_bits(&got, &want, &format!("after futures dropped at {polls} polls"));
    }
}

/// Two results on their way at once, taken in the other order.
#[test]
fn overlapping_futures() {
    let gpu = gpu!();
    let cases = [34, 35].map(|seed| Case::new(Problem::new(shape([1, 2, 1, 9, 35, 8, 8])), seed));
    let inputs = [cases[0].inputs(), cases[1].inputs()];
    let first = gpu.attention.run(&gpu.queue, &cases[0].problem, &inputs[0]);
    let second = gpu.attention.run(&gpu.queue, &cases[1].problem, &inputs[1]);
    let second = pollster::block_on(second).unwrap();
    let first = pollster::block_on(first).unwrap();
    assert!(cases[0].truth().compare(&first).passes());
    assert!(cases[1].truth().compare(&second).passes());
}

/// A lost device is an error value for calls on it, and nothing to others.
#[test]
fn a_destroyed_device_is_an_error() {
    let gpu = gpu!();
    let case = Case::new(Problem::new(shape([1, 1, 1, 9, 35, 8, 8])), 36);
    let doomed = headless::open_blocking(&headless::Options::default()).unwrap();
    let attention = Attention::new(&doomed.device);
    let options = PlanOptions::kernel(Kernel::Naive);
    let run = || attention.run_with_blocking(&doomed.queue, &case.problem, &case.inputs(), &options);
    assert!(case.truth().compare(&run().unwrap()).passes());
    doomed.device.destroy();
    assert!(matches!(run(), Err(Error::DeviceLost(_))), "{:?}", run());
    common::check(gpu, &case, &options);
}

// ---- the same bits ------------------------------------------------------------------------------------------

#[test]
fn repeats_are_equal_to_the_bit() {
    let gpu = gpu!();
    for kernel in common::KERNELS {
        for (n, numbers) in [[2, 4, 2, 33, 70, 8, 8], [1, 1, 1, 1, 500, 8, 8], [1, 2, 1, 65, 65, 5, 7]]
            .into_iter()
            .enumerate()
        {
            let case =
                Case::new(with_stats(Problem::new(shape(numbers)).causal(Alignment::BottomRight)), n as u64);
            let plan = plan(gpu, &case.problem, &PlanOptions::kernel(kernel));
            let want = run_plan(gpu, &plan, &case);
            for repeat in 0..20 {
                assert_same_bits(
                    &run_plan(gpu, &plan, &case),
                    &want,
                    &format!("repeat {repeat} of {numbers:?}"),
                );
            }
        }
    }
}

/// A sequence alone gives what it gives within a batch.
#[test]
fn a_batch_of_one_is_a_row_of_the_batch() {
    let gpu = gpu!();
    for kernel in common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let all = Case::new(with_stats(Problem::new(shape([8, 2, 1, 9, 70, 8, 8]))), 41);
        let together = run(gpu, &all, &options);
        for b in 0..8 {
            let mut one = Case::new(with_stats(Problem::new(shape([1, 2, 1, 9, 70, 8, 8]))), 42);
            let part = |x: &[f32]| x[b * x.len() / 8..(b + 1) * x.len() / 8].to_vec();
            (one.q, one.k, one.v) = (part(&all.q), part(&all.k), part(&all.v));
            let want = Outputs {
                out: part(&together.out),
                lse: together.lse.as_deref().map(part),
                entropy: together.entropy.as_deref().map(part),
                row_max: together.row_max.as_deref().map(part),
            };
            assert_same_bits(&run(gpu, &one, &options), &want, &format!("batch {b} alone"));
        }
    }
}

/// Decoding with a cache that grows compiles nothing new.
#[test]
fn growing_lengths_compile_nothing_new() {
    let gpu = gpu!();
    let attention = Attention::new(&gpu.device);
    let mut problem = Problem::new(shape([1, 2, 1, 1, 1, 8, 8])).causal(Alignment::BottomRight);
    for sk in (1..60).chain([500, 1999, 2000]) {
        problem.shape.seq_k = sk;
        let case = Case::new(problem.clone(), sk.into());
        let got = attention.run_blocking(&gpu.queue, &case.problem, &case.inputs()).unwrap();
        assert!(case.truth().compare(&got).passes(), "{sk} keys");
    }
    assert_eq!(attention.compiled(), 1);
}
