"""Proves that the chunk form is the recurrence, that state carried is state kept, and that what is
exported is what was trained.

Run: python -m unittest test_recipe. Every random test prints its seed. The comparison with the
independent golden checkpoint needs `../shared` beside the repository and is skipped without it.
"""

import json
import math
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from corpus import BOS, NEWLINE, Book, Split, Stream, load_split, save_split
from evaluate import book_bits
from export import FULL_PRECISION, load_model, save_model
from kaczmarz import UnitLowerInverse, chunk_kaczmarz, step_kaczmarz
from model import LanguageModel, ModelShape

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "kaczmarz_a"
SMALL = ModelShape(vocab_size=64, width=32, layers=2, heads=2, key_dim=8, value_dim=16, mlp_size=48)
# fp64 rounding is 1e-16; sums over 64 tokens of raw keys lose a few digits of it.
EXACT = 1e-11


def fresh_seed(case: unittest.TestCase) -> int:
    seed = time.time_ns() % 2**31
    print(f"{case.id()}: seed {seed}")
    torch.manual_seed(seed)
    return seed


def layer_inputs(length: int) -> list[Tensor]:
    """q, k, v, beta, g, state in fp64: keys of very different norms, some of them zero."""
    rows, heads, keys, values = 2, 3, 8, 12
    q = F.normalize(torch.randn(rows, heads, length, keys).double(), dim=-1) * keys**-0.5
    k = torch.randn(rows, heads, length, keys).double()
    k = k * torch.exp(torch.randn(rows, heads, length, 1).double())
    k[:, :, ::17] = 0
    v = torch.randn(rows, heads, length, values).double()
    beta = torch.rand(rows, heads, length).double() / (k.square().sum(-1) + 1e-6)
    g = -torch.exp(2 * torch.randn(rows, heads, length).double() - 2)
    return [q, k, v, beta, g, torch.randn(rows, heads, keys, values).double()]


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


class ChunkForm(unittest.TestCase):
    def test_equals_the_recurrence_at_any_length(self) -> None:
        fresh_seed(self)
        for length in (1, 63, 64, 65, 203):
            inputs = layer_inputs(length)
            for got, want in zip(chunk_kaczmarz(*inputs), step_kaczmarz(*inputs), strict=True):
                self.assertLess(relative(got, want), EXACT, length)

    def test_has_the_gradients_of_the_recurrence(self) -> None:
        fresh_seed(self)
        inputs = layer_inputs(130)
        gradients = []
        for form in (chunk_kaczmarz, step_kaczmarz):
            leaves = [x.clone().requires_grad_() for x in inputs]
            out, state = form(*leaves)
            (out.sin().sum() + state.cos().sum()).backward()
            gradients.append([leaf.grad for leaf in leaves])
        for got, want in zip(*gradients, strict=True):
            self.assertLess(relative(got, want), 1e-9)

    def test_stays_finite_under_decay_that_erases_the_state(self) -> None:
        fresh_seed(self)
        inputs = [x.float() for x in layer_inputs(128)]
        inputs[4] = torch.full_like(inputs[4], -50.0)
        out, state = chunk_kaczmarz(*inputs)
        want, want_state = step_kaczmarz(*inputs)
        self.assertLess(relative(out, want), 1e-5)
        self.assertLess(relative(state, want_state), 1e-5)

    def test_inverts_unit_lower_triangular_matrices(self) -> None:
        fresh_seed(self)
        x = torch.randn(5, 64, 64).double().tril(-1) / 8
        inverse = UnitLowerInverse.apply(x)
        eye = torch.eye(64, dtype=torch.float64)
        self.assertLess(relative(inverse @ (eye + x), eye.expand(5, 64, 64)), EXACT)
        small = (torch.randn(2, 8, 8).double().tril(-1) / 2).requires_grad_()
        torch.autograd.gradcheck(lambda m: UnitLowerInverse.apply(m.tril(-1)), (small,))


