"""A server under test: started on free ports of the loopback, stopped by SIGTERM."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # what ctest takes for "skipped"
START_SECONDS = 120
STOP_SECONDS = 60


class ServerProcess:
    """Used in a with statement. `port` and `metrics_port` are those that the server picked."""

    def __init__(self, binary: str, model_dir: str, flags: tuple[str, ...] = ()) -> None:
        self._folder = tempfile.mkdtemp(prefix="eddy-e2e-")
        port_file = os.path.join(self._folder, "ports.json")
        self.log_path = os.path.join(self._folder, "log")
        self._log = open(self.log_path, "w")
        # Nothing from the surroundings may change the server's settings.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EDDY_")}
        self._process = subprocess.Popen(
            [binary, f"--model_dir={model_dir}", "--listen=127.0.0.1:0",
             "--metrics_listen=127.0.0.1:0", f"--port_file={port_file}", "--drain_delay=0",
             "--drain_timeout=10s", *flags],
            stderr=self._log, env=environment)
        try:
            ports = self._wait_for_ports(port_file)
        except BaseException:
            self.stop()
            raise
        self.port: int = ports["listen"]
        self.metrics_port: int = ports["metrics_listen"]

    def _wait_for_ports(self, port_file: str) -> dict[str, int]:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}: {self.log()}")
            if os.path.exists(port_file):
                try:
                    return json.loads(pathlib.Path(port_file).read_text())
                except json.JSONDecodeError:
                    pass  # half written
            time.sleep(0.02)
        raise RuntimeError(f"no ports after {START_SECONDS} s: {self.log()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def resident_bytes(self) -> int:
        """Memory that the server holds now."""
        pages = pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        return pathlib.Path(self.log_path).read_text()[-4000:]

    def scrape(self) -> str:
        """The page that Prometheus reads."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def metric(self, series: str) -> float:
        """The value of a series, written as on the page: name{label="value",...}."""
        for line in self.scrape().splitlines():
            if line.rpartition(" ")[0] == series:
                return float(line.rpartition(" ")[2])
        raise KeyError(series)

    def stop(self) -> int:
        """Ends the server as an orchestrator would; its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        return self._process.returncode

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def wait_until(condition, seconds: float = 30.0) -> bool:
    """Whether `condition` came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
