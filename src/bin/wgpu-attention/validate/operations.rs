//! Softmax, sampling and gradients, a random problem of each for a seed: softmax and gradients against float64, tokens against the twin on the
//! processor. As with attention, five seeds in a row share their options, and so what is compiled.

use super::Outcome;
use crate::fail::Result;
use crate::gpu::Gpu;
use wgpu_attention::random::threefry2x32;
use wgpu_attention::sampling::{self, Chain, Sampler, Seed, Step};
use wgpu_attention::softmax::{self, Kind, RowTemperature, Softmax};
use wgpu_attention::{
    Alignment, Backward, DType, Error, Inputs, Problem, Shape, Temperature, Window, backward,
};

/// What came of one problem, which is told in words.
pub(super) struct Checked {
    pub family: &'static str,
    pub problem: String,
    pub outcome: Outcome,
}

/// The operations on a device, whose shaders are compiled once.
#[derive(Debug)]
pub(super) struct Operations<'a> {
    gpu: &'a Gpu,
    softmax: Softmax,
    sampler: Sampler,
    backward: Backward,
}

/// Problems in a row that have the options of one seed.
const SHARED: u64 = 5;

/// Random numbers of a seed.
struct Random {
    seed: u64,
    stream: u32,
    count: u32,
}

impl Random {
    /// What makes another shader, and what makes other numbers.
    fn options_and_sizes(seed: u64) -> [Random; 2] {
        [Random { seed: seed / SHARED, stream: 0x6f70, count: 0 }, Random { seed, stream: 0x6f71, count: 0 }]
    }

    fn word(&mut self) -> u32 {
        self.count += 1;
        threefry2x32([self.seed as u32, (self.seed >> 32) as u32], [self.count, self.stream])[0]
    }

    fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1 << 24) as f32
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.word() as usize % from.len()]
    }

    /// From 1, as many small ones as large ones.
    fn size(&mut self, most: f32) -> u32 {
        most.powf(self.unit()).round() as u32
    }

    /// Near enough to a standard normal.
    fn normal(&mut self) -> f32 {
        ((0..6).map(|_| self.unit()).sum::<f32>() - 3.0) * std::f32::consts::SQRT_2
    }

    fn normals(&mut self, n: u32, size: f32) -> Vec<f32> {
        (0..n).map(|_| size * self.normal()).collect()
    }
}

const DTYPES: [DType; 4] = [DType::F32, DType::F32, DType::F16, DType::Bf16];

impl<'a> Operations<'a> {
    pub(super) fn new(gpu: &'a Gpu) -> Self {
        let device = gpu.attention.device();
        Operations {
            gpu,
            softmax: Softmax::new(device),
            sampler: Sampler::new(device),
            backward: Backward::new(device),
        }
    }

