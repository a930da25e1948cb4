#!/usr/bin/python3
"""Keeps the house in order: include arrows, lengths, tests beside sources, forbidden words.

Prints one line per fault, `path:line: what`, and exits 1 if there is any. Reads the files that git
knows or would add. Exceptions are in the tables below, each with its reason.
"""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# folder -> folders whose headers it may include. The longest prefix of a path decides.
ARROWS: dict[str, tuple[str, ...]] = {
    "base": ("base",),
    "kernels": ("kernels", "base/check.h"),
    "engine": ("engine", "kernels", "base"),
    "server/text": ("server/text", "base"),
    "server/client": ("server/client", "proto", "base", "engine/inspect.h"),
    "server": ("server", "server/text", "engine", "proto", "base", "kernels/sampling.h",
               "kernels/device.h"),
    "loadtest": ("loadtest", "proto", "base"),
    "tests": ("base", "kernels", "engine", "server", "server/text", "server/client", "loadtest",
              "proto", "tests"),
}
# Libraries whose headers are included in quotes.
LIBRARIES = ("absl/", "google/protobuf/", "grpc/", "grpcpp/", "nlohmann/", "openssl/")
SOURCES = (".cc", ".h", ".cu", ".cuh")
FILE_LINES = 400
FUNCTION_LINES = 70
KERNEL_LINES = 150  # functions in .cu and .cuh
# path or path:function -> reason
LONG_ALLOWED: dict[str, str] = {}
# Beginning of the paths of .cc files whose headers no test includes -> the test that proves them.
TESTED_BY: dict[str, str] = {
    "engine/adapters/": "tests/engine/model_config_test.cc",
    "engine/safetensors_header.cc": "tests/engine/safetensors_test.cc",
    "engine/tensor_files.cc": "tests/engine/weights_test.cc",
    "engine/weight_plan.cc": "tests/engine/weights_test.cc",
    "kernels/cpu/": "tests/kernels/cpu_test.cc",
    "kernels/bench/": "tests/gpu.sh",
    "kernels/cuda/gemm_lt.cc": "tests/kernels/cuda/gemm_test.cc",
    "kernels/cuda/layer_types_cuda.cc": "tests/gpu.sh",
    "kernels/cuda/plugin.cc": "tests/engine/open_device_test.cc",
    "kernels/ends/sampler/host_lists_cuda.cc": "tests/kernels/cuda/sampler_test.cu",
    "kernels/layers/delta/delta_projection_cuda.cc": "tests/kernels/cuda/delta_layer_test.cc",
    "kernels/ends/sampler/filters.cc": "tests/kernels/sampler_test.cc",
    "kernels/layers/mlp/": "tests/kernels/mlp_layer_test.cc",
    "loadtest/call.cc": "tests/loadtest/summary_test.cc",
    "loadtest/main.cc": "tests/loadtest/options_test.cc",
    "server/client/": "tests/server/client/client_test.cc",
    "server/patient_accept.cc": "tests/e2e/binary_test.cc",
    "server/thread_stacks.cc": "tests/e2e/binary_test.cc",
    "server/main.cc": "tests/e2e/start_faults.py",
    "server/errors.cc": "tests/e2e/errors_test.cc",
    "server/checks.cc": "tests/server/convert_generate_test.cc",
    "server/generation_service.cc": "tests/e2e/generate_test.cc",
    "server/model_service.cc": "tests/e2e/lifecycle_test.cc",
    "server/session_service.cc": "tests/e2e/errors_test.cc",
    "server/health.cc": "tests/e2e/lifecycle_test.cc",
    "server/grpc_server.cc": "tests/e2e/lifecycle_test.cc",
    "server/rpc.cc": "tests/e2e/errors_test.cc",
    "server/token_stream.cc": "tests/e2e/cancel_test.cc",
    "server/unary_reply.cc": "tests/e2e/generate_test.cc",
    "server/port_file.cc": "tests/e2e/start_faults.py",
}
FORBIDDEN = [
    (re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"), "a note to do later; open an issue instead"),
    (re.compile(r"(^|[^A-Za-z0-9_.])/(work|home|root)/[a-z.]"), "a path of some machine"),
    (re.compile(r"#\s*if(def|ndef)?\b.*\b(EDDY_CUDA|__CUDACC__|EDDY_DEVICE)"),
     "a branch on devices outside cmake/"),
]


def tracked() -> list[str]:
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(p for p in out.split("\0") if p and (ROOT / p).is_file())


def home(path: str) -> str | None:
    """The room of ARROWS that `path` is in."""
    rooms = [room for room in ARROWS if path.startswith(room + "/")]
    return max(rooms, key=len) if rooms else None


def include_faults(path: str, lines: list[str]) -> list[str]:
    room = home(path)
    if room is None:
        return []
    faults = []
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not match:
            continue
        target = match.group(1)
        if target.startswith(("eddy/v1/", "google/rpc/", "grpc/health/v1/")):
            target_room = "proto"
        elif target.startswith(LIBRARIES):
            if room == "kernels":
                faults.append(f"{path}:{number}: kernels/ takes no {target}")
            continue
        else:
            target_room = home(target)
            if target_room is None or not (ROOT / target).is_file():
                faults.append(f"{path}:{number}: {target} is not a path from the root")
                continue
        if target_room not in ARROWS[room] and target not in ARROWS[room]:
            faults.append(f"{path}:{number}: {room} may not include {target}")
    return faults


def strip_code(text: str) -> str:
    """`text` with comments, strings and character literals blanked; line breaks stay."""
    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group(0))
    pattern = (r'R"(?P<d>[^(\s]{0,16})\(.*?\)(?P=d)"|//[^\n]*|/\*.*?\*/'
               r'|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])*\'')
    return re.sub(pattern, blank, text, flags=re.S)


