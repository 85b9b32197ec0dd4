// What somebody writes with the package's declarations. It is compiled and not run (types.test.js).
import { AttentionContext, attention, reference, referenceSample } from "../../../target/web/site/package/index.js";
import type { AttentionArguments, AttentionError, Options, Shape } from "../../../target/web/site/package/index.js";

const x = new Float32Array(2 * 8 * 4);
const shape: Shape = { qHeads: 2, seqQ: 8, headDimQk: 4 };
const options: Options = {
  causal: "bottomRight", temperature: { perRow: new Float32Array(16) }, window: { left: 3 }, layout: { q: "bshd" }, sink: "zero", dtype: "f16",
  mask: { data: new Uint8Array(64), sizes: [1, 1, 8, 8] }, normalizer: { sigmoid: "minusLogSeqK" },
};
const args: AttentionArguments = { q: x, k: x, v: x, shape, options };
const { out, kernel, lse } = await attention(args);
const numbers: Float32Array = out;
const name: string = kernel;
const sum: number | undefined = lse?.[0];
const bound: Float64Array = reference(args).out.bound;

const context = await AttentionContext.create({ defaultLimits: true });
const { dq, dTemperature } = await context.gradients({ ...args, lse: new Float32Array(16), dOut: x, ofTemperature: true });
const gradient: Float32Array = dq;
const { argmax } = await context.softmax({ x, rowLength: 8, kind: "sparsemax", argmax: true });
const { tokens } = await context.sample({ logits: x, vocab: 8, seeds: new Uint32Array(8), chain: [{ topK: 4 }, { penalties: { presence: 1 } }, { allowed: true }] });
const token: number | null = tokens[0];
const twin: (number | null)[] = referenceSample({ logits: x, vocab: 8, greedy: true }).tokens;
context.lost.then(({ reason }: { reason: "destroyed" | "unknown" }) => reason);
try {
  // @ts-expect-error: an option that nobody knows
  await attention({ ...args, options: { temprature: 1 } });
  // @ts-expect-error: q is missing
  await attention({ k: x, v: x, shape });
  // @ts-expect-error: contexts are made by create
  new AttentionContext();
  // @ts-expect-error: a step with a name that is none
  await context.sample({ logits: x, vocab: 8, greedy: true, chain: [{ topQ: 1 }] });
} catch (error) {
  const { kind, field } = error as AttentionError;
  console.log(kind === "OutOfMemory", field);
}
export { argmax, bound, dTemperature, gradient, name, numbers, sum, token, twin };
