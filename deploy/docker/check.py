#!/usr/bin/env python3
"""Finds in Dockerfile and compose.yaml what would fail, or rot, only when somebody builds an image: there
is no container engine where these checks run. Prints one line per fault; exit status 1 if there is any.

usage: check.py
"""
from __future__ import annotations

import fnmatch
import json
import re
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import facts  # noqa: E402
from dockerfile import FOLDER, ROOT, Instruction, Stage, copied, package_lists, read  # noqa: E402

FILE = FOLDER / "Dockerfile"
TARGETS = ("cpu", "cuda")
NOT_FOR_DEVELOPERS = {"curl"}  # in the image, to fetch NVIDIA's keyring; not in .ci/packages.txt
LABELS = ("title", "description", "version", "revision", "licenses", "base.name")

faults: list[str] = []


def fault(where: str, what: str) -> None:
    faults.append(f"{where}: {what}")


def at(instruction: Instruction) -> str:
    return f"{FILE.name}:{instruction.line}"


def check_base(arguments: dict[str, str], stages: list[Stage]) -> None:
    names: list[str] = []
    for stage in stages:
        base = stage.base
        if base not in names:
            for key, value in arguments.items():
                base = base.replace("${%s}" % key, value)
            tag = base.partition(":")[2]
            if not re.search(r"\d", tag) or tag == "latest":
                fault(f"{FILE.name}:{stage.line}", f"the base {base} names no version")
        names.append(stage.name)
    for target in TARGETS:
        if target not in names:
            fault(FILE.name, f"there is no target {target}")


def check_packages(run: Instruction) -> None:
    if "apt-get" not in run.text:
        return
    if "apt-get update" not in run.text:
        fault(at(run), "installs without apt-get update in the same layer")
    if run.text.count("--no-install-recommends") != run.text.count("apt-get install"):
        fault(at(run), "apt-get install without --no-install-recommends")
    if not run.text.endswith("rm -rf /var/lib/apt/lists/*"):
        fault(at(run), "does not end with: rm -rf /var/lib/apt/lists/*")
    for packages in package_lists(run):
        if packages != sorted(set(packages)):
            fault(at(run), "the packages are not sorted, or one stands twice")


def check_development_packages(stage: Stage) -> None:
    """What builds here is what builds there."""
    known = {line for line in (ROOT / ".ci/packages.txt").read_text().split() if line}
    for run in stage.all("RUN"):
        for package in sum(package_lists(run), []):
            if package not in known | NOT_FOR_DEVELOPERS:
                fault(at(run), f"{package} is not in .ci/packages.txt")


def ignored(path: str) -> bool:
    """Whether Dockerfile.dockerignore hides a path of the tree; the last rule that fits decides."""
    hidden = False
    for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines():
        rule = line.strip()
        if not rule or rule.startswith("#"):
            continue
        keep = rule.startswith("!")
        rule = rule.lstrip("!")
        parts = [path, *(str(p) for p in Path(path).parents if str(p) != ".")]
        if any(fnmatch.fnmatch(part, rule) for part in parts):
            hidden = not keep
    return hidden


def check_copies(stages: list[Stage]) -> None:
    names = {stage.name for stage in stages}
    for stage in stages:
        for add in stage.all("ADD"):
            fault(at(add), "ADD; COPY what is here, and fetch with a checked client what is not")
        for copy in stage.all("COPY"):
            source_stage, sources, _ = copied(copy)
            if source_stage is not None:
                if source_stage not in names:
                    fault(at(copy), f"there is no stage {source_stage}")
                continue
            for source in sources:
                if not (ROOT / source).exists():
                    fault(at(copy), f"{source} does not exist")
                elif ignored(source):
                    fault(at(copy), f"{source} is hidden by Dockerfile.dockerignore")


def lineage(stages: list[Stage], name: str) -> list[Instruction]:
    """All instructions of a stage, those of the stages it starts from first."""
    by_name = {stage.name: stage for stage in stages}
    stage = by_name.get(name)
    return lineage(stages, stage.base) + stage.instructions if stage else []


def last(found: list[Instruction], name: str) -> str:
    return next((i.text for i in reversed(found) if i.name == name), "")


