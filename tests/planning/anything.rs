//! Any problem on any device: planned within its limits, or refused.

use super::*;

fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..5, 0u32..300, Just(1 << 16), Just(1 << 30), Just((1 << 30) + 1), any::<u32>()]
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let stride = || prop_oneof![0u64..10, 0u64..5000, any::<u64>()];
    prop_oneof![
        2 => Just(Layout::Bhsd),
        2 => Just(Layout::Bshd),
        1 => (stride(), stride(), stride(), stride(), stride()).prop_map(|(offset, batch, head, seq, dim)| {
            Layout::Strided(Strides { offset, batch, head, seq, dim })
        }),
    ]
}

fn any_problem() -> impl Strategy<Value = Problem> {
    let shape = proptest::array::uniform7(any_number()).prop_map(shape);
    let layouts = proptest::array::uniform4(any_layout());
    let options = (
        any::<f32>(),
        any::<f32>(),
        any::<i32>(),
        0u32..4,
        0u32..7,
        any::<bool>(),
        any::<[bool; 3]>(),
        1u32..9,
    );
    (shape, layouts, options).prop_map(|(mut shape, [q, k, v, out], options)| {
        let (scale, tau, offset, temperature, causal, kv_len, [lse, entropy, row_max], group) = options;
        if let Some(heads) = shape.kv_heads.checked_mul(group).filter(|_| group < 8) {
            shape.q_heads = heads; // often a legal one
        }
        let mut problem = Problem::new(shape).layouts(q, k, v, out);
        (problem.q_len, problem.kv_len) = (lse && kv_len, kv_len);
        problem.documents = entropy && kv_len;
        if row_max && kv_len {
            (problem.packed_q, problem.packed_k) = (Some(offset as u32), lse.then_some(offset as u32 >> 8));
        }
        problem.stats = Stats { lse, entropy, row_max };
        problem.temperature = match temperature {
            0 => Temperature::PerHead,
            1 => Temperature::PerRow,
            2 => Temperature::Value(tau),
            _ => Temperature::Value(0.7),
        };
        if temperature == 2 {
            problem.scale = Scale::Value(scale);
        }
        let causal = match causal {
            0 => Some(Alignment::BottomRight),
            1 => Some(Alignment::TopLeft),
            2 => Some(Alignment::Offset(offset)),
            3 => Some(Alignment::PerBatch),
            4 => Some(Alignment::BottomRightValid),
            _ => None,
        };
        common::set_causal(&mut problem, causal);
        add_options(&mut problem, offset as u32, [lse, entropy, row_max]);
        problem
    })
}

/// Options with numbers as they come.
fn add_options(problem: &mut Problem, wild: u32, on: [bool; 3]) {
    let s = problem.shape;
    let pick = |shift: u32, n: u32| (wild >> shift & 0xff) % n;
    let sizes = |shift: u32| {
        let full = [s.batch, s.q_heads, s.seq_q, s.seq_k];
        Broadcast(std::array::from_fn(|d| if wild >> (shift + d as u32) & 1 == 0 { 1 } else { full[d] }))
    };
    let dtype = |shift: u32| [DType::F32, DType::F16, DType::Bf16][(wild >> shift) as usize % 3];
    problem.dtypes = [dtype(0), dtype(3), dtype(5), dtype(7)];
    if on[0] {
        let format = if wild & 2 == 0 { MaskFormat::Bytes } else { MaskFormat::Bits };
        problem.mask = Some((format, sizes(4)));
    }
    if on[1] {
        problem.bias = Some((dtype(9), sizes(8)));
    }
    if on[2] && wild & 4 == 0 {
        let side = |n: u32| if n & 1 == 0 { Some(n) } else { None };
        problem.window = Some(Window { left: side(wild), right: side(wild >> 3), keep_first: wild >> 5 });
        problem.alibi = wild & 8 == 0;
        problem.softcap = (wild & 16 == 0).then_some(f32::from_bits(wild));
        problem.sink = [Sink::None, Sink::Zero, Sink::PerHead][pick(13, 3) as usize];
        problem.top_k = (wild & 64 == 0).then_some(wild >> 7);
        problem.adaptive_temperature = (wild & 128 == 0).then_some(AdaptiveTemperature {
            coefficients: [1.0, 0.5, 0.0, -2.0, f32::from_bits(wild.rotate_left(3))],
            above: f32::from_bits(wild.rotate_left(5)),
        });
        let gains = [NormGains::None, NormGains::Shared, NormGains::PerHead][pick(21, 3) as usize];
        let eps = f32::from_bits(wild.rotate_left(11));
        problem.qk_norm = match wild % 7 {
            0 => Some(QkNorm { eps, ..QkNorm::l2().gains(gains) }),
            1 => Some(QkNorm::rms(eps).gains(gains)),
            2 => Some(QkNorm::l2().gains(gains)),
            _ => None,
        };
        problem.normalizer = match wild % 7 {
            2 => Normalizer::Sparsemax,
            3 => Normalizer::Entmax15,
            0 => Normalizer::Sigmoid { bias: SigmoidBias::Value(f32::from_bits(wild)) },
            1 => Normalizer::Sigmoid { bias: SigmoidBias::MinusLogVisible },
            _ => Normalizer::Softmax,
        };
        problem.dropout = (wild & 32 == 0).then_some(Dropout { rate: f32::from_bits(wild.rotate_left(9)) });
        problem.length_scale = match wild % 5 {
            0 => LengthScale::Ssmax,
            1 => LengthScale::LogTrainLen { train_len: wild >> 20 },
            2 => LengthScale::Llama4 { coef: f32::from_bits(wild), floor: wild >> 25 },
            3 => LengthScale::Yarn { factor: f32::from_bits(wild.rotate_left(7)) },
            _ => LengthScale::None,
        };
    }
}

