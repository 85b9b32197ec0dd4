//! The text of a variant, and the twin of its params.

use super::access;
use super::plan::Caller;
use super::problem::Kind;
use crate::context::Slot;
use crate::dtype::DType;
use crate::program::{Role, Shader};
use crate::shader::tensor::Access;
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
    pub lots: u32,
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
    RoundChunk,
    RoundMerge,
    LastChunk,
    LastMerge,
    DTau,
}

impl Pass {
    /// Whether it puts the chunks of a row together.
    pub(super) fn merges(self) -> bool {
        matches!(self, Pass::Merge | Pass::RoundMerge | Pass::LastMerge | Pass::DTau)
    }
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
    /// How x is stored.
    pub dtype: DType,
    pub threads: u32,
    /// Threads of a row.
    pub lanes: u32,
    /// Fours of elements that a thread holds.
    pub vecs: u32,
    /// A row, or its chunk, is one tile.
    pub one_tile: bool,
    /// Every tile is full, and every workgroup has a row, or a chunk of one.
    pub full: bool,
    pub access: Access,
    /// A workgroup is one subgroup, and a row's threads are all of it.
    pub subgroup: bool,
}

const X: u32 = 1;
const OUT: u32 = 2;
const DY: u32 = 6;

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.backward.is_some() { " backward" } else { "" };
        write!(
            f,
            "{}{direction} {} {}x{}x{} {} {}",
            self.kind.name(),
            self.entry_point(),
            self.threads,
            self.lanes,
            self.vecs,
            self.dtype.name(),
            self.access,
        )?;
        f.write_str(if self.one_tile { " one tile" } else { "" })?;
        f.write_str(if self.full { " full" } else { "" })?;
        f.write_str(if self.subgroup { " subgroup" } else { "" })
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
        let adds = matches!(self.pass, Pass::RoundMerge | Pass::LastMerge)
            || (self.backward.is_some() && matches!(self.pass, Pass::Chunk | Pass::Merge));
        self.per_row && !adds
    }

    /// The tensors, as text. A pass binds what it uses of them.
    fn accessors(&self) -> String {
        let in_place = self.in_place && self.backward.is_none();
        let mut text = access::written(OUT, self.access, in_place);
        if !in_place {
            text += &access::read("x", X, self.access, self.dtype);
        }
        if self.backward.is_some() {
            text += &access::read("dy", DY, self.access, DType::F32);
        }
        text
    }

    fn modules(&self) -> Vec<&'static str> {
        let split = self.pass != Pass::Rows;
        let mut all = vec![
            include_str!("../../shaders/softmax_op/params.wgsl"),
            if self.access.in_fours() {
                include_str!("../../shaders/softmax_op/places_vec4.wgsl")
            } else {
                include_str!("../../shaders/softmax_op/places_scalar.wgsl")
            },
            include_str!("../../shaders/softmax_op/tile.wgsl"),
            if self.reads_temperature() {
                include_str!("../../shaders/softmax_op/temperature_per_row.wgsl")
            } else {
                include_str!("../../shaders/softmax_op/temperature_number.wgsl")
            },
            match (self.lanes, self.subgroup) {
                (1, _) => include_str!("../../shaders/softmax_op/lanes_one.wgsl"),
                (_, true) => include_str!("../../shaders/softmax_op/lanes_subgroup.wgsl"),
                (_, false) => include_str!("../../shaders/softmax_op/lanes_workgroup.wgsl"),
            },
        ];
        match (self.backward.is_some(), self.writes_stats()) {
            (false, true) => all.push(include_str!("../../shaders/softmax_op/stats.wgsl")),
            (false, false) => all.push(include_str!("../../shaders/softmax_op/no_stats.wgsl")),
            (true, true) => all.push(include_str!("../../shaders/softmax_op/dtau.wgsl")),
            (true, false) => all.push(include_str!("../../shaders/softmax_op/no_dtau.wgsl")),
        }
        if split {
            all.push(include_str!("../../shaders/softmax_op/partials.wgsl"));
        }
        all.push(include_str!("../../shaders/softmax_op/top.wgsl"));
        all.extend(match (self.backward.is_some(), self.kind.is_sparse()) {
            (true, _) => vec![include_str!("../../shaders/softmax_op/backward.wgsl")],
            (false, true) => vec![include_str!("../../shaders/softmax_op/sparse.wgsl")],
            (false, false) => vec![
                include_str!("../../shaders/softmax_op/exp.wgsl"),
                match self.kind {
                    Kind::LogSoftmax => include_str!("../../shaders/softmax_op/write_log_softmax.wgsl"),
                    _ => include_str!("../../shaders/softmax_op/write_softmax.wgsl"),
                },
            ],
        });
        all.push(match (self.backward.is_some(), self.kind.is_sparse(), split) {
            (true, _, false) => include_str!("../../shaders/softmax_op/backward_fused.wgsl"),
            (true, _, true) => include_str!("../../shaders/softmax_op/backward_split.wgsl"),
            (false, true, false) => include_str!("../../shaders/softmax_op/sparse_fused.wgsl"),
            (false, true, true) => include_str!("../../shaders/softmax_op/sparse_split.wgsl"),
            (false, false, false) => include_str!("../../shaders/softmax_op/exp_fused.wgsl"),
            (false, false, true) => include_str!("../../shaders/softmax_op/exp_split.wgsl"),
        });
        all
    }
}

impl Shader for Variant {
    type Params = Params;

    fn source(&self) -> String {
        let first = self.lanes.min(16);
        let numbers: Constants = [
            ("THREADS", self.threads),
            ("LANES", self.lanes),
            // Of a sum over lanes: those of its first step, and what a workgroup has of them.
            ("FIRST", first),
            ("PARTS", self.threads / first),
            ("VECS", self.vecs),
            ("TILE", 4 * self.vecs * self.lanes),
            ("POWER", if self.kind == Kind::Entmax15 { 2 } else { 1 }),
        ]
        .into();
        let switches = [
            ("SOFTMAX", self.kind == Kind::Softmax),
            ("LOG_SOFTMAX", self.kind == Kind::LogSoftmax),
            ("ENTMAX15", self.kind == Kind::Entmax15),
            ("ONE_TILE", self.one_tile),
            ("FULL", self.full),
            ("LSE", self.stats[0]),
            ("ENTROPY", self.stats[1]),
            ("ARGMAX", self.stats[2]),
            ("DTAU", self.backward == Some(true)),
            // Of the pair that lanes add up, the second is the entropy's, or a sparse gradient's.
            ("TWO_SUMS", self.stats[1] || (self.backward.is_some() && self.kind.is_sparse())),
        ];
        let mut text = format!("// {self}\n");
        for (name, value) in &numbers {
            let _ = writeln!(text, "const {name} = {value}u;");
        }
        for (name, value) in switches {
            let _ = writeln!(text, "const {name} = {value};");
        }
        let accessors = self.accessors();
        for module in self.modules().into_iter().chain([accessors.as_str()]) {
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
            (X, Caller::X, self.reads_x() && (backward || !self.in_place)),
            (OUT, Caller::Out, out),
            (3, Caller::Temperature, self.reads_temperature()),
            (4, Caller::Stats, self.writes_stats()),
            (DY, Caller::DOut, backward && self.reads_x()),
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
            layout::of_type!(Params: x out dy inner len rows first_row groups_x chunks chunk inverse_tau lse entropy argmax lots)
        );
    }
}
