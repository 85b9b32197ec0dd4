//! Rows that see only keys of their own document.

use crate::common::{Case, check_all, run, shape};
use crate::gpu;
use wgpu_attention::{
    Alignment, Broadcast, MaskFormat, Normalizer, PlanOptions, Problem, SigmoidBias, Stats, Tensor, Window,
};

fn problem(numbers: [u32; 7]) -> Problem {
    let mut problem = Problem::new(shape(numbers)).with_documents();
    problem.stats = Stats::ALL;
    problem
}

/// With every other mask, and where a document has no key or no query.
#[test]
fn together_with_every_mask() {
    let gpu = gpu!();
    let options: [fn(Problem) -> Problem; 6] = [
        |p| p,
        |p| p.causal(Alignment::BottomRight).with_kv_len().with_q_len(),
        |p| p.window(Window { left: Some(9), right: Some(2), keep_first: 2 }),
        |p| p.mask(MaskFormat::Bits, Broadcast([1, 4, 67, 1])),
        |p| p.causal(Alignment::PerBatch).with_alibi(),
        |mut p| {
            p.stats = Stats::default();
            p.normalizer(Normalizer::Sigmoid { bias: SigmoidBias::MinusLogVisible })
        },
    ];
    for (n, option) in options.into_iter().enumerate() {
        let mut case = Case::new(option(problem([3, 4, 2, 67, 130, 8, 8])), n as u64).vacuous_above(2e-2);
        // Extremes are numbers like any other.
        if let (Some(q), Some(k)) = (&mut case.documents_q, &mut case.documents_k) {
            (q[5], k[7], q[6], k[100]) = (i32::MIN, i32::MIN, i32::MAX, i32::MAX);
        }
        check_all(gpu, &case);
    }
}

/// Documents in a row with a causal mask are the documents alone.
#[test]
fn documents_are_as_if_alone() {
    let gpu = gpu!();
    let lengths = [3u32, 1, 40, 20];
    let ids: Vec<i32> = (0..).zip(lengths).flat_map(|(id, n)| vec![id; n as usize]).collect();
    let total = lengths.iter().sum::<u32>();
    for kernel in crate::common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let mut case = Case::new(problem([1, 2, 2, total, total, 8, 8]).causal(Alignment::TopLeft), 7);
        (case.documents_q, case.documents_k) = (Some(ids.clone()), Some(ids.clone()));
        let got = run(gpu, &case, &options);
        let mut first = 0;
        for n in lengths {
            let mut alone = Problem::new(shape([1, 2, 2, n, n, 8, 8])).causal(Alignment::TopLeft);
            alone.stats = Stats::ALL;
            let mut one = Case::new(alone, 7);
            for (tensor, from) in [(Tensor::Q, &case.q), (Tensor::K, &case.k), (Tensor::V, &case.v)] {
                one.fill(tensor, |[_, h, s, d]| from[((h * total + first + s) * 8 + d) as usize]);
            }
            let want = run(gpu, &one, &options);
            for h in 0..2 {
                for i in 0..n {
                    let (a, b) = ((h * total + first + i) as usize, (h * n + i) as usize);
                    let (x, y) = (got.lse.as_ref().unwrap()[a], want.lse.as_ref().unwrap()[b]);
                    approx::assert_abs_diff_eq!(x, y, epsilon = 1e-5);
                    for d in 0..8 {
                        approx::assert_abs_diff_eq!(got.out[a * 8 + d], want.out[b * 8 + d], epsilon = 1e-5);
                    }
                }
            }
            first += n;
        }
    }
}

#[test]
fn one_side_alone_is_refused() {
    let problem = problem([1, 1, 1, 2, 3, 4, 4]);
    let zeros = [0.0; 12];
    let inputs = wgpu_attention::Inputs::new(&zeros[..8], &zeros, &zeros);
    assert!(inputs.documents(&[1, 2], &[1, 1, 2]).check(&problem).is_ok());
    let mut one = inputs;
    one.tables.documents_q = Some(&[1, 2]);
    assert!(matches!(one.check(&problem), Err(wgpu_attention::Error::Missing { field: "documents_k", .. })));
    let short = inputs.documents(&[1, 2], &[1, 1]);
    assert!(matches!(short.check(&problem), Err(wgpu_attention::Error::Length { field: "documents_k", .. })));
    let unused = inputs.documents(&[1, 2], &[1, 1, 2]);
    let plain = Problem::new(problem.shape);
    assert!(matches!(unused.check(&plain), Err(wgpu_attention::Error::Unused { field: "documents_q", .. })));
}
