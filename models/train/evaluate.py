"""Bits per byte of held-out books.

Each book starts from a zero state with BOS and its state runs through to the last token; BOS itself
is not scored. bpb = (sum of -log2 p over the tokens) / (UTF-8 bytes of the text). All arithmetic is
fp32, whatever type the weights were stored in.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from corpus import SETS, Split, load_split
from export import load_model
from model import LanguageModel


@torch.no_grad()
def book_bits(model: LanguageModel, split: Split, window: int = 2048) -> list[float]:
    """Returns the bits of every book of a split. The books run side by side as rows."""
    device = model.embedding.weight.device
    rows, longest = len(split.books), max(book.tokens for book in split.books)
    ids = np.zeros((rows, longest), dtype=np.int64)
    for row, book in enumerate(split.books):
        ids[row, : book.tokens] = split.book_ids(book)
    tokens = torch.from_numpy(ids).to(device)
    lengths = torch.tensor([book.tokens for book in split.books], device=device)
    state, bits = model.zero_state(rows), torch.zeros(rows, dtype=torch.float64, device=device)
    for start in range(0, longest - 1, window):
        piece = tokens[:, start : start + window + 1]
        hidden, state = model.hidden(piece[:, :-1], state)
        targets = piece[:, 1:]
        loss = F.cross_entropy(model.logits(hidden).transpose(1, 2), targets, reduction="none")
        places = torch.arange(start + 1, start + 1 + targets.shape[1], device=device)
        bits += (loss.double() * (places < lengths[:, None])).sum(1) / math.log(2)
    return bits.tolist()


def bits_per_byte(model: LanguageModel, split: Split, window: int = 2048) -> float:
    """Returns the bits per byte of a whole split."""
    total = sum(book.utf8_bytes for book in split.books)
    return sum(book_bits(model, split, window)) / total


def report(model: LanguageModel, tokens: Path, parts: list[str]) -> dict[str, dict[str, float]]:
    """Returns bpb, perplexity per token and tokens of every set and split, and of every book."""
    result: dict[str, dict[str, float]] = {}
    for name in SETS:
        for part in parts:
            split = load_split(tokens / f"{name}-{part}.npz.xz")
            bits = book_bits(model, split)
            scored = [book.tokens - 1 for book in split.books]
            for book, book_total, count in zip(split.books, bits, scored, strict=True):
                result[f"{name}/{part}/{book.name}"] = {
                    "bpb": book_total / book.utf8_bytes,
                    "perplexity": 2 ** (book_total / count),
                    "tokens": count,
                }
            result[f"{name}/{part}"] = {
                "bpb": sum(bits) / sum(book.utf8_bytes for book in split.books),
                "perplexity": 2 ** (sum(bits) / sum(scored)),
                "tokens": sum(scored),
            }
    return result


def print_report(result: dict[str, dict[str, float]]) -> None:
    """Prints one line per entry of a report."""
    for key, row in result.items():
        print(
            f"{key}: bpb {row['bpb']:.4f} perplexity {row['perplexity']:.3f} tokens {row['tokens']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder with model.safetensors")
    parser.add_argument("--tokens", type=Path, required=True, help="folder corpus.py wrote")
    parser.add_argument("--splits", default="valid,test")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    model = load_model(args.model).to(args.device)
    result = report(model, args.tokens, args.splits.split(","))
    print_report(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
