//! Score and mask functions of the user's, against twins in float64: the ready-made ones that people know from FlexAttention.

#[path = "common/mod.rs"]
mod common;

use common::{Case, Gpu, assert_right, shape};
use wgpu_attention::{
    Alignment, Caps, DType, Error, Kernel, Plan, PlanOptions, Problem, ScoreStage, Stats, UserCode,
    reference::{Mods, compare, scores_at_with, truth_with},
};

fn score_mod(body: &str) -> UserCode {
    let head = "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32";
    UserCode::score_mod(&format!("{head} {{ {body} }}")).unwrap()
}

fn mask_mod(body: &str) -> UserCode {
    let head = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool";
    UserCode::mask_mod(&format!("{head} {{ {body} }}")).unwrap()
}

fn problem() -> Problem {
    let mut problem = Problem::new(shape([2, 4, 2, 37, 70, 16, 16]));
    problem.stats = Stats::ALL;
    problem
}

fn check(gpu: &Gpu, problem: Problem, user: &[u32], mods: &Mods<'_>) {
    let mut case = Case::new(problem.user_params(user.len() as u32), 7);
    if !user.is_empty() {
        case.user = Some(user.to_vec());
    }
    let truth = truth_with(&case.problem, &case.inputs(), mods).unwrap();
    // Whole, and cut into many slices: the functions are given the whole problem's indices either way.
    let mut small = Caps::from_device(&gpu.device);
    small.max_compute_workgroups_per_dimension = 1;
    for kernel in common::kernels(&case.problem) {
        let options = PlanOptions::kernel(kernel);
        let mut plans = vec![common::plan(gpu, &case.problem, &options)];
        if kernel == Kernel::Tiled {
            let plan = Plan::new(&case.problem, &small, &options).unwrap();
            assert!(plan.slices().len() >= 8);
            plans.push(plan);
        }
        for plan in plans {
            let got = common::run_plan(gpu, &plan, &case);
            assert_right(gpu, &plan, &case, &truth, &got);
        }
    }
}

#[test]
fn relative_position_bias() {
    let gpu = gpu!();
    let code = score_mod("return score + param_f32(head) * (f32(q_index) - f32(k_index));");
    let slopes = [0.1f32, -0.2, 0.05, 0.0];
    let twin = |score: f64, [_, h, i, j]: [u32; 4]| {
        score + f64::from(slopes[h as usize]) * (f64::from(i) - f64::from(j))
    };
    let user = slopes.map(f32::to_bits);
    check(gpu, problem().score_mod(code), &user, &Mods { score: Some(&twin), mask: None });
}

#[test]
fn soft_cap_as_user_code_agrees_with_the_built_in_one() {
    let gpu = gpu!();
    let code = score_mod("return 5.0 * tanh(score / 5.0);");
    let twin = |score: f64, _: [u32; 4]| 5.0 * (score / 5.0).tanh();
    check(gpu, problem().score_mod(code), &[], &Mods { score: Some(&twin), mask: None });
}

#[test]
fn document_mask() {
    let gpu = gpu!();
    // Documents of keys, then of queries: user code sees two lists one after the other.
    let code = mask_mod("return param_u32(k_index) == param_u32(70u + q_index);");
    let documents: Vec<u32> = (0..70).map(|j| j / 20).chain((0..37).map(|i| i / 11)).collect();
    let keeps = |[_, _, i, j]: [u32; 4]| documents[j as usize] == documents[70 + i as usize];
    check(gpu, problem().mask_mod(code), &documents, &Mods { score: None, mask: Some(&keeps) });
}

#[test]
fn prefix_lm_and_dilated_window() {
    let gpu = gpu!();
    let prefix = mask_mod("return k_index < 12u || k_index <= q_index;");
    let keeps = |[_, _, i, j]: [u32; 4]| j < 12 || j <= i;
    check(gpu, problem().mask_mod(prefix), &[], &Mods { score: None, mask: Some(&keeps) });

    let dilated = mask_mod(
        "let distance = abs(i32(q_index) - i32(k_index)); return distance <= 24 && distance % 3 == 0;",
    );
    let keeps = |[_, _, i, j]: [u32; 4]| i.abs_diff(j) <= 24 && i.abs_diff(j) % 3 == 0;
    check(gpu, problem().mask_mod(dilated), &[], &Mods { score: None, mask: Some(&keeps) });
}

