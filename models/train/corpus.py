"""Token files: how books become ids on disk, and how training draws from them.

A token file holds the books of one set and split, sorted by name: `BOS book BOS book ...` in
uint16, and an index that lists each book with its place, its number of tokens and its UTF-8
bytes. It is one xz file, small enough to send around.
"""

import argparse
import io
import json
import lzma
from dataclasses import asdict, dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import sentencepiece
import torch

BOS = 1
NEWLINE = 3
SETS = ("children", "novels")


@dataclass(frozen=True)
class Book:
    """One book inside a token file. `start` is the position of its BOS."""

    name: str
    start: int
    tokens: int  # BOS included
    utf8_bytes: int


@dataclass(frozen=True)
class Split:
    """The books of one set and split, and their ids one after the other."""

    ids: np.ndarray  # uint16 [tokens]
    books: list[Book]

    def book_ids(self, book: Book) -> np.ndarray:
        return self.ids[book.start : book.start + book.tokens]


def encode_book(job: tuple[Path, Path]) -> tuple[str, np.ndarray, int]:
    """Returns a book's name, its ids with BOS in front, and its length in bytes."""
    tokenizer_file, book = job
    text = book.read_text(encoding="utf-8")
    ids = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_file)).encode(text)
    return book.name, np.array([BOS, *ids], dtype=np.uint16), len(text.encode())


def encode_split(tokenizer_file: Path, folder: Path) -> Split:
    """Encodes every book of a folder."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise SystemExit(f"{folder}: no .txt files, expected the unpacked corpus")
    books, parts, start = [], [], 0
    with Pool() as pool:
        for name, ids, size in pool.map(encode_book, [(tokenizer_file, f) for f in files]):
            books.append(Book(name, start, len(ids), size))
            parts.append(ids)
            start += len(ids)
    return Split(np.concatenate(parts), books)


def save_split(path: Path, split: Split) -> None:
    """Writes a split as xz. The bytes of the ids are stored as two planes, which packs better."""
    planes = np.ascontiguousarray(split.ids.view(np.uint8).reshape(-1, 2).T)
    file = io.BytesIO()
    np.savez(file, planes=planes, books=json.dumps([asdict(book) for book in split.books]))
    path.write_bytes(lzma.compress(file.getvalue(), preset=6))


def load_split(path: Path) -> Split:
    """Reads what save_split wrote."""
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as file:
        ids = np.ascontiguousarray(file["planes"].T).view(np.uint16).reshape(-1)
        books = [Book(**book) for book in json.loads(str(file["books"]))]
    if sum(book.tokens for book in books) != len(ids):
        raise SystemExit(f"{path}: the index counts other tokens than the {len(ids)} in the file")
    return Split(ids, books)


class Stream:
    """Endless training windows for a fixed number of rows, whose state is carried.

    A row reads `windows` windows in a row from one place and then jumps to the start of a random
    paragraph. Where it jumps, its state is reset and its first token is BOS, so that BOS with a
    zero state, the start of every prompt, is well known to the model. All ids stay on the device.
    """

    def __init__(
        self,
        splits: dict[str, Split],
        mixture: dict[str, float],
        shape: tuple[int, int],
        windows: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.rows, self.length = shape
        self.windows = windows
        self.random = np.random.default_rng(seed)
        self.names = list(mixture)
        self.weights = np.array([mixture[name] for name in self.names])
        self.weights = self.weights / self.weights.sum()
        reach = windows * self.length + 1
        self.starts: dict[str, np.ndarray] = {}
        offset, parts = 0, []
        for name in self.names:
            ids = splits[name].ids
            self.starts[name] = offset + paragraph_starts(ids, len(ids) - reach)
            parts.append(ids)
            offset += len(ids)
        self.ids = torch.from_numpy(np.concatenate(parts).astype(np.int32)).to(device)
        self.span = torch.arange(self.length + 1, device=device)
        self.place = np.zeros(self.rows, dtype=np.int64)
        # Rows jump at different steps, so that every step holds equally many fresh rows.
        self.age = np.arange(self.rows) * windows // self.rows
        self.fresh = np.ones(self.rows, dtype=bool)
        for row in range(self.rows):
            self.place[row] = self.jump()

    def jump(self) -> int:
        """Returns the position before a random paragraph, where BOS will stand."""
        name = self.names[self.random.choice(len(self.names), p=self.weights)]
        return int(self.random.choice(self.starts[name])) - 1

    def advance(self) -> tuple[np.ndarray, np.ndarray]:
        """Moves every row on; returns the places [rows] and which rows are fresh [rows]."""
        place, fresh = self.place.copy(), self.fresh.copy()
        self.place += self.length
        self.age += 1
        self.fresh = self.age >= self.windows
        for row in np.flatnonzero(self.fresh):
            self.place[row] = self.jump()
            self.age[row] = 0
        return place, fresh

    def gather(self, place: torch.Tensor, fresh: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns inputs and targets [rows, length], BOS first where a row is fresh."""
        window = self.ids[place[:, None] + self.span].long()
        first = torch.where(fresh, torch.full_like(window[:, 0], BOS), window[:, 0])
        return torch.cat([first[:, None], window[:, 1:-1]], 1), window[:, 1:]


def paragraph_starts(ids: np.ndarray, limit: int) -> np.ndarray:
    """Returns the positions below `limit` that follow an empty line."""
    after = np.flatnonzero((ids[:-1] == NEWLINE) & (ids[1:] == NEWLINE)) + 2
    after = after[after < limit]
    if not len(after):
        raise SystemExit(f"no paragraph starts among {len(ids)} ids: the text is too short")
    return after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with children/ and novels/"
    )
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the token files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        for part in ("train", "valid", "test"):
            split = encode_split(args.tokenizer, args.data / name / part)
            path = args.out / f"{name}-{part}.npz.xz"
            save_split(path, split)
            size = sum(book.utf8_bytes for book in split.books)
            print(
                f"{path.name}: {len(split.books)} books, {size:,} bytes, {len(split.ids):,} tokens,"
                f" {path.stat().st_size:,} bytes packed"
            )


if __name__ == "__main__":
    main()