def check_target(stages: list[Stage], name: str) -> None:
    where = f"{FILE.name}, target {name}"
    found = lineage(stages, name)
    user = re.fullmatch(r"(\d+):(\d+)", last(found, "USER"))
    if user is None or "0" in user.groups():
        fault(where, "the last USER is not a number of its own, as in 65532:65532")
    ports = [str(facts.default_port("listen")), str(facts.default_port("metrics_listen"))]
    if last(found, "EXPOSE").split() != ports:
        fault(where, f"EXPOSE is not {' '.join(ports)}, the ports that the flags have by default")
    try:
        entry = json.loads(last(found, "ENTRYPOINT"))
    except json.JSONDecodeError:
        entry = []
    if entry != ["/opt/eddy/bin/eddy-server"]:
        fault(where, "ENTRYPOINT is not the server alone, as a list: a shell would take its signals")
    if last(found, "STOPSIGNAL") != "SIGTERM":
        fault(where, "STOPSIGNAL is not SIGTERM, which the server drains on")
    text = " ".join(i.text for i in found if i.name == "LABEL")
    for label in LABELS:
        if f"org.opencontainers.image.{label}=" not in text:
            fault(where, f"no label org.opencontainers.image.{label}")
    for environment in (i for i in found if i.name == "ENV"):
        for variable, value in re.findall(r"EDDY_(\w+)=(\S+)", environment.text):
            if wrong := facts.flag_fault(variable.lower(), value.strip('"')):
                fault(at(environment), wrong)


def check_version(stages: list[Stage], compose: dict) -> None:
    version = facts.version()
    arguments = [i.text for s in stages for i in s.all("ARG")]
    if f"VERSION={version}" not in arguments:
        fault(FILE.name, f"ARG VERSION is not {version}, which CMakeLists.txt has")
    if not compose["services"]["eddy"]["image"].startswith(f"eddy:{version}-"):
        fault("compose.yaml", f"the image of eddy is not of the version {version}")


def check_service(name: str, service: dict) -> None:
    where = f"compose.yaml, {name}"
    tag = service["image"].partition(":")[2]
    if not re.search(r"\d", tag):
        fault(where, f"the image {service['image']} names no version")
    if service.get("cap_drop") != ["ALL"] or "no-new-privileges:true" not in service["security_opt"]:
        fault(where, "keeps capabilities, or may gain privileges")
    for port in service.get("ports", []):
        if not port.startswith("127.0.0.1:"):
            fault(where, f"the port {port} is open to the network")
    for volume in service.get("volumes", []):
        source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).split(":")[0]
        if source.startswith(".") and not (FOLDER / source).exists():
            fault(where, f"{source} does not exist")


def check_compose(compose: dict) -> None:
    for name, service in compose["services"].items():
        check_service(name, service)
    eddy = compose["services"]["eddy"]
    for argument in eddy["command"]:
        if wrong := facts.flag_fault(*argument.removeprefix("--").split("=", 1)):
            fault("compose.yaml, eddy", wrong)
    ports = {int(p.rpartition(":")[2]) for p in eddy["ports"]}
    if ports != {facts.default_port("listen"), facts.default_port("metrics_listen")}:
        fault("compose.yaml, eddy", f"the ports {sorted(ports)} are not those of the flags")
    if not eddy.get("read_only") or eddy.get("user") != "65532:65532":
        fault("compose.yaml, eddy", "the root is not read-only, or the user not 65532:65532")
    drain = sum(facts.seconds(facts.flags()[f].default) for f in ("drain_delay", "drain_timeout"))
    if facts.seconds(eddy["stop_grace_period"]) < drain + 5:
        fault("compose.yaml, eddy", f"stop_grace_period is under drain_delay + drain_timeout + 5 s = "
              f"{drain + 5:.0f}s")
    scrape = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"][0]
    if scrape["static_configs"][0]["targets"] != [f"eddy:{facts.default_port('metrics_listen')}"]:
        fault("prometheus.yml", "the target is not eddy's metrics port")


def main() -> int:
    arguments, stages = read(FILE)
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    check_base(arguments, stages)
    for stage in stages:
        for run in stage.all("RUN"):
            check_packages(run)
    check_development_packages(stages[0])
    check_copies(stages)
    for target in TARGETS:
        check_target(stages, target)
    check_version(stages, compose)
    check_compose(compose)
    print("\n".join(faults) if faults else "docker: Dockerfile and compose.yaml hold together")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
