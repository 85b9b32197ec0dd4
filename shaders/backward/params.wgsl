    // The gradient that comes in, and the one that a pass writes (or reads again): dq, dk or dv.
    @align(16) dout: View,
    grad: View,
    dout_dim: u32,
    grad_dim: u32,

    // Sizes of the bias, and so of its gradient.
    bias_batches: u32,
    bias_heads: u32,
    bias_rows: u32,
    bias_keys: u32,

    // What this dispatch does: items start to end of its pass, a workgroup or a thread for each.
    start: u32,
    end: u32,

    // Elements of the tables, which come first in what is kept, and of all that is kept.
    tables: u32,
    // 1 / temperature, where it is a number.
    inverse_temperature: f32,
