//! Score and mask functions in WGSL, compiled into the kernel: those of docs/user-code.md, each compared with its twin in
//! float64.
//!
//! ```sh
//! cargo run --features user-code --example score_mod
//! ```

use wgpu_attention::reference::{Mods, truth_with};
use wgpu_attention::{Attention, Inputs, Problem, Shape, UserCode, headless};

const SEQ: u32 = 70;
const HEADS: u32 = 4;
const HEAD_DIM: u32 = 16;

const SCORE_MOD: &str = "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32";
const MASK_MOD: &str = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = headless::open_blocking(&headless::Options::default())?;
    let attention = Attention::new(&gpu.device);
    println!("on {}\n", gpu.adapter.get_info().name);

    let numbers = |phase: f32| -> Vec<f32> {
        (0..HEADS * SEQ * HEAD_DIM).map(|n| (n as f32 * 0.37 + phase).sin() * 2.0).collect()
    };
    let (q, k, v) = (numbers(0.0), numbers(1.0), numbers(2.0));
    let plain = Problem::new(Shape::self_attention(1, HEADS, SEQ, HEAD_DIM)).with_lse().with_entropy();

    // Runs a problem and compares it with float64.
    let check = |name: &str, problem: Problem, user: &[u32], mods: Mods<'_>| {
        let problem = problem.user_params(user.len() as u32);
        let mut inputs = Inputs::new(&q, &k, &v);
        if !user.is_empty() {
            inputs = inputs.user(user);
        }
        let result = attention.run_blocking(&gpu.queue, &problem, &inputs)?;
        let error = truth_with(&problem, &inputs, &mods)?.compare(&result);
        println!("{name:<18} largest error {:.1e}, {:.3} of its bound", error.max_abs, error.worst);
        if error.passes() { Ok(()) } else { Err(format!("{name}: wrong at {}", error.at).into()) }
    };
    let check: &Check<'_> = &check;
    scores(&plain, check)?;
    masks(&plain, check)?;

    // Errors are found before a kernel is made, and point into the text.
    let text = format!("{MASK_MOD} {{\n    return q_index >= k_indx;\n}}");
    match UserCode::mask_mod(&text) {
        Ok(_) => Err("a misspelt name was accepted".into()),
        Err(error) => {
            println!("\na misspelt name: {error}");
            Ok(())
        }
    }
}

type Check<'a> = dyn Fn(&str, Problem, &[u32], Mods<'_>) -> Result<(), Box<dyn std::error::Error>> + 'a;

fn scores(plain: &Problem, check: &Check<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let score_mod = |body: &str| UserCode::score_mod(&format!("{SCORE_MOD} {{ {body} }}"));

    // One number for each head, which the app may change without compiling anything.
    let slopes = [0.1f32, -0.2, 0.05, 0.0];
    let code = score_mod("return score + param_f32(head) * (f32(q_index) - f32(k_index));")?;
    let twin = |score: f64, [_, h, i, j]: [u32; 4]| {
        score + f64::from(slopes[h as usize]) * (f64::from(i) - f64::from(j))
    };
    let mods = Mods { score: Some(&twin), mask: None };
    check("relative position", plain.clone().score_mod(code), &slopes.map(f32::to_bits), mods)?;

    let code = score_mod("return 5.0 * tanh(score / 5.0);")?;
    let twin = |score: f64, _: [u32; 4]| 5.0 * (score / 5.0).tanh();
    check("soft cap", plain.clone().score_mod(code), &[], Mods { score: Some(&twin), mask: None })
}

fn masks(plain: &Problem, check: &Check<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let mask_mod = |body: &str| UserCode::mask_mod(&format!("{MASK_MOD} {{ {body} }}"));

    // The document of each position: several sequences, packed into one.
    let documents: Vec<u32> = (0..SEQ).map(|i| i / 20).collect();
    let code = mask_mod("return param_u32(q_index) == param_u32(k_index);")?;
    let twin = |[_, _, i, j]: [u32; 4]| documents[i as usize] == documents[j as usize];
    check(
        "document mask",
        plain.clone().mask_mod(code),
        &documents,
        Mods { score: None, mask: Some(&twin) },
    )?;

    let code = mask_mod("return k_index < param_u32(0u) || k_index <= q_index;")?;
    let twin = |[_, _, i, j]: [u32; 4]| j < 12 || j <= i;
    check("prefix-LM", plain.clone().mask_mod(code), &[12], Mods { score: None, mask: Some(&twin) })?;

    let code = mask_mod(
        "let distance = abs(i32(q_index) - i32(k_index)); return distance <= 24 && distance % 3 == 0;",
    )?;
    let twin = |[_, _, i, j]: [u32; 4]| i.abs_diff(j) <= 24 && i.abs_diff(j).is_multiple_of(3);
    check("dilated window", plain.clone().mask_mod(code), &[], Mods { score: None, mask: Some(&twin) })
}
