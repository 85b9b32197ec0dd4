//! The text of a pass, and the twin of its params.

use super::plan::Caller;
use crate::context::Slot;
use crate::dtype::DType;
use crate::kernel::{Access, PipelineKey, TemperatureSource};
use crate::program::{Role, Shader};
use crate::shader::params::{Params as Forward, View};
use crate::shader::{self, tensor, unroll};
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};
use core::fmt;
use unroll::Constants;

/// What the forward kernels are told, and what `shaders/backward/params.wgsl` adds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
pub struct Params {
    pub(crate) forward: Forward,
    pub(crate) dout: View,
    pub(crate) grad: View,
    pub dout_dim: u32,
    pub grad_dim: u32,
    pub bias: [u32; 4],
    pub start: u32,
    pub end: u32,
    pub tables: u32,
    pub inverse_temperature: f32,
    pub pad: [u32; 2],
}

const _: () = assert!(size_of::<Params>().is_multiple_of(16));

/// The passes, in the order of their dispatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    Prepare,
    RowSums,
    Dq,
    Dk,
    Dv,
    Dbias,
    TemperatureRows,
    TemperatureSums,
    SinkSums,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Variant {
    pub pass: Pass,
    pub key: PipelineKey,
    /// How dq, dk or dv is stored, where the pass has one of them.
    pub grad: Access,
    /// lse has a gradient.
    pub dlse: bool,
}

const KEPT: u32 = 6;
const DOUT: u32 = 10;
const GRAD: u32 = 11;
const RESULT: u32 = 12;

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backward/{} of {}", self.name(), self.key)
    }
}

impl Variant {
    fn name(&self) -> &'static str {
        match self.pass {
            Pass::Prepare => "prepare",
            Pass::RowSums => "row_sums",
            Pass::Dq => "dq",
            Pass::Dk => "dk",
            Pass::Dv => "dv",
            Pass::Dbias => "dbias",
            Pass::TemperatureRows => "temperature_rows",
            Pass::TemperatureSums => "temperature_sums",
            Pass::SinkSums => "sink_sums",
        }
    }

    /// Whether a pass makes scores, and so reads what belongs to them.
    fn makes_scores(&self) -> bool {
        matches!(self.pass, Pass::RowSums | Pass::Dq | Pass::Dk | Pass::Dv | Pass::Dbias)
    }

    /// Whether it writes to what is kept; the others only read it, so that it is uniform to them.
    fn keeps(&self) -> bool {
        matches!(self.pass, Pass::Prepare | Pass::RowSums | Pass::TemperatureRows)
    }

    /// The tensors that it reads or writes, as text.
    fn accessors(&self) -> String {
        let key = &self.key;
        let (qk, v) = (key.head_dim_qk, key.head_dim_v);
        let input = |t: Tensor, dim| {
            tensor::read(t.name(), t.binding(), key.access[t as usize], key.dtypes[t as usize], dim)
        };
        let dout = || tensor::read("dout", DOUT, key.access[3], DType::F32, v);
        let grad = |dim| tensor::written("grad", GRAD, self.grad, DType::F32, dim);
        let inputs = |with_v: bool| {
            let mut text = input(Tensor::Q, qk) + &input(Tensor::K, qk) + &dout();
            if with_v {
                text += &input(Tensor::V, v);
            }
            text
        };
        match self.pass {
            Pass::Dq | Pass::Dk => inputs(true) + &grad(qk),
            Pass::Dv => inputs(false) + &grad(v),
            Pass::RowSums | Pass::Dbias => inputs(true),
            Pass::TemperatureRows => {
                input(Tensor::Q, qk) + &tensor::read("grad", GRAD, self.grad, DType::F32, qk)
            }
            Pass::Prepare | Pass::TemperatureSums | Pass::SinkSums => String::new(),
        }
    }

    fn modules(&self) -> Vec<&'static str> {
        let weight = include_str!("../../shaders/backward/weight.wgsl");
        let score = include_str!("../../shaders/backward/score.wgsl");
        let sum_of_threads = include_str!("../../shaders/backward/sum_of_threads.wgsl");
        let sink = include_str!("../../shaders/backward/sink.wgsl");
        let rows = include_str!("../../shaders/backward/rows_of_key.wgsl");
        let of_key = include_str!("../../shaders/backward/of_key.wgsl");
        match self.pass {
            Pass::Prepare => vec![
                if self.dlse {
                    include_str!("../../shaders/backward/dlse.wgsl")
                } else {
                    include_str!("../../shaders/backward/no_dlse.wgsl")
                },
                if self.key.has_tables() {
                    include_str!("../../shaders/backward/given_tables.wgsl")
                } else {
                    include_str!("../../shaders/backward/no_given_tables.wgsl")
                },
                include_str!("../../shaders/backward/prepare.wgsl"),
            ],
            Pass::RowSums => {
                vec![
                    weight,
                    score,
                    sink,
                    sum_of_threads,
                    include_str!("../../shaders/backward/row_sums.wgsl"),
                ]
            }
            Pass::Dq => vec![weight, score, include_str!("../../shaders/backward/dq.wgsl")],
            Pass::Dk => vec![weight, score, rows, include_str!("../../shaders/backward/dk.wgsl"), of_key],
            Pass::Dv => vec![weight, rows, include_str!("../../shaders/backward/dv.wgsl"), of_key],
            Pass::Dbias => vec![weight, score, include_str!("../../shaders/backward/dbias.wgsl")],
            Pass::TemperatureRows => vec![
                include_str!("../../shaders/backward/temperature_rows.wgsl"),
                if self.key.temperature == TemperatureSource::PerRow {
                    include_str!("../../shaders/backward/terms_out.wgsl")
                } else {
                    include_str!("../../shaders/backward/terms_kept.wgsl")
                },
            ],
            Pass::TemperatureSums | Pass::SinkSums => {
                vec![sink, sum_of_threads, include_str!("../../shaders/backward/sums.wgsl")]
            }
        }
    }
}