#[test]
fn user_code_stands_beside_every_other_option() {
    let gpu = gpu!();
    let mut problem = problem()
        .causal(Alignment::BottomRight)
        .with_kv_len()
        .with_alibi()
        .softcap(20.0)
        .dtype(DType::F16)
        .score_mod(score_mod("return 0.5 * score + f32(batch);"))
        .mask_mod(mask_mod("return (q_index + k_index + head) % 5u != 0u;"));
    problem.sink = wgpu_attention::Sink::PerHead;
    let score = |score: f64, [b, ..]: [u32; 4]| 0.5 * score + f64::from(b);
    let mask = |[_, h, i, j]: [u32; 4]| !(i + j + h).is_multiple_of(5);
    check(gpu, problem, &[], &Mods { score: Some(&score), mask: Some(&mask) });
}

#[test]
fn a_mask_that_hides_everything_gives_empty_rows() {
    let gpu = gpu!();
    let keeps = |[_, _, i, _]: [u32; 4]| i != 3;
    let code = mask_mod("return q_index != 3u;");
    check(gpu, problem().mask_mod(code), &[], &Mods { score: None, mask: Some(&keeps) });
}

#[test]
fn numbers_that_are_not_there_are_zero() {
    let gpu = gpu!();
    let code = score_mod("return score + param_f32(1000000u) + f32(param_u32(4294967295u)) + param_f32(0u);");
    let twin = |score: f64, _: [u32; 4]| score + 1.5;
    check(gpu, problem().score_mod(code), &[1.5f32.to_bits()], &Mods { score: Some(&twin), mask: None });
}

#[test]
fn names_of_the_kernel_are_the_users_own_too() {
    let gpu = gpu!();
    // Every one of these is a name of the kernel's.
    let text = "
        const LOG2_E = 2.0;
        struct Params { m: f32 }
        fn load_q(x: f32) -> f32 { return x * LOG2_E; }
        fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 {
            let params = Params(score);
            return load_q(params.m);
        }";
    let code = UserCode::score_mod(text).unwrap();
    let twin = |score: f64, _: [u32; 4]| 2.0 * score;
    check(gpu, problem().score_mod(code), &[], &Mods { score: Some(&twin), mask: None });
}

#[test]
fn the_reference_asks_for_twins() {
    let case = Case::new(problem().mask_mod(mask_mod("return true;")), 1);
    let result = truth_with(&case.problem, &case.inputs(), &Mods::default());
    assert!(matches!(result, Err(Error::Missing { field: "the float64 twin of mask_mod", .. })));
    let plain = Case::new(problem(), 1);
    let twin = |_: [u32; 4]| true;
    let result = truth_with(&plain.problem, &plain.inputs(), &Mods { score: None, mask: Some(&twin) });
    assert!(matches!(result, Err(Error::Unused { field: "the float64 twin of mask_mod", .. })));
}

/// Both codes may have helpers of one name, and what looks like a loop of the kernel's that is written out is left alone.
#[test]
fn two_codes_share_no_names_and_keep_their_loops() {
    let gpu = gpu!();
    let score = "const n = 3u; struct P { x: f32 }
        fn helper(x: f32) -> f32 { return x * f32(n); }
        fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 {
            var sum = 0.0;
            for (var r = 0u; r < 8u; r++) { // unroll
                if (r == n) { break; }
                sum += P(helper(score)).x / 9.0;
            }
            return sum;
        }";
    let mask = "const n = 5u; struct P { x: u32 }
        fn helper(x: u32) -> u32 { return x % n; }
        fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool {
            for (var r = 0u; r < 4u; r++) { // unroll
                if (r != 2u) { continue; }
                return P(helper(q_index + k_index)).x != r;
            }
            return false;
        }";
    let problem =
        problem().score_mod(UserCode::score_mod(score).unwrap()).mask_mod(UserCode::mask_mod(mask).unwrap());
    let score = |score: f64, _: [u32; 4]| score;
    let mask = |[_, _, i, j]: [u32; 4]| (i + j) % 5 != 2;
    check(gpu, problem, &[], &Mods { score: Some(&score), mask: Some(&mask) });
}

