#!/usr/bin/env python3
"""Writes a model folder of about 400 M parameters with random bfloat16 weights, for benchmarks.

Gated DeltaNet: width 1024, 24 layers, 8 heads of 128, SwiGLU of 2816, 32,000 tokens.
Usage: make_model.py DIR [layers]
"""
import json
import os
import struct
import sys

import numpy as np

WIDTH, LAYERS, HEADS, DIM, MLP, VOCAB, CONV = 1024, 24, 8, 128, 2816, 32000, 4


def shapes(layers):
    inner = HEADS * DIM
    yield "embedding.weight", (VOCAB, WIDTH)
    for i in range(layers):
        mixer, mlp = f"layers.{i}.mixer.", f"layers.{i}.mlp."
        yield f"layers.{i}.mixer_norm.weight", (WIDTH,)
        for name in ("q", "k", "v", "gate"):
            yield f"{mixer}{name}.weight", (inner, WIDTH)
        for name in ("q", "k", "v"):
            yield f"{mixer}{name}_conv.weight", (inner, CONV)
        yield f"{mixer}step.weight", (HEADS, WIDTH)
        yield f"{mixer}decay.weight", (HEADS, WIDTH)
        yield f"{mixer}decay_rate_log", (HEADS,)
        yield f"{mixer}decay_bias", (HEADS,)
        yield f"{mixer}out_norm.weight", (DIM,)
        yield f"{mixer}out.weight", (WIDTH, inner)
        yield f"layers.{i}.mlp_norm.weight", (WIDTH,)
        yield f"{mlp}gate.weight", (MLP, WIDTH)
        yield f"{mlp}up.weight", (MLP, WIDTH)
        yield f"{mlp}down.weight", (WIDTH, MLP)
    yield "final_norm.weight", (WIDTH,)
    yield "head.weight", (VOCAB, WIDTH)


def values(name, shape, random):
    if "norm" in name:
        return np.ones(shape, np.float32)
    if name.endswith("decay_rate_log"):
        return np.log(random.uniform(1, 16, shape)).astype(np.float32)
    if name.endswith("decay_bias"):
        step = np.exp(random.uniform(np.log(1e-3), np.log(0.1), shape))
        return (step + np.log(-np.expm1(-step))).astype(np.float32)
    x = random.standard_normal(shape, np.float32)
    x *= 0.7 / np.sqrt(shape[-1])
    return x


def bfloat16(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def main():
    folder = sys.argv[1]
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else LAYERS
    os.makedirs(folder, exist_ok=True)
    mixer = {"type": "delta", "heads": HEADS, "key_dim": DIM, "value_dim": DIM, "decay": "head",
             "step": "sigmoid", "gate": "silu", "conv_width": CONV}
    config = {"model_type": "eddy", "format": 1, "vocab_size": VOCAB, "hidden_size": WIDTH,
              "norm_eps": 1e-6, "tokens": {"bos": None, "eos": None, "pad": None},
              "tokenizer": None,
              "layers": [{"mixer": mixer, "mlp": {"type": "swiglu", "size": MLP},
                          "repeat": layers}]}
    with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as file:
        json.dump(config, file)
    header, at = {}, 0
    for name, shape in shapes(layers):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(1)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes(layers):
            file.write(bfloat16(np.ascontiguousarray(values(name, shape, random))).tobytes())


if __name__ == "__main__":
    main()