fn any_caps() -> impl Strategy<Value = Caps> {
    let usual = proptest::array::uniform9(0u8..12);
    (usual, proptest::array::uniform9(any::<u32>())).prop_map(|(which, wild)| {
        let mut caps = Caps::webgpu_default();
        // One limit in four is some odd one, and one in twelve is anything.
        let pick = |n: usize, odd: &[u32], usual: u32| match which[n] {
            0 => wild[n],
            1 | 2 => odd[wild[n] as usize % odd.len()],
            _ => usual,
        };
        caps.max_compute_workgroup_storage_size = pick(0, &[0, 100, 4096, 32768], 16384);
        caps.max_compute_invocations_per_workgroup = pick(1, &[0, 1, 7, 32, 128, 1024], 256);
        caps.max_compute_workgroup_size_x = pick(2, &[0, 1, 64, 128, 1024], 256);
        caps.max_compute_workgroups_per_dimension = pick(3, &[0, 1, 4, 100], 65535);
        caps.max_storage_buffers_per_shader_stage = pick(4, &[0, 4, 6], 8);
        caps.min_storage_buffer_offset_alignment = pick(5, &[0, 4, 16, 32, 96], 256);
        caps.min_uniform_buffer_offset_alignment = pick(6, &[0, 16, 64], 256);
        caps.max_storage_buffer_binding_size = pick(7, &[0, 256, 4096, 30_000], 128 << 20).into();
        if which[8] == 0 {
            caps.max_storage_buffer_binding_size = u64::MAX - u64::from(wild[8]);
        }
        caps
    })
}

fn any_tiles() -> impl Strategy<Value = Tiles> {
    let size = || prop_oneof![4 => (0u32..9).prop_map(|n| 1 << n), 1 => any::<u32>(), 1 => Just(0)];
    (size(), size(), size(), size(), size()).prop_map(
        |(threads, row_groups, keys_per_thread, dim_chunk, v_chunk)| Tiles {
            threads,
            row_groups,
            keys_per_thread,
            dim_chunk,
            v_chunk,
        },
    )
}

/// The same cases in every run, 4000 of each; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` for others.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { 4000 };
    let rng_seed = match default.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        seed => seed,
    };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    /// No problem and no device makes planning panic, and a plan keeps to the device's limits.
    #[test]
    fn any_problem_on_any_device(problem in any_problem(), caps in any_caps(), kernel in 0usize..3) {
        let mut options = PlanOptions::default();
        options.kernel = common::KERNELS.get(kernel).copied();
        let _ = (problem.flops(), problem.visible_pairs());
        let _ = Tensor::ALL.map(|tensor| (problem.bytes(tensor).is_ok(), problem.bits(tensor)));
        // Inputs that are far too short, before and after anything else is known.
        let x = [0.0; 3];
        let mut inputs = Inputs::new(&x, &x, &x);
        (inputs.bias, inputs.mask) = (Some(&x[..]), Some(&[1][..]));
        let _ = inputs.check(&problem);
        match Plan::new(&problem, &caps, &options) {
            Ok(plan) => {
                assert_within(&plan, &caps);
                if plan.problem().shape.rows() < 2000 && plan.slices().len() < 500 && problem.shape.seq_k < 500 {
                    assert_covers(&plan);
                }
            }
            Err(e) => {
                if let Error::LimitExceeded { needed, available, .. } = e {
                    assert!(needed > available, "{e}");
                }
                assert!(!e.to_string().is_empty());
            }
        }
    }

    /// Nor do tiles of any kind.
    #[test]
    fn any_tiles_on_any_device(tiles in any_tiles(), caps in any_caps(), dims in [1u32..3000, 1u32..3000]) {
        let _ = (tiles.rows(), tiles.keys(), tiles.key_lanes(), tiles.to_string());
        let _ = (tiles.shape(dims[1]), tiles.shape(0), tiles.workgroup_bytes(u32::MAX));
        let problem = plain([1, 1, 1, 50, 50, dims[0], dims[1]]);
        if let Ok(plan) = Plan::new(&problem, &caps, &PlanOptions::tiles(tiles)) {
            assert_within(&plan, &caps);
            assert_covers(&plan);
        }
    }
}

/// A slice never holds part of a group beside part of another.
#[test]
fn heads_are_cut_between_groups_or_within_one() {
    let mut rng = Rng::new(1);
    for _ in 0..300 {
        let (kv, group) = (rng.range(1, 6) as u32, rng.range(1, 6) as u32);
        let numbers =
            [rng.range(1, 3) as u32, kv * group, kv, rng.range(1, 40) as u32, rng.range(1, 40) as u32, 4, 4];
        let caps = caps(|c| c.max_storage_buffer_binding_size = 2048 + rng.below(8000));
        let Ok(plan) = Plan::new(&plain(numbers), &caps, &PlanOptions::default()) else { continue };
        assert_covers(&plan);
        for slice in plan.slices() {
            let [_, first, _, _, heads, _] = extent(slice);
            assert!(
                heads == 1 || (first % group == 0 && heads % group == 0),
                "heads {first}.. + {heads} of {group}"
            );
        }
    }
}
