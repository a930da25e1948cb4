#!/usr/bin/env python3
"""Replays the Dockerfile without a container engine, in scratch folders under build/tools.

  replay.py --install       makes the root of the stage `runtime`: debootstrap for the base, then that
                            stage's own RUN line in a chroot. Needs root, debootstrap and the network.
  replay.py BIN_DIR MODEL   needs root that may mount, and what --install made. Proves that
    - what the stage `build` copies is all that configuring and building needs;
    - the packages of `runtime` are exactly those whose libraries the server names; the server starts
      with them, and does not once any of them is missing;
    - the server loads a model and answers as user 65532 on a read-only root, without a shell.

Where BIN_DIR has the plugin for GPUs: that of its libraries only cuBLASLt, which the stage `cuda` adds,
is missing. NVIDIA's packages themselves are not part of it: they are not in Debian.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dockerfile import ROOT, copied, package_lists, stage_named

TOOLS = ROOT / "build" / "tools"
# In every Debian that runs programs in C++.
ALWAYS = {"libc6", "libgcc-s1", "libstdc++6"}
USER = 65532
INSIDE = "/opt/eddy/bin/eddy-server"
START_SECONDS = 120


def debian_mirror() -> str:
    """Where this machine's own packages come from."""
    sites = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
                           capture_output=True, text=True, check=True).stdout.split()
    mirrors = [site for site in sites if not site.rstrip("/").endswith("-security")]
    if not mirrors:
        fail("apt-get indextargets names no Debian mirror: run apt-get update")
    return mirrors[0]


def fail(text: str) -> None:
    sys.exit(f"docker replay: {text}")


def runtime_root() -> Path:
    """Named after what was run to make it, so that a changed list makes a new one."""
    run = stage_named("runtime").all("RUN")[0].text
    return TOOLS / f"image-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def install() -> None:
    root = runtime_root()
    if root.exists():
        return
    part = Path(f"{root}.part")
    mirror = debian_mirror()
    shutil.rmtree(part, ignore_errors=True)
    TOOLS.mkdir(parents=True, exist_ok=True)
    for line in (["debootstrap", "--variant=minbase", "bookworm", str(part), mirror],
                 ["chroot", str(part), "/bin/sh", "-c", stage_named("runtime").all("RUN")[0].text]):
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            fail(f"{' '.join(line)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    for old in TOOLS.glob("image-*"):
        if old != part:
            shutil.rmtree(old)
    part.rename(root)


def check_build_context() -> None:
    """Configures a tree that holds what is copied and nothing else, and lets ninja look at all inputs."""
    tree = TOOLS / "context"
    shutil.rmtree(tree, ignore_errors=True)
    for copy in stage_named("build").all("COPY"):
        _, sources, destination = copied(copy)
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tree / destination)
            else:
                (tree / destination).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, tree / destination)
    run = stage_named("build").all("RUN")[0].text
    configure, build = (c.split() for c in run.split(" && ")[:2])
    for line in (configure, [*build, "--", "-n"]):
        done = subprocess.run(line, cwd=tree, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"in a tree of what is copied, {' '.join(line)} ended with {done.returncode}:\n"
                 f"{done.stdout[-1500:]}{done.stderr[-1500:]}")
    print(f"docker replay: {' '.join(configure)} and all inputs of the build: found")
    shutil.rmtree(tree)


def chroot(root: Path, *line: str) -> subprocess.CompletedProcess:
    return subprocess.run([shutil.which("chroot"), str(root), *line], capture_output=True, text=True, timeout=60,
                          env={"PATH": "/usr/bin:/bin", "LD_BIND_NOW": "1"})


def owners(root: Path, names: list[str]) -> set[str]:
    """The packages that the libraries of these names come from."""
    found = set()
    for name in names:
        done = subprocess.run(["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-S", f"*/{name}"],
                              capture_output=True, text=True)
        packages = {line.split(":")[0] for line in done.stdout.splitlines()}
        if not packages:
            fail(f"no package of the runtime stage holds {name}, which the server links")
        found |= packages
    return found


@contextlib.contextmanager
def without(root: Path, paths: list[Path]) -> Iterator[None]:
    """Hides files while the block runs."""
    hidden = [(path, path.with_name(path.name + ".hidden")) for path in paths]
    for path, other in hidden:
        path.rename(other)
    try:
        yield
    finally:
        for path, other in hidden:
            other.rename(path)


def libraries(root: Path, package: str) -> list[Path]:
    listed = subprocess.run(["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-L", package],
                            check=True, capture_output=True, text=True).stdout.split()
    paths = [root / p.lstrip("/") for p in listed if re.search(r"\.so(\.|$)", p)]
    return [p for p in paths if p.is_symlink() or p.is_file()]


