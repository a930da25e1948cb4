#!/usr/bin/env python3
"""Proves that promtool finds nothing to object to on the page of a running server, before the first
call and after one that ended well and one that was refused.

usage: metrics_lint.py BIN_DIR [MODEL_DIR]
"""

import os
import shutil
import subprocess
import sys

from byte_model import make_byte_model
from server_process import ROOT, SKIPPED, ServerProcess


def find_promtool() -> str | None:
    cached = ROOT / "build" / "tools" / "promtool"
    return shutil.which("promtool") or (str(cached) if os.access(cached, os.X_OK) else None)


def lint(promtool: str, page: str) -> None:
    done = subprocess.run([promtool, "check", "metrics"], input=page, text=True,
                          capture_output=True, timeout=60)
    if done.returncode != 0 or done.stderr.strip():
        sys.exit(f"promtool check metrics: status {done.returncode}\n{done.stdout}{done.stderr}")


def main() -> int:
    bin_dir = sys.argv[1]
    promtool = find_promtool()
    if promtool is None:
        print("skipped: there is no promtool; .ci/fetch_promtool.sh gets it")
        return SKIPPED
    model_dir = sys.argv[2] if len(sys.argv) > 2 else make_byte_model(ROOT / "build" / "lint")
    with ServerProcess(f"{bin_dir}/eddy-server", model_dir) as server:
        eddy = [f"{bin_dir}/eddy", f"--target=127.0.0.1:{server.port}"]
        subprocess.run([*eddy, "health", "--wait=60s"], check=True, timeout=90)
        lint(promtool, server.scrape())
        subprocess.run([*eddy, "generate", "--token_ids=5,6,7", "--max_new_tokens=8"], check=True,
                       timeout=60, stdout=subprocess.DEVNULL)
        refused = subprocess.run([*eddy, "generate", "--token_ids=5", "--model=none"], timeout=60,
                                 stderr=subprocess.DEVNULL)
        if refused.returncode != 15:
            sys.exit(f"an unknown model ended with {refused.returncode}, not 15 (NOT_FOUND)")
        lint(promtool, server.scrape())
        name = server.metric  # the page has what was done
        model = os.path.basename(os.path.normpath(model_dir))
        assert name(f'eddy_generation_tokens_total{{model_name="{model}"}}') > 0
        assert name(f'eddy_request_failures_total{{model_name="{model}",reason="model_not_found"}}') == 1
    print("promtool check metrics: nothing to object to")
    return 0


if __name__ == "__main__":
    sys.exit(main())
