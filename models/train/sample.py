"""Continues a prompt from the exported model, token by token with the state alone.

Meant for reading what a run has learnt; the server is the fast way to generate.
"""

import argparse
from pathlib import Path

import sentencepiece
import torch

from corpus import BOS
from export import load_model
from model import LanguageModel

EOS = 2


def draw(logits: torch.Tensor, temperature: float, random: torch.Generator) -> int:
    """Draws an id from softmax(logits / temperature); temperature 0 takes the largest."""
    if temperature == 0:
        return int(logits.argmax())
    weights = (logits.double() / temperature).softmax(-1)
    return int(torch.multinomial(weights, 1, generator=random))


@torch.no_grad()
def continue_ids(
    model: LanguageModel, prompt: list[int], count: int, temperature: float, seed: int
) -> list[int]:
    """Returns up to `count` ids after the prompt; ends early at BOS or EOS, which are left out."""
    random = torch.Generator().manual_seed(seed)
    state, piece = model.zero_state(1), prompt
    ids: list[int] = []
    while len(ids) < count:
        hidden, state = model.hidden(torch.tensor([piece]), state)
        chosen = draw(model.logits(hidden[0, -1]), temperature, random)
        if chosen in (BOS, EOS):
            break
        ids.append(chosen)
        piece = [chosen]
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the bundled form")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)  # one token's products are too small to share
    model = load_model(args.model)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(args.model / "tokenizer.model"))
    prompt = processor.encode(args.prompt)
    ids = continue_ids(model, [BOS, *prompt], args.tokens, args.temperature, args.seed)
    print(processor.decode(prompt + ids))


if __name__ == "__main__":
    main()