def check_packages(root: Path, server: Path) -> None:
    listed = set(package_lists(stage_named("runtime").all("RUN")[0])[0])
    dynamic = subprocess.run(["readelf", "-d", str(server)], check=True, capture_output=True,
                             text=True).stdout
    needed = [n for n in re.findall(r"NEEDED.*\[(.+)\]", dynamic) if not n.startswith("ld-linux")]
    named = owners(root, needed) - ALWAYS
    if listed != named:
        fail(f"runtime packages: listed, but the server names no library of theirs: "
             f"{sorted(listed - named)}; named, but not listed: {sorted(named - listed)}")
    ldd = chroot(root, "/usr/bin/ldd", INSIDE)
    version = chroot(root, INSIDE, "--version")
    if "not found" in ldd.stdout or version.returncode != 0:
        fail(f"the server does not start in the image:\n{ldd.stdout}{version.stderr}")
    for package in sorted(listed):
        with without(root, libraries(root, package)):
            if chroot(root, INSIDE, "--version").returncode == 0:
                fail(f"the server starts without {package}, which is listed")
    print(f"docker replay: {version.stdout.strip()}: {len(listed)} packages, all needed, none missing")


def wait_for_ports(path: Path, process: subprocess.Popen) -> dict[str, int]:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            return json.loads(path.read_text())
        time.sleep(0.05)
    process.kill()
    fail(f"the server did not start in the image:\n{process.stderr.read()[-3000:]}")


def check_plugin(root: Path, plugin: Path) -> None:
    place = root / "opt/eddy/bin" / plugin.name
    place.unlink(missing_ok=True)
    if not plugin.exists():
        print("docker replay: there is no plugin for GPUs here, so its libraries were not looked at")
        return
    shutil.copy(plugin, place)
    ldd = chroot(root, "/usr/bin/ldd", f"/opt/eddy/bin/{plugin.name}")
    missing = re.findall(r"(\S+) => not found", ldd.stdout)
    if missing != ["libcublasLt.so.13"]:
        fail(f"{plugin.name}: libraries that the stage runtime does not have: {missing}")
    print(f"docker replay: {plugin.name} lacks cuBLASLt alone, which the stage cuda adds")


# As an engine would: a root that cannot be written, /proc, and a folder of the host's at /tmp.
CONTAINER = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" "$1" &&
mount -t proc proc "$1/proc" && mount --bind "$2" "$1/tmp" && shift 2 && exec "$@"
"""


def check_serving(root: Path, client: Path) -> None:
    shells = [p for n in ("sh", "dash", "bash") if (p := root / "usr/bin" / n).exists()]
    with without(root, shells), tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o1777)
        process = subprocess.Popen(
            ["unshare", "--mount", "/bin/sh", "-c", CONTAINER, "sh", str(root), scratch,
             "chroot", f"--userspec={USER}:{USER}", "--groups=", str(root), INSIDE, "--model_dir=/model",
             "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--port_file=/tmp/ports.json",
             "--device=cpu", "--drain_delay=0", "--cpu_threads=1"],
            stderr=subprocess.PIPE, text=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        port = wait_for_ports(Path(scratch) / "ports.json", process)["listen"]
        target = [str(client), f"--target=127.0.0.1:{port}"]
        try:
            for words in (["health", "--wait=60s"],
                          ["generate", "--prompt=Once upon a time", "--max_new_tokens=8"]):
                subprocess.run([*target, *words], check=True, timeout=90, stdout=subprocess.DEVNULL)
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
    if status != 0:
        fail(f"after SIGTERM the server ended with {status}:\n{process.stderr.read()[-3000:]}")
    print(f"docker replay: as user {USER}, on a read-only root, without a shell: served and drained")


def main() -> int:
    if os.getuid() != 0:
        fail("needs root, for chroot")
    if sys.argv[1:] == ["--install"]:
        install()
        return 0
    bin_dir, model = Path(sys.argv[1]), Path(sys.argv[2])
    root = runtime_root()
    if not root.exists():
        fail("there is no root of this package list; .ci/fetch_deploy.sh makes it")
    for path in root.rglob("*.hidden"):  # of a run that was killed
        path.rename(path.with_suffix(""))
    check_build_context()
    (root / "opt/eddy/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(bin_dir / "eddy-server", root / INSIDE.lstrip("/"))
    shutil.copytree(model, root / "model", dirs_exist_ok=True)
    check_packages(root, bin_dir / "eddy-server")
    check_plugin(root, bin_dir / "libeddy_cuda.so")
    check_serving(root, bin_dir / "eddy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
