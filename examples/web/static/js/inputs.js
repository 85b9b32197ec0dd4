// Where q, k and v come from: captures of real models, or the visitor's text.

import { readCase } from "../package/index.js";

const CAPTURES = {
  "smollm2-12": {
    file: "real_smollm2_layer12",
    about: "A language model in its middle: causal, three query heads share a key/value head, head dim 64.",
  },
  "smollm2-0": {
    file: "real_smollm2_layer0",
    about: "Its first layer. n=m says that position n holds the same token as position m.",
  },
  "minilm-0": {
    file: "real_minilm_layer0",
    about: "A sentence encoder: every token sees every valid token of its sequence, head dim 32.",
  },
};

const captures = new Map();

/** The input of a source: `{ q, k, v, shape, causal, kvLen, labels, about }`. */
export function input(settings) {
  if (settings.source === "text") return Promise.resolve(text(settings.text, settings.position));
  const { source } = settings;
  if (!captures.has(source)) {
    const loading = capture(CAPTURES[source]);
    captures.set(source, loading);
    // A failed download is tried again next time.
    loading.catch(() => captures.delete(source));
  }
  return captures.get(source);
}

async function capture({ file, about }) {
  const answer = await fetch(new URL(`../cases/${file}.safetensors`, import.meta.url));
  if (!answer.ok) throw new Error(`cannot load ${file}: ${answer.status}`);
  const found = readCase(new Uint8Array(await answer.arrayBuffer()));
  const number = Array.from({ length: found.shape.seqK }, (_, n) => String(n));
  const labels = Array.from({ length: found.shape.batch }, (_, b) => found.tokens[b] ?? number);
  return { ...found, labels, about, words: false };
}

export const DIM = 64;
const MOST = 128;

/** Words and signs of a text. */
export function words(text) {
  return (text.match(/[\p{L}\p{N}\p{M}'’]+|[^\s\p{L}\p{N}\p{M}]/gu) ?? []).slice(0, MOST);
}

/** A word's vector is the sum of one random vector for each three letters in a row ("cats" is ^ca cat ats ts$), so that words with
 *  letters in common are alike; of length √d, so that a word's score with itself is √d at the usual scale. A share of it is the sines and
 *  cosines of its position. q, k and v are all this vector: no model has learned anything here. */
export function text(source, position) {
  const found = words(source);
  const list = found.length > 0 ? found : ["…"];
  const seq = list.length;
  const x = new Float32Array(seq * DIM);
  list.forEach((word, row) => {
    const mixed = embed(word.toLowerCase());
    for (let d = 0; d < DIM; d++) {
      const wave = 1 / 100 ** (Math.floor(d / 2) / (DIM / 2));
      const place = Math.SQRT2 * (d % 2 ? Math.cos(row * wave) : Math.sin(row * wave));
      x[row * DIM + d] = Math.sqrt(1 - position) * mixed[d] + Math.sqrt(position) * place;
    }
  });
  return {
    q: x, k: x, v: x,
    shape: { batch: 1, qHeads: 1, kvHeads: 1, seqQ: seq, seqK: seq, headDimQk: DIM, headDimV: DIM },
    causal: false,
    labels: [list],
    words: true,
    about: `${seq} words. A word's vector is made of its letters, three at a time, by a hash: no model has learned anything here. ` +
      "q, k and v are that vector, so words that share letters attend to each other.",
  };
}

function embed(word) {
  const sum = new Float64Array(DIM);
  const letters = [..."^", ...word, ..."$"];
  for (let n = 0; n + 2 < Math.max(letters.length, 3); n++) {
    const part = letters.slice(n, n + 3).join("");
    for (let d = 0; d < DIM; d++) sum[d] += sign(part, d);
  }
  const length = Math.hypot(...sum) || 1;
  return sum.map((x) => (x / length) * Math.sqrt(DIM));
}

/** 1 or -1, at random but always the same (FNV-1a and a mixer). */
function sign(text, salt) {
  let hash = 0x811c9dc5 ^ Math.imul(salt + 1, 0x9e3779b1);
  for (const c of text) hash = Math.imul(hash ^ c.codePointAt(0), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) & 1 ? 1 : -1;
}
