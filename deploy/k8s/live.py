#!/usr/bin/env python3
"""Proves client-service-config.json with gRPC's own balancer: two servers, one channel, calls from four
threads. Both servers get calls; one is told to end as Kubernetes would; from when its health has turned it
gets no further call although it would still take them, and no call of any client fails.

usage: live.py BIN_DIR MODEL_DIR
       live.py --install     makes the environment of tests/e2e/python_client.py, which this runs in
"""
from __future__ import annotations

import collections
import os
import subprocess
import sys
import threading
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
STUBS = ROOT / "build" / "python-client" / "stubs"
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(STUBS)]
import python_client  # noqa: E402
from server_process import ServerProcess, wait_until  # noqa: E402

CLIENTS = 4
SOME, MORE = 10, 40  # calls
CALLS_SECONDS = 30
STARTED = ('grpc_server_started_total{grpc_method="GenerateStream",'
           'grpc_service="eddy.v1.GenerationService",grpc_type="server_stream"}')
# Long enough for all of the test: calls that came to the draining server would be taken.
LEAVING = ("--drain_delay=60s", "--cpu_threads=1")
STAYING = ("--cpu_threads=1",)


class Callers:
    """Threads that call one after another until they are stopped; how each call ended is counted."""

    def __init__(self, ports: list[int]) -> None:
        import grpc
        from eddy.v1 import generation_pb2, generation_pb2_grpc
        config = (FOLDER / "client-service-config.json").read_text()
        target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        channel = grpc.insecure_channel(target, options=[("grpc.service_config", config),
                                                         ("grpc.use_local_subchannel_pool", 1)])
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.GenerateRequest(
            text="Once upon a time", stopping=generation_pb2.StoppingOptions(max_new_tokens=16))
        self.ends: collections.Counter[str] = collections.Counter()
        self._stop = threading.Event()

        def call() -> None:
            while not self._stop.is_set():
                try:
                    collections.deque(stub.GenerateStream(request, timeout=60), maxlen=0)
                    self.ends["OK"] += 1
                except grpc.RpcError as error:
                    self.ends[f"{error.code().name}: {error.details()}"] += 1

        self._threads = [threading.Thread(target=call) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def check(leaving: ServerProcess, staying: ServerProcess, callers: Callers) -> list[str]:
    def started(server: ServerProcess, calls: float) -> bool:
        return wait_until(lambda: server.metric(STARTED) >= calls, CALLS_SECONDS)

    if not (started(leaving, SOME) and started(staying, SOME)):
        return ["the calls are not spread over both servers"]
    subprocess.run(["kill", "-TERM", str(leaving.pid)], check=True)
    if not wait_until(lambda: leaving.metric("eddy_draining") == 1):
        return ["the server does not say that it drains"]
    # Those that were on their way when the news came.
    if not started(staying, staying.metric(STARTED) + SOME):
        return ["the calls do not go on"]
    before = leaving.metric(STARTED)
    if not started(staying, staying.metric(STARTED) + MORE):
        return ["the calls do not go on"]
    if (late := leaving.metric(STARTED) - before) > 0:
        return [f"{late:.0f} calls went to the draining server while {MORE} went to the other"]
    return []


def run(bin_dir: str, model_dir: str) -> int:
    program = f"{bin_dir}/eddy-server"
    with ServerProcess(program, model_dir, LEAVING) as leaving, \
            ServerProcess(program, model_dir, STAYING) as staying:
        callers = Callers([leaving.port, staying.port])
        try:
            faults = check(leaving, staying, callers)
        finally:
            callers.stop()
            # A second signal ends the drain at once.
            subprocess.run(["kill", "-TERM", str(leaving.pid)], check=True)
    faults += [f"{count} calls ended as {end}" for end, count in callers.ends.items() if end != "OK"]
    print("\n".join(f"client-service-config.json: {fault}" for fault in faults) if faults else
          f"k8s: {callers.ends['OK']} calls over two servers, one of which left: none failed")
    return 1 if faults else 0


def main() -> int:
    if "EDDY_LIVE" in os.environ:
        return run(*sys.argv[1:])
    python = python_client.make_environment()
    if python is None:
        sys.exit("k8s: the packages of tests/e2e/python_client.py cannot be installed")
    if sys.argv[1:] == ["--install"]:
        return 0
    python_client.make_stubs(python, STUBS)
    return subprocess.run([python, __file__, *sys.argv[1:]], env=os.environ | {"EDDY_LIVE": "1"},
                          timeout=300).returncode


if __name__ == "__main__":
    sys.exit(main())
