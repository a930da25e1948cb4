#!/usr/bin/env python3
"""Proves the report and the capacity page, with nothing but Python.

Each report in loadtest/reports is what report.py makes of the results beside it, its plots are
well-formed pictures that show every kind of run, and a results file that is broken is refused with
what it lacks. CAPACITY.md has the tables of capacity.py, which grow as they should.
"""
from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "loadtest/reports/kaczmarz-tales-2-cores"
SCRIPT = ROOT / "loadtest/report.py"


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True,
                          cwd=ROOT, check=False)


class Report(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name) / "report.html"
        self.results = Path(folder.name) / "results.jsonl"

    def test_is_what_the_script_makes_of_the_results(self) -> None:
        folders = [path.parent for path in sorted(REPORT.parent.glob("*/arguments"))]
        self.assertIn(REPORT, folders)
        for folder in folders:
            with self.subTest(folder.name):
                made = run(*(folder / "arguments").read_text().splitlines(), "--out", self.out)
                self.assertEqual(made.returncode, 0, made.stderr)
                self.assertEqual(self.out.read_text(), (folder / "report.html").read_text())

    def test_has_plots_with_lines(self) -> None:
        plots = re.findall(r"<svg.*?</svg>", (REPORT / "report.html").read_text(), re.S)
        self.assertEqual(len(plots), 10)
        for plot in plots:
            tree = ElementTree.fromstring(plot)
            lines = tree.findall("{http://www.w3.org/2000/svg}polyline")
            self.assertGreaterEqual(len(lines), 1, plot[:400])
            for line in lines:
                for pair in line.get("points", "").split():
                    x, y = map(float, pair.split(","))
                    self.assertTrue(0 <= x <= 560 and 0 <= y <= 340, pair)

    def test_says_what_was_not_measured(self) -> None:
        closed = (REPORT / "throughput.jsonl").read_text()
        self.results.write_text(closed)
        self.assertEqual(run(SCRIPT, "--out", self.out, self.results).returncode, 0)
        self.assertIn("not measured in this run", self.out.read_text())

    def test_refuses_results_that_lack_something(self) -> None:
        first = json.loads((REPORT / "chat.jsonl").read_text().splitlines()[0])
        for change, told in (({"schema_version": 2}, "schema_version"),
                             ({"p99_ttft_ms": None}, "TypeError")):
            self.results.write_text(json.dumps(first | change))
            refused = run(SCRIPT, "--out", self.out, self.results)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(told, refused.stderr)
        del first["p99_ttft_ms"]
        self.results.write_text(json.dumps(first))
        self.assertIn("p99_ttft_ms", run(SCRIPT, "--out", self.out, self.results).stderr)
        self.results.write_text("\n")
        self.assertIn("no results", run(SCRIPT, "--out", self.out, self.results).stderr)


class Capacity(unittest.TestCase):
    def test_page_has_the_tables_of_the_script(self) -> None:
        checked = run("deploy/capacity.py", "--check", "deploy/CAPACITY.md")
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_page_with_another_figure_is_refused(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".md") as page:
            text = (ROOT / "deploy/CAPACITY.md").read_text()
            page.write(text.replace("5,201 | 15 |", "5,201 | 16 |"))
            page.flush()
            self.assertEqual(run("deploy/capacity.py", "--check", page.name).returncode, 1)

    def test_follows_the_formulas(self) -> None:
        spec = importlib.util.spec_from_file_location("capacity", ROOT / "deploy/capacity.py")
        capacity = importlib.util.module_from_spec(spec)
        sys.modules["capacity"] = capacity
        spec.loader.exec_module(capacity)
        device = capacity.Device("d", memory_bytes=1000, bytes_per_s=100, flop_per_s=10)
        model = capacity.Model("m", parameters=5, weight_bytes=50, state_bytes=10)
        traffic = capacity.Traffic(itl_ms=2000, memory_fraction=0.5, workspace_bytes=50, ring=1,
                                   host_share=0.5, fixed_s=0, prompt_tokens=2, new_tokens=4)
        self.assertEqual(capacity.slots(device, model, traffic), 40)  # (500 - 50 - 50) / 10
        # (50 + 2 x 10 x b) / 100 / 0.5 within 2 s: b = 2.5
        self.assertEqual(capacity.streams(device, model, traffic), 2)
        self.assertAlmostEqual(capacity.step_s(device, model, traffic, 2), 1.8)
        # Four tokens at 1.8 / 2 s, and 2 x 5 x 2 operations at 10 a second.
        self.assertAlmostEqual(capacity.calls_per_s(device, model, traffic), 1 / (3.6 + 2))
        self.assertEqual(capacity.replicas(1.0, 0.5, traffic), 4)  # 1 / 0.35, up, and one
        # 0.1 calls/s of 4 tokens: b = 0.4 x (1 + 0.4 b)
        self.assertAlmostEqual(capacity.open_streams(0.1, 1, 0.4, traffic), 0.4 / (1 - 0.16))


if __name__ == "__main__":
    unittest.main()
