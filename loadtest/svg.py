"""Line plots as SVG text, without a library: axes with round ticks, lines, a legend."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 28, 44, 84
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7a4fa3", "#8d6a2f")


@dataclass
class Line:
    name: str
    points: list[tuple[float, float]]
    dashed: bool = False
    marks: bool = True


@dataclass
class Plot:
    title: str
    x_label: str
    y_label: str
    lines: list[Line] = field(default_factory=list)
    x_log: bool = False  # base 2
    y_log: bool = False  # base 10

    def svg(self) -> str:
        """The plot, or one that says that nothing was measured."""
        points = [p for line in self.lines for p in self.shown(line)]
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                 f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
                 f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
                 text(LEFT, 20, self.title, size=14, weight="bold")]
        if not points:
            parts.append(text(LEFT, HEIGHT / 2, "not measured in this run"))
            return "\n".join(parts) + "\n</svg>"
        x = Axis([p[0] for p in points], self.x_log, 2)
        y = Axis([p[1] for p in points], self.y_log, 10)
        parts += self.frame(x, y)
        for i, line in enumerate(self.lines):
            parts += self.draw(line, COLOURS[i % len(COLOURS)], x, y)
            parts += legend(i, line, COLOURS[i % len(COLOURS)])
        return "\n".join(parts) + "\n</svg>"

    def shown(self, line: Line) -> list[tuple[float, float]]:
        """Zero has no place on a logarithmic axis."""
        return [(a, b) for a, b in line.points
                if (a > 0 or not self.x_log) and (b > 0 or not self.y_log)]

    def frame(self, x: Axis, y: Axis) -> list[str]:
        parts = []
        for tick in x.ticks():
            at = across(x.share(tick))
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
                         'stroke="#ddd"/>')
            parts.append(text(at, HEIGHT - BOTTOM + 16, number(tick), anchor="middle"))
        for tick in y.ticks():
            at = up(y.share(tick))
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" '
                         'stroke="#ddd"/>')
            parts.append(text(LEFT - 6, at + 4, number(tick), anchor="end"))
        parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 34, self.x_label,
                          anchor="middle"))
        parts.append(text(LEFT, TOP - 8, self.y_label, colour="#555"))
        return parts

    def draw(self, line: Line, colour: str, x: Axis, y: Axis) -> list[str]:
        placed = [(across(x.share(a)), up(y.share(b))) for a, b in self.shown(line)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>']
        if line.marks:
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>'
                      for a, b in placed]
        return parts


class Axis:
    """From values to shares of the plot's side."""

    def __init__(self, values: list[float], log: bool, base: int) -> None:
        self.log, self.base = log, base
        low, high = min(values), max(values)
        if log:
            self.low = math.floor(math.log(low, base) + 1e-9)
            self.high = max(math.ceil(math.log(high, base) - 1e-9), self.low + 1)
        else:
            self.step = round_step(high)
            self.low, self.high = 0.0, max(math.ceil(high / self.step), 1) * self.step

    def share(self, value: float) -> float:
        at = math.log(value, self.base) if self.log else value
        return (at - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.log:
            return [float(self.base) ** i for i in range(int(self.low), int(self.high) + 1)]
        return [i * self.step for i in range(round(self.high / self.step) + 1)]


def round_step(high: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are four to eight ticks."""
    rough = max(high, 1e-9) / 5
    power = 10 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)


def across(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def up(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def legend(i: int, line: Line, colour: str) -> list[str]:
    left, top = LEFT + (i % 3) * 155, HEIGHT - 30 + (i // 3) * 18
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    return [f'<line x1="{left}" x2="{left + 22}" y1="{top}" y2="{top}" stroke="{colour}" '
            f'stroke-width="2"{dash}/>', text(left + 28, top + 4, line.name)]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12,
         weight: str = "normal", colour: str = "#111") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'font-weight="{weight}" fill="{colour}">{escape(words)}</text>')
