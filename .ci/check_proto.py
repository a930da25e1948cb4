#!/usr/bin/python3
"""Checks proto/eddy/v1: names, enums, comments, and compatibility with the committed baseline.

`.ci/check_proto.py --accept` renews proto/eddy/v1/baseline.binpb, in a commit of its own.
Prints one line per fault and exits 1 if there is any.
"""
from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "proto/eddy/v1/baseline.binpb"
FILES = ("eddy/v1/generation.proto", "eddy/v1/model.proto", "eddy/v1/session.proto")
# RPC -> its request and response, where they are not XRequest and XResponse.
SHARED = {"GenerateStream": ("GenerateRequest", "GenerateResponse")}


def compile_protos() -> pb.FileDescriptorSet:
    with tempfile.NamedTemporaryFile(suffix=".binpb") as out:
        subprocess.run(["protoc", "-I", "proto", "--include_imports", "--include_source_info",
                        f"--descriptor_set_out={out.name}", *FILES], cwd=ROOT, check=True)
        return pb.FileDescriptorSet.FromString(Path(out.name).read_bytes())


def own(files: pb.FileDescriptorSet) -> list[pb.FileDescriptorProto]:
    return [f for f in files.file if f.name in FILES]


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


def name_faults(file: pb.FileDescriptorProto) -> list[str]:
    faults = []
    if file.package != "eddy.v1":
        faults.append(f"{file.name}: package {file.package}, expected eddy.v1")
    for service in file.service:
        if not service.name.endswith("Service"):
            faults.append(f"{file.name}: service {service.name} does not end in Service")
        for rpc in service.method:
            want = SHARED.get(rpc.name, (rpc.name + "Request", rpc.name + "Response"))
            have = (rpc.input_type.rsplit(".", 1)[1], rpc.output_type.rsplit(".", 1)[1])
            if have != want:
                faults.append(f"{file.name}: {rpc.name} takes and gives {have}, expected {want}")
    for message in file.message_type:
        if message.enum_type:
            faults.append(f"{file.name}: enum inside {message.name}; enums are at top level")
        for field in message.field:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", field.name):
                faults.append(f"{file.name}: {message.name}.{field.name} is not lower_snake_case")
    for enum in file.enum_type:
        prefix = snake(enum.name) + "_"
        if enum.value[0].number != 0 or enum.value[0].name != prefix + "UNSPECIFIED":
            faults.append(f"{file.name}: {enum.name} starts with {enum.value[0].name}")
        faults += [f"{file.name}: {v.name} lacks the prefix {prefix}" for v in enum.value
                   if not v.name.startswith(prefix)]
    return faults


def comment_faults(file: pb.FileDescriptorProto) -> list[str]:
    """Services, RPCs, fields and enum values have a leading comment."""
    commented = {tuple(loc.path) for loc in file.source_code_info.location
                 if loc.leading_comments.strip()}
    wanted: dict[tuple[int, ...], str] = {}
    for s, service in enumerate(file.service):
        wanted[(6, s)] = service.name
        wanted |= {(6, s, 2, r): f"{service.name}.{rpc.name}"
                   for r, rpc in enumerate(service.method)}
    for m, message in enumerate(file.message_type):
        wanted |= {(4, m, 2, f): f"{message.name}.{field.name}"
                   for f, field in enumerate(message.field)}
    for e, enum in enumerate(file.enum_type):
        wanted |= {(5, e, 2, v): value.name for v, value in enumerate(enum.value)}
    return [f"{file.name}: {name} has no comment" for path, name in wanted.items()
            if path not in commented]


def reserved(numbers, names, number: int, name: str) -> bool:
    return any(r.start <= number < r.end for r in numbers) and name in names


def message_breaks(where: str, old: pb.DescriptorProto, new: pb.DescriptorProto) -> list[str]:
    faults = []
    fields = {f.number: f for f in new.field}
    for field in old.field:
        now = fields.get(field.number)
        if now is None:
            if not reserved(new.reserved_range, new.reserved_name, field.number, field.name):
                faults.append(f"{where}.{field.name}: gone, and not reserved")
            continue
        for what in ("name", "type", "type_name", "label", "json_name", "proto3_optional"):
            if getattr(field, what) != getattr(now, what):
                faults.append(f"{where}.{field.name}: {what} changed from "
                              f"{getattr(field, what)} to {getattr(now, what)}")
        groups = [d.oneof_decl[f.oneof_index].name if f.HasField("oneof_index") else ""
                  for d, f in ((old, field), (new, now))]
        if groups[0] != groups[1]:
            faults.append(f"{where}.{field.name}: moved from oneof {groups[0]!r} to {groups[1]!r}")
    return faults


def breaks(old: pb.FileDescriptorSet, new: pb.FileDescriptorSet) -> list[str]:
    faults = []
    new_messages = {m.name: m for f in own(new) for m in f.message_type}
    new_enums = {e.name: e for f in own(new) for e in f.enum_type}
    new_rpcs = {f"{s.name}.{r.name}": r for f in own(new) for s in f.service for r in s.method}
    for file in own(old):
        for message in file.message_type:
            if message.name in new_messages:
                faults += message_breaks(message.name, message, new_messages[message.name])
            else:
                faults.append(f"message {message.name}: gone")
        for enum in file.enum_type:
            now = new_enums.get(enum.name)
            values = {(v.name, v.number) for v in now.value} if now else set()
            for value in enum.value:
                kept = now and reserved(
                    [pb.DescriptorProto.ReservedRange(start=r.start, end=r.end + 1)
                     for r in now.reserved_range], now.reserved_name, value.number, value.name)
                if (value.name, value.number) not in values and not kept:
                    faults.append(f"{enum.name}.{value.name}: gone or renumbered")
        for service in file.service:
            for rpc in service.method:
                if new_rpcs.get(f"{service.name}.{rpc.name}") != rpc:
                    faults.append(f"{service.name}.{rpc.name}: gone or changed")
    return faults


def main() -> int:
    compiled = compile_protos()
    faults = [fault for file in own(compiled) for fault in name_faults(file) + comment_faults(file)]
    bare = pb.FileDescriptorSet()
    bare.CopyFrom(compiled)
    for file in bare.file:
        file.ClearField("source_code_info")
    if "--accept" in sys.argv:
        kept = pb.FileDescriptorSet(file=own(bare))
        BASELINE.write_bytes(kept.SerializeToString(deterministic=True))
    faults += breaks(pb.FileDescriptorSet.FromString(BASELINE.read_bytes()), bare)
    print("\n".join(faults) if faults else "proto: names, comments and baseline in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
