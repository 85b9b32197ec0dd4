//! Losses on top of softmax: cross-entropy with label smoothing and with a teacher, at a temperature, with their gradients, on the GPU
//! and against finite differences in float64.
//!
//! ```sh
//! cargo run --example losses
//! ```

use wgpu_attention::softmax::{Inputs, Kind, Problem, RowTemperature, Softmax};
use wgpu_attention::{headless, wgpu};

const ROWS: u32 = 4;
const CLASSES: u32 = 10;

/// The loss -sum t ln softmax(x / tau), summed over the rows, and its gradient.
fn cross_entropy(
    softmax: &Softmax,
    queue: &wgpu::Queue,
    x: &[f32],
    targets: &[f32],
    tau: f32,
) -> wgpu_attention::Result<(f64, Vec<f32>)> {
    let problem = Problem::new(ROWS, CLASSES).kind(Kind::LogSoftmax).temperature(RowTemperature::Value(tau));
    let log_p = softmax.run_blocking(queue, &problem, &Inputs::new(x))?.out;
    let loss = targets.iter().zip(&log_p).map(|(&t, &log_p)| f64::from(-t * log_p)).sum();
    let d_log_p: Vec<f32> = targets.iter().map(|t| -t).collect();
    let gradient = softmax.run_backward_blocking(queue, &problem, [&log_p, &d_log_p], None, false)?;
    Ok((loss, gradient.dx))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let softmax = Softmax::new(&gpu.device);
    let numbers = |seed: f32| -> Vec<f32> {
        (0..ROWS * CLASSES).map(|n| 2.0 * (n as f32 * 1.7 + seed).sin()).collect()
    };
    let (student, teacher) = (numbers(0.3), numbers(1.1));

    // Label smoothing: most of the weight on the label, the rest shared by all classes.
    let (labels, smoothing) = ([3, 1, 4, 1], 0.1);
    let smooth: Vec<f32> = (0..ROWS * CLASSES)
        .map(|n| {
            let hit = n % CLASSES == labels[(n / CLASSES) as usize];
            (1.0 - smoothing) * f32::from(u8::from(hit)) + smoothing / CLASSES as f32
        })
        .collect();
    // Distillation: what the teacher thinks, softened.
    let tau = 3.0;
    let soft = Problem::new(ROWS, CLASSES).temperature(RowTemperature::Value(tau));
    let taught = softmax.run_blocking(&gpu.queue, &soft, &Inputs::new(&teacher))?.out;

    println!("on {}", gpu.adapter.get_info().name);
    for (name, targets, tau) in [("label smoothing", smooth, 1.0), ("distillation", taught, tau)] {
        let (loss, gradient) = cross_entropy(&softmax, &gpu.queue, &student, &targets, tau)?;
        let mut worst = 0.0f64;
        for (n, &got) in gradient.iter().enumerate() {
            let at = |step: f64| {
                let mut x: Vec<f64> = student.iter().map(|&x| x.into()).collect();
                x[n] += step;
                loss_f64(&x, &targets, tau.into())
            };
            let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            worst = worst.max((f64::from(got) - slope).abs());
        }
        println!("{name:16} loss {loss:.4}   gradient within {worst:.1e} of finite differences");
        if worst > 1e-5 || (loss - loss_f64_of(&student, &targets, tau.into())).abs() > 1e-4 {
            return Err(format!("the {name} is wrong").into());
        }
    }
    Ok(())
}

fn loss_f64_of(x: &[f32], targets: &[f32], tau: f64) -> f64 {
    loss_f64(&x.iter().map(|&x| x.into()).collect::<Vec<_>>(), targets, tau)
}

fn loss_f64(x: &[f64], targets: &[f32], tau: f64) -> f64 {
    let rows = x.chunks(CLASSES as usize).zip(targets.chunks(CLASSES as usize));
    rows.map(|(x, t)| {
        let lse = x.iter().map(|x| (x / tau).exp()).sum::<f64>().ln();
        x.iter().zip(t).map(|(x, &t)| -f64::from(t) * (x / tau - lse)).sum::<f64>()
    })
    .sum()
}
