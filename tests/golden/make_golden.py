#!/usr/bin/env python3
"""Writes the golden sets of layer types that no other program of ours or of others gives one for.

    tests/golden/make_golden.py [FOLDER]

Each set is a folder like those of the reference programs: a small random model in eddy's own format
(config.json, model.safetensors) and golden.safetensors with two rows of input_ids, the logits, the
greedy continuation and each layer's state after 65 tokens. Everything is computed here in float64,
token by token, from the formulas on the pages of the layers (kernels/layers/*/*.h), of which no line
of code is shared. Weights are rounded to float32 first. A set is written only if at every position
the likeliest token leads by LEAST_LEAD, so that float32 must agree on it.
"""
from __future__ import annotations

import json
import math
import random
import struct
import sys
from pathlib import Path

VOCAB, WIDTH, LAYERS, EPS = 24, 12, 2, 1e-5
ROWS, TOKENS, CONTINUATION, STATE_AT = 2, 257, 24, 65
LEAST_LEAD = 3e-4  # in logits; a float32 engine lands within 1e-5

Row = list[float]
# name -> (shape, values in row-major order)
Tensors = dict[str, tuple[tuple[int, ...], Row]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def softplus(x: float) -> float:
    return x if x > 20 else math.log1p(math.exp(x))


def silu(x: float) -> float:
    return x * sigmoid(x)


def dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b))


def rms_norm(x: Row, w: Row) -> Row:
    scale = 1 / math.sqrt(dot(x, x) / len(x) + EPS)
    return [a * scale * b for a, b in zip(x, w)]


class Weights:
    """The tensors of one layer, without its prefix."""

    def __init__(self, tensors: Tensors, prefix: str) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.flat: dict[str, Row] = {}
        for name, (shape, values) in tensors.items():
            if not name.startswith(prefix):
                continue
            short = name[len(prefix):]
            self.flat[short] = values
            if len(shape) == 2:
                self.rows[short] = [values[i * shape[1]:(i + 1) * shape[1]]
                                    for i in range(shape[0])]

    def linear(self, name: str, x: Row) -> Row:
        bias = self.flat.get(name + ".bias")
        y = [dot(row, x) for row in self.rows[name + ".weight"]]
        return y if bias is None else [a + b for a, b in zip(y, bias)]


class MambaBlock:
    """Layers mamba and longhorn."""

    CHANNELS, STATES, RANK, CONV = 20, 5, 3, 4

    def __init__(self, weights: Weights, longhorn: bool) -> None:
        self.w, self.longhorn = weights, longhorn
        self.inputs: list[Row] = []
        self.state = [[0.0] * self.CHANNELS for _ in range(self.STATES)]

    @classmethod
    def mixer(cls, kind: str) -> dict[str, object]:
        return {"type": kind, "channels": cls.CHANNELS, "state_dim": cls.STATES,
                "step_rank": cls.RANK}

    @classmethod
    def shapes(cls, kind: str) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "in.weight": (2 * cls.CHANNELS, WIDTH),
            "conv.weight": (cls.CHANNELS, cls.CONV),
            "conv.bias": (cls.CHANNELS,),
            "select.weight": (cls.RANK + 2 * cls.STATES, cls.CHANNELS),
            "step_up.weight": (cls.CHANNELS, cls.RANK),
            "step_up.bias": (cls.CHANNELS,),
            "skip": (cls.CHANNELS,),
            "out.weight": (WIDTH, cls.CHANNELS),
        }
        if kind == "mamba":
            shapes["decay_rate_log"] = (cls.CHANNELS, cls.STATES)
        return shapes

    def step(self, n: Row) -> Row:
        both = self.w.linear("in", n)
        self.inputs.append(both[:self.CHANNELS])
        gate = both[self.CHANNELS:]
        s = []
        for c, taps in enumerate(self.w.rows["conv.weight"]):
            past = [row[c] for row in self.inputs[-self.CONV:]]
            s.append(silu(self.w.flat["conv.bias"][c] + dot(taps[self.CONV - len(past):], past)))
        select = self.w.linear("select", s)
        k = select[self.RANK:self.RANK + self.STATES]
        q = select[self.RANK + self.STATES:]
        d = self.w.linear("step_up", select[:self.RANK])
        out = []
        for c in range(self.CHANNELS):
            if self.longhorn:
                b = sigmoid(d[c])
                step = b / (1 + b * dot(k, k))
            else:
                step = softplus(d[c])
            o = self.w.flat["skip"][c] * s[c]
            for i in range(self.STATES):
                if self.longhorn:
                    decay = 1 - step * k[i] * k[i]
                else:
                    decay = math.exp(-step * math.exp(self.w.rows["decay_rate_log"][c][i]))
                self.state[i][c] = decay * self.state[i][c] + k[i] * step * s[c]
                o += q[i] * self.state[i][c]
            out.append(o * silu(gate[c]))
        return self.w.linear("out", out)

    def snapshot(self) -> tuple[tuple[int, ...], Row]:
        return (self.STATES, self.CHANNELS, 1), [x for row in self.state for x in row]


