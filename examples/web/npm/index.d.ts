import type { AttentionArguments, AttentionResult } from "./wgpu_attention.js";

export * from "./wgpu_attention.js";

/** Attention on a device that is asked for at the first call and kept; a lost device is replaced at the next call. For more than a
 *  few calls make an `AttentionContext` of your own.
 *  @throws AttentionError */
export function attention(args: AttentionArguments): Promise<AttentionResult>;
