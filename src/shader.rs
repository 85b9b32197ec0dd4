//! Shader text: a header of constants made from the key, followed by the modules that the key asks for.
//!
//! WGSL does not care about the order of declarations at module scope, so linking is concatenation: every file of `shaders/` is
//! plain WGSL, one idea each, and where there are alternatives the module that is chosen supplies the agreed
//! function names. `if (CONSTANT)` on a constant of the header removes what a variant does not need.

#[cfg(test)]
pub(crate) mod layout;
pub(crate) mod params;
pub(crate) mod tensor;
pub(crate) mod unroll;

use crate::kernel::{
    Kernel, LengthSource, NormalizerSource, OffsetSource, PipelineKey, Search, TemperatureSource,
};
use crate::mask::MaskFormat;
use crate::plan::{KeyMovement, MatrixLayout, MatrixTiles, RowTiles, rows};
use crate::qk_norm::{NormGains, NormKind};
use crate::score::Sink;
use crate::tensor::Tensor;
use crate::user_code::UserCode;
use core::f64::consts::{LN_2, LOG2_E};
use std::fmt::Write;
use unroll::Constants;

/// The WGSL of a variant, complete: what `wgpu` is given.
pub(crate) fn source(key: &PipelineKey) -> String {
    let tiles = &key.tiles;
    let qk_dim4 = key.head_dim_qk.div_ceil(4);
    let v_dim4 = key.head_dim_v.div_ceil(4);
    let mut numbers = Constants::from([
        ("THREADS", tiles.threads),
        ("QK_DIM", key.head_dim_qk),
        ("QK_DIM4", qk_dim4),
        ("V_DIM4", v_dim4),
    ]);
    if key.kernel == Kernel::Tiled {
        let shape = tiles.shape(key.head_dim_v);
        numbers.extend([
            ("POOL", tiles.pool(key.head_dim_v)),
            ("ROWS", tiles.rows()),
            ("ROW_GROUPS", tiles.row_groups),
            ("KEYS", tiles.keys()),
            ("KEY_LANES", tiles.key_lanes()),
            ("KEYS_PER_THREAD", tiles.keys_per_thread),
            ("DIM_CHUNK", tiles.dim_chunk),
            ("DIM_CHUNKS", qk_dim4.div_ceil(tiles.dim_chunk)),
            ("V_BLOCKS", shape.v_blocks),
            ("V_BLOCK", shape.v_block),
            ("V_CHUNK", tiles.v_step()),
            ("OUT_COLUMNS", shape.out_columns),
            ("OUT_COLUMNS_PER_THREAD", shape.out_columns_per_thread),
            ("OUT_ROW_GROUPS", shape.out_row_groups),
            ("OUT_REGISTERS", shape.out_registers()),
        ]);
    }
    if let Some(rows) = &key.rows {
        let spread = (rows.lanes / rows.keys).max(1);
        let [qk_parts, v_parts] = rows::parts(key.head_dim_qk, key.head_dim_v);
        let stretch = if rows.fenced { rows::STRETCH } else { qk_dim4.max(v_dim4) };
        numbers.extend([
            ("ROWS_PER_LANE", rows.rows),
            ("KEYS", rows.keys),
            ("KEYS_AT_ONCE", rows.keys_at_once),
            ("KEY_STEPS", rows.keys / rows.keys_at_once),
            // Lanes that share a key, and the vec4s of a row that each of them loads.
            ("SPREAD", spread),
            ("OWN_K", qk_dim4.div_ceil(spread)),
            // vec4s of a row of q or out that are loaded or stored at a time, and how many times that takes.
            ("PART", rows::part(qk_dim4, v_dim4)),
            ("QK_PARTS", qk_parts),
            ("V_PARTS", v_parts),
            // vec4s of a row of q or out between two barriers of a tile.
            ("STRETCH", stretch),
            ("QK_STRETCHES", qk_dim4.div_ceil(stretch)),
            ("V_STRETCHES", v_dim4.div_ceil(stretch)),
        ]);
    }
    if let Some(matrix) = &key.matrix {
        let at = matrix.layout(key.head_dim_qk, key.head_dim_v);
        numbers.extend(matrix_numbers(matrix, &at, key));
    }
    if key.search != Search::None {
        let [maxima, sums] = key.search.gathered();
        numbers.extend([("MAXIMA", maxima), ("SUMS", sums)]);
    }
    let mut text = key.matrix.map(|matrix| matrix_prelude(matrix.size)).unwrap_or_default();
    text.push_str(&header(key, &numbers));
    let dims = [key.head_dim_qk, key.head_dim_qk, key.head_dim_v, key.head_dim_v];
    for (tensor, dim) in Tensor::MAIN.into_iter().zip(dims) {
        let (access, dtype) = (key.access[tensor as usize], key.dtypes[tensor as usize]);
        text.push('\n');
        text.push_str(&tensor::module(tensor, access, dtype, dim, key.native_f16));
    }
    text.push('\n');
    text.push_str(&tensor::bias(key.bias));
    for module in modules(key) {
        text.push('\n');
        text.push_str(module);
    }
    // Choices that no compiler is to see.
    for (name, switch) in row_switches(key) {
        numbers.insert(name, u32::from(switch));
    }
    numbers.insert("QK_NORM", key.qk_norm.is_some().into());
    // A name of the row kernel's own: where all lanes have the same keys, they always take part.
    let is_apart =
        |rows: RowTiles| rows.movement == KeyMovement::Staged && !rows.grouped && (key.causal || key.window);
    if !key.rows.is_some_and(is_apart) {
        numbers.insert("takes_part", 1);
    }
    let mut text = unroll::unroll(&text, &numbers);
    // The user's text as it is: what looks like one of the kernel's marked loops is none.
    for (code, missing) in [
        (&key.score_mod, include_str!("../shaders/score_mod_none.wgsl")),
        (&key.mask_mod, include_str!("../shaders/mask_mod_none.wgsl")),
    ] {
        text.push('\n');
        text.push_str(code.as_ref().map_or(missing, UserCode::text));
        text.push('\n');
    }
    text
}

