"""Renders the Kustomize folders: each overlay, and each component on the base alone."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
SCRATCH = ROOT / "build" / "tools" / "k8s"
# The base names no version of the image; overlays do.
IMAGE = [{"name": "eddy", "newTag": "0.0.0-check"}]

Object = dict
Rendered = dict[str, list[Object]]


def kubectl() -> str:
    """The one beside this Python first: Debian's (1.20) does not know components."""
    beside = Path(sys.executable).parent / "kubectl"
    return str(beside) if beside.exists() else shutil.which("kubectl") or "kubectl"


def render(folder: Path) -> list[Object]:
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True,
                          timeout=120)
    if done.returncode != 0 or done.stderr.strip():
        sys.exit(f"k8s: {folder.relative_to(ROOT)} does not render: {done.stderr.strip()}")
    return [o for o in yaml.safe_load_all(done.stdout) if o]


def render_component(name: str) -> list[Object]:
    shutil.rmtree(SCRATCH / name, ignore_errors=True)
    (SCRATCH / name).mkdir(parents=True)
    place = os.path.relpath(FOLDER, SCRATCH / name)
    (SCRATCH / name / "kustomization.yaml").write_text(yaml.safe_dump(
        {"namespace": "eddy", "resources": [f"{place}/base"], "images": IMAGE,
         "components": [f"{place}/components/{name}"]}))
    return render(SCRATCH / name)


def render_all() -> Rendered:
    made = {f"overlays/{p.name}": render(p) for p in sorted((FOLDER / "overlays").iterdir())}
    for path in sorted((FOLDER / "components").iterdir()):
        made[f"components/{path.name}"] = render_component(path.name)
    return made