impl Shader for Variant {
    type Params = Params;

    fn source(&self) -> String {
        let key = &self.key;
        let threads = key.tiles.threads;
        let (qk_dim4, v_dim4) = (key.head_dim_qk.div_ceil(4), key.head_dim_v.div_ceil(4));
        let dim4 = if self.pass == Pass::Dv { v_dim4 } else { qk_dim4 };
        let numbers = Constants::from([
            ("THREADS", threads),
            ("QK_DIM4", qk_dim4),
            ("V_DIM4", v_dim4),
            ("DIM4", dim4),
            ("COLUMNS", dim4.div_ceil(threads)),
        ]);
        let params = include_str!("../../shaders/params.wgsl").replace(
            "    // Passes of the gradient are told more: shaders/backward/params.wgsl goes here.\n",
            include_str!("../../shaders/backward/params.wgsl"),
        );
        let space = if self.keeps() { "read_write" } else { "read" };
        let kept = format!("@group(0) @binding({KEPT}) var<storage, {space}> kept: array<u32>;\n");
        let parts = [shader::header(key, &numbers), params, kept, self.accessors(), tensor::bias(key.bias)];
        let shared = shader::scores(key).into_iter().chain([
            include_str!("../../shaders/backward/kept.wgsl"),
            include_str!("../../shaders/weights_softmax.wgsl"),
            include_str!("../../shaders/score_mod_none.wgsl"),
            include_str!("../../shaders/mask_mod_none.wgsl"),
        ]);
        let mut text = String::new();
        for part in parts.iter().map(String::as_str).chain(shared).chain(self.modules()) {
            text.push_str(part);
            text.push('\n');
        }
        unroll::unroll(&text, &numbers)
    }

    fn entry_point(&self) -> &'static str {
        match self.pass {
            Pass::Dk | Pass::Dv => "of_key",
            _ => self.name(),
        }
    }

    fn slots(&self) -> Vec<(Slot, Role)> {
        let read = |number, caller: Caller| (Slot { number, written: false }, Role::Caller(caller as usize));
        let written =
            |number, caller: Caller| (Slot { number, written: true }, Role::Caller(caller as usize));
        let mut slots = Vec::new();
        match self.pass {
            Pass::Prepare => {
                slots.push(read(13, Caller::Lse));
                if self.dlse {
                    slots.push(read(14, Caller::Dlse));
                }
                if self.key.has_tables() {
                    slots.push(read(15, Caller::Tables));
                }
            }
            Pass::RowSums | Pass::Dq | Pass::Dk | Pass::Dv | Pass::Dbias => {
                slots.extend([read(1, Caller::Q), read(2, Caller::K), read(DOUT, Caller::Dout)]);
                if self.pass != Pass::Dv {
                    slots.push(read(3, Caller::V));
                }
            }
            Pass::TemperatureRows => slots.extend([read(1, Caller::Q), read(GRAD, Caller::Dq)]),
            Pass::TemperatureSums | Pass::SinkSums => {}
        }
        slots.push((Slot { number: KEPT, written: self.keeps() }, Role::Scratch));
        if self.makes_scores() {
            if self.key.bias.is_some() {
                slots.push(read(Tensor::Bias.binding(), Caller::Bias));
            }
            if self.key.mask.is_some() {
                slots.push(read(Tensor::Mask.binding(), Caller::Mask));
            }
        }
        let per_row = self.key.temperature == TemperatureSource::PerRow;
        slots.extend(match self.pass {
            Pass::Dq => Some(written(GRAD, Caller::Dq)),
            Pass::Dk => Some(written(GRAD, Caller::Dk)),
            Pass::Dv => Some(written(GRAD, Caller::Dv)),
            Pass::Dbias => Some(written(RESULT, Caller::Dbias)),
            Pass::TemperatureRows => per_row.then(|| written(RESULT, Caller::Dtemperature)),
            Pass::TemperatureSums => Some(written(RESULT, Caller::Dtemperature)),
            Pass::SinkSums => Some(written(RESULT, Caller::Dsinks)),
            Pass::Prepare | Pass::RowSums => None,
        });
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward::{Plan, Problem};
    use crate::caps::Caps;
    use crate::shader::layout;
    use crate::shape::Shape;
    use core::mem::offset_of;

    /// The layout that is written twice, in Rust and in WGSL, is one.
    #[test]
    fn params_are_the_same_on_both_sides() {
        let problem = Problem::new(crate::Problem::new(Shape::self_attention(1, 1, 1, 4)));
        let plan = Plan::new(&problem, &Caps::webgpu_default()).unwrap();
        let (fields, bytes) = layout::of_text(&plan.shader_sources()[0]);
        let offset = |name: &str| fields.iter().find(|f| f.0 == name).unwrap().1;
        for (name, here) in [
            ("length_floor", offset_of!(Params, forward) + offset_of!(Forward, length_floor)),
            ("dout", offset_of!(Params, dout)),
            ("grad", offset_of!(Params, grad)),
            ("dout_dim", offset_of!(Params, dout_dim)),
            ("grad_dim", offset_of!(Params, grad_dim)),
            ("bias_batches", offset_of!(Params, bias)),
            ("bias_keys", offset_of!(Params, bias) + 12),
            ("start", offset_of!(Params, start)),
            ("end", offset_of!(Params, end)),
            ("tables", offset_of!(Params, tables)),
            ("inverse_temperature", offset_of!(Params, inverse_temperature)),
        ] {
            assert_eq!(offset(name), here, "{name}");
        }
        assert_eq!(bytes, size_of::<Params>());
    }
}
