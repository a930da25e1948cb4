"""Trains the SentencePiece vocabulary of the bundled models.

Only the `train` splits are read. Text is kept exactly: no normalisation, no dummy prefix, extra
spaces stay, digits are split, the newline is a piece of its own and any other character falls back
to its UTF-8 bytes.
"""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import sentencepiece

# The children's books are a third the size of the novels; repeating them balances the two.
REPEATS = {"children": 3, "novels": 1}


def paragraphs(data: Path) -> Iterator[str]:
    """Yields every non-empty line of the training books, sorted by file name."""
    for name, repeats in REPEATS.items():
        books = sorted((data / name / "train").glob("*.txt"))
        if not books:
            raise SystemExit(
                f"{data / name / 'train'}: no .txt files, expected the unpacked corpus"
            )
        for book in books:
            lines = book.read_text(encoding="utf-8").split("\n")
            for _ in range(repeats):
                yield from (line for line in lines if line)


def train(data: Path, vocab_size: int) -> bytes:
    """Returns the serialised model. Ids: 0 unknown, 1 BOS, 2 EOS, 3 newline, 4..259 bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=paragraphs(data),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        # ASCII covers 0.9999 of the text; rarer characters are spelt in bytes.
        character_coverage=0.9999,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        user_defined_symbols=["\n"],
        max_sentence_length=1 << 20,  # bytes; longer paragraphs would be dropped silently
        num_threads=2,
        minloglevel=1,
    )
    return model.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with children/ and novels/"
    )
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--out", type=Path, required=True, help="tokenizer.model to write")
    args = parser.parse_args()
    args.out.write_bytes(train(args.data, args.vocab_size))
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
