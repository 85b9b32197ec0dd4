//! Sizes of the row kernel, and which problems it takes.

use crate::caps::{AdapterClass, Caps};
use crate::error::{Error, Result};
use crate::kernel::Search;
use crate::problem::Problem;
use crate::shape::Shape;
use crate::tensor::Tensor;
use core::fmt;

/// How the row kernel brings a key and its value to all lanes, see `shaders/rows.wgsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "measure",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum KeyMovement {
    /// Each lane loads a part and hands it round within its subgroup, which is a workgroup. Needs the feature `SUBGROUP`.
    Broadcast,
    /// The workgroup, of many subgroups, copies a tile to workgroup memory, where all lanes load it at one address.
    Staged,
    /// All lanes load it from its buffer at one address.
    Uniform,
}

impl KeyMovement {
    /// All of them.
    pub const ALL: [KeyMovement; 3] = [KeyMovement::Broadcast, KeyMovement::Staged, KeyMovement::Uniform];

    /// The name in labels and options.
    pub fn name(self) -> &'static str {
        match self {
            KeyMovement::Broadcast => "broadcast",
            KeyMovement::Staged => "staged",
            KeyMovement::Uniform => "uniform",
        }
    }
}

/// Sizes of the row kernel, see `shaders/rows.wgsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "measure", derive(serde::Serialize, serde::Deserialize))]
pub struct RowTiles {
    /// Lanes of a workgroup: a power of two, with [`KeyMovement::Broadcast`] the device's subgroup size.
    pub lanes: u32,
    /// Query rows of a lane, 1 to 4: with dropout 4, and of wide heads so few that q and out of a lane fit 8192 bytes.
    pub rows: u32,
    /// Keys of a tile: a power of two, at most 16, with [`KeyMovement::Broadcast`] at most `lanes`.
    pub keys: u32,
    /// Keys whose scores are summed side by side: a power of two, at most `keys`.
    pub keys_at_once: u32,
    /// How keys and values reach the lanes.
    pub movement: KeyMovement,
    /// The rows of all heads that share a key head lie side by side: for few rows, which would leave lanes idle.
    pub grouped: bool,
    /// What was summed is scaled down not once a tile, but only where a row's largest score lies more than 8 (in log2) above the maximum that the
    /// sums are in terms of. Does nothing but for a softmax without entropies.
    pub lazy: bool,
    /// With barriers in the text of a tile, that a compiler orders what stands between two of them by itself. Nothing waits for them: they are for
    /// compilers that would otherwise have more numbers under way than a processor has registers.
    pub fenced: bool,
}

/// Numbers of q and out in a lane, over all of its rows. Each is a register of its own, and those do not fit a processor's in any case: what
/// bounds them is the time to compile, which grows faster than they do.
const NUMBERS: u64 = 1024;

/// Bytes of all registers of a lane: what WGSL promises for private variables.
const PRIVATE_BYTES: u64 = 8192;

/// The most keys of a tile.
const MOST_KEYS: u32 = 16;

/// The widest head.
const WIDEST: u32 = 512;

/// The widest head that the planner brings here unasked: where it was measured to be worth its first call. (On SwiftShader 256 dims take 5 to 10
/// seconds to compile, for a half of the tiled kernel's time.)
fn widest_preferred(caps: &Caps) -> u32 {
    if caps.is_llvmpipe { WIDEST } else { 128 }
}