class Mlstm:
    """Layer mlstm, forget gate sigmoid."""

    HEADS, KEYS, VALUES, CAP = 2, 5, 7, 15.0

    def __init__(self, weights: Weights) -> None:
        self.w = weights
        self.memory = [[[0.0] * self.VALUES for _ in range(self.KEYS)] for _ in range(self.HEADS)]
        self.normaliser = [[0.0] * self.KEYS for _ in range(self.HEADS)]
        self.stabiliser = [0.0] * self.HEADS

    @classmethod
    def mixer(cls) -> dict[str, object]:
        return {"type": "mlstm", "heads": cls.HEADS, "key_dim": cls.KEYS, "value_dim": cls.VALUES,
                "gate_softcap": cls.CAP}

    @classmethod
    def shapes(cls) -> dict[str, tuple[int, ...]]:
        keys, values = cls.HEADS * cls.KEYS, cls.HEADS * cls.VALUES
        return {
            "q.weight": (keys, WIDTH), "k.weight": (keys, WIDTH), "v.weight": (values, WIDTH),
            "input_gate.weight": (cls.HEADS, WIDTH), "input_gate.bias": (cls.HEADS,),
            "forget_gate.weight": (cls.HEADS, WIDTH), "forget_gate.bias": (cls.HEADS,),
            "gate.weight": (values, WIDTH), "out_norm.weight": (values,),
            "out.weight": (WIDTH, values),
        }

    def head(self, j: int, q: Row, k: Row, v: Row, gates: tuple[float, float]) -> Row:
        i, f = (self.CAP * math.tanh(a / self.CAP) for a in gates)
        kept = -softplus(-f) + self.stabiliser[j]
        self.stabiliser[j] = max(kept, i)
        keep, write = math.exp(kept - self.stabiliser[j]), math.exp(i - self.stabiliser[j])
        h = [0.0] * self.VALUES
        for a in range(self.KEYS):
            key = write * k[a] / math.sqrt(self.KEYS)
            self.normaliser[j][a] = keep * self.normaliser[j][a] + key
            row = self.memory[j][a]
            for b in range(self.VALUES):
                row[b] = keep * row[b] + key * v[b]
                h[b] += q[a] * row[b]
        divisor = max(abs(dot(self.normaliser[j], q)), math.exp(-self.stabiliser[j])) + 1e-6
        h = [x / divisor for x in h]
        mean = sum(h) / self.VALUES
        norm = self.w.flat["out_norm.weight"][j * self.VALUES:(j + 1) * self.VALUES]
        return rms_norm([x - mean for x in h], norm)

    def step(self, n: Row) -> Row:
        q, k, v = (self.w.linear(name, n) for name in "qkv")
        i, f = self.w.linear("input_gate", n), self.w.linear("forget_gate", n)
        gate = self.w.linear("gate", n)
        h: Row = []
        for j in range(self.HEADS):
            keys = slice(j * self.KEYS, (j + 1) * self.KEYS)
            values = slice(j * self.VALUES, (j + 1) * self.VALUES)
            h += self.head(j, q[keys], k[keys], v[values], (i[j], f[j]))
        return self.w.linear("out", [a * sigmoid(z) for a, z in zip(h, gate)])

    def snapshot(self) -> tuple[tuple[int, ...], Row]:
        # [H, V, K], as the other sets have it.
        flat = [self.memory[j][a][b] for j in range(self.HEADS) for b in range(self.VALUES)
                for a in range(self.KEYS)]
        return (self.HEADS, self.VALUES, self.KEYS), flat


KINDS = {
    "mamba": (MambaBlock.mixer("mamba"), MambaBlock.shapes("mamba"),
              lambda w: MambaBlock(w, longhorn=False)),
    "longhorn": (MambaBlock.mixer("longhorn"), MambaBlock.shapes("longhorn"),
                 lambda w: MambaBlock(w, longhorn=True)),
    "mlstm": (Mlstm.mixer(), Mlstm.shapes(), Mlstm),
}
# Where gates start: steps of about 0.1, and a forget gate that keeps most.
SHIFTS = {"step_up.bias": -2.0, "forget_gate.bias": 3.0, "skip": 1.0}
# Spread of a matrix, times the root of its width: these less than the others', so that no step of
# Mamba is large enough to make its state so.
SPREADS = {"select.weight": 0.7, "step_up.weight": 0.5}


