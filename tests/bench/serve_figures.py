#!/usr/bin/env python3
"""Measures a server with serve_bench: speed, what serving costs beside computing, memory.

Prints a table of medians over the repeats, with the best one beside it: other work on the machine
only ever makes a figure worse. Ends with 1 if a median misses its target.

usage: serve_figures.py BIN_DIR MODEL_DIR [REPEATS]
"""

import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from server_process import ServerProcess, wait_until  # noqa: E402

SLOTS = 32
PROMPT = 512  # tokens, of the prompt whose first token is waited for
WAITING = 1000
Figures = dict[str, float]


class Bench:
    """A server and the program that loads it."""

    def __init__(self, bin_dir: str, server: ServerProcess, model: str) -> None:
        self._program = os.path.join(bin_dir, "serve_bench")
        self.server = server
        self._model = model

    def load(self, **flags: int) -> Figures:
        """What serve_bench prints. All answers must be whole."""
        out = subprocess.run(
            [self._program, f"--target=127.0.0.1:{self.server.port}",
             *(f"--{name}={value}" for name, value in flags.items())],
            check=True, capture_output=True, text=True, timeout=600).stdout
        figures = {name: float(value) for name, value in map(str.split, out.splitlines())}
        if figures.get("ended_OK") != flags["requests"] or figures["short_answers"] != 0:
            raise RuntimeError(f"not all answers came: {out}")
        return figures

    def metric(self, name: str) -> float:
        return self.server.metric(f'{name}{{model_name="{self._model}"}}')

    def clocks(self) -> Figures:
        """Seconds so far: of the wall, of the device's work and of the engine beside it, and of the
        processor, for the engine's thread and for all others."""
        engine, total = 0, 0
        for stat in pathlib.Path(f"/proc/{self.server.pid}/task").glob("*/stat"):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            ticks = int(fields[11]) + int(fields[12])  # user and system time
            total += ticks
            engine += ticks if name == "engine" else 0
        return {"wall": time.monotonic(),
                "device": self.metric("eddy_engine_device_wait_seconds_total"),
                "host": self.metric("eddy_engine_host_seconds_total"),
                "engine": engine / os.sysconf("SC_CLK_TCK"),
                "others": (total - engine) / os.sysconf("SC_CLK_TCK")}


def single_stream(bench: Bench) -> Figures:
    one = bench.load(streams=1, requests=8)
    first = bench.load(streams=1, requests=15, prompt_tokens=PROMPT, max_new_tokens=1)
    steps_ms = PROMPT * one["itl_ms_median"]
    return {"one stream, tokens/s": one["tokens_per_second"],
            "one stream, ms between tokens": one["itl_ms_median"],
            "512-token prompt, ms to the first token": first["ttft_ms_median"],
            "512 single steps, ms": steps_ms,
            "the one in parts of the other": first["ttft_ms_median"] / steps_ms}


def full_house(bench: Bench) -> Figures:
    """All slots busy; then twice as many clients, so that the line never runs empty."""
    full = bench.load(streams=SLOTS, requests=4 * SLOTS)
    loader = threading.Thread(
        target=lambda: bench.load(streams=2 * SLOTS, requests=8 * SLOTS))
    loader.start()
    waits = lambda: bench.metric("eddy_num_requests_waiting") > 0  # noqa: E731
    if not wait_until(waits):
        raise RuntimeError("the line is empty")
    before, after = bench.clocks(), None
    while waits():
        after = bench.clocks()
        time.sleep(0.1)
    loader.join()
    if after is None:
        raise RuntimeError("the line ran empty at once")
    wall, device, host, engine, others = (
        after[k] - before[k] for k in ("wall", "device", "host", "engine", "others"))
    return {"32 streams, tokens/s": full["tokens_per_second"],
            "32 streams, ms between tokens": full["itl_ms_median"],
            "time outside the device, share of its time": (wall - device) / device,
            "of this in the engine": host / device,
            "processor time of all other threads, share of the engine's": others / engine}


def waiting_streams(bench: Bench) -> Figures:
    before = bench.server.resident_bytes()
    loader = threading.Thread(
        target=lambda: bench.load(streams=WAITING + SLOTS, requests=WAITING + SLOTS,
                                  max_new_tokens=64))
    loader.start()
    if not wait_until(lambda: bench.metric("eddy_num_requests_waiting") >= WAITING - SLOTS, 60):
        raise RuntimeError("the streams do not wait")
    waiting = bench.metric("eddy_num_requests_waiting")
    resident = bench.server.resident_bytes()
    loader.join()
    return {"per waiting stream, KB": (resident - before) / waiting / 1000}


def memory(bench: Bench) -> Figures:
    resident = bench.server.resident_bytes()
    held = sum(bench.server.metric(f'eddy_device_memory_bytes{{kind="{kind}"}}')
               for kind in ("weights", "state"))
    return {"resident, MB": resident / 1e6, "beside weights and states, MB": (resident - held) / 1e6}


# Name, least or greatest value.
TARGETS = {"one stream, tokens/s": (400, None), "32 streams, tokens/s": (3200, None),
           "the one in parts of the other": (None, 1 / 6),
           "time outside the device, share of its time": (None, 0.1),
           "per waiting stream, KB": (None, 64),
           "loaded: beside weights and states, MB": (None, 60),
           "after work: beside weights and states, MB": (None, 60)}


def table(runs: list[Figures]) -> bool:
    """Prints all figures; whether all targets were met."""
    met = True
    print("| figure | median | best | target |\n| --- | ---: | ---: | ---: |")
    for name in runs[0]:
        values = [run[name] for run in runs]
        median = statistics.median(values)
        least, most = TARGETS.get(name, (None, None))
        best = max(values) if "tokens/s" in name else min(values)
        target = f">= {least:g}" if least else f"<= {most:.3g}" if most else ""
        print(f"| {name} | {median:.4g} | {best:.4g} | {target} |")
        met = met and (least is None or median >= least) and (most is None or median <= most)
    return met


def measure(bin_dir: str, model_dir: str) -> Figures:
    name = pathlib.Path(model_dir).name
    flags = (f"--max_sequences={SLOTS}", "--log_level=warning")
    with ServerProcess(os.path.join(bin_dir, "eddy-server"), model_dir, flags) as server:
        bench = Bench(bin_dir, server, name)
        figures = {f"loaded: {key}": value for key, value in memory(bench).items()}
        bench.load(streams=SLOTS, requests=SLOTS)  # to warm up
        figures |= single_stream(bench) | full_house(bench)
        # Before the waiting streams come, for what they took stays with the allocator.
        figures |= {f"after work: {key}": value for key, value in memory(bench).items()}
        return figures | waiting_streams(bench)


def main() -> int:
    bin_dir, model_dir = (os.path.abspath(path) for path in sys.argv[1:3])
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    runs = []
    for i in range(repeats):
        print(f"run {i + 1} of {repeats}", file=sys.stderr)
        runs.append(measure(bin_dir, model_dir))
    return 0 if table(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
