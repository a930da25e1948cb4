"""A real Prometheus that scrapes a server under test: started on a free port of the loopback, its data in
a folder that goes with it."""
from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PROGRAM = ROOT / "build" / "tools" / "prometheus"
START_SECONDS = 60
STEP_SECONDS = 1
# What Grafana would put for $__rate_interval: four times the interval between scrapes, or more.
RATE_INTERVAL = "10s"
CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 2s}
rule_files: [%s]
scrape_configs:
  - job_name: eddy
    static_configs:
      - targets: ["127.0.0.1:%d"]
        labels: {namespace: test, pod: eddy-0}
"""

Points = list[tuple[float, float]]
Series = tuple[dict[str, str], Points]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ScratchPrometheus:
    """Used in a with statement."""

    def __init__(self, target_port: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="eddy-prometheus-"))
        config = self._folder / "prometheus.yml"
        config.write_text(CONFIG % (FOLDER / "rules.yaml", target_port))
        self._port = free_port()
        self._log = open(self._folder / "log", "w")
        self._process = subprocess.Popen(
            [PROGRAM, f"--config.file={config}", f"--storage.tsdb.path={self._folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn"],
            stderr=self._log, stdout=self._log)
        end = time.monotonic() + START_SECONDS
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end:
                log = (self._folder / "log").read_text()[-3000:]
                self.stop()
                raise RuntimeError(f"Prometheus did not start: {log}")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def get(self, path: str, **parameters: object) -> object:
        """The data of an answer of the HTTP API; a fault in the query raises with Prometheus's words."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error).get("error", str(error))) from None

    def range(self, expr: str, start: float, end: float) -> list[Series]:
        """The series of a query with the points that are numbers; series without any are left out."""
        data = self.get("query_range", query=expr, start=start, end=end, step=STEP_SECONDS)
        found = []
        for result in data["result"]:
            points = [(float(t), float(v)) for t, v in result["values"] if math.isfinite(float(v))]
            if points:
                found.append((result["metric"], points))
        return found

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "ScratchPrometheus":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
