//! Tile sizes, and the memory they need: a pure function of the problem and the device's limits.

use crate::caps::{AdapterClass, Caps};
use crate::error::{Error, Result};
use crate::kernel::Search;
use crate::problem::Problem;
use crate::shape::Shape;
use core::fmt;

/// Sizes of the tiled kernel, see `shaders/tiled.wgsl`. All are powers of two, except that `v_chunk` may be 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "measure", derive(serde::Serialize, serde::Deserialize))]
pub struct Tiles {
    /// Threads of a workgroup.
    pub threads: u32,
    /// Groups of four query rows: a workgroup takes `4 * row_groups` rows.
    pub row_groups: u32,
    /// Keys whose scores one thread keeps in registers.
    pub keys_per_thread: u32,
    /// vec4s of q's and k's dims that are staged at a time.
    pub dim_chunk: u32,
    /// Keys of v that are staged at a time; 0 to read v from its buffer.
    pub v_chunk: u32,
}

/// How the threads share out the columns of v, which follows from the tiles and the head dim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutShape {
    /// Workgroups that compute different columns of the same rows. More than 1 only where a row of v is too wide
    /// for the registers of one workgroup.
    pub v_blocks: u32,
    /// vec4s of v in such a block.
    pub v_block: u32,
    /// Threads side by side in a row.
    pub out_columns: u32,
    /// vec4s of each thread in a row.
    pub out_columns_per_thread: u32,
    /// Groups of four rows of each thread.
    pub out_row_groups: u32,
}

impl OutShape {
    /// vec4 registers that hold a thread's share of the output.
    pub fn out_registers(&self) -> u32 {
        self.out_row_groups.saturating_mul(self.out_columns_per_thread).saturating_mul(4)
    }
}

/// vec4 registers for the output beyond which GPUs start to spill (64 numbers, beside as many for the rest).
const MAX_OUT_REGISTERS: u32 = 16;

const VEC4: u32 = 16; // bytes

/// Keys whose scores a thread keeps in registers, at most.
const KEYS_PER_THREAD: u32 = 4;

/// The same on llvmpipe through Vulkan, where loads cost most, and each number of q then serves twice as many keys. (SwiftShader and Mesa's
/// OpenGL compile slowly as it is.)
const KEYS_PER_THREAD_LLVMPIPE: u32 = 8;

/// Saturating throughout, so that sizes that no plan would accept give large numbers and not a panic.
impl Tiles {
    /// Query rows of a workgroup.
    pub fn rows(&self) -> u32 {
        self.row_groups.saturating_mul(4)
    }

    /// Threads that share a row group, each with its own keys.
    pub fn key_lanes(&self) -> u32 {
        self.threads.checked_div(self.row_groups).unwrap_or(0)
    }

    /// Keys of a tile.
    pub fn keys(&self) -> u32 {
        self.key_lanes().saturating_mul(self.keys_per_thread)
    }

    /// Keys of v between two barriers.
    pub(crate) fn v_step(&self) -> u32 {
        if self.v_chunk == 0 { self.keys() } else { self.v_chunk }
    }

    /// How the threads share out the columns of v.
    pub fn shape(&self, head_dim_v: u32) -> OutShape {
        let dim4 = head_dim_v.div_ceil(4).max(1);
        let threads = self.threads.max(1);
        let row_groups = self.row_groups.clamp(1, threads);
        let widest = (threads / row_groups).saturating_mul(MAX_OUT_REGISTERS / 4);
        let v_blocks = dim4.div_ceil(widest);
        let v_block = dim4.div_ceil(v_blocks);
        let mut best = None;
        let mut next = Some(threads / row_groups);
        while let Some(out_columns) = next.filter(|&n| n <= threads) {
            let shape = OutShape {
                v_blocks,
                v_block,
                out_columns,
                out_columns_per_thread: v_block.div_ceil(out_columns),
                // At most row_groups, because out_columns is at most threads.
                out_row_groups: (u64::from(row_groups) * u64::from(out_columns) / u64::from(threads)) as u32,
            };
            // Fewest multiplications first, then fewest loads for each of them; wider rows where equal.
            let loads = shape.out_columns_per_thread.saturating_add(shape.out_row_groups);
            let cost = (shape.out_registers(), loads);
            if best.is_none_or(|(least, _)| cost <= least) {
                best = Some((cost, shape));
            }
            next = out_columns.checked_mul(2);
        }
        // The loop runs at least once, because threads >= threads / row_groups.
        best.map(|(_, shape)| shape).unwrap_or(OutShape {
            v_blocks,
            v_block,
            out_columns: threads,
            out_columns_per_thread: v_block.div_ceil(threads),
            out_row_groups: row_groups,
        })
    }

