#!/usr/bin/env python3
"""How many replicas so many users need, from formulas and measured ceilings.

    deploy/capacity.py                                the tables of CAPACITY.md
    deploy/capacity.py --check deploy/CAPACITY.md     exits with 1 if the page has other tables
    deploy/capacity.py --write deploy/CAPACITY.md     puts them there
    deploy/capacity.py --period 60 --itl-ms 30        for other users, or another promise

The formulas, their words and the sources of the ceilings are in CAPACITY.md.
"""
from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- begin of deploy/capacity.py -->", "<!-- end of deploy/capacity.py -->"
USERS = (1_000, 10_000, 100_000, 1_000_000)
MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Device:
    name: str
    memory_bytes: float
    bytes_per_s: float  # attained by decode steps, not the data sheet's
    flop_per_s: float   # attained by prefill


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    weight_bytes: float
    state_bytes: float  # of one sequence


@dataclass(frozen=True)
class Traffic:
    period_s: float = 120      # from one call of a user to the next
    prompt_tokens: float = 161
    new_tokens: float = 338
    itl_ms: float = 50         # promised time between tokens
    use: float = 0.7           # of what a replica can do, so that lines stay short
    memory_fraction: float = 0.9
    workspace_bytes: float = 2 * GIB
    ring: float = 0.6          # share of the state's traffic that a ring of 16 leaves; 1 without
    host_share: float = 0.07   # of a step, spent outside the device
    fixed_s: float = 0.7e-3      # of a step, whatever its streams: launches, head, sampling


H200 = Device("H200", 141e9, 0.55 * 4.8e12, 0.44 * 989e12)
MODELS = (
    Model("KDA 400M (23 layers of 8 x 128 x 128)", 400e6, 0.8e9, 11.5 * MIB),
    Model("KDA 1.3B (24 layers of 16 x 128 x 128)", 1.3e9, 2.6e9, 24 * MIB),
    Model("GDN 1.3B (21 layers of 6 x 256 x 512)", 1.3e9, 2.6e9, 63 * MIB),
)
# Measured, not computed: BENCHMARKS.md, the bundled model on two cores.
CPU_NAME, CPU_STREAMS, CPU_STATE_BYTES = "kaczmarz-tales", 32, 523264
CPU_TOKENS_PER_S, CPU_ALONE_TOKENS_PER_S = 5201.0, 996.0


def step_s(device: Device, model: Model, traffic: Traffic, streams: float) -> float:
    """One token of every stream: weights once, each state read and written."""
    moved = model.weight_bytes + streams * 2 * traffic.ring * model.state_bytes
    return (moved / device.bytes_per_s + traffic.fixed_s) / (1 - traffic.host_share)


def slots(device: Device, model: Model, traffic: Traffic) -> int:
    free = (traffic.memory_fraction * device.memory_bytes - model.weight_bytes
            - traffic.workspace_bytes)
    return max(0, math.floor(free / model.state_bytes))


def streams(device: Device, model: Model, traffic: Traffic) -> int:
    """As many as have a slot and keep the promised time between tokens."""
    on_device = traffic.itl_ms / 1e3 * (1 - traffic.host_share) - traffic.fixed_s
    budget = on_device * device.bytes_per_s - model.weight_bytes
    return min(slots(device, model, traffic),
               max(0, math.floor(budget / (2 * traffic.ring * model.state_bytes))))


def calls_per_s(device: Device, model: Model, traffic: Traffic) -> float:
    """Of one replica that is always full: prompts and answers take turns on the device."""
    full = streams(device, model, traffic)
    decode = traffic.new_tokens * step_s(device, model, traffic, full) / full
    prefill = traffic.prompt_tokens * 2 * model.parameters / device.flop_per_s
    return 1 / (decode + prefill)


def replicas(rate: float, one: float, traffic: Traffic) -> int:
    """And one more, so that one may be drained or lost."""
    return math.ceil(rate / (traffic.use * one)) + 1


