//! Memory orders: bhsd, bshd and any strides. The same numbers in another order give the same answer.

use crate::common::{Case, Guarded, alignment, check, check_all, encoder, indices, run, shape};
use crate::gpu;
use wgpu_attention::{BufferRef, Buffers, Layout, PlanOptions, Problem, Strides, Tensor};

fn strided(offset: u64, [batch, head, seq, dim]: [u64; 4]) -> Layout {
    Layout::Strided(Strides { offset, batch, head, seq, dim })
}

/// A case with other layouts that holds the same numbers at the same (batch, head, seq, dim).
fn moved(case: &Case, [q, k, v, out]: [Layout; 4]) -> Case {
    let mut other = Case::new(case.problem.clone().layouts(q, k, v, out), case.seed);
    for (tensor, from) in [(Tensor::Q, &case.q), (Tensor::K, &case.k), (Tensor::V, &case.v)] {
        let view = case.problem.view(tensor).unwrap();
        other.fill(tensor, |at| from[view.index(at) as usize]);
    }
    other.kv_len.clone_from(&case.kv_len);
    other
}

/// The answer in (batch, head, seq, dim) order whatever the layout.
fn ordered(case: &Case, out: &[f32]) -> Vec<u32> {
    let view = case.problem.view(Tensor::Out).unwrap();
    indices(&case.problem, Tensor::Out).into_iter().map(|at| out[view.index(at) as usize].to_bits()).collect()
}

#[test]
fn bshd() {
    let gpu = gpu!();
    for d in [8, 7] {
        check_all(gpu, &Case::new(Problem::new(shape([2, 6, 2, 9, 35, d, d])).layout(Layout::Bshd), 5));
    }
}

#[test]
fn each_tensor_may_have_its_own_order() {
    let gpu = gpu!();
    let (a, b) = (Layout::Bhsd, Layout::Bshd);
    let case = Case::new(Problem::new(shape([2, 4, 2, 9, 35, 8, 8])), 6);
    for kernel in crate::common::KERNELS {
        let options = PlanOptions::kernel(kernel);
        let want = ordered(&case, &run(gpu, &case, &options).out);
        for layouts in [[b, b, b, b], [a, b, a, b], [b, a, b, a], [a, a, a, b]] {
            let other = moved(&case, layouts);
            assert_eq!(ordered(&other, &run(gpu, &other, &options).out), want, "{layouts:?} in {kernel}");
        }
    }
}

/// Rows and heads with room between them, a first element that is not the buffer's, and the gaps full of NaN: the answer
/// is right and no gap of out is written (which `Bench::read` checks).
#[test]
fn padded_rows_and_heads() {
    let gpu = gpu!();
    for (d, row, offset) in [(8, 12, 16), (8, 11, 3), (7, 10, 1), (5, 5, 0)] {
        let pad = |heads: u64, seq: u64| {
            let head = seq * row + 20;
            strided(offset, [heads * head + 4, head, row, 1])
        };
        let case = Case::new(
            Problem::new(shape([2, 4, 2, 9, 35, d, d])).layouts(pad(4, 9), pad(2, 35), pad(2, 35), pad(4, 9)),
            d.into(),
        );
        check_all(gpu, &case);
    }
}

/// k as (batch, head, dim, seq): the last stride is not 1.
#[test]
fn transposed_k() {
    let gpu = gpu!();
    let case = Case::new(Problem::new(shape([2, 2, 2, 9, 35, 8, 8])), 8);
    let b = Layout::Bhsd;
    let transposed = moved(&case, [b, strided(0, [2 * 8 * 35, 8 * 35, 1, 35]), b, b]);
    check_all(gpu, &transposed);
}

/// All four transposed, with head dims that are no multiple of four.
#[test]
fn everything_transposed() {
    let gpu = gpu!();
    let t = |seq: u64, d: u64| strided(0, [2 * d * seq, d * seq, 1, seq]);
    let problem = Problem::new(shape([2, 2, 2, 9, 35, 7, 5]));
    check_all(gpu, &Case::new(problem.layouts(t(9, 7), t(35, 7), t(35, 5), t(9, 5)), 9));
}

/// Strides of dimensions of size 1 are never taken, so they may be anything, also beyond 32 bits.
#[test]
fn strides_of_size_one_dimensions_are_free() {
    let gpu = gpu!();
    let odd = u64::MAX / 2;
    let q = strided(0, [odd, odd, odd, 1]);
    let kv = strided(0, [odd, odd, 8, 1]);
    check_all(gpu, &Case::new(Problem::new(shape([1, 1, 1, 1, 20, 8, 8])).layouts(q, kv, kv, q), 10));
}

