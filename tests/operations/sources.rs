//! Every shader of the operations, for the tests that look at texts.

use wgpu_attention::sampling::{self, Chain, Step};
use wgpu_attention::softmax::{Kind, Plan, Problem, RowTemperature};
use wgpu_attention::{AdapterClass, Caps, DType};

/// Each text once: those in WGSL as all devices have it.
pub fn sources() -> Vec<String> {
    let mut all = Vec::new();
    for (class, subgroup) in
        [(AdapterClass::Cpu, None), (AdapterClass::Cpu, Some(8)), (AdapterClass::Other, None)]
    {
        let mut caps = Caps::from_limits(&wgpu_attention::wgpu::Limits::default(), class);
        caps.subgroup_size = subgroup;
        all.extend(softmax(&caps));
        all.extend(sampling(&caps));
    }
    unique(all)
}

/// Those with words of 64 bits, which naga's WGSL has and that of browsers has not.
#[allow(dead_code, reason = "Tint is not given them")]
pub fn wide_sources() -> Vec<String> {
    let mut caps = Caps::from_limits(&wgpu_attention::wgpu::Limits::default(), AdapterClass::Cpu);
    caps.shader_int64 = true;
    let mut all = Vec::new();
    for subgroup in [None, Some(8)] {
        caps.subgroup_size = subgroup;
        all.extend(softmax(&caps));
    }
    all.retain(|source| source.lines().next().is_some_and(|name| name.contains(" wide")));
    unique(all)
}

fn unique(mut all: Vec<String>) -> Vec<String> {
    all.sort_unstable();
    all.dedup();
    all
}

fn softmax(caps: &Caps) -> Vec<String> {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        // One thread, a few, and many for a row; one tile and many; in fours and not; and shared rows.
        for len in [1, 9, 200, 1000, 5000, 5001, 100_000] {
            for temperature in [RowTemperature::Value(2.0), RowTemperature::PerRow] {
                let plain = Problem::new(3, len).kind(kind).temperature(temperature);
                let mut problems = vec![plain.clone(), plain.clone().in_place(), plain.clone().with_argmax()];
                problems.extend([DType::F16, DType::Bf16].map(|dtype| plain.clone().x_type(dtype)));
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
    // And every step after a top-k, which may leave it a list.
    let listed = chain.steps().iter().fold(Chain::new().top_k(9), |chain, &step| chain.step(step));
    let mut all = Vec::new();
    // And those that share a long row among workgroups, which they do before a top-k and after what changes all logits.
    let shared = Chain::new().temperature(0.5).typical(0.9).top_p(0.9).min_p(0.1);
    let [first, second] = [Chain::new().top_p(0.9).temperature(0.5), Chain::new().min_p(0.1).top_k(9)];
    let long = [&chain, &listed, &shared, &first, &second].map(|chain| (1 << 20, chain));
    for (vocab, chain) in [(1, &chain), (1000, &chain)].into_iter().chain(long) {
        let mut plain = sampling::Problem::new(3, vocab, chain.clone());
        if chain.steps().iter().any(|step| matches!(step, Step::Penalties { .. })) {
            plain = plain.with_history(8).with_bias(4);
        }
        let problems = [
            plain.clone().dtype(DType::F16),
            plain.clone().dtype(DType::Bf16),
            plain.clone().with_log_probs(),
            plain.clone().greedy().with_log_probs(),
            plain,
        ];
        for problem in problems {
            all.extend(sampling::Plan::new(&problem, caps).expect("a plan").shader_sources());
        }
    }
    all
}
