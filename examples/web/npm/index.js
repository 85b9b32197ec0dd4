// The package: loads the wasm file that lies beside it, and keeps one context for whoever does not want to think about it.
import init, { AttentionContext } from "./wgpu_attention.js";

await init();

export * from "./wgpu_attention.js";

let shared;

/** Attention on a device that is asked for at the first call and kept. A lost device is replaced at the next call. */
export async function attention(args) {
  shared ??= AttentionContext.create().then((context) => {
    context.lost.then(() => (shared = undefined));
    return context;
  });
  const mine = shared;
  try {
    return await (await mine).attention(args);
  } catch (error) {
    if (shared === mine && (error.kind === "DeviceLost" || error.kind === "NoAdapter")) shared = undefined;
    throw error;
  }
}
