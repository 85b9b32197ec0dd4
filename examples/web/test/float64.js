// Attention in float64, written from the formula and from nothing else: it shares no code with the crate.

/** The tensors of a safetensors file with f32 tensors, and the case's header. */
export function readCase(bytes) {
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length).toString());
  const tensors = {};
  for (const [name, tensor] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, data_offsets: [start, end] } = tensor;
    const data = bytes.subarray(8 + length + start, 8 + length + end);
    const Kind = { F32: Float32Array, I32: Int32Array, U8: Uint8Array }[dtype];
    if (Kind) tensors[name] = new Kind(data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength));
  }
  return { case: JSON.parse(header.__metadata__.case), tensors, names: Object.keys(header) };
}

/** Weights and entropy of one row of one head. `f32`-rounded parameters are the caller's. */
export function row({ q, k, shape, batch, head, i, valid }, { scale, temperature = 1, softcap = null, sink = null, causal = false, window = null, keep = 0 }) {
  const { qHeads, kvHeads, seqQ, seqK, headDimQk: d } = shape;
  const q0 = ((batch * qHeads + head) * seqQ + i) * d;
  const kv = Math.floor(head / (qHeads / kvHeads));
  const scores = [];
  for (let j = 0; j < seqK; j++) {
    const hidden = j >= valid || (causal && j > i) || (window !== null && j >= keep && Math.abs(i - j) >= window);
    if (hidden) {
      scores.push(-Infinity);
      continue;
    }
    const k0 = ((batch * kvHeads + kv) * seqK + j) * d;
    let dot = 0;
    for (let n = 0; n < d; n++) dot += q[q0 + n] * k[k0 + n];
    const score = (dot * scale) / temperature;
    scores.push(softcap === null ? score : softcap * Math.tanh(score / softcap));
  }
  const most = Math.max(...scores, sink ?? -Infinity);
  const exps = scores.map((s) => Math.exp(s - most));
  const total = exps.reduce((a, b) => a + b, 0) + (sink === null ? 0 : Math.exp(sink - most));
  const weights = exps.map((e) => e / total);
  const entropy = weights.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0);
  return { weights, entropy, lse: most + Math.log(total) };
}
