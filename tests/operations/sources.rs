//! Every shader of the operations, for the tests that look at texts.

use wgpu_attention::softmax::{Kind, Plan, Problem, RowTemperature};
use wgpu_attention::{AdapterClass, Caps};

/// Each text once.
pub fn sources() -> Vec<String> {
    let mut all = Vec::new();
    for class in [AdapterClass::Cpu, AdapterClass::Other] {
        let caps = Caps::from_limits(&wgpu_attention::wgpu::Limits::default(), class);
        all.extend(softmax(&caps));
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn softmax(caps: &Caps) -> Vec<String> {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        for len in [1, 9, 5000, 100_000] {
            for temperature in [RowTemperature::Value(2.0), RowTemperature::PerRow] {
                let plain = Problem::new(3, len).kind(kind).temperature(temperature);
                let mut problems = vec![plain.clone(), plain.clone().in_place(), plain.clone().with_argmax()];
                if !kind.is_sparse() {
                    problems.extend([plain.clone().with_lse(), plain.clone().with_entropy()]);
                }
                for problem in &problems {
                    all.extend(Plan::new(problem, caps).expect("a plan").shader_sources());
                }
                for d_temperature in [false, true] {
                    let plan = Plan::backward(&plain, d_temperature, caps).expect("a plan");
                    all.extend(plan.shader_sources());
                }
            }
        }
    }
    all
}
