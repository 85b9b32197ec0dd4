//! Windows, first keys that are kept, and positions far away.

use crate::common::{Case, check, check_all, shape};
use crate::gpu;
use wgpu_attention::{Alignment, PlanOptions, Problem, Stats, Tensor, Tiles, Window};

fn window(left: Option<u32>, right: Option<u32>, keep_first: u32) -> Window {
    Window { left, right, keep_first }
}

/// Widths from nothing to more than any sequence, one-sided ones, and kept keys before, within and beyond the window.
fn windows() -> Vec<Window> {
    let most = i32::MAX as u32;
    vec![
        window(Some(0), Some(0), 0),
        window(Some(3), Some(0), 0),
        window(None, Some(3), 0),
        window(Some(3), None, 0),
        window(None, None, 0),
        window(None, None, 5),
        window(Some(3), Some(2), 4),
        window(Some(0), Some(0), 33),
        window(Some(0), Some(0), u32::MAX),
        window(Some(20), Some(20), 40),
        window(Some(u32::MAX), Some(u32::MAX), 0),
        window(Some(most), Some(most), 1),
        window(Some(most + 1), Some(most - 1), 0),
        window(Some(1 << 30), Some(0), 2),
    ]
}

#[test]
fn every_window_at_every_alignment() {
    let gpu = gpu!();
    let alignments = [
        Alignment::BottomRight,
        Alignment::TopLeft,
        Alignment::Offset(-50),
        Alignment::Offset(50),
        Alignment::Offset(i32::MAX),
        Alignment::Offset(i32::MIN),
    ];
    // All of them where there are more keys than queries, the first two elsewhere.
    for (sq, sk, count) in [(33, 70, 6), (70, 33, 2), (5, 1, 1)] {
        for window in windows() {
            for causal in [false, true] {
                for &alignment in &alignments[..count] {
                    let mut problem =
                        Problem::new(shape([1, 1, 1, sq, sk, 8, 8])).window(window).align(alignment);
                    problem.causal = causal;
                    problem.stats = Stats::ALL;
                    check_all(gpu, &Case::new(problem, 1));
                }
            }
        }
    }
}

/// From a table, with lengths, and in tiles of one key and of many.
#[test]
fn windows_with_offsets_and_lengths_of_each_batch() {
    let gpu = gpu!();
    for window in windows() {
        for causal in [false, true] {
            let mut problem = Problem::new(shape([6, 2, 1, 21, 70, 8, 8]))
                .window(window)
                .align(Alignment::PerBatch)
                .with_kv_len();
            problem.causal = causal;
            problem.stats = Stats::ALL;
            let mut case = Case::new(problem, 2);
            case.causal_offset = Some(vec![i32::MIN, -25, 0, 17, 60, i32::MAX]);
            case.kv_len = Some(vec![70, 69, 5, 33, 0, 64]);
            for (threads, row_groups, keys_per_thread) in [(4, 4, 1), (32, 2, 4)] {
                let tiles = Tiles { threads, row_groups, keys_per_thread, dim_chunk: 2, v_chunk: 0 };
                check(gpu, &case, &PlanOptions::tiles(tiles));
            }
            check_all(gpu, &case);
        }
    }
}

/// v = one-hot shows which keys a row sees, here in pictures written by hand.
#[test]
fn pictures() {
    let gpu = gpu!();
    for kernel in crate::common::KERNELS {
        for (window, causal, offset, want) in [
            // huggingface/transformers#39408, zml/zml#763: a window of 4 keys is 4 keys, not 5.
            (Window::last(4), true, 5, ["..xxxx....", "...xxxx...", "....xxxx.."]),
            (Window::last(1), true, 5, [".....x....", "......x...", ".......x.."]),
            (window(Some(1), Some(2), 0), false, 5, ["....xxxx..", ".....xxxx.", "......xxxx"]),
            (window(Some(1), Some(2), 0), true, 5, ["....xx....", ".....xx...", "......xx.."]),
            (window(None, Some(0), 0), false, 0, ["x.........", "xx........", "xxx......."]),
            (window(Some(0), None, 0), false, 7, [".......xxx", "........xx", ".........x"]),
            (window(Some(0), Some(0), 2), false, 5, ["xx...x....", "xx....x...", "xx.....x.."]),
            (window(Some(0), Some(0), 2), true, -1, ["..........", "x.........", "xx........"]),
            (window(Some(0), Some(0), 2), false, -1, ["xx........", "xx........", "xx........"]),
            (window(Some(2), Some(0), 2), true, 2, ["xxx.......", "xxxx......", "xxxxx....."]),
            (window(Some(1), Some(1), 0), false, 9, ["........xx", ".........x", ".........."]),
            (window(Some(1), Some(1), 0), false, -3, ["..........", "..........", "x........."]),
        ] {
            let mut problem =
                Problem::new(shape([1, 1, 1, 3, 10, 8, 10])).window(window).align(Alignment::Offset(offset));
            problem.causal = causal;
            let mut case = Case::new(problem, 3);
            case.fill(Tensor::V, |[_, _, j, d]| f32::from(u8::from(j == d)));
            let got = check(gpu, &case, &PlanOptions::kernel(kernel)).out;
            let seen: Vec<String> = got
                .chunks(10)
                .map(|r| r.iter().map(|&x| if x > 0.0 { 'x' } else { '.' }).collect())
                .collect();
            assert_eq!(seen, want, "{window:?}, causal {causal}, offset {offset}, {kernel}");
        }
    }
}

/// microsoft/onnxruntime#32462: one query on a long cache, whose window leaves whole parts of the keys out.
#[test]
fn windows_while_decoding() {
    let gpu = gpu!();
    for (sq, width) in [(1, 128), (4, 128), (1, 1), (4, 1), (1, 3000), (1, 4000)] {
        for keep_first in [0, 4, 1000] {
            let window = Window { keep_first, ..Window::last(width) };
            let problem = Problem::new(shape([1, 2, 1, sq, 3000, 8, 8]))
                .causal(Alignment::BottomRight)
                .window(window)
                .with_lse();
            let mut case = Case::new(problem, 32462);
            check_all(gpu, &case.clone().vacuous_above(2e-3));
            if width == 1 && keep_first == 0 {
                let got = check(gpu, &case, &PlanOptions::default()).out;
                assert_eq!(got[(sq as usize - 1) * 8..sq as usize * 8], case.v[2999 * 8..]);
            }
            case.v.fill(1.0);
            for x in check(gpu, &case.vacuous_above(2e-3), &PlanOptions::default()).out {
                approx::assert_abs_diff_eq!(x, 1.0, epsilon = 2e-6);
            }
        }
    }
}