def per_device_table(traffic: Traffic) -> list[str]:
    rows = [f"| model on one {H200.name} | state of a stream | slots | streams at {traffic.itl_ms:g} ms"
            " | ITL when full | tokens/s | calls/s |", "| --- |" + " ---: |" * 6]
    for model in MODELS:
        full = streams(H200, model, traffic)
        step = step_s(H200, model, traffic, full)
        rows.append(f"| {model.name} | {model.state_bytes / MIB:g} MiB | "
                    f"{slots(H200, model, traffic):,} | {full:,} | {step * 1e3:.1f} ms | "
                    f"{full / step:,.0f} | {calls_per_s(H200, model, traffic):,.0f} |")
    rows.append(f"| {CPU_NAME} on two cores, measured | {CPU_STATE_BYTES / MIB:.2g} MiB | "
                f"{CPU_STREAMS} | {CPU_STREAMS} | {CPU_STREAMS / CPU_TOKENS_PER_S * 1e3:.1f} ms | "
                f"{CPU_TOKENS_PER_S:,.0f} | {CPU_TOKENS_PER_S / traffic.new_tokens:,.0f} |")
    return rows


def size(value: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value / 1e3:.3g} kB"


def open_streams(rate: float, fixed_s: float, each_s: float, traffic: Traffic) -> float:
    """Little's law, rate x time of a call, where a step of b streams takes fixed_s + b * each_s."""
    tokens_per_s = rate * traffic.new_tokens
    return tokens_per_s * fixed_s / (1 - tokens_per_s * each_s)


def known_replicas(traffic: Traffic) -> list[tuple[str, float, float, float, float]]:
    """(name, calls/s, bytes of state, fixed and per-stream seconds of a step) of one replica."""
    known = []
    for model in MODELS:
        fixed = step_s(H200, model, traffic, 0)
        known.append((model.name.split(" (")[0], calls_per_s(H200, model, traffic),
                      model.state_bytes, fixed, step_s(H200, model, traffic, 1) - fixed))
    # Of the measured one from its figures with one stream and with all.
    each = (CPU_STREAMS / CPU_TOKENS_PER_S - 1 / CPU_ALONE_TOKENS_PER_S) / (CPU_STREAMS - 1)
    known.append((f"{CPU_NAME}, two cores", CPU_TOKENS_PER_S / traffic.new_tokens, CPU_STATE_BYTES,
                  1 / CPU_ALONE_TOKENS_PER_S - each, each))
    return known


def users_table(traffic: Traffic) -> list[str]:
    rows = ["| users | calls/s | model | replicas | open streams of each | states at rest, all users "
            "| between replicas, all | host to device and back, each |",
            "| ---: | ---: | --- |" + " ---: |" * 5]
    for users in USERS:
        rate = users / traffic.period_s
        for name, one, state, fixed, each in known_replicas(traffic):
            count = replicas(rate, one, traffic)
            streams_each = open_streams(rate / count, fixed, each, traffic)
            rows.append(f"| {users:,} | {rate:,.0f} | {name} | {count:,} | {streams_each:,.1f} | "
                        f"{size(users * state)} | {size(rate * state * (count - 1) / count)}/s | "
                        f"{size(2 * rate / count * state)}/s |")
    return rows


def tables(traffic: Traffic) -> str:
    return "\n".join([BEGIN, "", *per_device_table(traffic), "", *users_table(traffic), "", END])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    plain = Traffic()
    parser.add_argument("--period", type=float, default=plain.period_s, help="seconds, per user")
    parser.add_argument("--prompt-tokens", type=float, default=plain.prompt_tokens)
    parser.add_argument("--new-tokens", type=float, default=plain.new_tokens)
    parser.add_argument("--itl-ms", type=float, default=plain.itl_ms)
    parser.add_argument("--ring", type=float, default=plain.ring)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    made = tables(Traffic(args.period, args.prompt_tokens, args.new_tokens, args.itl_ms,
                          ring=args.ring))
    page = args.check or args.write
    if page is None:
        print(made)
        return 0
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        print(f"{page}: no place for the tables", file=sys.stderr)
        return 1
    wanted = text[:text.index(BEGIN)] + made + text[text.index(END) + len(END):]
    if args.write:
        page.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        print(f"{page}: other tables than capacity.py makes; --write renews them", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
