"""Reads a Dockerfile as far as ours goes: stages, instructions, package lists, copied paths."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


@dataclass
class Instruction:
    line: int
    name: str  # in capitals
    text: str  # the rest, continued lines joined


@dataclass
class Stage:
    base: str
    name: str
    line: int
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [i for i in self.instructions if i.name == name]


def instructions(path: Path) -> list[Instruction]:
    found: list[Instruction] = []
    pending, first = "", 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        if not pending:
            first = number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        name, _, text = (pending + line).strip().partition(" ")
        found.append(Instruction(first, name.upper(), " ".join(text.split())))
        pending = ""
    return found


def read(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """The arguments given before the first stage, and the stages."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for instruction in instructions(path):
        if instruction.name == "FROM":
            match = re.fullmatch(r"(\S+) AS (\S+)", instruction.text)
            if match is None:
                raise ValueError(f"{path.name}:{instruction.line}: FROM without a name")
            stages.append(Stage(match[1], match[2], instruction.line))
        elif stages:
            stages[-1].instructions.append(instruction)
        else:
            key, _, value = instruction.text.partition("=")
            arguments[key] = value
    return arguments, stages


def package_lists(instruction: Instruction) -> list[list[str]]:
    """The packages of each `apt-get install` of a RUN."""
    lists = []
    for command in instruction.text.split("&&"):
        words = command.split()
        if "apt-get" in words and "install" in words:
            lists.append([w for w in words[words.index("install") + 1:] if not w.startswith("-")])
    return lists


def copied(instruction: Instruction) -> tuple[str | None, list[str], str]:
    """The stage copied from or None, the sources, the destination of a COPY."""
    words = instruction.text.split()
    stage = None
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).partition("=")
        if option == "--from":
            stage = value
    return stage, words[:-1], words[-1]


def stage_named(name: str) -> Stage:
    return next(s for s in read(FOLDER / "Dockerfile")[1] if s.name == name)
