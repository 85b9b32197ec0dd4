//! Every shader of the operations, for the tests that look at texts.

use wgpu_attention::sampling::{self, Chain};
use wgpu_attention::softmax::{Kind, Plan, Problem, RowTemperature};
use wgpu_attention::{AdapterClass, Caps};

/// Each text once.
pub fn sources() -> Vec<String> {
    let mut all = Vec::new();
    for class in [AdapterClass::Cpu, AdapterClass::Other] {
        let caps = Caps::from_limits(&wgpu_attention::wgpu::Limits::default(), class);
        all.extend(softmax(&caps));
        all.extend(sampling(&caps));
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

fn sampling(caps: &Caps) -> Vec<String> {
    let chain = Chain::new()
        .penalties(1.1, 0.1, 0.1)
        .logit_bias()
        .allowed()
        .temperature(0.5)
        .dynamic_temperature(0.1, 2.0, 1.0)
        .top_k(9)
        .top_p(0.9)
        .min_p(0.1)
        .typical(0.9)
        .top_n_sigma(1.0);
    let mut all = Vec::new();
    for vocab in [1, 1000, 1 << 20] {
        let plain = sampling::Problem::new(3, vocab, chain.clone()).with_history(8).with_bias(4);
        for problem in [plain.clone(), plain.clone().with_log_probs(), plain.greedy().with_log_probs()] {
            all.extend(sampling::Plan::new(&problem, caps).expect("a plan").shader_sources());
        }
    }
    all
}
