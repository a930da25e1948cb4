#!/usr/bin/env python3
"""Proves, without a server, that the rules are well formed and do what their tests say, that every
alert is tested and has its entry in deploy/README.md, that bounds and label values which rules name
exist, and that the files made from others are what would be made. Prints one line per fault; exit status
1 if there is any.

usage: check.py
"""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PROMTOOL = ROOT / "build" / "tools" / "promtool"
sys.path.insert(0, str(ROOT / "deploy"))
import facts  # noqa: E402

TESTS = ("rules_test.yaml", "rules_days_test.yaml")
SEVERITIES = ("page", "ticket")


def program_faults(*line: object) -> list[str]:
    done = subprocess.run([str(w) for w in line], cwd=FOLDER, capture_output=True, text=True)
    words = " ".join(Path(str(w)).name for w in line)
    return [f"{words}: {done.stdout}{done.stderr}".rstrip()] if done.returncode != 0 else []


def alert_faults(groups: list[dict]) -> list[str]:
    """Every alert: tested to fire, written about, of a known severity."""
    cases = [t for name in TESTS for t in yaml.safe_load((FOLDER / name).read_text())["tests"]]
    fired = {c["alertname"] for t in cases for c in t.get("alert_rule_test", []) if c["exp_alerts"]}
    entries = set(re.findall(r"^#+ (Eddy\w+)$", (ROOT / "deploy/README.md").read_text(), re.M))
    alerts = {r["alert"]: r for g in groups for r in g["rules"] if "alert" in r}
    faults = [f"{' and '.join(TESTS)}: no test in which {a} fires" for a in sorted(set(alerts) - fired)]
    faults += [f"deploy/README.md: no entry for {a}" for a in sorted(set(alerts) - entries)]
    faults += [f"deploy/README.md: an entry for {e}, which is no alert" for e in sorted(entries - set(alerts))]
    faults += [f"rules.yaml: {a}: severity is not one of {SEVERITIES}" for a, r in alerts.items()
               if r["labels"].get("severity") not in SEVERITIES]
    return faults


def bucket_bounds(name: str) -> set[float]:
    """Of a histogram, from the server's source."""
    text = (ROOT / "server/metrics.cc").read_text()
    variable = re.search(rf'"{name}",\s*"[^;]*?(k\w+)\);', text, re.S)
    numbers = re.search(rf"const Bounds {variable[1]} = \{{(.*?)\}};", text, re.S)
    return {float(n) for n in numbers[1].replace("\n", " ").split(",")}


def label_faults(groups: list[dict]) -> list[str]:
    faults = []
    for expr in (r["expr"] for g in groups for r in g["rules"]):
        for name, bound in re.findall(r'(\w+)_bucket\{le="([^"]+)"', expr):
            if float(bound) not in bucket_bounds(name):
                faults.append(f"rules.yaml: {bound} is no bound of {name}")
        for known, pattern in ((facts.failure_reasons(), r'reason="([^"]+)"'),
                               (facts.grpc_codes(), r'grpc_code=~"([^"]+)"')):
            for values in re.findall(pattern, expr):
                faults += [f"rules.yaml: {v} is none of the label's values"
                           for v in values.split("|") if v not in known]
    return sorted(set(faults))


def main() -> int:
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    faults = [*program_faults(PROMTOOL, "check", "rules", "rules.yaml"),
              *program_faults(PROMTOOL, "test", "rules", *TESTS),
              *program_faults(sys.executable, "make_dashboard.py", "--check"),
              *program_faults(sys.executable, "make_prometheusrule.py", "--check"),
              *alert_faults(groups), *label_faults(groups)]
    print("\n".join(faults) if faults else "monitoring: rules, their tests and what is made from them hold")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