class Model(unittest.TestCase):
    def test_bundled_size_has_the_documented_number_of_parameters(self) -> None:
        count = sum(p.numel() for p in LanguageModel(ModelShape()).parameters())
        self.assertEqual(count, 8_215_828)

    def test_carries_its_state_over_any_cut(self) -> None:
        fresh_seed(self)
        model = LanguageModel(SMALL).double()
        tokens = torch.randint(0, 64, (3, 150))
        whole, _ = model.hidden(tokens, model.zero_state(3))
        for cut in (1, 2, 64, 100):
            state, parts = model.zero_state(3), []
            for piece in (tokens[:, :cut], tokens[:, cut:]):
                hidden, state = model.hidden(piece, state)
                parts.append(hidden)
            self.assertLess(relative(torch.cat(parts, 1), whole), EXACT, cut)

    def test_agrees_with_the_golden_checkpoint(self) -> None:
        if not GOLDEN.is_dir():
            self.skipTest(f"{GOLDEN} is absent")
        shape = ModelShape(
            vocab_size=256, width=64, layers=2, heads=2, key_dim=24, value_dim=48, mlp_size=256
        )
        model, head = golden_model(shape)
        golden = load_file(GOLDEN / "golden.safetensors")
        tokens = golden["input_ids"].long()
        hidden, _ = model.hidden(tokens, model.zero_state(tokens.shape[0]))
        got, want = F.linear(hidden, head), golden["logits"].double()
        self.assertLess((got.log_softmax(-1) - want.log_softmax(-1)).abs().max().item(), 1e-3)


def golden_model(shape: ModelShape) -> tuple[LanguageModel, Tensor]:
    """Loads a `kaczmarz_gated_deltanet` checkpoint; returns the model and its untied head."""
    renames = {
        "model.embeddings": "embedding",
        "model.norm": "final_norm",
        "model.layers": "layers",
        "attn_norm": "mixer_norm",
        ".attn.": ".mixer.",
        "conv1d": "conv",
        "A_log": "decay_rate_log",
        "dt_bias": "decay_bias",
        "a_proj": "decay",
        "b_proj": "step",
        "g_proj": "gate",
        "o_proj": "out",
        "o_norm": "out_norm",
        "_proj": "",
    }
    tensors = load_file(GOLDEN / "model.safetensors")
    head = tensors.pop("lm_head.weight").double()
    named = {}
    for name, tensor in tensors.items():
        for old, new in renames.items():
            name = name.replace(old, new)
        named[name] = tensor.squeeze(1) if "_conv." in name else tensor
    model = LanguageModel(shape).double()
    model.load_state_dict(named)
    return model, head


class Files(unittest.TestCase):
    def test_an_exported_model_comes_back_rounded_once(self) -> None:
        fresh_seed(self)
        model = LanguageModel(SMALL)
        with tempfile.TemporaryDirectory() as folder:
            save_model(model, Path(folder))
            config = json.loads((Path(folder) / "config.json").read_text())
            back = load_model(Path(folder)).state_dict()
        self.assertEqual(config["model_type"], "eddy")
        for name, tensor in model.state_dict().items():
            full = name.endswith(FULL_PRECISION)
            self.assertTrue(torch.equal(back[name], tensor if full else tensor.bfloat16().float()))

    def test_a_split_comes_back_unchanged(self) -> None:
        split = two_books()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.npz.xz"
            save_split(path, split)
            back = load_split(path)
        self.assertTrue(np.array_equal(back.ids, split.ids))
        self.assertEqual(back.books, split.books)


def two_books() -> Split:
    ids = np.random.default_rng(7).integers(4, 64, 500).astype(np.uint16)
    ids[[0, 200]] = BOS
    ids[20:480:30] = ids[21:480:30] = NEWLINE
    return Split(ids, [Book("a", 0, 200, 700), Book("b", 200, 300, 1100)])


class Corpus(unittest.TestCase):
    def test_rows_read_on_where_they_stopped_and_jump_to_paragraphs(self) -> None:
        split = two_books()
        stream = Stream({"x": split}, {"x": 1.0}, (4, 16), 3, 5, torch.device("cpu"))
        last: list[Tensor | None] = [None] * 4
        for _ in range(40):
            place, fresh = stream.advance()
            inputs, targets = stream.gather(torch.from_numpy(place), torch.from_numpy(fresh))
            self.assertTrue(torch.equal(inputs[:, 1:], targets[:, :-1]))
            for row in range(4):
                if fresh[row]:
                    self.assertEqual(inputs[row, 0], BOS)
                    self.assertEqual(list(split.ids[place[row] - 1 : place[row] + 1]), [3, 3])
                else:
                    self.assertEqual(inputs[row, 0], last[row])
                last[row] = targets[row, -1]

    def test_book_bits_are_the_sum_over_all_tokens_but_bos(self) -> None:
        fresh_seed(self)
        model, split = LanguageModel(SMALL), two_books()
        for book, got in zip(split.books, book_bits(model, split, window=70), strict=True):
            ids = torch.from_numpy(split.book_ids(book).astype(np.int64))[None]
            hidden, _ = model.hidden(ids[:, :-1], model.zero_state(1))
            nats = F.cross_entropy(model.logits(hidden)[0], ids[0, 1:], reduction="sum")
            self.assertAlmostEqual(got, nats.item() / math.log(2), delta=1e-2)


if __name__ == "__main__":
    unittest.main()
