//! The text of a variant, and the twin of its params.

use super::plan::Caller;
use super::problem::Kind;
use crate::context::Slot;
use crate::program::{Role, Shader};
use crate::shader::unroll::{self, Constants};
use bytemuck::{Pod, Zeroable};
use core::fmt;
use core::fmt::Write;

/// Twin of `Rows` in `shaders/softmax_op/params.wgsl`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Rows {
    pub base: u32,
    pub outer: u32,
    pub inner: u32,
    pub step: u32,
}

/// Field by field as in `shaders/softmax_op/params.wgsl`; see there for what each means.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
pub struct Params {
    pub x: Rows,
    pub out: Rows,
    pub dy: Rows,
    pub inner: u32,
    pub len: u32,
    pub rows: u32,
    pub first_row: u32,
    pub groups_x: u32,
    pub chunks: u32,
    pub chunk: u32,
    pub inverse_tau: f32,
    pub lse: u32,
    pub entropy: u32,
    pub argmax: u32,
    pub pad: u32,
}

/// The entry points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Short rows, all in one.
    Rows,
    /// States of chunks, forward; sums of chunks, backward.
    Chunk,
    /// Those of a row together.
    Merge,
    /// The result, by chunks.
    Write,
    Start,
    RoundChunk,
    RoundMerge,
    LastChunk,
    LastMerge,
    DTau,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Variant {
    pub pass: Pass,
    pub kind: Kind,
    /// Backward, and whether the temperature's gradient is asked for.
    pub backward: Option<bool>,
    pub per_row: bool,
    pub in_place: bool,
    /// lse, entropy, argmax.
    pub stats: [bool; 3],
    pub threads: u32,
    pub lanes: u32,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.backward.is_some() { " backward" } else { "" };
        write!(f, "{}{direction} {} {}x{}", self.kind.name(), self.entry_point(), self.threads, self.lanes)
    }
}

impl Variant {
    fn writes_out(&self) -> bool {
        matches!(self.pass, Pass::Rows | Pass::Write)
    }

    fn reads_x(&self) -> bool {
        use Pass::{Chunk, LastChunk, RoundChunk, Rows, Write};
        matches!(self.pass, Rows | Chunk | RoundChunk | LastChunk | Write)
    }

    fn writes_stats(&self) -> bool {
        match self.backward {
            None => self.stats != [false; 3] && matches!(self.pass, Pass::Rows | Pass::Merge),
            Some(dtau) => dtau && matches!(self.pass, Pass::Rows | Pass::DTau),
        }
    }

    fn reads_temperature(&self) -> bool {
        let adds = matches!(self.pass, Pass::Start | Pass::RoundMerge | Pass::LastMerge)
            || (self.backward.is_some() && matches!(self.pass, Pass::Chunk | Pass::Merge));
        self.per_row && !adds
    }

    fn modules(&self) -> Vec<&'static str> {
        let temperature = if self.reads_temperature() {
            include_str!("../../shaders/softmax_op/temperature_per_row.wgsl")
        } else {
            include_str!("../../shaders/softmax_op/temperature_number.wgsl")
        };
        let mut all = vec![include_str!("../../shaders/softmax_op/params.wgsl"), temperature];
        if self.pass != Pass::Rows {
            all.push(include_str!("../../shaders/softmax_op/partials.wgsl"));
        }
        if self.backward.is_some() {
            all.push(include_str!("../../shaders/softmax_op/backward.wgsl"));
            all.push(if self.writes_stats() {
                include_str!("../../shaders/softmax_op/dtau.wgsl")
            } else {
                include_str!("../../shaders/softmax_op/no_dtau.wgsl")
            });
            all.push(if self.pass == Pass::Rows {
                include_str!("../../shaders/softmax_op/backward_fused.wgsl")
            } else {
                include_str!("../../shaders/softmax_op/backward_split.wgsl")
            });
            return all;
        }
        all.push(include_str!("../../shaders/softmax_op/out.wgsl"));
        all.push(if self.in_place {
            include_str!("../../shaders/softmax_op/x_in_place.wgsl")
        } else {
            include_str!("../../shaders/softmax_op/x_apart.wgsl")
        });
        all.push(include_str!("../../shaders/softmax_op/state.wgsl"));
        all.push(if self.writes_stats() {
            include_str!("../../shaders/softmax_op/stats.wgsl")
        } else {
            include_str!("../../shaders/softmax_op/no_stats.wgsl")
        });
        if self.pass != Pass::Rows {
            all.push(include_str!("../../shaders/softmax_op/state_partials.wgsl"));
        }
        let sparse = self.kind.is_sparse();
        if sparse {
            all.push(include_str!("../../shaders/softmax_op/sparse.wgsl"));
        } else {
            all.push(match self.kind {
                Kind::LogSoftmax => include_str!("../../shaders/softmax_op/write_log_softmax.wgsl"),
                _ => include_str!("../../shaders/softmax_op/write_softmax.wgsl"),
            });
        }
        all.push(match (self.pass, sparse) {
            (Pass::Rows, false) => include_str!("../../shaders/softmax_op/exp_fused.wgsl"),
            (Pass::Rows, true) => include_str!("../../shaders/softmax_op/sparse_fused.wgsl"),
            (Pass::Chunk | Pass::Merge, _) => include_str!("../../shaders/softmax_op/state_split.wgsl"),
            (_, false) => include_str!("../../shaders/softmax_op/exp_write.wgsl"),
            (_, true) => include_str!("../../shaders/softmax_op/sparse_split.wgsl"),
        });
        all
    }
}