NOT_A_FUNCTION = re.compile(
    r"^\s*(?:inline\s+)?(namespace|class|struct|union|enum|extern|if|for|while|switch|do|else|try)\b")


def functions(text: str) -> list[tuple[str, int, int]]:
    """(name, first line, lines) of every function body, by counting braces."""
    code = strip_code(text)
    found: list[tuple[str, int, int]] = []
    stack: list[tuple[str | None, int]] = []  # name if it is a function, first line
    head, line = "", 1
    for char in code:
        if char == "\n":
            line += 1
        if char == "{":
            inside = any(name is not None for name, _ in stack)
            statement = re.sub(r"^\s*#[^\n]*\n", "", head, flags=re.M).strip()
            name = None
            if not inside and ")" in statement and not NOT_A_FUNCTION.match(statement):
                before = re.match(r"[^(]*?([~\w:<>=+\-*/&|!\[\]]+)\s*\(", statement, re.S)
                name = before.group(1) if before else "?"
            stack.append((name, line))
            head = ""
        elif char == "}":
            if stack:
                name, first = stack.pop()
                if name is not None:
                    found.append((name, first, line - first + 1))
            head = ""
        elif char == ";":
            head = ""
        else:
            head += char
    return found


def length_faults(path: str, text: str) -> list[str]:
    faults = []
    lines = text.count("\n")
    if lines > FILE_LINES and path not in LONG_ALLOWED:
        faults.append(f"{path}:1: {lines} lines, the limit is {FILE_LINES}")
    if path.endswith(SOURCES):
        limit = KERNEL_LINES if path.endswith((".cu", ".cuh")) else FUNCTION_LINES
        for name, first, length in functions(text):
            if length > limit and f"{path}:{name}" not in LONG_ALLOWED:
                faults.append(f"{path}:{first}: {name} has {length} lines, the limit is {limit}")
    return faults


def test_faults(paths: list[str]) -> list[str]:
    """Every .cc of the product has a test that includes its header, or an entry in TESTED_BY.

    A back end's file (foo_cpu.cc, foo_cuda.cc, foo_chunk_cpu.cc) is behind the header of what it implements.
    """
    included = set()
    for path in paths:
        if path.startswith("tests/") and path.endswith((".cc", ".h")):
            included |= set(re.findall(r'#include "([^"]+)"', (ROOT / path).read_text()))
    faults = []
    for path in paths:
        if not path.endswith(".cc") or path.startswith(("tests/", *TESTED_BY)):
            continue
        stem = path.removesuffix(".cc")
        for back_end in ("_cpu", "_cuda", "_chunk"):
            stem = stem.removesuffix(back_end)
        if stem + ".h" not in included and path.removesuffix(".cc") + ".h" not in included:
            faults.append(f"{path}:1: no test includes {stem}.h")
    for begin, test in TESTED_BY.items():
        if test not in paths or not any(path.startswith(begin) for path in paths):
            faults.append(f".ci/check_tree.py:1: the entry {begin} -> {test} names what is not there")
    return faults


def main() -> int:
    paths = tracked()
    faults = test_faults(paths)
    for path in paths:
        if not path.endswith(SOURCES + (".py", ".sh", ".md", ".cmake", ".txt", ".proto", ".json")):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        lines = text.splitlines()
        if path.endswith(SOURCES):
            faults += include_faults(path, lines)
            if path.endswith((".h", ".cuh")) and "#pragma once" not in text:
                faults.append(f"{path}:1: no #pragma once")
        if path.endswith(SOURCES + (".py", ".sh")):
            faults += length_faults(path, text)
        if text and not text.endswith("\n") and not path.startswith("tests/golden/"):
            faults.append(f"{path}:{len(lines)}: no line break at the end")
        if path == ".ci/check_tree.py":
            continue
        for pattern, why in FORBIDDEN:
            faults += [f"{path}:{n}: {why}" for n, line in enumerate(lines, 1)
                       if pattern.search(line)]
    print("\n".join(faults) if faults else f"tree: {len(paths)} files in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
