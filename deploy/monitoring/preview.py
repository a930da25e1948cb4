"""Draws the dashboard's panels, with what a Prometheus answered, into one picture; a look at the queries
without Grafana. Positions are those of the dashboard."""
from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import FuncFormatter, MultipleLocator  # noqa: E402

COLUMNS = 24
CELL = (0.62, 0.36)  # inches of one cell of Grafana's grid
STEP = 1.0


def scaled(value: float, steps: list[tuple[float, str]]) -> str:
    for bound, name in steps:
        if abs(value) >= bound:
            return f"{value / bound:.3g} {name}".rstrip()
    return f"{value:.3g}"


FORMATS = {
    "s": lambda v: scaled(v, [(1, "s"), (1e-3, "ms"), (1e-6, "µs")]) if v else "0",
    "bytes": lambda v: scaled(v, [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]),
    "percentunit": lambda v: f"{100 * v:.3g} %",
    "reqps": lambda v: f"{v:.3g}/s",
    "short": lambda v: scaled(v, [(1e9, "G"), (1e6, "M"), (1e3, "k")]),
}


def draw_lines(axes: Axes, panel: dict, drawn: list) -> None:
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    floor: dict[float, float] = {}
    for legend, (_, points) in drawn:
        times = np.array([t for t, _ in points])
        values = np.array([v for _, v in points])
        if stacked:
            below = np.array([floor.get(t, 0.0) for t in times])
            axes.fill_between(times, below, below + values, alpha=0.35, label=legend)
            floor |= dict(zip(times, below + values))
        else:
            # A gap of the query is a gap of the line.
            gaps = np.nonzero(np.diff(times) > 1.5 * STEP)[0] + 1
            axes.plot(np.insert(times, gaps, times[gaps] - STEP), np.insert(values, gaps, np.nan),
                      linewidth=1.2, label=legend, clip_on=False)
    # A line at 0 is drawn, on the axis.
    axes.set_ylim(bottom=0, top=None if axes.dataLim.y1 > 0 else 1)
    if drawn:
        axes.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False,
                    handlelength=1.2, columnspacing=1.0, labelspacing=0.2)


def draw_stat(axes: Axes, panel: dict, drawn: list) -> None:
    points = drawn[0][1][1]
    axes.fill_between([t for t, _ in points], [v for _, v in points], alpha=0.15)
    axes.set_ylim(bottom=0, top=2.2 * max(v for _, v in points) or 1)
    axes.set_axis_off()
    axes.text(0.5, 0.62, FORMATS[panel["fieldConfig"]["defaults"]["unit"]](points[-1][1]),
              transform=axes.transAxes, ha="center", va="center", fontsize=16)


def draw_heatmap(axes: Axes, panel: dict, drawn: list) -> None:
    """Cumulative buckets to counts per bucket; bounds lie evenly, as Grafana has them."""
    rows = sorted(((float(series[0]["le"]), dict(series[1])) for _, series in drawn),
                  key=lambda row: row[0])
    times = sorted({t for _, row in rows for t in row})
    cumulative = np.array([[row.get(t, 0.0) for t in times] for _, row in rows])
    counts = np.diff(cumulative, axis=0, prepend=0)
    axes.pcolormesh(times, range(len(rows)), np.where(counts > 0, counts, np.nan), cmap="Blues",
                    shading="nearest")
    ticks = range(0, len(rows), 4)
    axes.set_yticks(ticks, ["∞" if np.isinf(rows[i][0]) else FORMATS["s"](rows[i][0]) for i in ticks])


def draw_table(axes: Axes, panel: dict, drawn: list) -> None:
    axes.set_axis_off()
    for i, (legend, _) in enumerate(drawn):
        axes.text(0.02, 0.85 - 0.12 * i, legend, transform=axes.transAxes, fontsize=8)


DRAWERS = {"stat": draw_stat, "heatmap": draw_heatmap, "table": draw_table, "timeseries": draw_lines}


def draw(dashboard: dict, drawn: dict[int, list], path: str) -> None:
    panels = dashboard["panels"]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels)
    start = min(points[0][0] for series in drawn.values() for _, (_, points) in series)
    figure = plt.figure(figsize=(COLUMNS * CELL[0], height * CELL[1]))
    drawn = {i: [(legend, (labels, [(t - start, v) for t, v in points]))
                 for legend, (labels, points) in series] for i, series in drawn.items()}
    for panel in panels:
        at = panel["gridPos"]
        left, top = at["x"] / COLUMNS, 1 - at["y"] / height
        if panel["type"] == "row":
            figure.text(left + 0.005, top - 0.75 / height, panel["title"], fontsize=13, weight="bold")
            continue
        small = panel["type"] in ("stat", "table")
        axes = figure.add_axes((
            left + (0.2 if small else 1.0) / COLUMNS, top - (at["h"] - (0.3 if small else 2.2)) / height,
            (at["w"] - (0.4 if small else 1.3)) / COLUMNS, (at["h"] - (1.3 if small else 3.2)) / height))
        unit = panel["fieldConfig"]["defaults"]["unit"]
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _, unit=unit: FORMATS[unit](v)))
        DRAWERS[panel["type"]](axes, panel, drawn[panel["id"]])
        if unit == "bytes" and axes.dataLim.y1 > 1 << 20:
            axes.yaxis.set_major_locator(MultipleLocator(2 ** np.floor(np.log2(axes.dataLim.y1 / 3))))
        axes.set_title(panel["title"], fontsize=10, loc="left")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t:.0f} s"))
        axes.tick_params(labelsize=8)
        axes.set_xlim(left=0)
        axes.grid(True, linewidth=0.3)
    figure.savefig(path, dpi=72)
    plt.close(figure)
