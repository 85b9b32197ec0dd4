/** Sizes of a problem. */
export interface Shape {
    /** Independent sequences. 1 where left out. */
    batch?: number;
    /** Query heads. */
    qHeads: number;
    /** Key/value heads: `qHeads` (where left out) for multi-head, fewer for grouped-query, 1 for multi-query attention.
     *  Query head h reads head h / (qHeads / kvHeads). */
    kvHeads?: number;
    /** Query rows. */
    seqQ: number;
    /** Keys. `seqQ` where left out. */
    seqK?: number;
    /** Numbers in a row of q and k: at least 1, no upper bound and no multiple-of-4 rule. */
    headDimQk: number;
    /** Numbers in a row of v and out. `headDimQk` where left out. */
    headDimV?: number;
}

/** Where a row's position is: `i + offset`. `"bottomRight"`: offset seqK - seqQ, the last query sees the last key, what decoding with
 *  a cache needs. `"bottomRightValid"`: offset kvLen - qLen of each batch. `"topLeft"`: offset 0, as PyTorch and JAX have it. A number: that offset. An Int32Array: (batch) offsets. */
export type Alignment = "bottomRight" | "bottomRightValid" | "topLeft" | number | Int32Array;

/** How numbers are stored on the device. Arithmetic is f32 whatever it is. */
export type DType = "f32" | "f16" | "bf16";

/** Memory order: (batch, head, seq, dim), or (batch, seq, head, dim). */
export type Layout = "bhsd" | "bshd";

/** (batch, qHeads, seqQ, seqK), each its size or 1, which is broadcast. */
export type Broadcast = [number, number, number, number];

