//! Gradients of softmax, log-softmax, sparsemax and entmax, also with respect to the temperature.

use crate::common::{self, Gpu, Guarded, POISON, Rng};
use crate::gpu;
use wgpu_attention::AdapterClass;
use wgpu_attention::softmax::{
    self, Buffers, Gradients, Inputs, Kind, Plan, Problem, RowLayout, RowTemperature, Softmax,
};

fn run(
    gpu: &Gpu,
    plan: &Plan,
    [out, d_out]: [&[f32]; 2],
    taus: Option<&[f32]>,
    with_temperature: bool,
) -> Gradients {
    let softmax = Softmax::new(&gpu.device);
    let prepared = softmax.prepare_blocking(plan).expect("preparing");
    let (out, d_out) = (Guarded::floats(gpu, "out", out), Guarded::floats(gpu, "d_out", d_out));
    let dx = Guarded::poisoned(gpu, "dx", plan.out_bytes());
    let stats = Guarded::poisoned(gpu, "stats", plan.stats_bytes());
    let tau = Guarded::floats(gpu, "temperature", taus.unwrap_or_default());
    let mut buffers = Buffers::backward(out.at(), d_out.at(), dx.at());
    if with_temperature {
        buffers = buffers.stats(stats.at());
    }
    if taus.is_some() {
        buffers = buffers.temperature(tau.at());
    }
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    prepared.bind(&buffers).expect("binding").encode(&mut encoder);
    gpu.queue.submit([encoder.finish()]);
    let floats = |words: Vec<u32>| {
        words.into_iter().map(|w| f32::from_bits(if w == POISON { 0 } else { w })).collect::<Vec<_>>()
    };
    Gradients {
        dx: floats(dx.read(gpu, "dx")),
        d_temperature: with_temperature.then(|| floats(stats.read(gpu, "stats"))),
    }
}

/// Forward on the device, backward on the device from that, and the truth of the latter.
fn check(gpu: &Gpu, problem: &Problem, x: &[f32], taus: Option<&[f32]>, seed: u64) -> Gradients {
    let softmax = Softmax::new(&gpu.device);
    let mut inputs = Inputs::new(x);
    inputs.temperature = taus;
    let out = softmax.run_blocking(&gpu.queue, problem, &inputs).expect("forward").out;
    let mut rng = Rng::new(seed);
    // What comes in at elements that were -inf may be anything.
    let hidden = if problem.kind == Kind::LogSoftmax { f32::NEG_INFINITY } else { 0.0 };
    let d_out: Vec<f32> = out.iter().map(|&y| if y == hidden { f32::NAN } else { rng.normal() }).collect();
    let truth = softmax::gradient_truth(problem, [&out, &d_out], taus).expect("the reference");
    let mut last = Gradients::default();
    for with_temperature in [true, false] {
        let plan = softmax.plan_backward(problem, with_temperature).expect("a plan");
        last = run(gpu, &plan, [&out, &d_out], taus, with_temperature);
        let comparison = last.compare(&truth);
        assert!(comparison.passes(), "{}\n{plan}\n{problem:?}\n{comparison:?}", gpu.name);
        let once = softmax
            .run_backward_blocking(&gpu.queue, problem, [&out, &d_out], taus, with_temperature)
            .expect("one shot");
        assert_eq!(once, last);
    }
    last
}

#[test]
fn all_kinds_at_all_lengths() {
    let gpu = gpu!();
    let mut rng = Rng::new(1);
    for kind in Kind::ALL {
        for len in [1u32, 2, 9, 64, 65, 700, 40_000] {
            let rows = 3;
            let x: Vec<f32> = (0..rows * len)
                .map(|_| if rng.chance(0.1) { f32::NEG_INFINITY } else { 2.0 * rng.normal() })
                .collect();
            let problem = Problem::new(rows, len).kind(kind);
            check(gpu, &problem.clone().temperature(RowTemperature::Value(0.7)), &x, None, len.into());
            let per_row = problem.temperature(RowTemperature::PerRow);
            check(gpu, &per_row, &x, Some(&[0.1, 1.0, 30.0]), len.into());
        }
    }
}

#[test]
fn empty_rows_have_no_gradient() {
    let gpu = gpu!();
    for kind in Kind::ALL {
        for len in [3, 40_000] {
            let problem = Problem::new(1, len).kind(kind);
            let got = check(gpu, &problem, &vec![f32::NEG_INFINITY; len as usize], None, 1);
            assert!(got.dx.iter().all(|&dx| dx == 0.0));
        }
    }
}

