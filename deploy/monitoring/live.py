#!/usr/bin/env python3
"""Proves that dashboard and rules show something: a real Prometheus scrapes a real server with the
bundled model under mixed load, then every query of every panel and rule is asked. A metric or label
that does not exist, a query with an error, and a panel or rule without a single number fail, but for
the panels of MAY_BE_EMPTY.

usage: live.py BIN_DIR MODEL_DIR [--seconds=30] [--preview=FILE.png]
"""
from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import threading
import time

import yaml

from scratch_prometheus import FOLDER, RATE_INTERVAL, ROOT, ScratchPrometheus, Series

sys.path.insert(0, str(ROOT / "deploy"))
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import facts  # noqa: E402
from server_process import ServerProcess  # noqa: E402

# title -> why it has nothing to show here
MAY_BE_EMPTY: dict[str, str] = {}
# Few slots and a short line, so that calls wait and are refused.
FLAGS = ("--max_sequences=4", "--max_rows_per_step=64", "--max_waiting_requests=4", "--cpu_threads=1")
CLIENTS = 12
WORDS = ("Once upon a time", "The fox said to the crow that", "There was a king who had three sons",
         "In the deep forest lived a bear")
VARIABLES = {"$__rate_interval": RATE_INTERVAL, "$namespace": ".*", "$model_name": ".*", "$pod": ".*"}
SELECTOR = re.compile(r"(?<![\w:$])((?:eddy|grpc_server|process)[_:][\w:]*|up)(\{[^}]*\})?")


