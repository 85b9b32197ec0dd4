//! The uniform that a dispatch reads: the twin of `shaders/params.wgsl`.

use bytemuck::{Pod, Zeroable};

/// Where the rows of a tensor are, in elements from the start of its binding.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub(crate) struct View {
    pub base: u32,
    pub batch: u32,
    pub head: u32,
    pub seq: u32,
}

/// Field by field as in the shader; see there for what each means.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
pub(crate) struct Params {
    pub q: View,
    pub k: View,
    pub v: View,
    pub out: View,
    pub bias: View,
    pub mask: View,
    pub q_dim: u32,
    pub k_dim: u32,
    pub v_dim: u32,
    pub out_dim: u32,
    pub bias_key: u32,
    pub mask_key: u32,
    pub q_heads: u32,
    pub group: u32,
    pub seq_q: u32,
    pub seq_k: u32,
    pub total_q: u32,
    pub total_k: u32,
    pub first_batch: u32,
    pub first_head: u32,
    pub first_row: u32,
    pub batches: u32,
    pub heads: u32,
    pub rows: u32,
    pub row_tiles: u32,
    pub groups_x: u32,
    pub groups_x_softmax: u32,
    pub groups_x_output: u32,
    pub offset: i32,
    pub min_distance: i32,
    pub max_distance: i32,
    pub keep_first: u32,
    pub factor: f32,
    pub softcap: f32,
    pub lse: u32,
    pub entropy: u32,
    pub row_max: u32,
    pub cu_seqlens_q: u32,
    pub cu_seqlens_k: u32,
    pub q_len: u32,
    pub kv_len: u32,
    pub offsets: u32,
    pub temperature: u32,
    pub alibi_slopes: u32,
    pub sinks: u32,
    pub ssmax: u32,
    pub user: u32,
    pub user_params: u32,
    pub dropout: u32,
    pub dropout_kept: u32,
    pub dropout_scale: f32,
    pub sigmoid_bias: f32,
    pub q_gain: u32,
    pub k_gain: u32,
    pub norm_eps: f32,
    pub length_coef: f32,
    pub length_floor: u32,
    /// Rounds the size up to what the uniform address space asks for (a multiple of 16 bytes).
    pub _pad: [u32; 1],
}

const _: () = assert!(size_of::<Params>().is_multiple_of(16));

macro_rules! fields {
    ($($name:ident),* $(,)?) => {
        /// Name and byte offset of each field, for the test that compares them with the shader's.
        #[cfg(test)]
        pub(crate) const FIELDS: &[(&str, usize)] =
            &[$((stringify!($name), std::mem::offset_of!(Params, $name))),*];
    };
}

fields!(
    q,
    k,
    v,
    out,
    bias,
    mask,
    q_dim,
    k_dim,
    v_dim,
    out_dim,
    bias_key,
    mask_key,
    q_heads,
    group,
    seq_q,
    seq_k,
    total_q,
    total_k,
    first_batch,
    first_head,
    first_row,
    batches,
    heads,
    rows,
    row_tiles,
    groups_x,
    groups_x_softmax,
    groups_x_output,
    offset,
    min_distance,
    max_distance,
    keep_first,
    factor,
    softcap,
    lse,
    entropy,
    row_max,
    cu_seqlens_q,
    cu_seqlens_k,
    q_len,
    kv_len,
    offsets,
    temperature,
    alibi_slopes,
    sinks,
    ssmax,
    user,
    user_params,
    dropout,
    dropout_kept,
    dropout_scale,
    sigmoid_bias,
    q_gain,
    k_gain,
    norm_eps,
    length_coef,
    length_floor,
);
