#!/usr/bin/env python3
"""One HTML page, plots included, of the results of eddy-loadtest.

    loadtest/report.py --title TEXT --out report.html result.jsonl [more.jsonl ...]

Open-loop runs make the plots against the rate, closed-loop runs those against the open calls; runs of
one point (repeats) are shown by their median. Needs nothing but Python. Exits with 1 if a file holds
no result or lacks a key.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from svg import Line, Plot  # noqa: E402

Run = dict[str, Any]

STYLE = """body{font-family:sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#111}
table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:3px 8px;
text-align:right}th{background:#f3f3f3}.plots{display:flex;flex-wrap:wrap;gap:12px}
td.left,th.left{text-align:left}.bad{background:#fbe3de}"""

DEFINITIONS = """<p>TTFT: from the <em>intended</em> send (open loop) to the first message with a token.
ITL: time between tokens; of a message with several, each has its share. TPOT: (E2E &minus; TTFT) /
(tokens &minus; 1). E2E: intended send to status. Goodput: calls per second within all bounds. Figures
are of the steady window: both ends of each run are cut off. Percentiles are of calls that were answered
in full and read as they came; refused, failed and cancelled calls are counted beside them.</p>"""


def read(paths: list[Path]) -> list[Run]:
    runs = []
    for path in paths:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not lines:
            raise ValueError(f"{path}: no results")
        for number, line in enumerate(lines, 1):
            run = json.loads(line)
            if run.get("schema_version") != 1:
                raise ValueError(f"{path}:{number}: schema_version is not 1")
            runs.append(run)
    return runs


def medians(runs: list[Run], place: str, value: str) -> list[tuple[float, float]]:
    """Points (place, median of value over the runs there), by place; null is no value."""
    by_place: dict[float, list[float]] = {}
    for run in runs:
        if run[value] is None and value == "request_goodput":
            continue
        by_place.setdefault(float(run[place]), []).append(float(run[value]))
    return [(at, statistics.median(values)) for at, values in sorted(by_place.items())]


def open_plots(runs: list[Run]) -> list[Plot]:
    def against_rate(title: str, unit: str, keys: dict[str, str], log: bool = False) -> Plot:
        lines = [Line(name, medians(runs, "request_rate", key)) for name, key in keys.items()]
        return Plot(title, "offered calls per second", unit, lines if runs else [], y_log=log)

    return [
        against_rate("Time to first token", "ms",
                     {"p50": "p50_ttft_ms", "p90": "p90_ttft_ms", "p99": "p99_ttft_ms"}, True),
        against_rate("Time between tokens", "ms",
                     {"p50": "p50_itl_ms", "p99": "p99_itl_ms", "p99.9": "p99.9_itl_ms"}, True),
        against_rate("End to end", "ms", {"p50": "p50_e2el_ms", "p99": "p99_e2el_ms"}, True),
        against_rate("Calls answered", "calls per second",
                     {"offered": "offered_rate", "answered": "request_throughput",
                      "goodput": "request_goodput"}),
        Plot("Throughput and latency", "tokens per second", "ms",
             [Line("TPOT p99", sorted((r["output_throughput"], r["p99_tpot_ms"]) for r in runs)),
              Line("TPOT p50", sorted((r["output_throughput"], r["p50_tpot_ms"]) for r in runs))]),
    ]


def closed_plots(runs: list[Run]) -> list[Plot]:
    """Of the test, by its label, with the most points: the closed loop of a sweep is another."""
    labels = [run["label"] for run in runs]
    runs = [run for run in runs if run["label"] == max(labels, key=labels.count)]
    throughput = medians(runs, "max_concurrency", "output_throughput") if runs else []
    linear = [(at, throughput[0][1] / throughput[0][0] * at) for at, _ in throughput]
    linear = [point for point in linear if point[1] <= 1.3 * max(t for _, t in throughput)]
    tpot = medians(runs, "max_concurrency", "p50_tpot_ms") if runs else []
    return [
        Plot("Tokens per second against open calls (closed loop)", "open calls",
             "tokens per second",
             [Line("measured", throughput), Line("in proportion", linear, dashed=True, marks=False)],
             x_log=True),
        Plot("Tokens per second and call (closed loop)", "open calls", "1 / TPOT p50",
             [Line("measured", [(at, 1000 / ms) for at, ms in tpot if ms > 0])], x_log=True),
    ]


def place_plot(runs: list[Run]) -> Plot:
    """Of a recurrent model it should be flat."""
    chosen = max(runs, key=lambda run: len(run["itl_by_place_ms"]))
    points = [(1.5 * 2 ** i, ms) for i, ms in enumerate(chosen["itl_by_place_ms"]) if ms > 0]
    return Plot("Time between tokens by the token's place", "place in the answer", "ms, mean",
                [Line(name_of(chosen), points)], x_log=True)


def timeline_plots(runs: list[Run]) -> list[Plot]:
    """Of the highest load that the server kept up with, in an open loop if there is one."""
    opened = [run for run in runs if run["loop"] == "open"] or runs
    steady = [run for run in opened if not run["saturated"]] or opened
    chosen = max(steady, key=lambda run: run["output_throughput"])
    timeline = chosen["timeline"]
    series = {key: list(enumerate(map(float, timeline[key]))) for key in timeline}
    return [
        Plot(f"Second by second: {name_of(chosen)}", "seconds", "tokens per second",
             [Line("tokens received", series["tokens"], marks=False)]),
        Plot(f"Second by second: {name_of(chosen)}", "seconds", "calls",
             [Line("open", series["open"], marks=False),
              Line("due in the second", series["offered"], dashed=True, marks=False)]),
    ]


def name_of(run: Run) -> str:
    if run["loop"] == "closed":
        return f"{run['max_concurrency']} open call" + "s" * (run["max_concurrency"] > 1)
    return f"{run['request_rate']:.3g} calls/s" if run["request_rate"] != "inf" else "trace or burst"


COLUMNS = {
    "answered": lambda r: f"{r['completed']}",
    "failed": lambda r: f"{r['failed']}",
    "cancelled": lambda r: f"{r['cancelled']}",
    "calls/s": lambda r: f"{r['request_throughput']:.2f}",
    "goodput": lambda r: "–" if r["request_goodput"] is None else f"{r['request_goodput']:.2f}",
    "tokens/s": lambda r: f"{r['output_throughput']:,.0f}",
    "TTFT p50": lambda r: f"{r['p50_ttft_ms']:.1f}",
    "p90": lambda r: f"{r['p90_ttft_ms']:.1f}",
    "p99": lambda r: f"{r['p99_ttft_ms']:.1f}",
    "ITL p50": lambda r: f"{r['p50_itl_ms']:.2f}",
    "p99 ": lambda r: f"{r['p99_itl_ms']:.2f}",
    "p99.9": lambda r: f"{r['p99.9_itl_ms']:.2f}",
    "TPOT p50": lambda r: f"{r['p50_tpot_ms']:.2f}",
    "E2E p50": lambda r: f"{r['p50_e2el_ms']:.0f}",
    "E2E p99": lambda r: f"{r['p99_e2el_ms']:.0f}",
    "rows/step": lambda r: of_servers(r, "mean_rows_per_step", "{:.1f}"),
    "host share": lambda r: of_servers(r, "host_share", "{:.1%}"),
    "client CPU": lambda r: f"{r['client_cpu_share']:.1%}",
    "sent late p99": lambda r: f"{r['p99_client_queue_ms']:.1f}",
}


def of_servers(run: Run, key: str, form: str) -> str:
    values = [server[key] for server in run["servers"] if key in server]
    return form.format(statistics.mean(values)) if values else "–"


def table(runs: list[Run]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    rows = []
    for run in runs:
        cells = "".join(f"<td>{cell(run)}</td>" for cell in COLUMNS.values())
        mark = ' class="bad"' if run["saturated"] else ""
        rows.append(f'<tr{mark}><td class="left">{escape(name_of(run))}, seed {run["seed"]}</td>'
                    f"{cells}</tr>")
    return (f'<table><tr><th class="left">run (times in ms)</th>{head}</tr>{"".join(rows)}</table>'
            "<p>Coloured: the server could not keep up; open calls and TTFT rose throughout.</p>")


def failures(runs: list[Run]) -> str:
    seen: dict[str, int] = {}
    for run in runs:
        for name, count in run["failures"].items():
            seen[name] = seen.get(name, 0) + count
    if not seen:
        return "<p>No call failed.</p>"
    rows = "".join(f'<tr><td class="left">{escape(name)}</td><td>{count}</td></tr>'
                   for name, count in sorted(seen.items()))
    return f"<table><tr><th class=left>failed calls by code and reason</th><th>calls</th></tr>{rows}</table>"


def setting(runs: list[Run]) -> str:
    run = runs[0]
    known = {"model": f"{run['model_id']} ({run['model_type']}, {run['model_parameters']:,} "
                      f"parameters, {run['model_state_bytes']:,} bytes of state per sequence)",
             "server": f"{run['server_version']}, {run['server_slots']} slots",
             "date": run["date"]}
    for key in ("machine", "server_flags", "client_host", "commit"):
        if key in run:
            known[key.replace("_", " ")] = str(run[key])
    hidden = ("target=", "metrics_url=", "metadata=", "result_filename=", "flagfile=")
    for label in dict.fromkeys(r["label"] for r in runs):
        flags = next(r["flags"] for r in runs if r["label"] == label)
        known[f"flags of {label or 'the test'}"] = " ".join(
            f"--{flag}" for flag in flags if not flag.startswith(hidden))
    rows = "".join(f'<tr><th class="left">{escape(key)}</th><td class="left">{escape(value)}</td></tr>'
                   for key, value in known.items())
    return f"<table>{rows}</table>"


def page(title: str, runs: list[Run], notes: list[str]) -> str:
    opened = [run for run in runs if run["loop"] == "open" and run["request_rate"] != "inf"]
    closed = [run for run in runs if run["loop"] == "closed"]
    plots = open_plots(opened) + closed_plots(closed) + [place_plot(runs)] + timeline_plots(runs)
    drawn = "\n".join(plot.svg() for plot in plots)
    told = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
            f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{told}{setting(runs)}"
            f"<h2>Figures</h2>{table(runs)}{failures(runs)}<h2>Plots</h2>"
            f'<div class="plots">{drawn}</div><h2>Words</h2>{DEFINITIONS}</body></html>\n')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--title", default="Load test")
    parser.add_argument("--note", action="append", default=[], help="a paragraph under the title")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        runs = read(args.results)
        args.out.write_text(page(args.title, runs, args.note), encoding="utf-8")
    except (OSError, ValueError, KeyError) as error:
        print(f"report.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {len(runs)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
