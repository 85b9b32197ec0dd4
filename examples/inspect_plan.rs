//! Prints what would be done for a problem, and why: for WebGPU's default limits, which takes no GPU, and for this machine's
//! adapter where there is one.
//!
//! ```sh
//! cargo run --example inspect_plan                                  # a default
//! cargo run --example inspect_plan -- 1 32 8 512 4096 128 128 causal lse
//! cargo run --example inspect_plan -- f16 causal window sinks       # with options
//! cargo run --example inspect_plan -- naive wgsl                    # with the shader's text
//! ```
//!
//! The numbers are batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk and head_dim_v.

use wgpu_attention::{
    Alignment, Attention, Caps, DType, Kernel, Layout, Plan, PlanOptions, Problem, Shape, Sink, Temperature,
    Tensor, Window, headless,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (problem, options, wgsl) = parse(&words)?;

    println!("{:?}", problem.shape);
    println!("{} (query, key) pairs, {} operations\n", problem.visible_pairs(), problem.flops());

    println!("== WebGPU's default limits");
    let plan = Plan::new(&problem, &Caps::webgpu_default(), &options)?;
    print(&plan);

    match headless::open_blocking(&headless::Options::default()) {
        Ok(gpu) => {
            println!("\n== {}", gpu.adapter.get_info().name);
            print(&Attention::new(&gpu.device).plan_with(&problem, &options)?);
        }
        Err(why) => println!("\n== This machine: {why}"),
    }

    let source = plan.shader_source();
    if wgsl {
        println!("\n== The shader for WebGPU's default limits\n\n{source}");
    } else {
        println!("\nThe shader has {} lines; the word `wgsl` prints them.", source.lines().count());
    }
    Ok(())
}

fn print(plan: &Plan) {
    println!("{plan}");
    for tensor in Tensor::ALL {
        println!("{:<11} {} bytes", tensor.name(), plan.tensor_bytes(tensor));
    }
    println!("{:<11} {} bytes", "stats", plan.stats_bytes());
    println!("{:<11} {} bytes", "tables", plan.tables().bytes());
}

fn parse(words: &[String]) -> Result<(Problem, PlanOptions, bool), String> {
    let mut numbers = Vec::new();
    let mut options = PlanOptions::default();
    let mut wgsl = false;
    let mut changes: Vec<fn(Problem) -> Problem> = Vec::new();
    for word in words {
        match word.as_str() {
            "causal" => changes.push(|p| p.causal(Alignment::BottomRight)),
            "bshd" => changes.push(|p| p.layout(Layout::Bshd)),
            "lse" => changes.push(Problem::with_lse),
            "entropy" => changes.push(Problem::with_entropy),
            "row_max" => changes.push(Problem::with_row_max),
            "kv_len" => changes.push(Problem::with_kv_len),
            "per_head" => changes.push(|p| p.temperature(Temperature::PerHead)),
            "per_row" => changes.push(|p| p.temperature(Temperature::PerRow)),
            "window" => changes.push(|p| p.window(Window::last(256))),
            "softcap" => changes.push(|p| p.softcap(50.0)),
            "alibi" => changes.push(Problem::with_alibi),
            "sinks" => changes.push(|p| p.sink(Sink::PerHead)),
            "f16" => changes.push(|p| p.dtype(DType::F16)),
            "bf16" => changes.push(|p| p.dtype(DType::Bf16)),
            "naive" => options = PlanOptions::kernel(Kernel::Naive),
            "wgsl" => wgsl = true,
            number => numbers.push(number.parse::<u32>().map_err(|_| {
                format!(
                    "{number:?} is neither a number nor one of causal, bshd, lse, entropy, row_max, kv_len, per_head, \
                     per_row, window, softcap, alibi, sinks, f16, bf16, naive, wgsl"
                )
            })?),
        }
    }
    let shape = match numbers[..] {
        [] => Shape::self_attention(1, 12, 1024, 64),
        [batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v] => {
            Shape { batch, q_heads, kv_heads, seq_q, seq_k, head_dim_qk, head_dim_v }
        }
        _ => return Err(format!("seven numbers were expected, or none, but there are {}", numbers.len())),
    };
    Ok((changes.into_iter().fold(Problem::new(shape), |problem, change| change(problem)), options, wgsl))
}
