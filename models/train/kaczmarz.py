"""The Kaczmarz layer: a gated delta rule with raw keys and a step divided by the key's norm.

One token, per head, with state S [K, V]:

    S <- e^g S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q / sqrt(K)
    g = -exp(rate_log) softplus(W_decay x + decay_bias)
    beta = sigmoid(W_step x + b_step) / (|k|^2 + eps),   q / sqrt(|q|^2 + 1e-6)

(Kaczmarz Linear Attention, option `relaxed_kaczmarz_q_norm`.) Training and evaluation use the
chunk form (WY form of the delta rule); `step_kaczmarz` is the recurrence it must equal, and what a
single token takes.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

QUERY_EPS = 1e-6
CHUNK = 64


@dataclass(frozen=True)
class MixerShape:
    """Sizes of one Kaczmarz layer."""

    width: int
    heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4
    step_eps: float = 1e-6
    norm_eps: float = 1e-6


def step_kaczmarz(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence, token by token. Shapes as in chunk_kaczmarz; any floating type."""
    out = []
    for t in range(q.shape[2]):
        state = g[:, :, t, None, None].exp() * state
        error = v[:, :, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        state = state + k[:, :, t, :, None] * (beta[:, :, t, None] * error)[:, :, None, :]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(out, 2), state


class UnitLowerInverse(torch.autograd.Function):
    """(I + X)^-1 of strictly lower triangular X [..., C, C], C a power of two.

    Neighbouring diagonal blocks of size s are merged into blocks of 2 s: with inverses A11, A22 the
    new corner is -A22 X21 A11. That is substitution by blocks, as stable as a triangular solve,
    and made of batched products only.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        size = x.shape[-1]
        index = torch.arange(size, device=x.device)
        inverse = torch.eye(size, device=x.device, dtype=x.dtype).expand_as(x)
        block = 1
        while block < size:
            half, pair = index // block, index // (2 * block)
            corner = (pair[:, None] == pair) & (half[:, None] > half)
            x21 = x.masked_fill(~corner, 0)
            inverse = inverse - (x21 if block == 1 else inverse @ x21 @ inverse)
            block *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT).tril(-1)


def chunk_kaczmarz(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence in chunks of 64 tokens.

    q (scaled), k [B, H, T, K]; v [B, H, T, V]; beta, g [B, H, T]; state [B, H, K, V]. Returns
    outputs [B, H, T, V] and the state after T tokens. All exponents formed are <= 0.
    """
    length = q.shape[2]
    short = -length % CHUNK
    if short:
        # Tokens of zeros leave the state as it is: beta = 0, g = 0.
        q, k, v = (F.pad(x, (0, 0, 0, short)) for x in (q, k, v))
        beta, g = (F.pad(x, (0, short)) for x in (beta, g))
    q, k, v, beta, g = (x.unflatten(2, (-1, CHUNK)) for x in (q, k, v, beta, g))
    decay = g.cumsum(-1)  # [B, H, n, C]
    keep = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    gamma = (decay[..., :, None] - decay[..., None, :]).masked_fill(~keep, -math.inf).exp()
    x = (beta[..., None] * (k @ k.mT) * gamma).tril(-1)
    scores = (q @ k.mT) * gamma
    solved = UnitLowerInverse.apply(x) * beta[..., None, :]  # A diag(beta)
    since = decay.exp()[..., None]  # decay since the chunk began
    u, w = solved @ v, solved @ (since * k)
    until = (decay[..., -1:] - decay).exp()[..., None] * k  # write keys at the chunk's end

    # The state is linear in the state before: S' = (e^G I - until^T W) S + until^T U. Only this
    # product is sequential.
    eye = torch.eye(k.shape[-1], device=q.device, dtype=q.dtype)
    move = decay[..., -1].exp()[..., None, None] * eye - until.mT @ w
    add = until.mT @ u
    states = []
    for c in range(add.shape[2]):
        states.append(state)
        state = add[:, :, c] + move[:, :, c] @ state
    before = torch.stack(states, 2)  # [B, H, n, K, V]
    out = (since * q) @ before + scores @ (u - w @ before)
    return out.flatten(2, 3)[:, :, :length], state


def head_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis in fp32 (or better)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def causal_conv(x: Tensor, weight: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution and SiLU.

    x [B, T, channels]; weight [channels, W], the last tap for the current token; tail
    [B, W - 1, channels] holds the inputs before. Returns outputs and the new tail.
    """
    taps, length = weight.shape[1], x.shape[1]
    padded = torch.cat([tail.to(x.dtype), x], 1)
    out = sum(padded[:, j : j + length] * weight[:, j].to(x.dtype) for j in range(taps))
    return F.silu(out), padded[:, length:].to(tail.dtype)


def decay_initial(heads: int) -> tuple[Tensor, Tensor]:
    """Initial rate_log ln U(1, 16) and decay_bias softplus^-1(log-uniform [1e-3, 0.1])."""
    rate_log = torch.empty(heads).uniform_(1, 16).log()
    step = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(0.1)))
    return rate_log, step + torch.log(-torch.expm1(-step))


def conv_initial(channels: int, width: int) -> Tensor:
    """Initial taps [channels, width], uniform within 1 / sqrt(width)."""
    return torch.empty(channels, width).uniform_(-(width**-0.5), width**-0.5)


class Weight(nn.Module):
    """A bare tensor that is exported under the name `weight`."""

    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(initial)


class KaczmarzMixer(nn.Module):
    """The whole mixer. Parameters carry the names and shapes of the exported tensors."""

    def __init__(self, shape: MixerShape) -> None:
        super().__init__()
        self.shape = shape
        keys, values = shape.heads * shape.key_dim, shape.heads * shape.value_dim
        self.q = nn.Linear(shape.width, keys, bias=False)
        self.k = nn.Linear(shape.width, keys, bias=False)
        self.v = nn.Linear(shape.width, values, bias=False)
        self.gate = nn.Linear(shape.width, values, bias=False)
        self.out = nn.Linear(values, shape.width, bias=False)
        self.step = nn.Linear(shape.width, shape.heads)
        self.decay = nn.Linear(shape.width, shape.heads, bias=False)
        self.q_conv = Weight(conv_initial(keys, shape.conv_width))
        self.k_conv = Weight(conv_initial(keys, shape.conv_width))
        self.v_conv = Weight(conv_initial(values, shape.conv_width))
        rate_log, bias = decay_initial(shape.heads)
        self.decay_rate_log, self.decay_bias = nn.Parameter(rate_log), nn.Parameter(bias)
        self.out_norm = Weight(torch.ones(shape.value_dim))

    def zero_state(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns S [rows, H, K, V] and the convolutions' tail [rows, W - 1, 2 H K + H V]."""
        s = self.shape
        channels = s.heads * (2 * s.key_dim + s.value_dim)
        return (
            like.new_zeros(rows, s.heads, s.key_dim, s.value_dim),
            like.new_zeros(rows, s.conv_width - 1, channels),
        )

    def forward(self, x: Tensor, state: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, D] (normed) -> y [B, T, D] and the new state and tail."""
        s = self.shape
        joined = torch.cat([self.q(x), self.k(x), self.v(x)], -1)
        taps = torch.cat([self.q_conv.weight, self.k_conv.weight, self.v_conv.weight])
        joined, tail = causal_conv(joined, taps, tail)
        gate = self.gate(x)
        with torch.autocast(x.device.type, enabled=False):
            # From here on everything is fp32, or the type of the weights if that is wider.
            kind = self.step.weight.dtype
            x, joined = x.to(kind), joined.to(kind)
            sizes = [s.heads * s.key_dim, s.heads * s.key_dim, s.heads * s.value_dim]
            q, k, v = (
                part.unflatten(-1, (s.heads, -1)).transpose(1, 2)
                for part in joined.split(sizes, -1)
            )
            q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + QUERY_EPS) * s.key_dim**-0.5
            eta = torch.sigmoid(self.step(x)).transpose(1, 2)
            beta = eta / (k.square().sum(-1) + s.step_eps)
            g = -self.decay_rate_log.exp() * F.softplus(self.decay(x) + self.decay_bias)
            form = chunk_kaczmarz if x.shape[1] > 1 else step_kaczmarz
            o, state = form(q, k, v, beta, g.transpose(1, 2), state)
            o = head_norm(o.transpose(1, 2), self.out_norm.weight, s.norm_eps)
            o = o.flatten(-2) * F.silu(gate.to(kind))
        return self.out(o), state, tail