impl Shader for Variant {
    type Params = Params;

    fn source(&self) -> String {
        let numbers: Constants = [
            ("THREADS", self.threads),
            ("LANES", self.lanes),
            ("POWER", if self.kind == Kind::Entmax15 { 2 } else { 1 }),
            ("KIND", self.kind as u32),
            ("SOFTMAX", Kind::Softmax as u32),
            ("LOG_SOFTMAX", Kind::LogSoftmax as u32),
            ("ENTMAX15", Kind::Entmax15 as u32),
        ]
        .into();
        let switches = [
            ("SUMS", !self.kind.is_sparse()),
            ("LSE", self.stats[0]),
            ("ENTROPY", self.stats[1]),
            ("ARGMAX", self.stats[2]),
            ("DTAU", self.backward == Some(true)),
        ];
        let mut text = format!("// {self}\n");
        for (name, value) in &numbers {
            let _ = writeln!(text, "const {name} = {value}u;");
        }
        for (name, value) in switches {
            let _ = writeln!(text, "const {name} = {value};");
        }
        for module in self.modules() {
            text.push('\n');
            text.push_str(module);
        }
        unroll::unroll(&text, &numbers)
    }

    fn entry_point(&self) -> &'static str {
        match self.pass {
            Pass::Rows => "rows_pass",
            Pass::Chunk => "chunk_pass",
            Pass::Merge => "merge_pass",
            Pass::Write => "write_pass",
            Pass::Start => "start_pass",
            Pass::RoundChunk => "round_chunk_pass",
            Pass::RoundMerge => "round_merge_pass",
            Pass::LastChunk => "last_chunk_pass",
            Pass::LastMerge => "last_merge_pass",
            Pass::DTau => "dtau_pass",
        }
    }

    fn slots(&self) -> Vec<(Slot, Role)> {
        let backward = self.backward.is_some();
        let out = self.writes_out() || (self.in_place && self.reads_x() && !backward);
        [
            (1, Caller::X, self.reads_x() && (backward || !self.in_place)),
            (2, Caller::Out, out),
            (3, Caller::Temperature, self.reads_temperature()),
            (4, Caller::Stats, self.writes_stats()),
            (6, Caller::DOut, backward && self.reads_x()),
        ]
        .into_iter()
        .filter(|slot| slot.2)
        .map(|(number, role, _)| {
            let written = matches!(role, Caller::Out | Caller::Stats);
            (Slot { number, written }, Role::Caller(role as usize))
        })
        .chain((self.pass != Pass::Rows).then_some((Slot { number: 5, written: true }, Role::Scratch)))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::layout;
    use crate::softmax::{Plan, Problem};

    /// The layout that is written twice, in Rust and in WGSL, is one.
    #[test]
    fn params_are_the_same_on_both_sides() {
        let plan = Plan::new(&Problem::new(1, 1), &crate::Caps::webgpu_default()).unwrap();
        assert_eq!(
            layout::of_text(&plan.shader_sources()[0]),
            layout::of_type!(Params: x out dy inner len rows first_row groups_x chunks chunk inverse_tau lse entropy argmax pad)
        );
    }
}