    /// A problem of each kind; `begin` is told which is next. Errors are those that no other problem would be spared.
    pub(super) fn check(&self, seed: u64, begin: impl Fn(&'static str)) -> Result<Vec<Checked>> {
        let [mut options, mut sizes] = Random::options_and_sizes(seed);
        let kind = options.pick(&Kind::ALL);
        let problem = softmax_problem(kind, &mut options, &mut sizes);
        let name = match kind {
            Kind::LogSoftmax => "operation log-softmax",
            Kind::Sparsemax => "operation sparsemax",
            Kind::Entmax15 => "operation entmax 1.5",
            _ => "operation softmax",
        };
        begin(name);
        let (forward, gradient) = self.softmax(&problem, &mut sizes);
        begin("gradient of attention");
        let (attention, attention_gradient) = self.attention_gradient(&mut options, &mut sizes);
        begin("operation sampling");
        let (drawing, tokens) = self.tokens(&mut options, &mut sizes);
        [
            (name, format!("{problem:?}"), forward),
            ("gradient of softmax", format!("{problem:?}"), gradient),
            ("gradient of attention", format!("{attention:?}"), attention_gradient),
            ("operation sampling", format!("{drawing:?}"), tokens),
        ]
        .into_iter()
        .map(|(family, problem, worst)| {
            let outcome = match worst {
                Ok(worst) => Outcome::Compared(worst),
                Err(Error::LimitExceeded { .. }) => Outcome::Refused,
                Err(error @ Error::DeviceLost(_)) => return Err(error.into()),
                Err(error) => Outcome::Failed(error.to_string()),
            };
            Ok(Checked { family, problem, outcome })
        })
        .collect()
    }

    fn softmax(
        &self,
        problem: &softmax::Problem,
        random: &mut Random,
    ) -> (Result<f64, Error>, Result<f64, Error>) {
        let elements = problem.extent(&problem.x_layout) as u32;
        let size = random.pick(&[1.0, 4.0, 100.0]);
        let mut x = random.normals(elements, size);
        for x in &mut x {
            if random.word().is_multiple_of(8) {
                *x = f32::NEG_INFINITY;
            }
        }
        let taus: Vec<f32> = (0..problem.row_count()).map(|_| random.pick(&[0.2, 1.0, 5.0])).collect();
        let per_row = problem.temperature == RowTemperature::PerRow;
        let mut inputs = softmax::Inputs::new(&x);
        if per_row {
            inputs = inputs.temperature(&taus);
        }
        let queue = &self.gpu.queue;
        let result = match self.softmax.run_blocking(queue, problem, &inputs) {
            Ok(result) => result,
            Err(error) => return (Err(error.clone()), Err(error)),
        };
        let forward = softmax::truth(problem, &inputs).map(|truth| truth.compare(&result).worst);

        let mut f32_problem = problem.clone().x_type(DType::F32);
        f32_problem.in_place = false;
        let d_out = random.normals(result.out.len() as u32, 1.0);
        let taus = per_row.then_some(taus.as_slice());
        let numbers = [result.out.as_slice(), d_out.as_slice()];
        let gradient = || {
            let got = self.softmax.run_backward_blocking(queue, &f32_problem, numbers, taus, true)?;
            let [dx, dtau] = softmax::gradient_truth(&f32_problem, numbers, taus)?;
            let dx = wgpu_attention::reference::compare(&got.dx, &dx);
            let dtau = wgpu_attention::reference::compare(&got.d_temperature.unwrap_or_default(), &dtau);
            Ok(dx.merge(dtau).worst)
        };
        (forward, gradient())
    }

    fn attention_gradient(
        &self,
        options: &mut Random,
        sizes: &mut Random,
    ) -> (backward::Problem, Result<f64, Error>) {
        let kv_heads = sizes.pick(&[1, 2]);
        let dim = options.pick(&[1, 8, 20, 64]);
        let shape = Shape {
            batch: sizes.pick(&[1, 2]),
            q_heads: kv_heads * sizes.pick(&[1, 3]),
            kv_heads,
            seq_q: sizes.size(60.0),
            seq_k: sizes.size(90.0),
            head_dim_qk: dim,
            head_dim_v: options.pick(&[dim, 12]),
        };
        let mut forward = Problem::new(shape).with_lse();
        if options.word().is_multiple_of(2) {
            forward = forward.causal(Alignment::BottomRight);
        }
        if options.word().is_multiple_of(4) {
            forward = forward.causal(Alignment::BottomRight).window(Window::last(7));
        }
        if options.word().is_multiple_of(3) {
            forward = forward.softcap(options.pick(&[2.0, 30.0]));
        }
        let taus = options.pick(&[Temperature::Value(0.7), Temperature::PerHead, Temperature::PerRow]);
        forward = forward.temperature(taus);
        let count = match taus {
            Temperature::PerHead => shape.q_heads,
            Temperature::PerRow => shape.rows() as u32,
            _ => 0,
        };
        let taus: Vec<f32> = (0..count).map(|_| sizes.pick(&[0.4, 1.0, 3.0])).collect();
        let q = sizes.normals(shape.rows() as u32 * dim, 1.0);
        let keys = shape.batch * kv_heads * shape.seq_k;
        let (k, v) = (sizes.normals(keys * dim, 1.0), sizes.normals(keys * shape.head_dim_v, 1.0));
        let d_out = sizes.normals(shape.rows() as u32 * shape.head_dim_v, 1.0);
        let problem = backward::Problem::new(forward.clone()).with_temperature();
        let run = || {
            let mut inputs = Inputs::new(&q, &k, &v);
            if count > 0 {
                inputs = inputs.temperature(&taus);
            }
            let result = self.gpu.attention.run_blocking(&self.gpu.queue, &forward, &inputs)?;
            let lse = result.lse.unwrap_or_default();
            let given = backward::Inputs::new(inputs, &lse, &d_out);
            let got = self.backward.run_blocking(&self.gpu.queue, &problem, &given)?;
            Ok(backward::truth(&problem, &given)?.compare(&got).worst)
        };
        let worst = run();
        (problem, worst)
    }

    fn tokens(&self, options: &mut Random, sizes: &mut Random) -> (sampling::Problem, Result<f64, Error>) {
        let (rows, vocab) = (sizes.size(5.0), sizes.size(6000.0));
        let chain = (0..options.word() % 5).fold(Chain::new(), |chain, _| chain.step(step(options)));
        let mut problem =
            sampling::Problem::new(rows, vocab, chain).with_log_probs().dtype(options.pick(&DTYPES));
        if options.word().is_multiple_of(5) {
            problem = problem.greedy();
        }
        // Coarse, so that there are ties.
        let logits: Vec<f32> = (0..rows * vocab)
            .map(|_| match sizes.word() % 16 {
                0 => f32::NEG_INFINITY,
                _ => (sizes.normal() * 12.0).round() / 4.0,
            })
            .collect();
        let seeds: Vec<Seed> = (0..rows).map(|offset| Seed { seed: sizes.word().into(), offset }).collect();
        let inputs = sampling::Inputs::new(&logits, &seeds);
        let run = || {
            let same = self.sampler.run_blocking(&self.gpu.queue, &problem, &inputs)?
                == sampling::twin(&problem, &inputs)?;
            Ok(if same { 0.0 } else { f64::INFINITY })
        };
        let worst = run();
        (problem, worst)
    }
}

fn softmax_problem(kind: Kind, options: &mut Random, sizes: &mut Random) -> softmax::Problem {
    let (rows, len) = (sizes.size(40.0), sizes.size(4000.0));
    let mut problem = softmax::Problem::new(rows, len).kind(kind).with_argmax();
    if !kind.is_sparse() {
        problem = problem.with_lse().with_entropy();
    }
    problem = match options.word() % 3 {
        0 => problem.in_place(),
        _ => problem.x_type(options.pick(&DTYPES)),
    };
    problem.temperature(options.pick(&[
        RowTemperature::Value(0.5),
        RowTemperature::Value(3.0),
        RowTemperature::PerRow,
    ]))
}

fn step(random: &mut Random) -> Step {
    match random.word() % 7 {
        0 => Step::Temperature(random.pick(&[0.0, 0.5, 1.7])),
        1 => Step::DynamicTemperature { low: 0.3, high: 1.8, exponent: 1.0 },
        2 => Step::TopK(random.pick(&[1, 5, 40, 3000])),
        3 => Step::TopP(random.pick(&[0.1, 0.8, 0.99])),
        4 => Step::MinP(random.pick(&[0.01, 0.3])),
        5 => Step::Typical(random.pick(&[0.3, 0.9])),
        _ => Step::TopNSigma(random.pick(&[0.5, 2.0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_options_and_not_sizes() {
        let draw = |seed| {
            let [mut options, mut sizes] = Random::options_and_sizes(seed);
            let kind = options.pick(&Kind::ALL);
            let problem = softmax_problem(kind, &mut options, &mut sizes);
            (kind, problem.temperature, problem.x_type, problem.rows, problem.len)
        };
        let all: Vec<_> = (0..400).map(draw).collect();
        for five in all.chunks(5) {
            assert!(five.iter().all(|one| (one.0, one.1, one.2) == (five[0].0, five[0].1, five[0].2)));
        }
        let count =
            |key: &dyn Fn(usize) -> String| (0..400).map(key).collect::<std::collections::HashSet<_>>().len();
        assert!(count(&|n| format!("{:?}", (all[n].3, all[n].4))) > 300);
        assert!(count(&|n| format!("{:?}", (all[n].0, all[n].1, all[n].2))) > 20);
    }
}