/// A head that is broadcast has stride 0, and so may a batch, a position or a number.
#[test]
fn stride_zero_broadcasts() {
    let gpu = gpu!();
    let b = Layout::Bhsd;
    for (k, v) in [
        (strided(0, [35 * 8, 0, 8, 1]), b),
        (strided(0, [0, 0, 8, 1]), strided(0, [0, 35 * 8, 8, 1])),
        (b, strided(0, [0, 0, 0, 1])),
        (strided(0, [0, 35, 1, 0]), b),
    ] {
        let problem = Problem::new(shape([2, 4, 4, 9, 35, 8, 8]));
        check_all(gpu, &Case::new(problem.layouts(b, k, v, b), 13));
    }
}

/// What projections give: one buffer of (batch, seq, 3, head, dim), bound three times, with an element offset in the layout.
#[test]
fn packed_qkv_in_one_buffer() {
    let gpu = gpu!();
    for d in [8u64, 6] {
        let (batch, heads, seq) = (2u64, 3u64, 21u64);
        let row = 3 * heads * d;
        let part = |n: u64| strided(n * heads * d, [seq * row, d, row, 1]);
        let problem = Problem::new(shape([2, 3, 3, 21, 21, d as u32, d as u32]))
            .layouts(part(0), part(1), part(2), Layout::Bshd)
            .with_lse();
        let mut case = Case::new(problem, d);
        let mut packed = vec![f32::NAN; (batch * seq * row) as usize];
        for (tensor, from) in [(Tensor::Q, &case.q), (Tensor::K, &case.k), (Tensor::V, &case.v)] {
            let view = case.problem.view(tensor).unwrap();
            for at in indices(&case.problem, tensor) {
                packed[view.index(at) as usize] = from[view.index(at) as usize];
            }
        }
        assert!(packed.iter().all(|x| !x.is_nan()), "the three parts fill the buffer");
        (case.q, case.k, case.v) = (packed.clone(), packed.clone(), packed.clone());
        for kernel in crate::common::KERNELS {
            let options = PlanOptions::kernel(kernel);
            let plan = gpu.attention.plan_with(&case.problem, &options).unwrap();
            let qkv = Guarded::floats(gpu, "qkv", &packed);
            let bench = crate::common::Bench::new(gpu, &plan, &case);
            let mut encoder = encoder(gpu);
            let buffers = Buffers { q: qkv.at(), k: qkv.at(), v: qkv.at(), ..bench.buffers() };
            gpu.attention.prepare_blocking(&plan).unwrap().encode(&mut encoder, &buffers).unwrap();
            gpu.queue.submit([encoder.finish()]);
            let got = bench.read(gpu, &plan);
            crate::common::assert_right(gpu, &plan, &case, &case.truth(), &got);
            qkv.read(gpu, "qkv");
        }
    }
}

/// q, k and v one after the other in one buffer, at binding offsets.
#[test]
fn three_tensors_at_offsets_of_one_buffer() {
    let gpu = gpu!();
    let case = Case::new(Problem::new(shape([1, 2, 2, 9, 35, 8, 8])), 15);
    let align = alignment(gpu) as usize / 4;
    let mut all = Vec::new();
    let mut starts = Vec::new();
    for part in [&case.q, &case.k, &case.v] {
        all.resize(all.len().next_multiple_of(align) + align, f32::NAN);
        starts.push(4 * all.len() as u64);
        all.extend_from_slice(part);
    }
    let one = Guarded::exact(gpu, "one", bytemuck::cast_slice(&all));
    let at = |n: usize| BufferRef { buffer: &one.buffer, offset: starts[n] };
    let plan = gpu.attention.plan(&case.problem).unwrap();
    let bench = crate::common::Bench::new(gpu, &plan, &case);
    let buffers = Buffers { q: at(0), k: at(1), v: at(2), ..bench.buffers() };
    let mut encoder = encoder(gpu);
    gpu.attention.prepare_blocking(&plan).unwrap().encode(&mut encoder, &buffers).unwrap();
    gpu.queue.submit([encoder.finish()]);
    let got = bench.read(gpu, &plan);
    crate::common::assert_right(gpu, &plan, &case, &case.truth(), &got);
}

/// Out in an order of its own, with room everywhere.
#[test]
fn strided_out_writes_only_its_own_places() {
    let gpu = gpu!();
    let b = Layout::Bhsd;
    for out in [
        strided(5, [1100, 31, 120, 3]), // room between the numbers of a row
        strided(2, [9 * 17, 8, 17, 1]), // bshd with one place between positions
        strided(0, [1, 2, 4, 36]),      // dims outermost
    ] {
        let problem = Problem::new(shape([2, 2, 2, 9, 35, 8, 8])).layouts(b, b, b, out);
        let case = Case::new(problem, 16);
        for kernel in gpu.kernels() {
            check(gpu, &case, &PlanOptions::kernel(kernel));
        }
    }
}
