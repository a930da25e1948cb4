"""The language model around the Kaczmarz layer, and its config.json.

x = E[token]; each layer: x += mixer(RMSNorm(x)), x += swiglu(RMSNorm(x)); logits = E RMSNorm(x).
Parameter names are those of the exported file, so a state dict is a checkpoint.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kaczmarz import KaczmarzMixer, MixerShape

# One pair (S, convolution tail) for each layer.
State = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the model; the defaults are the bundled one's, 8,215,828 parameters."""

    vocab_size: int = 8192
    width: int = 256
    layers: int = 7
    heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    mlp_size: int = 704
    norm_eps: float = 1e-6
    step_eps: float = 1e-6

    def mixer(self) -> MixerShape:
        return MixerShape(
            width=self.width,
            heads=self.heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            step_eps=self.step_eps,
            norm_eps=self.norm_eps,
        )

    def config(self) -> dict[str, Any]:
        """Returns config.json in eddy's native format 1."""
        mixer = {
            "type": "delta",
            "heads": self.heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "decay": "head",
            "gate": "silu",
            "key_norm": "none",
            "step": "kaczmarz",
            "step_eps": self.step_eps,
            "step_bias": True,
        }
        mlp = {"type": "swiglu", "size": self.mlp_size}
        return {
            "model_type": "eddy",
            "format": 1,
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "norm_eps": self.norm_eps,
            "tie_embeddings": True,
            "tokens": {"bos": 1, "eos": [2], "pad": None},
            "tokenizer": {"kind": "sentencepiece", "file": "tokenizer.model"},
            "layers": [{"repeat": self.layers, "mlp": mlp, "mixer": mixer}],
        }


class RmsNorm(nn.Module):
    """RMSNorm over the last axis, computed in fp32 or wider."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class SwiGlu(nn.Module):
    """down(silu(gate x) * up x), no bias."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, size, bias=False)
        self.up = nn.Linear(width, size, bias=False)
        self.down = nn.Linear(size, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Mixer and MLP with their norms and residuals. The residual stream stays in fp32."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.mixer_norm = RmsNorm(shape.width, shape.norm_eps)
        self.mixer = KaczmarzMixer(shape.mixer())
        self.mlp_norm = RmsNorm(shape.width, shape.norm_eps)
        self.mlp = SwiGlu(shape.width, shape.mlp_size)

    def forward(self, x: Tensor, state: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, state, tail = self.mixer(self.mixer_norm(x), state, tail)
        x = x + y
        return x + self.mlp(self.mlp_norm(x)), state, tail


class LanguageModel(nn.Module):
    """Token ids to logits, with the state handed in and out."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.final_norm = RmsNorm(shape.width, shape.norm_eps)
        self.apply(self._init_weights)
        for layer in self._layers():
            for last in (layer.mixer.out, layer.mlp.down):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * shape.layers))

    def _layers(self) -> list[Layer]:
        return [cast(Layer, layer) for layer in self.layers]

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def zero_state(self, rows: int) -> State:
        """Returns the state of `rows` fresh sequences, in the type of the weights."""
        like = self.embedding.weight
        return [layer.mixer.zero_state(rows, like) for layer in self._layers()]

    def hidden(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens [B, T] -> normed hidden vectors [B, T, D] and the state after them."""
        x, after = self.embedding(tokens), []
        for layer, (memory, tail) in zip(self.layers, state, strict=True):
            x, memory, tail = layer(x, memory, tail)
            after.append((memory, tail))
        return self.final_norm(x), after

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden vectors [..., D] -> logits [..., vocab]."""
        return F.linear(hidden, self.embedding.weight)