/// Query rows of a lane: with the vec4s of four rows that the shared modules work on, four are the most there are.
fn rows_of_lane(shape: &Shape) -> u32 {
    let numbers_of_row = u64::from(shape.head_dim_qk) + u64::from(shape.head_dim_v);
    let fits = |&rows: &u32| {
        u64::from(rows) * numbers_of_row <= NUMBERS && private_bytes(shape, rows, MOST_KEYS) <= PRIVATE_BYTES
    };
    [4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Bytes of a lane's registers: one line for each variable of `shaders/rows.wgsl`.
fn private_bytes(shape: &Shape, rows: u32, keys: u32) -> u64 {
    let [qk, v] = [shape.head_dim_qk, shape.head_dim_v].map(|dim| dim.div_ceil(4));
    let part = part(qk, v);
    let padded = |dim4: u32| 16 * u64::from(dim4.next_multiple_of(part));
    let q_rows = padded(qk) * if rows == 1 { 1 } else { 4 };
    let o = padded(v) * u64::from(rows);
    let s = 16 * u64::from(keys);
    let key_squares = 4 * u64::from(keys);
    let spoilt_rows = 16;
    q_rows + o + s + key_squares + spoilt_rows
}

/// Lanes of a workgroup where there is no subgroup to fit: what processors do at a time.
const LANES: u32 = 8;

/// The most lanes of a workgroup that stages its keys, which shares the cost of fetching them: beyond, nothing more was gained.
const MOST_STAGED_LANES: u32 = 128;

/// Keys whose scores are summed side by side, where a processor may have no more than 16 registers: with four rows in a lane eight sums, which
/// fit there with what they are made from.
const KEYS_AT_ONCE: u32 = 2;

/// Keys of a staged tile. What is done to the output once a tile is done less often with more of them, but compiling takes twice as long with twice as many.
/// Heads so wide that a lane has fewer than four rows take half as many.
const STAGED_KEYS: u32 = 4;

/// Up to so many dims a tile has twice as many.
const FEW_DIMS: u32 = 16;

/// vec4s of a head between two barriers of a fenced tile: with half as many the barriers cost more than they gain, with twice as many values leave the
/// registers again.
pub(crate) const STRETCH: u32 = 8;

/// Keys of a tile, where nothing is known of how much text a processor takes well.
const KEYS: u32 = 2;

/// vec4s of a part of q or out, of so many each: what one piece of text loads or stores. Four parts make a head, or more of eight vec4s.
pub(crate) fn part(qk_dim4: u32, v_dim4: u32) -> u32 {
    qk_dim4.max(v_dim4).div_ceil(4).clamp(1, 8)
}

/// Parts of a row of q, and of one of out.
pub(crate) fn parts(head_dim_qk: u32, head_dim_v: u32) -> [u32; 2] {
    let dims = [head_dim_qk, head_dim_v].map(|dim| dim.div_ceil(4));
    dims.map(|dim4| dim4.div_ceil(part(dims[0], dims[1])))
}

impl RowTiles {
    /// Rows of a workgroup.
    pub fn block(&self) -> u32 {
        self.lanes.saturating_mul(self.rows)
    }

    /// Lanes that the rows of one head take, and heads whose rows lie side by side.
    fn lanes_and_heads(&self, rows: u32, heads: u32, group: u32) -> (u64, u32) {
        let together = if self.grouped { group.min(heads).max(1) } else { 1 };
        (u64::from(rows.div_ceil(self.rows.max(1))) * u64::from(together), together)
    }

    /// Workgroups for `rows` rows of one head, or of the heads whose rows lie side by side.
    pub(crate) fn blocks(&self, rows: u32, heads: u32, group: u32) -> u64 {
        self.lanes_and_heads(rows, heads, group).0.div_ceil(self.lanes.max(1).into())
    }

    /// Workgroups for `rows` rows of each of `heads` heads.
    pub(crate) fn workgroups(&self, rows: u32, heads: u32, group: u32) -> u64 {
        let together = self.lanes_and_heads(rows, heads, group).1;
        self.blocks(rows, heads, group).saturating_mul((heads / together).into())
    }

    /// Refuses sizes that do not fit together or that the device does not have.
    pub(crate) fn check(&self, problem: &Problem, caps: &Caps) -> Result<()> {
        let is_broadcast = self.movement == KeyMovement::Broadcast;
        let most_keys = if is_broadcast { MOST_KEYS.min(self.lanes) } else { MOST_KEYS };
        let powers = [
            ("rows.lanes", self.lanes, 128, "a small power of two"),
            (
                "rows.keys",
                self.keys,
                most_keys,
                "a power of two, at most 16 and, with broadcast, at most lanes",
            ),
            ("rows.keys_at_once", self.keys_at_once, self.keys, "a power of two, at most keys"),
        ];
        for (field, value, most, rule) in powers {
            if !value.is_power_of_two() || value > most {
                return Err(Error::value(field, value, rule));
            }
        }
        if !(1..=4).contains(&self.rows) {
            return Err(Error::value("rows.rows", self.rows, "1 to 4"));
        }
        if private_bytes(&problem.shape, self.rows, self.keys) > PRIVATE_BYTES {
            return Err(Error::value(
                "rows.rows",
                self.rows,
                "so few that q and out of a lane fit the 8192 bytes that WGSL promises",
            ));
        }
        if problem.dropout.is_some() && self.rows != 4 {
            return Err(Error::value(
                "rows.rows",
                self.rows,
                "4 with dropout, which draws for four rows at a time",
            ));
        }
        if is_broadcast && caps.subgroup_size != Some(self.lanes) {
            return Err(Error::value(
                "rows.lanes",
                self.lanes,
                "with broadcast the device's subgroup size, where it has one and the feature SUBGROUP",
            ));
        }
        if self.lanes > caps.threads() {
            return Err(Error::LimitExceeded {
                what: format!("the row kernel with {self}"),
                limit: "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
                needed: self.lanes.into(),
                available: caps.threads().into(),
                advice: "take fewer lanes, or leave the choice to the planner",
            });
        }
        let staged = self.workgroup_bytes(&problem.shape);
        if staged > caps.max_compute_workgroup_storage_size {
            return Err(Error::LimitExceeded {
                what: format!("the row kernel with {self}"),
                limit: "max_compute_workgroup_storage_size",
                needed: staged.into(),
                available: caps.max_compute_workgroup_storage_size.into(),
                advice: "take fewer keys, or leave the choice to the planner",
            });
        }
        Ok(())
    }

    /// The sizes for a problem.
    ///
    /// # Errors
    /// Why the kernel cannot take it.
    pub(crate) fn choose(problem: &Problem, caps: &Caps) -> core::result::Result<RowTiles, String> {
        Self::supports(problem)?;
        let shape = &problem.shape;
        let few = LANES.min(1 << caps.threads().max(1).ilog2());
        let fits =
            |&size: &u32| size.is_power_of_two() && (4..=128).contains(&size) && size <= caps.threads();
        let handed_round = match caps.subgroup_size.filter(fits) {
            Some(size) => {
                let keys = keys_handed_round(shape, caps);
                let tiles = Self::sized(shape, KeyMovement::Broadcast, size, keys);
                RowTiles { lazy: scales_lazily(problem, caps), ..tiles }
            }
            None => Self::sized(shape, KeyMovement::Uniform, few, KEYS),
        };
        if !stages(caps) {
            return Ok(handed_round);
        }
        let keys = match shape.head_dim_qk.max(shape.head_dim_v) {
            0..=FEW_DIMS => 2 * STAGED_KEYS,
            _ if rows_of_lane(shape) == 4 => STAGED_KEYS,
            _ => STAGED_KEYS / 2,
        };
        let staged = Self::sized(shape, KeyMovement::Staged, few, keys).shared_by_many(problem, caps);
        let fits = staged.workgroup_bytes(shape) <= caps.max_compute_workgroup_storage_size;
        Ok(if fits { staged } else { handed_round })
    }

    /// The sizes for a shape, tiles of so many keys brought to these lanes in this way.
    fn sized(shape: &Shape, movement: KeyMovement, lanes: u32, keys: u32) -> RowTiles {
        let keys = lanes.min(keys);
        let rows = rows_of_lane(shape);
        RowTiles {
            lanes,
            rows,
            keys,
            keys_at_once: if movement == KeyMovement::Broadcast { keys } else { keys.min(KEYS_AT_ONCE) },
            movement,
            grouped: shape.group() > 1 && shape.seq_q.div_ceil(rows) < lanes,
            lazy: false,
            // Staging has barriers in any case, and lanes to share their cost.
            fenced: movement == KeyMovement::Staged,
        }
    }

    /// Whether it compiles within seconds, or so it did: what the tuner tries.
    #[cfg(feature = "measure")]
    pub(crate) fn compiles_soon(&self, shape: &Shape) -> bool {
        let numbers_of_row = u64::from(shape.head_dim_qk) + u64::from(shape.head_dim_v);
        u64::from(self.rows) * u64::from(self.keys) * numbers_of_row <= 8 * NUMBERS
    }

    /// Operations after which a dispatch is cut in two. Where one address for all lanes is one load, staging is at least eight times as fast as what
    /// the class of adapter is taken to do, and gains by many rows side by side. (But for narrow heads, where it is not the products that take the time; and
    /// with fewer rows in a lane it is slower, because fewer share what is loaded.)
    pub(crate) fn flops_per_dispatch(&self, shape: &Shape, caps: &Caps) -> u64 {
        let is_fast = self.movement == KeyMovement::Staged && caps.loads_once;
        let products = (u64::from(shape.head_dim_qk) + u64::from(shape.head_dim_v)) / 8;
        caps.flops_per_dispatch()
            * if is_fast { (products.clamp(1, 8) * u64::from(self.rows) / 4).max(1) } else { 1 }
    }

    /// With workgroups as large as there are rows for, as long as all threads of the processor have some at a time: of the whole problem, and
    /// of the rows of one head that a dispatch is cut down to. And no larger than what can be bound.
    fn shared_by_many(self, problem: &Problem, caps: &Caps) -> RowTiles {
        let shape = &problem.shape;
        let (lanes, _) = self.lanes_and_heads(shape.seq_q, shape.q_heads, shape.group());
        let most = MOST_STAGED_LANES.min(1 << caps.threads().max(1).ilog2());
        let all = |tiles: &RowTiles| {
            tiles.workgroups(shape.seq_q, shape.q_heads, shape.group()).saturating_mul(shape.batch.into())
        };
        let operations =
            2 * (u64::from(shape.head_dim_qk) + u64::from(shape.head_dim_v)) * u64::from(shape.seq_k);
        let rows = self.flops_per_dispatch(shape, caps) / operations.max(1);
        let wanted = 2 * u64::from(caps.processors.max(1));
        let mut tiles = RowTiles {
            lanes: lanes.next_power_of_two().clamp(self.lanes.into(), most.into()) as u32,
            ..self
        };
        let binds = |tiles: &RowTiles| {
            [Tensor::Q, Tensor::Out].into_iter().all(|tensor| {
                let row = problem.view(tensor).map_or(0, |view| view.strides().seq);
                let numbers = u64::from(tiles.block().min(shape.seq_q)).saturating_mul(row);
                problem.dtypes[tensor as usize].bytes(numbers) <= caps.max_storage_buffer_binding_size
            })
        };
        while tiles.lanes > self.lanes
            && (all(&tiles).min(rows / u64::from(tiles.block())) < wanted || !binds(&tiles))
        {
            tiles.lanes /= 2;
        }
        tiles
    }

    /// Bytes of workgroup memory: the tile of keys and values, and a word for each four numbers of a value.
    pub(crate) fn workgroup_bytes(&self, shape: &Shape) -> u32 {
        if self.movement != KeyMovement::Staged {
            return 0;
        }
        let (k, v) = (shape.head_dim_qk.div_ceil(4), shape.head_dim_v.div_ceil(4));
        let keys = u64::from(self.keys);
        // Each variable takes multiples of 16 bytes.
        let spoilt = (4 * u64::from(v) * keys).next_multiple_of(16);
        u32::try_from(16 * (u64::from(k) + u64::from(v)) * keys + spoilt).unwrap_or(u32::MAX)
    }

    /// Whether the kernel knows all options of a problem, or why not. Named one by one, so that a new one cannot be forgotten.
    pub(crate) fn supports(problem: &Problem) -> core::result::Result<(), String> {
        let Problem {
            shape,
            // Storage and memory order are the accessors' business.
            q_layout: _,
            k_layout: _,
            v_layout: _,
            out_layout: _,
            dtypes: _,
            // Factors of a row, in sharpness.wgsl.
            scale: _,
            temperature: _,
            length_scale: _,
            // Several passes over the keys: asked for below, all at once.
            adaptive_temperature: _,
            top_k: _,
            qk_norm: _,
            // What a row sees, in mask.wgsl.
            causal: _,
            packed_q: _,
            packed_k: _,
            window: _,
            alignment: _,
            kv_len: _,
            q_len: _,
            mask: _,
            mask_mod: _,
            documents: _,
            // Scores, in score.wgsl.
            softcap,
            bias: _,
            alibi: _,
            score_mod: _,
            user_params: _,
            // Weights, in weights_*.wgsl and dropout.wgsl; those that take several passes are refused below.
            normalizer: _,
            dropout,
            // The end of a row, in softmax.wgsl and stats.wgsl.
            sink: _,
            stats: _,
        } = problem;
        if softcap.is_some() {
            // Within its bound, but twice as far off where scores come near their cap, which is more than some tests of others allow.
            return Err("near a soft cap the tiled kernel is more precise".to_owned());
        }
        if problem.search() != Search::None {
            return Err("it goes through the keys once, and this problem takes several passes".to_owned());
        }
        let widest = shape.head_dim_qk.max(shape.head_dim_v);
        if widest > WIDEST {
            return Err(format!("head dim {widest} is beyond the {WIDEST} that it is written out for"));
        }
        if dropout.is_some() && rows_of_lane(shape) != 4 {
            return Err(
                "dropout draws for four rows at a time, and heads so wide leave a lane fewer".to_owned()
            );
        }
        Ok(())
    }

    /// Whether the planner takes this kernel unasked: where it was measured to be faster.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn is_preferred(shape: &Shape, caps: &Caps) -> core::result::Result<(), String> {
        if caps.class != AdapterClass::Cpu {
            return Err("it was not measured on a GPU".to_owned());
        }
        if caps.subgroup_size.is_none() && !stages(caps) {
            return Err("there are no subgroups of one size".to_owned());
        }
        let (wide, widest) = (shape.head_dim_qk.max(shape.head_dim_v), widest_preferred(caps));
        if wide > widest {
            return Err(format!("head dim {wide} is beyond the {widest} up to which it compiles soon here"));
        }
        Ok(())
    }

    /// Why [`RowTiles::choose`] came to these.
    pub(crate) fn reason(&self) -> String {
        let movement = match self.movement {
            KeyMovement::Broadcast => format!("handed round in a subgroup of {}", self.lanes),
            KeyMovement::Staged => "staged in workgroup memory, because loads by lane are dear".to_owned(),
            KeyMovement::Uniform => "loaded by all lanes at one address".to_owned(),
        };
        let grouped = if self.grouped { ", heads of a group side by side" } else { "" };
        let lazy = if self.lazy { ", sums scaled where a maximum grew" } else { "" };
        format!("whole rows in the lanes of a processor, keys {movement}{grouped}{lazy}")
    }
}

/// Keys of a tile that are handed round.
///
/// A number of a key or a value is text of its own, and so is each number of out, which is read, scaled and stored once a tile: text for
/// `keys + 1` head dims, and the last of it is shared by more keys where there are more. But beyond some length of text a call takes a third longer, as if
/// a cache of instructions had overflown (docs/performance.md). With AVX-512 that was measured to be at some 290 numbers on llvmpipe of Mesa 26.2, and at 150
/// of 22.3, which needs twice as much text for each. Processors other than x86 are taken to be alike. Where nothing fits, two keys were faster with AVX-512,
/// and one with AVX2, where it also compiles a third faster. Wide heads, with fewer rows in a lane and less text for each number, are taken to be alike; they
/// were measured with AVX2 only.
fn keys_handed_round(shape: &Shape, caps: &Caps) -> u32 {
    if !caps.is_llvmpipe {
        return KEYS;
    }
    let fits_cache = if caps.loads_once { 290 } else { 150 };
    let text = |keys: u32| {
        let scores = u64::from(keys) * u64::from(shape.head_dim_qk);
        let output = (u64::from(keys) + 2) * u64::from(shape.head_dim_v);
        (scores + output) * u64::from(rows_of_lane(shape)) / (4 * 2)
    };
    let one_by_one_ends = u64::from(shape.seq_k) + 100 < caps.loop_iterations();
    let may_be = |keys: u32| keys > 1 || one_by_one_ends;
    let fitting = [4, 2, 1].into_iter().find(|&keys| text(keys) <= fits_cache && may_be(keys));
    let beyond = if caps.gathers || !may_be(1) { KEYS } else { 1 };
    fitting.unwrap_or(beyond)
}

/// Whether to scale sums where a maximum grew, and not always, where keys are handed round: a tenth faster on Mesa 26.2 with AVX-512. 22.3 gets slower by
/// more than that, and compiles longer; without a gather and on SwiftShader it made no difference.
fn scales_lazily(problem: &Problem, caps: &Caps) -> bool {
    caps.loads_once && caps.gathers && problem.normalizer.is_softmax() && !problem.stats.entropy
}

/// Whether to stage keys: where one address for all lanes is one load, and where a load by lane is not: it is as many as there are lanes.
fn stages(caps: &Caps) -> bool {
    caps.loads_once && !caps.gathers
}

impl fmt::Display for RowTiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lanes of {} rows, {} keys by {}, {}{}{}{}",
            self.lanes,
            self.rows,
            self.keys,
            self.keys_at_once,
            self.movement.name(),
            if self.grouped { ", grouped" } else { "" },
            if self.lazy { ", lazy" } else { "" },
            if self.fenced { ", fenced" } else { "" }
        )
    }
}