    /// vec4s of the shared pool. It holds staged q and k while scores are computed, then the weights and staged
    /// v: never both.
    pub(crate) fn pool(&self, head_dim_v: u32) -> u32 {
        let q_stage = self.rows().saturating_mul(self.dim_chunk);
        let k_stage = self.keys().saturating_mul(self.dim_chunk.saturating_add(1));
        let weights = self.keys().saturating_mul(self.row_groups);
        let v_stage = self.v_chunk.saturating_mul(self.shape(head_dim_v).v_block);
        q_stage.saturating_add(k_stage).max(weights.saturating_add(v_stage))
    }

    /// Bytes of workgroup memory: one line for each array of `shaders/tiled.wgsl`.
    pub fn workgroup_bytes(&self, head_dim_v: u32) -> u32 {
        let pool = self.pool(head_dim_v);
        let partial = self.threads;
        let row_scale = self.row_groups;
        VEC4.saturating_mul(pool.saturating_add(partial).saturating_add(row_scale))
    }

    /// Refuses sizes that do not fit together or that the device does not have.
    pub(crate) fn check(&self, shape: &Shape, caps: &Caps) -> Result<()> {
        let powers: [(&'static str, u32, u32); 4] = [
            ("tiles.threads", self.threads, 1024),
            ("tiles.row_groups", self.row_groups, 64),
            ("tiles.keys_per_thread", self.keys_per_thread, 16),
            ("tiles.dim_chunk", self.dim_chunk, 64),
        ];
        for (field, value, most) in powers {
            if !value.is_power_of_two() || value > most {
                return Err(Error::value(field, value, "a small power of two"));
            }
        }
        if self.row_groups > self.threads {
            return Err(Error::value("tiles.row_groups", self.row_groups, "at most tiles.threads"));
        }
        if self.v_chunk != 0 && (!self.v_chunk.is_power_of_two() || self.v_chunk > self.keys()) {
            return Err(Error::value(
                "tiles.v_chunk",
                self.v_chunk,
                "0 or a power of two, at most the keys of a tile",
            ));
        }
        let needs: [(&'static str, u32, u32); 2] = [
            (
                "max_compute_invocations_per_workgroup and max_compute_workgroup_size_x",
                self.threads,
                caps.threads(),
            ),
            (
                "max_compute_workgroup_storage_size",
                self.workgroup_bytes(shape.head_dim_v),
                caps.max_compute_workgroup_storage_size,
            ),
        ];
        for (limit, needed, available) in needs {
            if needed > available {
                return Err(Error::LimitExceeded {
                    what: format!("the tiled kernel with {self}"),
                    limit,
                    needed: needed.into(),
                    available: available.into(),
                    advice: "take smaller tiles, or leave the choice to the planner",
                });
            }
        }
        Ok(())
    }

    /// Why [`Tiles::choose`] came to these.
    pub(crate) fn reason(&self, shape: &Shape, caps: &Caps) -> String {
        let table = match caps.class {
            AdapterClass::Cpu if self.keys_per_thread > KEYS_PER_THREAD => {
                "small workgroups for a CPU, with many keys a thread for llvmpipe"
            }
            AdapterClass::Cpu => "small workgroups for a CPU",
            _ => "as many rows as the registers for the output hold",
        };
        let limits = format!(
            "{} of {} bytes of workgroup memory, {} of {} threads",
            self.workgroup_bytes(shape.head_dim_v),
            caps.max_compute_workgroup_storage_size,
            self.threads,
            caps.threads()
        );
        let few = if self.rows() >= shape.seq_q && shape.seq_q > 0 {
            format!(", no more rows than {} queries need", shape.seq_q)
        } else {
            String::new()
        };
        format!("{table} at head dims {} and {}{few} ({limits})", shape.head_dim_qk, shape.head_dim_v)
    }

    /// The first of the candidates, best first, that the device can hold. `None` where it can hold none.
    ///
    /// Candidates go from many rows (each key that is loaded serves all of them) to few (for wide heads, whose output fills the
    /// registers, and for few queries).
    pub fn choose(problem: &Problem, caps: &Caps) -> Option<Tiles> {
        let shape = &problem.shape;
        let dim4_qk = shape.head_dim_qk.div_ceil(4);
        let dim4_v = shape.head_dim_v.div_ceil(4);
        let needed_groups = shape.seq_q.div_ceil(4).max(1);
        let is_cpu = caps.class == AdapterClass::Cpu;
        let most_row_groups = if is_cpu { 8 } else { 16 };
        // What a search does with a score is long text, once for each key.
        let many_keys = is_cpu && caps.is_llvmpipe && problem.search() == Search::None;
        let most_keys = if many_keys { KEYS_PER_THREAD_LLVMPIPE } else { KEYS_PER_THREAD };
        let most_threads = match dim4_v {
            // CPU adapters compile slowly: small workgroups trade some speed for that.
            _ if is_cpu => (2 * dim4_v).next_power_of_two().clamp(32, 256),
            0..=128 => 128,
            _ => 256,
        };
        for threads in descending(most_threads).filter(|&t| t <= caps.threads()) {
            for row_groups in descending(most_row_groups).filter(|&g| g <= threads) {
                let too_many_rows = row_groups > needed_groups.next_power_of_two();
                let too_many_registers =
                    row_groups > 1 && 4 * dim4_v.div_ceil(threads / row_groups) > MAX_OUT_REGISTERS;
                if too_many_rows || too_many_registers {
                    continue;
                }
                let fit = |dim_chunk, v_chunk| {
                    descending(most_keys)
                        .map(move |keys_per_thread| Tiles {
                            threads,
                            row_groups,
                            keys_per_thread,
                            dim_chunk,
                            v_chunk,
                        })
                        .find(|tiles| tiles.check(shape, caps).is_ok())
                };
                // Wide steps between barriers first; a step is never wider than the head.
                let widest = dim4_qk.next_power_of_two().min(8);
                let Some(mut tiles) = descending(widest).find_map(|chunk| fit(chunk, 0)) else {
                    continue;
                };
                // v is staged where more than one thread row reads it and enough of it fits. On a CPU workgroup
                // memory is ordinary memory, and staging mostly a copy.
                if !is_cpu && tiles.shape(shape.head_dim_v).out_row_groups < row_groups {
                    let staged = |v_chunk| Tiles { v_chunk, ..tiles };
                    if let Some(fits) = descending(tiles.keys())
                        .take_while(|&v_chunk| v_chunk >= 4)
                        .map(staged)
                        .find(|tiles| tiles.check(shape, caps).is_ok())
                    {
                        tiles = fits;
                    }
                }
                return Some(tiles);
            }
        }
        None
    }
}

/// Powers of two from `most` down to 1.
fn descending(most: u32) -> impl Iterator<Item = u32> {
    core::iter::successors(Some(most), |&n| (n > 1).then_some(n / 2))
}

impl fmt::Display for Tiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}x{} tiles, {} threads, dims by {}, v {}",
            self.rows(),
            self.keys(),
            self.threads,
            self.dim_chunk.saturating_mul(4),
            match self.v_chunk {
                0 => "direct".to_owned(),
                n => format!("by {n}"),
            }
        )
    }
}
