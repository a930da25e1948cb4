#!/usr/bin/env python3
"""Drives every RPC with a Python client made by grpcio-tools from proto/, as a stranger would.

Makes a virtual environment and the stubs under build/ once, then runs rpc_test.py in it. Skips when
the packages cannot be had.

usage: python_client.py BIN_DIR [MODEL_DIR [rpc_test.py's arguments]]
"""

import hashlib
import os
import pathlib
import subprocess
import sys

from byte_model import make_byte_model
from server_process import ROOT, SKIPPED

# grpcio's parts go together; google.rpc comes from googleapis-common-protos, so that only eddy/v1 is
# generated: two definitions of one file do not load together.
PACKAGES = (
    "grpcio==1.71.2", "grpcio-tools==1.71.2", "grpcio-status==1.71.2",
    "grpcio-health-checking==1.71.2", "grpcio-reflection==1.71.2",
    "googleapis-common-protos==1.70.0", "protobuf==5.29.5",
)


def make_environment() -> pathlib.Path | None:
    """The Python of an environment that holds PACKAGES; None if they cannot be had."""
    key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    folder = ROOT / "build" / "python-client" / key
    python = folder / "bin" / "python"
    done = folder / "complete"
    if done.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=120)
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
        timeout=600)
    if installed.returncode != 0:
        return None
    done.touch()
    return python


def make_stubs(python: pathlib.Path, out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    protos = sorted(str(p.relative_to(ROOT / "proto")) for p in ROOT.glob("proto/eddy/v1/*.proto"))
    subprocess.run([python, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}",
                    f"--grpc_python_out={out}", *protos], check=True, timeout=120)


def main() -> int:
    bin_dir = os.path.abspath(sys.argv[1])
    model_dir = (os.path.abspath(sys.argv[2]) if len(sys.argv) > 2
                 else make_byte_model(ROOT / "build" / "python-client"))
    python = make_environment()
    if python is None:
        print("skipped: the Python packages cannot be installed")
        return SKIPPED
    stubs = ROOT / "build" / "python-client" / "stubs"
    make_stubs(python, stubs)
    environment = dict(os.environ, PYTHONPATH=str(stubs), BIN_DIR=bin_dir, MODEL_DIR=model_dir)
    test = pathlib.Path(__file__).with_name("rpc_test.py")
    return subprocess.run([python, test, *sys.argv[3:]], env=environment, timeout=540).returncode


if __name__ == "__main__":
    sys.exit(main())