/** Options of attention. Each that is left out is off and costs nothing. They combine freely. */
export interface Options {
    /** The number that multiplies q.k: a finite number, or `{ perHeadDim: c }` for c / headDimQk. 1 / sqrt(headDimQk) where left
     *  out (arXiv 1706.03762). */
    scale?: number | { perHeadDim: number };
    /** The number that divides the scaled score, finite and above 0: below 1 the softmax is sharper, above 1 flatter. One number,
     *  or one for each query head, (qHeads), or for each row, (batch, qHeads, seqQ). */
    temperature?: number | Float32Array | { perRow: Float32Array };
    /** A temperature for each row from the entropy of its own weights, a polynomial of degree 4, highest power first (arXiv 2410.01104).
     *  `true` for the paper's. */
    adaptiveTemperature?: true | { coefficients?: Float32Array; above?: number };
    /** Divides each row of q and k by its length first: the Euclidean one, or the root of the mean square plus eps. Gains, of
     *  (headDimQk) or (heads, headDimQk), multiply what is left (arXiv 2010.04245, 1910.07467). */
    qkNorm?: { kind: "l2" | "rms"; eps?: number; qGain?: Float32Array; kGain?: Float32Array };
    /** A multiplier of the score that grows with the context. `ssmax`: Scalable-Softmax, one s for each query head (arXiv
     *  2501.19399). `logTrainLen`: max(1, ln n / ln train_len). `llama4`: 1 + coef ln(floor((position + 1) / floor) + 1).
     *  `yarn`: (0.1 ln factor + 1)^2. */
    lengthScale?:
        | { ssmax: Float32Array }
        | { logTrainLen: number }
        | { llama4: { coef: number; floor: number } }
        | { yarn: number };
    /** A causal mask, with its alignment spelled out: query i sees key j where j <= i + offset. */
    causal?: Alignment;
    /** Where positions are, for windows and ALiBi without a causal mask. */
    alignment?: Alignment;
    /** A sliding window around each row's position, both ends inclusive: keys from `left` before it to `right` after it (all where
     *  left out), and the first `keepFirst` keys of all. */
    window?: { left?: number; right?: number; keepFirst?: number };
    /** Packed sequences: where each begins in q, (batch + 1), the last being the end of all. `seqQ` is then the longest. */
    cuSeqlensQ?: Uint32Array;
    /** The same for k and v, and `seqK`. */
    cuSeqlensK?: Uint32Array;
    /** Valid queries per batch, (batch): rows from there on are padding, and their answers are 0. */
    qLen?: Uint32Array;
    /** Valid keys per batch, (batch): keys from there on are hidden and may hold anything. */
    kvLen?: Uint32Array;
    /** Documents, or other groups: a row sees the keys that have its own number. (batch, seqQ) and (batch, seqK). */
    documents?: { q: Int32Array; k: Int32Array };
    /** A dense mask, 1 where the row attends to the key: a byte for each pair, or 8 pairs a byte, lowest bit first. */
    mask?: { data: Uint8Array; sizes: Broadcast; format?: "bytes" | "bits" };
    /** A soft cap on the score, cap tanh(score / cap): finite and above 0 (arXiv 2408.00118). */
    softcap?: number;
    /** Added to the score; -Infinity hides a key. */
    bias?: { data: Float32Array; sizes: Broadcast; dtype?: DType };
    /** ALiBi (arXiv 2108.12409): minus slope |position - j|. `true` for the paper's slopes, or slopes of your own, (qHeads). */
    alibi?: boolean | Float32Array;
    /** A logit in the denominator that belongs to no key, so that a row may attend to nothing: `"zero"` ("softmax off by one"), or
     *  one for each query head, (qHeads). */
    sink?: "zero" | Float32Array;
    /** Only the k largest scores of a row stay: at least 1. */
    topK?: number;
    /** What makes weights of a row's scores: a softmax where left out, sparsemax, 1.5-entmax, or a sigmoid of each score plus a bias (arXiv
     *  2409.04431), a number, -ln(seqK) or -ln(visible keys). */
    normalizer?: "softmax" | "sparsemax" | "entmax15" | { sigmoid: number | "minusLogSeqK" | "minusLogVisible" };
    /** Dropout on the weights: a probability from 0, below 1, and the numbers that say which weights stay. */
    dropout?: { rate: number; seed: number; offset?: number };
    /** Memory order, one for all or one for each tensor: (batch, head, seq, dim), or (batch, seq, head, dim). `"bhsd"` where left out. */
    layout?: Layout | { q?: Layout; k?: Layout; v?: Layout; out?: Layout };
    /** Storage on the device, one for all or one for each tensor. Float32Arrays are rounded on their way. */
    dtype?: DType | { q?: DType; k?: DType; v?: DType; out?: DType };
    /** Asks for the log-sum-exp of each row, the sink's included: -Infinity for a row that sees no key. */
    lse?: boolean;
    /** Asks for the entropy of each row's weights, in nats: 0 for a row that sees no key. */
    entropy?: boolean;
    /** Asks for the largest score of each row. */
    rowMax?: boolean;
    /** A function of the score of your own, in WGSL (docs/user-code.md), after the soft cap and before bias and masks:
     *  `fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32`. It may read numbers of `user`. */
    scoreMod?: string;
    /** A mask of your own, combined with the others by AND:
     *  `fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool`. */
    maskMod?: string;
    /** The numbers that `param_f32(n)` and `param_u32(n)` give to these functions. */
    user?: Float32Array | Uint32Array;
    /** The kernel. The planner chooses where left out. */
    kernel?: string;
}

/** What is to be computed, with its inputs. */
export interface AttentionArguments {
    /** Queries: (batch, qHeads, seqQ, headDimQk). */
    q: Float32Array;
    /** Keys: (batch, kvHeads, seqK, headDimQk). */
    k: Float32Array;
    /** Values: (batch, kvHeads, seqK, headDimV). */
    v: Float32Array;
    shape: Shape;
    options?: Options;
}

export interface AttentionResult {
    /** (batch, qHeads, seqQ, headDimV); 0 in rows that see no key. */
    out: Float32Array;
    /** (batch, qHeads, seqQ), where asked for: natural log of the sum of exp(score). */
    lse?: Float32Array;
    /** (batch, qHeads, seqQ), where asked for: entropy of the weights, in nats. */
    entropy?: Float32Array;
    /** (batch, qHeads, seqQ), where asked for: the largest score of a key. */
    rowMax?: Float32Array;
    /** The variant that ran. */
    kernel: string;
    /** Why the planner chose it. */
    reason: string;
}

