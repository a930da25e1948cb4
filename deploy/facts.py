"""What the sources say and deployments must repeat: flags with defaults and ranges, ports, times, names
of health services and metrics, the version. Read from the text of the sources, so that a check fails
when either side changes; a pattern that no longer matches anything is an error, not an empty answer."""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Flag:
    name: str
    kind: str  # Text, Number, Real, Bool, OneOf, Time, Bytes
    bounds: str  # what stands in the parentheses of the kind
    default: str  # the C++ text; empty for what starts empty


def _text(path: str) -> str:
    return (ROOT / path).read_text()


def _need(found: dict | list | set, what: str):
    if not found:
        raise ValueError(f"found no {what}; the pattern in deploy/facts.py no longer fits the source")
    return found


def flags() -> dict[str, Flag]:
    """Of eddy-server."""
    defaults = dict(re.findall(r"^  [\w:]+ (\w+) = ([^;]+);", _text("server/config.h"), re.M))
    pattern = r'flags->Add\(\s*"(\w+)",\s*&\w+->(\w+),\s*flag::(\w+)\(((?:[^()]|\([^()]*\))*)\)'
    found = {name: Flag(name, kind, bounds, defaults.get(member, "").strip('"'))
             for name, member, kind, bounds in re.findall(pattern, _text("server/config.cc"))}
    calls = len(re.findall(r"flags->Add\(", _text("server/config.cc")))
    if len(found) != calls:
        raise ValueError(f"server/config.cc adds {calls} flags, of which {len(found)} were understood")
    return _need(found, "flags")


UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
CPP_UNITS = {"Seconds": 1.0, "Minutes": 60.0, "Hours": 3600.0}


def seconds(text: str) -> float:
    """Of "1m30s", "5s", "0" and of absl::Minutes(2)."""
    match = re.fullmatch(r"absl::(\w+)\((\d+)\)", text)
    if match:
        return CPP_UNITS[match[1]] * int(match[2])
    if text == "0":
        return 0.0
    parts = re.findall(r"([\d.]+)(ms|s|m|h)", text)
    if not parts or "".join(a + b for a, b in parts) != text:
        raise ValueError(f"{text!r} is no duration")
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def flag_fault(name: str, value: str) -> str | None:
    """What is wrong with --name=value, as far as single flags tell."""
    flag = flags().get(name)
    if flag is None:
        return f"--{name}: eddy-server has no such flag"
    if flag.kind == "Bool" and value not in ("true", "false"):
        return f"--{name}={value}: must be true or false"
    if flag.kind == "OneOf" and value not in re.findall(r'"(\w+)"', flag.bounds):
        return f"--{name}={value}: must be one of {flag.bounds}"
    if flag.kind in ("Number", "Real"):
        try:
            number = float(value)
        except ValueError:
            return f"--{name}={value}: must be a number"
        ends = re.findall(r"[\d.]+", flag.bounds.replace("int64_t{1} << 40", str(1 << 40)))
        if not float(ends[0]) <= number <= float(ends[1]):
            return f"--{name}={value}: must be {ends[0]} to {ends[1]}"
    if flag.kind == "Time":
        try:
            seconds(value)
        except ValueError as error:
            return f"--{name}: {error}"
    if flag.kind == "Bytes" and not re.fullmatch(r"\d+(KiB|MiB|GiB)?", value):
        return f"--{name}={value}: must be a size such as 64MiB"
    return None


def default_port(name: str) -> int:
    """The port of a flag that listens."""
    return int(flags()[name].default.rpartition(":")[2])


def health_names() -> set[str]:
    text = _text("server/health.cc")
    ready = re.search(r"kReadyNames\[\] = \{(.*?)\};", text, re.S)
    alive = re.search(r'kLiveness\[\] = "(\w+)"', text)
    if ready is None or alive is None:
        raise ValueError("server/health.cc: the names of health services were not found")
    return set(re.findall(r'"([^"]*)"', ready[1])) | {alive[1]}


def metric_names() -> set[str]:
    """As registered; histograms without _bucket, _sum and _count."""
    text = "".join(_text(f"server/{name}.cc") for name in ("metrics", "live_metrics", "trace_metrics"))
    return set(_need(re.findall(r'"((?:eddy|grpc_server|process)_[a-z0-9_]+)"', text), "metrics"))


def failure_reasons() -> set[str]:
    """The values of the label `reason` of eddy_request_failures_total."""
    block = re.search(r"kFailureReasons\[\] = \{(.*?)\};", _text("server/metrics.cc"), re.S)
    return {r.lower() for r in _need(re.findall(r'"(\w+)"', block[1]), "reasons")} | {"other"}


def grpc_codes() -> set[str]:
    block = re.search(r"kCodeLabels\[.*?\] = \{(.*?)\};", _text("server/metrics.cc"), re.S)
    return set(_need(re.findall(r'"(\w+)"', block[1]), "codes"))


def version() -> str:
    return re.search(r"project\(eddy VERSION (\S+)", _text("CMakeLists.txt"))[1]