#[test]
fn strided_rows_and_other_layouts() {
    let gpu = gpu!();
    let mut rng = Rng::new(2);
    for kind in Kind::ALL {
        let along = Problem::along_axis(&[4, 6, 5], 1).expect("an axis").kind(kind);
        let x = rng.normals(120);
        check(gpu, &along, &x, None, 3);
        let gaps = RowLayout { offset: 2, outer: 64, inner: 16, step: 2 };
        let problem = along.clone().layouts(along.x_layout, RowLayout { inner: 12, ..gaps });
        check(gpu, &problem, &x, None, 4);
    }
}

/// The float64 gradients against differences of the float64 results: two ways to the same numbers.
#[test]
fn the_reference_is_the_derivative_of_the_reference() {
    let mut rng = Rng::new(4);
    let len = 12u32;
    for kind in Kind::ALL {
        for tau in [0.5f32, 2.0] {
            let problem = Problem::new(1, len).kind(kind).temperature(RowTemperature::PerRow);
            let x = rng.normals(len as usize);
            let dy = rng.normals(len as usize);
            // Steps of f32 inputs, chosen so that they are exact.
            let value = |x: &[f32], tau: f32| -> f64 {
                let truth = softmax::truth(&problem, &Inputs::new(x).temperature(&[tau])).expect("forward");
                truth.out.iter().zip(&dy).map(|(y, &dy)| y.value * f64::from(dy)).sum()
            };
            let out: Vec<f32> = softmax::truth(&problem, &Inputs::new(&x).temperature(&[tau]))
                .expect("forward")
                .out
                .iter()
                .map(|y| y.value as f32)
                .collect();
            let [dx, dtau] = softmax::gradient_truth(&problem, [&out, &dy], Some(&[tau])).expect("backward");
            let step = 1.0 / 1024.0;
            for i in 0..len as usize {
                let (mut up, mut down) = (x.clone(), x.clone());
                up[i] += step;
                down[i] -= step;
                let slope = (value(&up, tau) - value(&down, tau)) / (f64::from(up[i]) - f64::from(down[i]));
                // A second difference of 2^-20, and kinks where the support changes.
                let kink = if kind == Kind::Sparsemax { 2e-3 } else { 1e-4 };
                approx::assert_abs_diff_eq!(slope, dx[i].value, epsilon = kink);
            }
            let slope = (value(&x, tau + step) - value(&x, tau - step)) / (2.0 * f64::from(step));
            approx::assert_abs_diff_eq!(slope, dtau[0].value, epsilon = 2e-3);
        }
    }
}

/// Words of 64 bits move the same numbers, to the bit; and a card's share of a row, in fours, is right too.
#[test]
fn wide_words_change_no_bit() {
    let gpu = gpu!();
    let softmax = Softmax::new(&gpu.device);
    let device = softmax.caps().clone();
    if !device.shader_int64 {
        common::say(&format!(
            "{}: without SHADER_INT64 on {}, only words of 32 bits",
            common::test_name(),
            gpu.name
        ));
    }
    let mut rng = Rng::new(31);
    for len in [100usize, 1024, 1152, 40_000] {
        for kind in Kind::ALL {
            let problem = Problem::new(2, len as u32).kind(kind).temperature(RowTemperature::Value(1.5));
            let x: Vec<f32> = (0..2 * len).map(|_| rng.normal()).collect();
            let d_out: Vec<f32> = (0..2 * len).map(|_| rng.normal()).collect();
            let out = softmax.run_blocking(&gpu.queue, &problem, &Inputs::new(&x)).expect("forward").out;
            let truth = softmax::gradient_truth(&problem, [&out, &d_out], None).expect("the reference");
            for with_temperature in [true, false] {
                let [narrow, wide, _] = [
                    (AdapterClass::Cpu, false),
                    (AdapterClass::Cpu, device.shader_int64),
                    (AdapterClass::Discrete, false),
                ]
                .map(|(class, has)| {
                    let mut caps = device.clone();
                    (caps.class, caps.shader_int64) = (class, has);
                    let plan = Plan::backward(&problem, with_temperature, &caps).expect("a plan");
                    assert_eq!(plan.reason().contains("64 bits"), has, "{plan}");
                    let got = run(gpu, &plan, [&out, &d_out], None, with_temperature);
                    let comparison = got.compare(&truth);
                    assert!(comparison.passes(), "{}\n{plan}\n{problem:?}\n{comparison:?}", gpu.name);
                    got
                });
                assert_eq!(narrow, wide, "{problem:?}");
            }
        }
    }
}