export interface ScoresArguments extends AttentionArguments {
    /** How far the score has come: `"raw"` (scaled q.k), `"capped"`, `"biased"` (with bias and masks, -Infinity where hidden), or
     *  `"probs"`, the attention weights (where left out). */
    stage?: "raw" | "capped" | "biased" | "probs";
    /** 0 where left out. */
    batch?: number;
    /** 0 where left out. */
    head?: number;
    /** `[first, end]`; all where left out. */
    rows?: [number, number];
}

/** A forward pass, and the gradients that come in from behind it. Its options must ask for nothing that has no gradient: packed sequences,
 *  adaptive temperature, topK, qkNorm, user code, dropout and normalizers other than the softmax. */
export interface GradientsArguments extends AttentionArguments {
    /** (batch, qHeads, seqQ): the lse of the forward pass. */
    lse: Float32Array;
    /** The gradient of out, in its layout. */
    dOut: Float32Array;
    /** (batch, qHeads, seqQ): the gradient of lse, where it is used too. */
    dLse?: Float32Array;
    /** Asks for the gradient of the bias, of its sizes: where it is broadcast, the sum. */
    ofBias?: boolean;
    /** Asks for the gradient of the sinks, (qHeads). */
    ofSinks?: boolean;
    /** Asks for the gradient of the temperature: (1), (qHeads) or (batch, qHeads, seqQ), as the options have it. */
    ofTemperature?: boolean;
}

/** Gradients: of k and v the sum over the query heads that read them. */
export interface Gradients<Numbers = Float32Array> {
    dq: Numbers;
    dk: Numbers;
    dv: Numbers;
    dBias?: Numbers;
    dSinks?: Numbers;
    dTemperature?: Numbers;
}

/** Rows for a softmax. */
export interface SoftmaxArguments {
    /** (rows, rowLength). -Infinity takes an element out. */
    x: Float32Array;
    /** Elements of a row: at least 1. */
    rowLength: number;
    /** exp(x / t) / sum exp(x / t) where left out; its logarithm; or one of those that give exact zeros (arXiv 1602.02068, 1905.05702). */
    kind?: "softmax" | "logSoftmax" | "sparsemax" | "entmax15";
    /** The t that x is divided by, above 0: one number (1 where left out), or one for each row. */
    temperature?: number | Float32Array;
    /** Asks for the log-sum-exp of each row. Not for sparse kinds. */
    lse?: boolean;
    /** Asks for the entropy of each row, in nats. Not for sparse kinds. */
    entropy?: boolean;
    /** Asks for the place of each row's largest element, the lowest of equal ones: 2^32 - 1 in a row of -Infinity alone. */
    argmax?: boolean;
}

export interface SoftmaxResult {
    /** (rows, rowLength): 0 (-Infinity of logSoftmax) in a row of -Infinity alone. */
    out: Float32Array;
    lse?: Float32Array;
    entropy?: Float32Array;
    argmax?: Uint32Array;
}

/** What is done to logits before a token is drawn. Each step sees the tokens that those before it have left. */
export type SamplingStep =
    /** Divides by it: 0 leaves only the largest logit. */
    | { temperature: number }
    /** The k largest, exactly k; 0 is off. */
    | { topK: number }
    /** The largest until their probabilities make p, the token that crosses p included (arXiv 1904.09751); 1 is off. */
    | { topP: number }
    /** The tokens with at least p times the largest probability (arXiv 2407.01082); 0 is off. */
    | { minP: number }
    /** The tokens whose surprise is nearest to the entropy, until their probabilities make p (arXiv 2202.00666); 1 is off. */
    | { typical: number }
    /** The tokens within n deviations of the largest logit (arXiv 2411.07641); 0 is off. */
    | { topNSigma: number }
    /** Divides by low + (high - low) (entropy / ln n)^exponent; exponent is 1 where left out. */
    | { dynamicTemperature: { low: number; high: number; exponent?: number } }
    /** Penalties on the tokens of `history`: repetition divides (1 is off), frequency is subtracted for each time, presence once. */
    | { penalties: { repetition?: number; frequency?: number; presence?: number } }
    /** Adds `bias`. */
    | { logitBias: true }
    /** Leaves only the tokens that `allowed` has. */
    | { allowed: true };