def float32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def random_tensors(kind: str, rng: random.Random) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (VOCAB, WIDTH),
                                          "final_norm.weight": (WIDTH,),
                                          "head.weight": (VOCAB, WIDTH)}
    for i in range(LAYERS):
        shapes[f"layers.{i}.mixer_norm.weight"] = (WIDTH,)
        for name, shape in KINDS[kind][1].items():
            shapes[f"layers.{i}.mixer.{name}"] = shape
    tensors: Tensors = {}
    for name, shape in shapes.items():
        short = name.split("mixer.")[-1]
        spread, centre = SPREADS.get(short, 1.5) / math.sqrt(shape[-1]), SHIFTS.get(short, 0.0)
        if name == "embedding.weight":
            spread = 1.0
        if "norm" in name or len(shape) == 1:
            spread, centre = 0.2, 1.0 if "norm" in name else centre
        values = [float32(rng.gauss(centre, spread)) for _ in range(math.prod(shape))]
        tensors[name] = (shape, values)
    return tensors


class Model:
    def __init__(self, kind: str, tensors: Tensors) -> None:
        make = KINDS[kind][2]
        self.ends = Weights(tensors, "")
        self.layers = [make(Weights(tensors, f"layers.{i}.mixer.")) for i in range(LAYERS)]

    def step(self, token: int) -> Row:
        """The logits behind `token`."""
        x = self.ends.rows["embedding.weight"][token]
        for i, layer in enumerate(self.layers):
            normed = rms_norm(x, self.ends.flat[f"layers.{i}.mixer_norm.weight"])
            x = [a + b for a, b in zip(x, layer.step(normed))]
        return self.ends.linear("head", rms_norm(x, self.ends.flat["final_norm.weight"]))


def lead(logits: Row) -> float:
    first, second = sorted(logits)[:-3:-1]
    return first - second


def run(kind: str, tensors: Tensors, prompts: list[list[int]]) -> Tensors | None:
    """What golden.safetensors holds; None if some token does not lead clearly."""
    logits: Row = []
    greedy: list[int] = []
    states: list[list[Row]] = [[] for _ in range(LAYERS)]
    shape: tuple[int, ...] = ()
    for prompt in prompts:
        model = Model(kind, tensors)
        for t, token in enumerate(prompt):
            row = model.step(token)
            if lead(row) < LEAST_LEAD:
                return None
            logits += row
            if t + 1 == STATE_AT:
                for i, layer in enumerate(model.layers):
                    shape, values = layer.snapshot()
                    states[i].append(values)
        for _ in range(CONTINUATION):
            greedy.append(row.index(max(row)))
            row = model.step(greedy[-1])
            if lead(row) < LEAST_LEAD:
                return None
    golden: Tensors = {
        "input_ids": ((ROWS, TOKENS), [t for prompt in prompts for t in prompt]),
        "logits": ((ROWS, TOKENS, VOCAB), logits),
        "greedy_continuation": ((ROWS, CONTINUATION), greedy),
    }
    for i in range(LAYERS):
        golden[f"state_after_{STATE_AT}_layer{i}"] = ((ROWS, *shape), sum(states[i], []))
    return golden


def write_safetensors(path: Path, tensors: Tensors) -> None:
    header: dict[str, object] = {}
    data = b""
    for name, (shape, values) in tensors.items():
        whole = all(isinstance(value, int) for value in values)
        code, dtype = ("i", "I32") if whole else ("f", "F32")
        part = struct.pack(f"<{len(values)}{code}", *values)
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_set(folder: Path, kind: str) -> None:
    for seed in range(1000):
        rng = random.Random(seed)
        tensors = random_tensors(kind, rng)
        prompts = [[rng.randrange(VOCAB) for _ in range(TOKENS)] for _ in range(ROWS)]
        golden = run(kind, tensors, prompts)
        if golden is not None:
            break
    else:
        raise SystemExit(f"{kind}: no seed gives a clear lead everywhere")
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "eddy", "format": 1, "vocab_size": VOCAB, "hidden_size": WIDTH,
              "norm_eps": EPS, "tokens": {"bos": None, "eos": [], "pad": None}, "tokenizer": None,
              "layers": [{"repeat": LAYERS, "mixer": KINDS[kind][0], "mlp": None}]}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_safetensors(folder / "model.safetensors", tensors)
    write_safetensors(folder / "golden.safetensors", golden)
    print(f"{folder}: seed {seed}")


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    for kind in KINDS:
        write_set(root / f"{kind}_a", kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