/// What a module with cooperative matrices begins with. (naga has no `enable subgroups`, and does not ask for it.)
pub(crate) fn matrix_prelude(size: u32) -> String {
    format!(
        "enable f16;
enable wgpu_cooperative_matrix;
alias Left = coop_mat{size}x{size}<f16, A>;
alias Right = coop_mat{size}x{size}<f16, B>;
alias Sums = coop_mat{size}x{size}<f32, C>;
"
    )
}

fn matrix_numbers(matrix: &MatrixTiles, at: &MatrixLayout, key: &PipelineKey) -> [(&'static str, u32); 24] {
    let (size, tiles) = (matrix.size, &key.tiles);
    let columns = matrix.out_blocks * size;
    [
        ("SIZE", size),
        ("ROW_BLOCKS", matrix.row_blocks),
        ("KEY_BLOCKS", matrix.key_blocks),
        ("QK_BLOCKS", at.qk_blocks),
        ("OUT_BLOCKS", matrix.out_blocks),
        ("KEYS_ABREAST", matrix.abreast.min(matrix.key_blocks)),
        ("COLUMNS_ABREAST", matrix.abreast.min(matrix.out_blocks)),
        ("OUT_PARTS", at.out_parts),
        ("ROWS", tiles.rows()),
        ("ROW_GROUPS", tiles.row_groups),
        ("KEYS", tiles.keys()),
        ("KEY_LANES", tiles.key_lanes()),
        ("KEYS_PER_THREAD", tiles.keys_per_thread),
        ("QK_PADDED4", at.qk_blocks * size / 4),
        ("V_PADDED4", at.out_parts * columns / 4),
        ("QK_STRIDE", at.qk_stride),
        ("V_STRIDE", at.v_stride),
        ("KV_STRIDE", at.qk_stride.max(at.v_stride)),
        ("WEIGHT_STRIDE", at.weight_stride),
        ("SCORE_STRIDE", at.score_stride),
        ("OUT_STRIDE", at.out_stride),
        ("OUT_COLUMNS4", columns / 4),
        ("OWNED", at.owned),
        ("PRODUCTS", matrix.products(at)),
    ]
}

/// How the row kernel brings keys to its lanes, and goes through them.
fn row_switches(key: &PipelineKey) -> [(&'static str, bool); 4] {
    let is = |movement| key.rows.is_some_and(|rows| rows.movement == movement);
    // Only a softmax has a maximum that its sums are in terms of; and an entropy is a difference whose terms grow with how far that lies below.
    let has_maximum = key.normalizer == NormalizerSource::Softmax && !key.stats.entropy;
    let lazy = has_maximum && key.rows.is_some_and(|rows| rows.lazy);
    let fenced = key.rows.is_some_and(|rows| rows.fenced);
    [
        ("BROADCAST", is(KeyMovement::Broadcast)),
        ("STAGED", is(KeyMovement::Staged)),
        ("LAZY", lazy),
        ("FENCED", fenced),
    ]
}

/// The constants of a variant.
pub(crate) fn header(key: &PipelineKey, numbers: &Constants) -> String {
    let switches = [
        ("GROUPED", key.rows.is_some_and(|rows| rows.grouped)),
        ("CAUSAL", key.causal),
        ("POSITIONS", key.causal || key.window),
        ("KEEP_FIRST", key.keep_first),
        ("OFFSET_PER_BATCH", key.offset == OffsetSource::PerBatch),
        ("OFFSET_OF_VALID", key.offset == OffsetSource::Valid),
        ("OFFSET_OF_LENGTHS", key.offset == OffsetSource::Lengths),
        ("PACKED_Q", key.packed_q),
        ("PACKED_K", key.packed_k),
        ("Q_LEN", key.q_len),
        ("KV_LEN", key.kv_len),
        ("MASK", key.mask.is_some()),
        ("TILE_CLASSES", key.tile_classes),
        ("DOCUMENTS", key.documents),
        ("MASK_MOD", key.mask_mod.is_some()),
        ("CONTENTS", key.mask.is_some() || key.documents || key.mask_mod.is_some()),
        ("SCORED", key.softcap || key.alibi || key.bias.is_some() || key.score_mod.is_some()),
        ("SCORE_MOD", key.score_mod.is_some()),
        ("USER_PARAMS", key.user_params),
        ("SOFTCAP", key.softcap),
        ("ALIBI", key.alibi),
        ("BIAS", key.bias.is_some()),
        ("SINK", key.sink != Sink::None),
        ("SINK_PER_HEAD", key.sink == Sink::PerHead),
        ("TEMPERATURE_PER_HEAD", key.temperature == TemperatureSource::PerHead),
        ("TEMPERATURE_PER_ROW", key.temperature == TemperatureSource::PerRow),
        ("SIGMOID_VISIBLE", key.normalizer == NormalizerSource::SigmoidVisible),
        ("ENTMAX15", key.normalizer == NormalizerSource::Entmax15),
        ("SEARCH", key.search != Search::None),
        ("ADAPTIVE", key.search == Search::Entropy),
        ("TOP_K", key.search == Search::TopK),
        ("DROPOUT", key.dropout),
        ("SSMAX", key.length == LengthSource::Ssmax),
        ("LOG_TRAIN_LEN", key.length == LengthSource::LogTrainLen),
        ("LLAMA4", key.length == LengthSource::Llama4),
        ("QK_NORM", key.qk_norm.is_some()),
        ("QK_RMS", key.qk_norm == Some(NormKind::Rms)),
        ("QK_GAIN", key.qk_gains != NormGains::None),
        ("QK_GAIN_PER_HEAD", key.qk_gains == NormGains::PerHead),
        ("LSE", key.stats.lse),
        ("ENTROPY", key.stats.entropy),
        ("ROW_MAX", key.stats.row_max),
    ];

    // The unit of scores, see score.wgsl.
    let (unit, log2_unit) = if key.softcap { (1.0, LN_2) } else { (LOG2_E, 1.0) };

    let mut text = format!("// {key}\n");
    // With matrices it stands before.
    if key.native_f16 && key.matrix.is_none() {
        text.push_str("enable f16;\n");
    }
    let _ = writeln!(text, "const UNIT = {unit:?};\nconst LOG2_UNIT = {log2_unit:?};");
    for (name, value) in numbers {
        let _ = writeln!(text, "const {name} = {value}u;");
    }
    for (name, value) in switches.into_iter().chain(row_switches(key)) {
        let _ = writeln!(text, "const {name} = {value};");
    }
    text
}

/// The files of `shaders/` that a variant is made of.
fn modules(key: &PipelineKey) -> Vec<&'static str> {
    let stats = if key.stats.count() > 0 {
        include_str!("../shaders/stats.wgsl")
    } else {
        include_str!("../shaders/no_stats.wgsl")
    };
    let weights = match key.normalizer {
        NormalizerSource::Softmax => include_str!("../shaders/weights_softmax.wgsl"),
        NormalizerSource::Sigmoid | NormalizerSource::SigmoidVisible => {
            include_str!("../shaders/weights_sigmoid.wgsl")
        }
        NormalizerSource::Sparsemax | NormalizerSource::Entmax15 => {
            include_str!("../shaders/weights_entmax.wgsl")
        }
    };
    let search = match key.search {
        Search::None => include_str!("../shaders/search_none.wgsl"),
        Search::Entropy => include_str!("../shaders/search_entropy.wgsl"),
        Search::Threshold => include_str!("../shaders/search_threshold.wgsl"),
        Search::TopK => include_str!("../shaders/search_top_k.wgsl"),
    };
    let mut modules = vec![
        include_str!("../shaders/params.wgsl"),
        if key.has_tables() {
            include_str!("../shaders/tables.wgsl")
        } else {
            include_str!("../shaders/no_tables.wgsl")
        },
        include_str!("../shaders/qk_norm.wgsl"),
        weights,
        search,
        stats,
    ];
    modules.extend(scores(key));
    if key.dropout {
        modules.extend([include_str!("../shaders/random.wgsl"), include_str!("../shaders/dropout.wgsl")]);
    } else {
        modules.push(include_str!("../shaders/no_dropout.wgsl"));
    }
    match key.kernel {
        Kernel::Tiled => modules.extend([
            include_str!("../shaders/tiled.wgsl"),
            if key.tiles.v_chunk > 0 {
                include_str!("../shaders/v_staged.wgsl")
            } else {
                include_str!("../shaders/v_direct.wgsl")
            },
        ]),
        Kernel::Rows => modules.extend([
            include_str!("../shaders/key_tiles.wgsl"),
            if key.rows.is_some_and(|rows| rows.rows == 1) {
                include_str!("../shaders/rows_q_one.wgsl")
            } else {
                include_str!("../shaders/rows_q_many.wgsl")
            },
            include_str!("../shaders/rows.wgsl"),
            include_str!("../shaders/not_finite.wgsl"),
            match key.rows.map(|rows| rows.movement) {
                Some(KeyMovement::Broadcast) => include_str!("../shaders/rows_broadcast.wgsl"),
                Some(KeyMovement::Staged) => include_str!("../shaders/rows_staged.wgsl"),
                _ => include_str!("../shaders/rows_uniform.wgsl"),
            },
        ]),
        Kernel::Matrix => modules
            .extend([include_str!("../shaders/matrix.wgsl"), include_str!("../shaders/not_finite.wgsl")]),
        Kernel::Naive => modules.push(include_str!("../shaders/naive.wgsl")),
    }
    if matches!(key.kernel, Kernel::Tiled | Kernel::Matrix) {
        modules.extend([
            include_str!("../shaders/key_tiles.wgsl"),
            include_str!("../shaders/row_threads.wgsl"),
            if key.tile_classes {
                include_str!("../shaders/classes.wgsl")
            } else {
                include_str!("../shaders/no_classes.wgsl")
            },
        ]);
        if key.search != Search::None {
            modules.push(include_str!("../shaders/tiled_search.wgsl"));
        }
    }
    modules
}

/// What makes scores, and weights of them: all but params, tables and accessors.
pub(crate) fn scores(key: &PipelineKey) -> [&'static str; 8] {
    let dense_mask = match key.mask {
        None => include_str!("../shaders/dense_mask_none.wgsl"),
        Some(MaskFormat::Bytes) => include_str!("../shaders/dense_mask_bytes.wgsl"),
        Some(MaskFormat::Bits) => include_str!("../shaders/dense_mask_bits.wgsl"),
    };
    [
        include_str!("../shaders/index.wgsl"),
        include_str!("../shaders/sequence.wgsl"),
        include_str!("../shaders/mask.wgsl"),
        dense_mask,
        include_str!("../shaders/score.wgsl"),
        include_str!("../shaders/user_params.wgsl"),
        include_str!("../shaders/sharpness.wgsl"),
        include_str!("../shaders/softmax.wgsl"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::Caps;
    use crate::plan::{Plan, PlanOptions};
    use crate::problem::Problem;
    use crate::shape::Shape;

    /// The integer that stands for "not seen" in a search for the largest scores is that of the number which stands for it.
    #[test]
    fn nothing_has_its_place_in_the_order() {
        let text = include_str!("../shaders/search_top_k.wgsl");
        assert!(text.contains(&format!("const ORDERED_NOTHING = {}u;", !(-3.0e38f32).to_bits())));
    }

    /// The layout that is written twice, in Rust and in WGSL, is one.
    #[test]
    fn params_are_the_same_on_both_sides() {
        let problem = Problem::new(Shape::self_attention(1, 1, 1, 4));
        let plan = Plan::new(&problem, &Caps::webgpu_default(), &PlanOptions::default()).unwrap();
        let (shader, bytes) = layout::of_text(&source(plan.key()));
        let shader: Vec<(&str, usize)> = shader.iter().map(|(name, at)| (name.as_str(), *at)).collect();
        assert_eq!(shader, params::FIELDS);
        // Rust rounds the size up to what a uniform binding asks for.
        assert_eq!(bytes, size_of::<params::Params>());
    }
}
