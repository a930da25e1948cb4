#!/usr/bin/env python3
"""Proves that a server that cannot start says why on one line that names what is wrong, ends with
status 2, and leaves nothing behind: no port file, nothing on standard output.

usage: start_faults.py BIN_DIR
"""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

from byte_model import make_byte_model
from server_process import ROOT

LOOPBACK = ("--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0")


def last_error(stderr: str) -> str:
    """What the last line says, whether it is a log line or plain text."""
    line = stderr.strip().splitlines()[-1]
    return json.loads(line)["error"] if line.startswith("{") else line


def expect_fault(binary: str, flags: list[str], *words: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        port_file = pathlib.Path(folder) / "ports"
        done = subprocess.run([binary, f"--port_file={port_file}", *flags], capture_output=True,
                              text=True, timeout=60)
        fault = last_error(done.stderr)
        shown = f"{flags}: status {done.returncode}, {done.stderr}"
        assert done.returncode == 2, shown
        assert all(word in fault for word in words), shown
        assert "\n" not in fault and "terminate called" not in done.stderr, shown
        assert done.stdout == "" and not port_file.exists(), shown
        print("refused:", fault)


def broken_models(model: str, parent: pathlib.Path):
    """Folders of models with a fault each, and words of the line that tells it."""
    def copy(name: str) -> pathlib.Path:
        shutil.rmtree(parent / name, ignore_errors=True)
        return pathlib.Path(shutil.copytree(model, parent / name))

    def change_config(name: str, **values) -> pathlib.Path:
        folder = copy(name)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))
        return folder

    folder = copy("no-config")
    (folder / "config.json").unlink()
    yield folder, ("config.json",)
    folder = copy("no-json")
    (folder / "config.json").write_text("{")
    yield folder, ("config.json",)
    yield change_config("unknown-type", model_type="transformer"), ("model_type", "transformer")
    yield change_config("unknown-option", surprise=1), ("config.json", "surprise")
    yield change_config("wrong-shape", hidden_size=72), ("safetensors",)
    folder = copy("no-weights")
    (folder / "model.safetensors").unlink()
    yield folder, ("safetensors",)
    folder = copy("cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    yield folder, ("model.safetensors",)
    folder = copy("no-tokenizer-json")
    (folder / "tokenizer.json").write_text("[]")
    yield folder, ("tokenizer.json",)


def main() -> int:
    binary = f"{sys.argv[1]}/eddy-server"
    parent = ROOT / "build" / "start-faults"
    model = make_byte_model(parent)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("listen", "metrics_listen", "admin_listen"):
            expect_fault(binary, [f"--model_dir={model}", *LOOPBACK, f"--{flag}={address}"],
                         flag, address)
    expect_fault(binary, [f"--model_dir={model}", *LOOPBACK, "--tls_cert_file=x"], "tls_cert_file")
    expect_fault(binary, [f"--model_dir={parent / 'none'}", *LOOPBACK], "model_dir", "none")
    for folder, words in broken_models(model, parent):
        expect_fault(binary, [f"--model_dir={folder}", *LOOPBACK], *words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