/** Tokens to draw: a token is a function of its row's logits, the chain, seed and offset, the same on every device. */
export interface SampleArguments {
    /** (rows, vocab). */
    logits: Float32Array;
    /** Logits of a row: 1 to 2^23 - 1. */
    vocab: number;
    /** Steps in their order. */
    chain?: SamplingStep[];
    /** (rows): seeds. Needed unless `greedy`. */
    seeds?: Uint32Array;
    /** A number of the draw, such as the place of the token in its text: never use one twice with a seed. 0 where left out. */
    offset?: number;
    /** Takes the largest in place of a random token. */
    greedy?: boolean;
    /** Asks for the log-probability of each token in the distribution that it was drawn from. */
    logProbs?: boolean;
    /** (rows, as many for each): tokens of the text so far, 2^32 - 1 where there is none. */
    history?: Uint32Array;
    /** (rows, as many for each): tokens and what is added to their logits; -Infinity takes one out. */
    bias?: { tokens: Uint32Array; values: Float32Array };
    /** (rows, vocab / 32 rounded up): a bit for each token, the lowest first. */
    allowed?: Uint32Array;
}

export interface Draws {
    /** A token for each row; null where every token was out. */
    tokens: (number | null)[];
    logProbs?: Float32Array;
}

/** An answer in float64, with a bound on the error of an f32 kernel for each number. */
export interface Bounded {
    value: Float64Array;
    bound: Float64Array;
}

export interface Truth {
    out: Bounded;
    lse: Bounded;
    entropy: Bounded;
    rowMax: Bounded;
}

/** Facts about the adapter, as far as the browser tells them. */
export interface Info {
    name: string;
    driver: string;
    kind: string;
    backend: string;
    features: string[];
    limits: Record<string, number>;
}

export interface Choice {
    /** The variant. */
    kernel: string;
    /** Why. */
    reason: string;
    /** Dispatches that the problem is cut into. */
    slices: number;
    workgroupBytes: number;
    /** All of it, for people. */
    text: string;
}

export interface CaseReport {
    name: string;
    /** Whether every number was within the case's tolerance. */
    passes: boolean;
    /** What the case asks for that this version cannot compute. Such a case does not pass. */
    missing: string[];
    /** The kernel that ran, if one did. */
    kernel?: string;
    maxAbs: number;
    maxRel: number;
    /** Why it failed. */
    failure?: string;
}

/** What is thrown: an `Error` that says which field breaks which rule. */
export interface AttentionError extends Error {
    name: "AttentionError";
    kind:
        | "Value" | "HeadsNotMultiple" | "Length" | "Missing" | "Unused" | "Unknown" | "Incompatible" | "LimitExceeded" | "KernelUnavailable"
        | "UserCode" | "Driver" | "OutOfMemory" | "DeviceLost" | "NoAdapter" | "Case" | "Other";
    /** The field, option or limit. */
    field?: string;
    /** What was found. */
    value?: string;
    /** What is allowed, or what to do. */
    rule?: string;
}

