// What one dispatch is told. The twin of this struct is src/shader/params.rs; a test compares the two by
// reflection, name by name and offset by offset.

// Where the rows of a tensor are, in elements from the start of its binding:
// row (b, h, s) starts at base + b * batch + h * head + s * seq.
struct View {
    base: u32,
    batch: u32,
    head: u32,
    seq: u32,
}

struct Params {
    q: View,
    k: View,
    v: View,
    out: View,
    bias: View,
    mask: View,
    // Distance between the numbers of a row, for the scalar loads.
    q_dim: u32,
    k_dim: u32,
    v_dim: u32,
    out_dim: u32,
    bias_key: u32,
    mask_key: u32,

    // The whole problem.
    q_heads: u32,
    group: u32, // query heads that share a key/value head
    seq_q: u32, // of packed sequences the longest
    seq_k: u32,
    total_q: u32, // rows of packed sequences, all together
    total_k: u32,

    // The slice of it that this dispatch computes.
    first_batch: u32,
    first_head: u32,
    first_row: u32,
    batches: u32,
    heads: u32,
    rows: u32,
    row_tiles: u32,

    // Workgroups, folded into x and y because one dimension holds only 65535 of them. A dispatch may have a few
    // more than there is work for. Three counts, because the naive kernel has three passes.
    groups_x: u32,
    groups_x_softmax: u32,
    groups_x_output: u32,
    groups_x_classes: u32,

    // Classes of mask tiles: words from one batch, head and row tile to the next, see classes.wgsl.
    class_batch: u32,
    class_head: u32,
    class_words: u32,

    // Position of row 0 among the keys, and the distances from a row's position at which it sees keys.
    offset: i32,
    min_distance: i32,
    max_distance: i32,
    keep_first: u32,

    // scale / temperature * log2(e): the factor on q that makes exp2 the softmax's exponential. With a soft cap, which is in natural
    // units, it is scale / temperature / softcap.
    factor: f32,
    softcap: f32,

    // Sections of the stats and tables bindings, in elements.
    lse: u32,
    entropy: u32,
    row_max: u32,
    cu_seqlens_q: u32,
    cu_seqlens_k: u32,
    documents_q: u32,
    documents_k: u32,
    q_len: u32,
    kv_len: u32,
    offsets: u32,
    temperature: u32,
    alibi_slopes: u32,
    sinks: u32,
    ssmax: u32,
    user: u32,
    user_params: u32,
    dropout: u32,

    // Of 65536 draws those that keep a weight, and what is kept is multiplied by.
    dropout_kept: u32,
    dropout_scale: f32,

    // Passes over the keys before the last one, at most.
    passes: u32,
    top_k: u32,

    // Adaptive temperature: the polynomial in a row's entropy, and from where on it is taken.
    adapt_4: f32,
    adapt_3: f32,
    adapt_2: f32,
    adapt_1: f32,
    adapt_0: f32,
    adapt_above: f32,

    // Added to the scores of sigmoid attention, in natural units.
    sigmoid_bias: f32,

    // Normalised q and k, see qk_norm.wgsl.
    q_gain: u32,
    k_gain: u32,
    norm_eps: f32,

    // The multiplier that depends on the row, see sharpness.wgsl.
    length_coef: f32,
    length_floor: u32,

    // What is added to batch, head and row for user code, whose indices are the whole problem's: the place of this slice in it, also where
    // the problem is itself a part of another.
    user_batch: u32,
    user_head: u32,
    user_row: u32,
    // Passes of the gradient are told more: shaders/backward/params.wgsl goes here.
}

@group(0) @binding(0) var<uniform> params: Params;