class Load:
    """Calls of several kinds from `CLIENTS` threads, with a quiet time at both ends."""

    def __init__(self, bin_dir: str, port: int, seconds: float) -> None:
        self._program = [f"{bin_dir}/eddy"]
        self._flags = [f"--target=127.0.0.1:{port}", "--retries=0"]
        self._start = time.monotonic()
        self._seconds = seconds
        self._seed = random.randrange(1 << 32)
        print(f"monitoring: load of {seconds:.0f} s, seed {self._seed}")
        threads = [threading.Thread(target=self._client, args=(i,)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, number: int) -> None:
        """The first two clients call all the time, the others in the middle of it."""
        draw = random.Random(self._seed + number)
        first, last = (0.0, 1.0) if number < 2 else (0.25, 0.75)
        time.sleep(first * self._seconds)
        while time.monotonic() < self._start + last * self._seconds:
            done = subprocess.run([*self._program, *self._call(draw), *self._flags], timeout=120,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if done.returncode != 0:  # refused: not again at once
                time.sleep(draw.uniform(0.1, 0.5))

    def _call(self, draw: random.Random) -> list[str]:
        prompt = " and ".join(draw.choices(WORDS, k=min(1 + int(draw.paretovariate(1)), 12)))
        kind = draw.random()
        if kind < 0.05:
            return ["generate", "--prompt=x", "--model=none"]  # NOT_FOUND
        if kind < 0.10:
            return ["generate", f"--prompt={prompt}", "--max_new_tokens=500", "--timeout=100ms"]
        if kind < 0.20:
            return ["score", f"--prompt={prompt}"]
        length = min(int(draw.lognormvariate(4.0, 0.7)), 400) + 2
        return ["generate", f"--prompt={prompt}", f"--max_new_tokens={length}",
                "--temperature=0.8", "--ignore_eos=%s" % ("false" if kind < 0.4 else "true")]


def with_values(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


class Check:
    def __init__(self, prometheus: ScratchPrometheus, start: float, end: float) -> None:
        self._prometheus = prometheus
        self._start, self._end = start, end
        self.faults: list[str] = []

    def numbers(self, where: str, expr: str) -> list[Series]:
        try:
            return self._prometheus.range(with_values(expr), self._start, self._end)
        except RuntimeError as error:
            self.faults.append(f"{where}: {error}: {expr}")
            return []

    def selectors(self, where: str, expr: str) -> None:
        """Everything that a query selects exists, label values included."""
        found = SELECTOR.findall(with_values(expr))
        if not found and "vector(" not in expr:
            self.faults.append(f"{where}: selects nothing: {expr}")
        for name, labels in found:
            if not self.numbers(where, name + labels):
                self.faults.append(f"{where}: nothing matches {name}{labels}")

    def panels(self, dashboard: dict) -> dict[int, list[tuple[str, Series]]]:
        """What each panel would draw: legend and series."""
        drawn: dict[int, list[tuple[str, Series]]] = {}
        for panel in dashboard["panels"]:
            if panel["type"] == "row":
                continue
            where = f"panel \"{panel['title']}\""
            drawn[panel["id"]] = []
            for target in panel["targets"]:
                self.selectors(where, target["expr"])
                series = self.numbers(where, target["expr"])
                if not series and panel["title"] not in MAY_BE_EMPTY:
                    self.faults.append(f"{where}: stays empty: {target['expr']}")
                drawn[panel["id"]] += [(legend(target["legendFormat"], s[0]), s) for s in series]
        return drawn

    def rules(self, groups: list[dict]) -> int:
        for rule in (r for g in groups for r in g["rules"]):
            where = f"rule {rule.get('alert') or rule['record']}"
            self.selectors(where, rule["expr"])
            labels = ", ".join(f'{k}="{v}"' for k, v in rule.get("labels", {}).items())
            if "record" in rule and not self.numbers(where, f"{rule['record']}{{{labels}}}"):
                self.faults.append(f"{where}: records nothing: {rule['expr']}")
        for rule in (r for g in self._prometheus.get("rules")["groups"] for r in g["rules"]):
            if rule["health"] != "ok":
                self.faults.append(f"rule {rule['name']}: {rule['health']}: {rule.get('lastError')}")
        return sum(len(g["rules"]) for g in groups)


def legend(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda m: labels.get(m[1], ""), text)


def check_dashboard_shape(dashboard: dict) -> list[str]:
    faults = []
    ids = [p["id"] for p in dashboard["panels"]]
    if len(ids) != len(set(ids)):
        faults.append("dashboard: two panels have one id")
    known = {v["name"] for v in dashboard["templating"]["list"]} | {"__rate_interval"}
    for variable in set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"]))) - known:
        faults.append(f"dashboard: the variable ${variable} is not defined")
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}
        if at["x"] + at["w"] > 24 or cells & taken:
            faults.append(f"dashboard: panel \"{panel['title']}\" lies on another or outside")
        taken |= cells
        if panel["type"] != "row" and not (panel["description"] and panel["targets"]):
            faults.append(f"dashboard: panel \"{panel['title']}\" has no description or no query")
    return faults


def check_names(texts: list[str]) -> list[str]:
    """Metrics that the sources do not register; those of the bundled model may lack others' series."""
    names = facts.metric_names()
    used = {m[0] for text in texts for m in SELECTOR.findall(text) if ":" not in m[0]} - {"up"}
    return [f"{name}: the server registers no such metric" for name in sorted(used)
            if re.sub(r"_(bucket|sum|count)$", "", name) not in names]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir")
    parser.add_argument("model_dir")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--preview")
    options = parser.parse_args()
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    exprs = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])]
    exprs += [r["expr"] for g in groups for r in g["rules"]]
    faults = check_dashboard_shape(dashboard) + check_names(exprs)
    with ServerProcess(f"{options.bin_dir}/eddy-server", options.model_dir, FLAGS) as server, \
            ScratchPrometheus(server.metrics_port) as prometheus:
        start = time.time()
        Load(options.bin_dir, server.port, options.seconds)
        check = Check(prometheus, start, time.time())
        drawn = check.panels(dashboard)
        rules = check.rules(groups)
        if options.preview:
            from preview import draw
            draw(dashboard, drawn, options.preview)
    faults += check.faults
    print("\n".join(faults) if faults else
          f"monitoring: {len(exprs) - rules} queries of {len(drawn)} panels and {rules} rules: all answer")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