/** A GPU device with the shaders compiled so far, kept between calls. Any number of calls may be on their way at once. */
export class AttentionContext {
    private constructor();
    /** Asks the browser for a device: the limits that help, or WebGPU's default limits.
     *  @throws AttentionError of kind NoAdapter where there is no WebGPU or no adapter. */
    static create(options?: { defaultLimits?: boolean }): Promise<AttentionContext>;
    /** Exact attention: softmax(cap(q k^T * scale / temperature) + bias + mask) v, with options.
     *  @throws AttentionError */
    attention(args: AttentionArguments): Promise<AttentionResult>;
    /** The scores or weights of some rows of one head, (rows, seqK). A slow path, with as much memory as there are scores.
     *  @throws AttentionError */
    scores(args: ScoresArguments): Promise<Float32Array>;
    /** Gradients of attention, that of the temperature among them.
     *  @throws AttentionError */
    gradients(args: GradientsArguments): Promise<Gradients>;
    /** Softmax over rows of any length.
     *  @throws AttentionError */
    softmax(args: SoftmaxArguments): Promise<SoftmaxResult>;
    /** Draws a token for each row of logits.
     *  @throws AttentionError */
    sample(args: SampleArguments): Promise<Draws>;
    /** Which kernel would run and why, without running it.
     *  @throws AttentionError */
    plan(args: { shape: Shape; options?: Options }): Choice;
    /** Computes a case file (docs/case-format.md) and compares the result with the expected one.
     *  @throws AttentionError where the file cannot be read */
    checkCase(file: Uint8Array, options?: { kernel?: string }): Promise<CaseReport>;
    /** Measures the adapter's ceilings, for about so many seconds (1 where left out), and gives what measures problems. */
    benchmark(options?: { seconds?: number }): Promise<Benchmark>;
    /** The adapter. */
    info(): Info;
    /** Resolves when the device is gone. Make a new context then. */
    readonly lost: Promise<{ reason: "destroyed" | "unknown"; message: string }>;
    /** Gives the device back; calls on their way fail with kind DeviceLost. */
    destroy(): void;
    /** Frees the memory of this object. (A garbage collector does it too.) */
    free(): void;
}

/** Measures the presets of `wgpu-attention bench`, and makes reports of its form (docs/benchmarking.md). */
export class Benchmark {
    private constructor();
    /** A report with the machine and its ceilings and without rows. */
    report(): Record<string, unknown> & { rows: BenchmarkRow[] };
    /** The problems of a preset. */
    problems(preset: "quick" | "models" | "sweep"): string[];
    /** Checks one problem against float64, then takes its time, for about so many seconds (0.3 where left out).
     *  @throws AttentionError */
    row(args: { preset: "quick" | "models" | "sweep"; number: number; kernel?: string; seconds?: number }): Promise<BenchmarkRow>;
    free(): void;
}

/** One kernel on one problem. The shape is batch, query heads, key/value heads, queries, keys, head dim. */
export interface BenchmarkRow {
    name: string;
    shape: [number, number, number, number, number, number];
    causal: boolean;
    kernel: string;
    variant: string;
    /** Median time of a call. */
    ms: number;
    gflops: number;
    gb_s: number;
    /** Share of the lowest ceiling, and which that is. */
    share: number;
    limit: "compute" | "exp2" | "memory";
    [more: string]: unknown;
}

/** The right answer, in float64 on the processor, with the error bound of f32: for checking a device.
 *  @throws AttentionError */
export function reference(args: AttentionArguments): Truth;

/** The scores or weights of one head in float64, (rows, seqK), as `AttentionContext.scores` computes them.
 *  @throws AttentionError */
export function referenceScores(args: ScoresArguments): Bounded;

/** The right gradients in float64, with bounds.
 *  @throws AttentionError */
export function referenceGradients(args: GradientsArguments): Gradients<Bounded>;

/** The right softmax in float64, with bounds; lse and entropy are empty for sparse kinds.
 *  @throws AttentionError */
export function referenceSoftmax(args: SoftmaxArguments): { out: Bounded; lse: Bounded; entropy: Bounded; argmax: Uint32Array };

/** The tokens that every device has to draw, computed on the processor.
 *  @throws AttentionError */
export function referenceSample(args: SampleArguments): Draws;

/** The inputs in a case file. Without `shape` where it is no attention that this version can compute.
 *  @throws AttentionError */
export function readCase(file: Uint8Array): {
    name: string;
    shape?: Required<Shape>;
    q?: Float32Array;
    k?: Float32Array;
    v?: Float32Array;
    causal?: boolean;
    kvLen?: Uint32Array;
    tokens?: (string[] | null)[];
};
