#!/usr/bin/env python3
"""Times flash-linear-attention's Triton kernels on the shapes that our benches time.

Needs a GPU, PyTorch, Triton and the package fla-core (0.5.2 was used). One line for each case:
its name, the median time of a call from Python, and that of a call in a CUDA graph's replay, both
in milliseconds; calls below about 0.1 ms from Python measure Python. Inputs are random, bf16 but
for the gates and the states, which are fp32; queries and keys come normalised. Calls take turns on
several sets of inputs, so that together they do not fit into the second cache.

Usage: fla_peer.py [part of a name ...]
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla.ops.gla import chunk_gla
from fla.ops.kda import chunk_kda, fused_recurrent_kda
from fla.ops.simple_gla import chunk_simple_gla

Inputs = dict[str, torch.Tensor]
CACHE_BYTES = 60 << 20


def draw(
    function: Callable[..., object],
    batch: int,
    rows: int,
    heads: int,
    key: int,
    value: int,
    vector: bool,
) -> Inputs:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    gate = (batch, rows, heads, key) if vector else (batch, rows, heads)
    inputs = {
        "q": F.normalize(normal(batch, rows, heads, key), dim=-1).bfloat16(),
        "k": F.normalize(normal(batch, rows, heads, key), dim=-1).bfloat16(),
        "v": normal(batch, rows, heads, value).bfloat16(),
        "beta": normal(batch, rows, heads).sigmoid(),
        "g": -0.1 * torch.rand(*gate, device="cuda"),
        "initial_state": normal(batch, heads, key, value),
    }
    if function in (chunk_gla, chunk_simple_gla):  # these write every key whole
        del inputs["beta"]
    return inputs


def bytes_of(inputs: Inputs) -> int:
    return sum(x.numel() * x.element_size() for x in inputs.values())


def median_ms(call: Callable[[], object], runs: int, per_call: int) -> float:
    times = []
    for _ in range(runs):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / per_call)
    return statistics.median(times)


def measure(function: Callable[..., object], sets: list[Inputs], runs: int) -> tuple[float, float]:
    def all_sets() -> None:
        for inputs in sets:
            function(**inputs, output_final_state=True)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            all_sets()
    torch.cuda.synchronize()
    eager = median_ms(all_sets, runs, len(sets))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        all_sets()
    return eager, median_ms(graph.replay, runs, len(sets))


# Name, function, batch, rows, heads, K, V, decay per key channel.
CASES = [
    ("GDN decode 8 heads 128x128 B=16", fused_recurrent_gated_delta_rule, 16, 1, 8, 128, 128, False),
    ("GDN decode 8 heads 128x128 B=64", fused_recurrent_gated_delta_rule, 64, 1, 8, 128, 128, False),
    ("GDN decode 8 heads 128x128 B=256", fused_recurrent_gated_delta_rule, 256, 1, 8, 128, 128, False),
    ("GDN decode 8 heads 128x128 B=1024", fused_recurrent_gated_delta_rule, 1024, 1, 8, 128, 128, False),
    ("GDN decode 6 heads 256x512 B=256", fused_recurrent_gated_delta_rule, 256, 1, 6, 256, 512, False),
    ("KDA decode 8 heads 128x128 B=1024", fused_recurrent_kda, 1024, 1, 8, 128, 128, True),
    ("GDN prefill 8 heads 128x128 1 x 2048", chunk_gated_delta_rule, 1, 2048, 8, 128, 128, False),
    ("GDN prefill 8 heads 128x128 1 x 16384", chunk_gated_delta_rule, 1, 16384, 8, 128, 128, False),
    ("GDN prefill 8 heads 128x128 1 x 131072", chunk_gated_delta_rule, 1, 131072, 8, 128, 128, False),
    ("GDN prefill 8 heads 128x128 64 x 2048", chunk_gated_delta_rule, 64, 2048, 8, 128, 128, False),
    ("KDA prefill 8 heads 128x128 1 x 16384", chunk_kda, 1, 16384, 8, 128, 128, True),
    ("KDA prefill 8 heads 128x128 1 x 131072", chunk_kda, 1, 131072, 8, 128, 128, True),
    ("KDA prefill 8 heads 128x128 64 x 2048", chunk_kda, 64, 2048, 8, 128, 128, True),
    ("GLA prefill 4 heads 256x512 1 x 4096", chunk_gla, 1, 4096, 4, 256, 512, True),
    ("GLA prefill 4 heads 256x512 1 x 16384", chunk_gla, 1, 16384, 4, 256, 512, True),
    ("GLA prefill 4 heads 256x512 64 x 2048", chunk_gla, 64, 2048, 4, 256, 512, True),
    ("simple GLA prefill 64 heads 128x64 1 x 4096", chunk_simple_gla, 1, 4096, 64, 128, 64, False),
    ("simple GLA prefill 64 heads 128x64 1 x 16384", chunk_simple_gla, 1, 16384, 64, 128, 64, False),
    ("simple GLA prefill 64 heads 128x64 64 x 2048", chunk_simple_gla, 64, 2048, 64, 128, 64, False),
]


def main() -> int:
    wanted = sys.argv[1:]
    for name, function, batch, rows, heads, key, value, vector in CASES:
        if wanted and not any(part in name for part in wanted):
            continue
        began = time.monotonic()
        shape = (batch, rows, heads, key, value, vector)
        first = draw(function, *shape)
        count = min(8, -(-3 * CACHE_BYTES // bytes_of(first)))
        sets = [first] + [draw(function, *shape) for _ in range(count - 1)]
        with torch.inference_mode():
            eager, graph = measure(function, sets, runs=20)
        print(f"{name:40} {eager:8.4f} {graph:8.4f}  ({time.monotonic() - began:.0f} s)", flush=True)
        del first, sets
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
