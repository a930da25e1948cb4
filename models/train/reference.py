"""Writes what PyTorch says about a fixed text, for comparing a server with it.

The file holds the ids of the text with BOS in front, the natural log-probability of each id given
the ones before (null for BOS), and the greedy continuation with the smallest lead of a chosen id
over the runner-up. Weights are the exported ones, arithmetic is fp32.
"""

import argparse
import json
from pathlib import Path

import sentencepiece
import torch

from corpus import BOS
from export import load_model
from model import LanguageModel


@torch.no_grad()
def score(model: LanguageModel, ids: list[int]) -> list[float | None]:
    """Returns the log-probability of every id; the first has none."""
    hidden, _ = model.hidden(torch.tensor([ids[:-1]]), model.zero_state(1))
    table = model.logits(hidden[0]).log_softmax(-1)
    return [None, *table[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()]


@torch.no_grad()
def greedy(model: LanguageModel, ids: list[int], count: int) -> tuple[list[int], float]:
    """Returns the `count` most probable ids after `ids` and the smallest lead in logits."""
    state, piece, chosen, lead = model.zero_state(1), ids, [], float("inf")
    for _ in range(count):
        hidden, state = model.hidden(torch.tensor([piece]), state)
        best = model.logits(hidden[0, -1]).topk(2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        piece = [int(best.indices[0])]
        chosen += piece
    return chosen, lead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the bundled form")
    parser.add_argument("--text", type=Path, default=Path(__file__).with_name("reference.txt"))
    parser.add_argument("--greedy", type=int, default=32, help="ids of the greedy continuation")
    args = parser.parse_args()
    model = load_model(args.model)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(args.model / "tokenizer.model"))
    text = args.text.read_text(encoding="utf-8")
    ids = [BOS, *processor.encode(text)]
    continuation, lead = greedy(model, ids, args.greedy)
    result = {
        "text": text,
        "ids": ids,
        "logprobs": [None if x is None else round(x, 6) for x in score(model, ids)],
        "greedy_continuation": continuation,
        "greedy_smallest_lead": round(lead, 6),
    }
    path = args.model / "reference.json"
    path.write_text(json.dumps(result) + "\n")
    print(f"wrote {path}: {len(ids)} ids, smallest greedy lead {lead:.4f}")


if __name__ == "__main__":
    main()
