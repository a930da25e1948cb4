#!/usr/bin/env python3
"""Writes the PrometheusRule of deploy/k8s/components/monitoring from rules.yaml.

usage: make_prometheusrule.py [--check]     --check: only says whether the file is what would be written
"""
from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FILE = FOLDER.parent / "k8s/components/monitoring/prometheusrule.yaml"
HEAD = """# Made from deploy/monitoring/rules.yaml by make_prometheusrule.py.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: eddy
  labels:
    app.kubernetes.io/name: eddy
spec:
"""


def main() -> int:
    rules = (FOLDER / "rules.yaml").read_text()
    body = rules[rules.index("\ngroups:") + 1:]
    text = HEAD + "".join(f"  {line}\n" if line else "\n" for line in body.splitlines())
    if sys.argv[1:] == ["--check"]:
        if FILE.exists() and FILE.read_text() == text:
            return 0
        print(f"{FILE.name}: is not what make_prometheusrule.py writes; run it")
        return 1
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