/// Text with every line end, comments in comments, names in other scripts, and none of it changes what is computed.
#[test]
fn odd_but_legal_text() {
    let gpu = gpu!();
    for text in [
        "// a\r\nconst LOG2_E = 2.0;\r\nHEAD {\r\n return score * LOG2_E;\r\n}\r\n",
        "// a\rconst LOG2_E = 2.0; // b\u{2028}fn load_q(x: f32) -> f32 { return LOG2_E * x; } // c\u{85}HEAD { return load_q(score); }",
        "/* a /* fn score_mod */ const x = 1; // */ const LOG2_E = 2.0; HEAD { return score * LOG2_E; } // no end",
        "fn\u{200e}capped(x: f32) -> f32 { return 2.0 * x; } HEAD { return capped(score); }",
        "const Δ = 2.0; fn größe(x: f32) -> f32 { return Δ * x; } HEAD { return größe(score); }",
        "fn max(a: f32) -> f32 { return a + a; } HEAD { return max(score); }",
        "alias F = f32; const user_score_mod = 2.0; HEAD { let pool: F = user_score_mod; return score * pool; }",
        "HEAD { let score_mod = 2.0; return score * score_mod; }",
        "const_assert 1 < 2; @must_use fn /* q */ params(x: f32) -> f32 { return x; } HEAD { return 2. * params(score); };",
    ] {
        let head = "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32";
        let text = text.replace("HEAD", head);
        let code = UserCode::score_mod(&text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        let twin = |score: f64, _: [u32; 4]| 2.0 * score;
        let case = Case::new(problem().score_mod(code), 7);
        let truth =
            truth_with(&case.problem, &case.inputs(), &Mods { score: Some(&twin), mask: None }).unwrap();
        let plan = common::plan(gpu, &case.problem, &PlanOptions::default());
        assert_right(gpu, &plan, &case, &truth, &common::run_plan(gpu, &plan, &case));
    }
}

/// Whatever the text is, the answer is code or a typed error that points into it.
#[test]
fn text_that_is_no_function_is_a_typed_error() {
    let head = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool";
    let deep = |open: &str, close: &str, n: usize| {
        format!("{head} {{ return {}true{}; }}", open.repeat(n), close.repeat(n))
    };
    for text in [
        "\0".to_owned(),
        "\u{feff}".to_owned(),
        "💥".to_owned(),
        "/*".to_owned(),
        "/* /* */".to_owned(),
        "}".to_owned(),
        "{".repeat(1000),
        "fn".to_owned(),
        "fn mask_mod".to_owned(),
        "e\u{301}".to_owned(),
        format!("{head} {{ return true; "),
        format!("{head} {{ return true; }} {head} {{ return true; }}"),
        format!("{head} {{ return mask_mod(batch, head, q_index, k_index); }}"),
        format!("{head} {{ workgroupBarrier(); return true; }}"),
        format!("fn f() {{ storageBarrier(); }} {head} {{ f(); return true; }}"),
        format!("{head} {{ return dpdx(f32(batch)) > 0.0; }}"),
        format!("{head} {{ discard; return true; }}"),
        format!("var<workgroup> x: u32; {head} {{ return x > 0u; }}"),
        format!("{head} {{ return q[0] > 0.0; }}"),
        format!("{head} {{ return 1u / 0u == 0u; }}"),
        format!("{head} {{ return 1e39f > 0.0; }}"),
        format!("@fragment {head} {{ return true; }}"),
        format!("requires foo; {head} {{ return true; }}"),
        deep("(", ")", 10_000),
        deep("!", "", 100_000),
        deep("-", "", 100_000),
        format!("{head} {{ return q_index{} > 0u; }}", " + 1u".repeat(100_000)),
        deep("bool(", ")", 10_000),
        format!("{head} {{ {} return true; {} }}", "{".repeat(10_000), "}".repeat(10_000)),
        format!(
            "{head} {{ {} {{ }} return true; }}",
            "if (batch == 0u) { return true; } else ".repeat(100_000)
        ),
    ] {
        let short: String = text.chars().take(80).collect();
        match UserCode::mask_mod(&text) {
            Err(Error::UserCode { which: "mask_mod", line, column, message }) => {
                assert!(line >= 1 && column >= 1 && !message.is_empty(), "{short:?}");
                assert!(line as usize <= text.lines().count().max(1) + 1, "{short:?}: line {line}");
            }
            other => panic!("{short:?}: {other:?}"),
        }
    }
    // Long is no fault.
    let long = format!("{}{head} {{ return true; }}{}", "// x\n".repeat(100_000), " ".repeat(100_000));
    assert!(UserCode::mask_mod(&long).is_ok());
    let sum = format!("{head} {{ return q_index{} > 0u; }}", " + 1u".repeat(400));
    assert!(UserCode::mask_mod(&sum).is_ok());
}

/// Scores on demand of a part, whose user code is given the whole problem's indices: every batch, head and range of rows, padded and packed,
/// grouped heads, at every stage.
#[test]
fn scores_on_demand_know_the_whole_problems_indices() {
    let gpu = gpu!();
    let score = score_mod(
        "return score + 0.25 * f32(batch) - 0.125 * f32(head) + param_f32(0u) * f32(q_index) - 0.01 * f32(k_index);",
    );
    let mask = mask_mod("return (7u * batch + 5u * head + 3u * q_index + k_index) % param_u32(1u) != 0u;");
    let user = [0.05f32.to_bits(), 4];
    let score_twin = |s: f64, [b, h, i, j]: [u32; 4]| {
        let [b, h, i, j] = [b, h, i, j].map(f64::from);
        s + 0.25 * b - 0.125 * h + f64::from(0.05f32) * i - f64::from(0.01f32) * j
    };
    let mask_twin = |[b, h, i, j]: [u32; 4]| !(7 * b + 5 * h + 3 * i + j).is_multiple_of(4);
    let mods = Mods { score: Some(&score_twin), mask: Some(&mask_twin) };
    let plain = Problem::new(shape([3, 4, 2, 9, 20, 8, 8]));
    let problems = [
        plain.clone(),
        plain.clone().packed(20, 45).causal(Alignment::BottomRight),
        plain.softcap(5.0).causal(Alignment::BottomRight).with_kv_len().with_q_len(),
    ];
    for (n, problem) in problems.into_iter().enumerate() {
        let problem = problem.score_mod(score.clone()).mask_mod(mask.clone()).user_params(2);
        let mut case = Case::new(problem, n as u64);
        case.user = Some(user.to_vec());
        let inputs = case.inputs();
        let sequences = wgpu_attention::Sequences::new(&case.problem, &inputs.tables);
        for (b, h) in [(0, 0), (1, 3), (2, 1), (2, 2)] {
            let queries = sequences.queries(b);
            for rows in [0..queries, queries / 2..queries, queries.saturating_sub(1)..queries] {
                for stage in ScoreStage::ALL {
                    let got = gpu
                        .attention
                        .scores_blocking(&gpu.queue, &case.problem, &inputs, stage, [b, h], rows.clone())
                        .unwrap();
                    let want: Vec<_> = rows
                        .clone()
                        .flat_map(|i| {
                            scores_at_with(&case.problem, &inputs, &mods, stage, [b, h, i]).unwrap()
                        })
                        .collect();
                    let comparison = compare(&got, &want);
                    assert!(
                        comparison.passes(),
                        "{stage:?} of batch {b}, head {h}, rows {rows:?}: {comparison:?}\n{:?}",
                        case.problem
                    );
                }
            }
        }
    }
}
