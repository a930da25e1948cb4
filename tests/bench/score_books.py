#!/usr/bin/env python3
"""Bits per byte of whole books, by a running server's Score.

Each book is one call, from a zero state, so its state runs through to the end; what no token before
it predicts, the one that begins the text, is not scored. To compare with the model's card.

usage: score_books.py BIN_DIR MODEL_DIR [--SERVER_FLAG=VALUE...] BOOK.txt...
"""

import math
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from server_process import ServerProcess  # noqa: E402

# A book is longer than what a server takes by default.
FLAGS = ("--max_sequences=4", "--max_logprob_entries=1000000", "--max_prompt_tokens=1000000",
         "--max_waiting_prompt_tokens=4000000", "--max_message_bytes=256MiB", "--log_level=warning")


def score(bin_dir: str, port: int, book: str) -> tuple[float, int]:
    """The book's bits, and how many tokens were scored."""
    out = subprocess.run(
        [os.path.join(bin_dir, "eddy"), "score", f"--target=127.0.0.1:{port}",
         f"--prompt_file={book}", "--timeout=10m"],
        check=True, capture_output=True, text=True, timeout=700).stdout
    last = re.search(r"^sum (\S+), tokens (\d+)", out.splitlines()[-1])
    if last is None:
        raise RuntimeError(f"no sum: {out.splitlines()[-1]}")
    return -float(last[1]) / math.log(2), int(last[2])


def main() -> int:
    bin_dir, model_dir, *rest = sys.argv[1:]
    flags = [word for word in rest if word.startswith("--")]
    books = [word for word in rest if not word.startswith("--")]
    all_bits, all_bytes, all_tokens = 0.0, 0, 0
    with ServerProcess(os.path.join(bin_dir, "eddy-server"), model_dir,
                       (*FLAGS, *flags)) as server:
        for book in books:
            bits, tokens = score(bin_dir, server.port, book)
            size = os.path.getsize(book)
            print(f"{bits / size:.4f} bits per byte, {tokens} tokens: {os.path.basename(book)}",
                  flush=True)
            all_bits, all_bytes, all_tokens = (all_bits + bits, all_bytes + size,
                                               all_tokens + tokens)
    print(f"{all_bits / all_bytes:.4f} bits per byte, {all_tokens} tokens: all {len(books)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
