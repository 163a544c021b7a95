"""The pair's architecture: a small Llama (RMSNorm, RoPE, SwiGLU, tied embeddings), for training.

Not a general model: no cache, no sampling, no dropout. All work but attention is done on a flat
list of tokens, so one compiled shape serves every bucket; attention alone sees rows × length and
is left to PyTorch's fused kernels. Causal or not is an argument: nothing else differs between the
two models. `export.py` writes the weights under Hugging Face names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.common import CONTEXT, VOCAB


@dataclass(frozen=True)
class Config:
    layers: int = 12
    width: int = 256
    heads: int = 8
    hidden: int = 768  # of the MLP
    vocab: int = VOCAB
    context: int = CONTEXT
    theta: float = 10_000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float32, back in the input's type, as transformers does it."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * y.to(x.dtype)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on (tokens, heads, head_dim); cos and sin are (tokens, head_dim / 2)."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Block(nn.Module):
    """Weights of one layer; q, k, v and gate, up are stored together for fewer, larger products."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attn_norm = nn.Parameter(torch.ones(c.width))
        self.qkv = nn.Parameter(torch.empty(3 * c.width, c.width))
        self.out = nn.Parameter(torch.empty(c.width, c.width))
        self.mlp_norm = nn.Parameter(torch.ones(c.width))
        self.gate_up = nn.Parameter(torch.empty(2 * c.hidden, c.width))
        self.down = nn.Parameter(torch.empty(c.width, c.hidden))


def _project(
    x: Tensor, norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    h = F.linear(rms(x, norm, eps), qkv.to(x.dtype))
    q, k, v = h.view(x.shape[0], 3, heads, -1).unbind(1)  # each (tokens, heads, head_dim)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def _finish(
    x: Tensor,
    attended: Tensor,
    out: Tensor,
    norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    eps: float,
) -> Tensor:
    x = x + F.linear(attended, out.to(x.dtype))
    gate, up = F.linear(rms(x, norm, eps), gate_up.to(x.dtype)).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down.to(x.dtype))


def _enter(
    ids: Tensor,
    embed: Tensor,
    norm: Tensor,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    x = F.embedding(ids, embed).to(dtype)
    return x, *_project(x, norm, qkv, cos, sin, heads, eps)


def _middle(
    x: Tensor,
    attended: Tensor,
    out: Tensor,
    norm2: Tensor,
    gate_up: Tensor,
    down: Tensor,
    norm1: Tensor,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    eps: float,
) -> tuple[Tensor, ...]:
    x = _finish(x, attended, out, norm2, gate_up, down, eps)
    return x, *_project(x, norm1, qkv, cos, sin, heads, eps)


def _leave(
    x: Tensor,
    attended: Tensor,
    out: Tensor,
    norm2: Tensor,
    gate_up: Tensor,
    down: Tensor,
    norm: Tensor,
    eps: float,
) -> Tensor:
    return rms(_finish(x, attended, out, norm2, gate_up, down, eps), norm, eps)


def weighted_loss(h: Tensor, embed: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Sum of weight × cross-entropy; h is (n, width), target and weight are (n,)."""
    logits = F.linear(h, embed.to(h.dtype)).float()
    return (F.cross_entropy(logits, target, reduction="none") * weight).sum()


PLAIN = (_enter, _middle, _leave, weighted_loss)
Look = Callable[[int, Tensor, Tensor], None]  # layer, q, k: (rows, heads, length, head_dim)


class Model(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, *, causal: bool, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.causal, self.dtype = config, causal, dtype
        self.embed = nn.Parameter(torch.empty(config.vocab, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.width))
        half = config.head_dim // 2
        freq = config.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(config.context, dtype=torch.float64)[:, None] * freq  # (context, half)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        self._fns: tuple[Callable, ...] = PLAIN
        self._tables: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def init(self, seed: int) -> Model:
        """The same weights for the same seed, whatever the objective or device."""
        g = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02
                if name.endswith(("out", "down")):
                    std /= math.sqrt(2 * self.config.layers)
                with torch.no_grad():
                    p.copy_(torch.randn(p.shape, generator=g) * std)
        return self

    def compile(self) -> Model:  # type: ignore[override]
        self._fns = tuple(torch.compile(f, dynamic=False) for f in PLAIN)
        return self

    def _rope(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        key = rows, length
        if key not in self._tables:
            self._tables[key] = tuple(t[:length].repeat(rows, 1) for t in (self.cos, self.sin))  # type: ignore[assignment]
        return self._tables[key]

    def hidden(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        visible: Tensor | None = None,
        look: Look | None = None,
    ) -> Tensor:
        """Final hidden states, (rows · length, width), of ids (rows, length).

        visible (rows, length) is False on padding; positions (rows, length) then count from the
        first visible token. `look` is shown every layer's queries and keys.
        """
        c, (rows, length) = self.config, ids.shape
        if positions is None:
            cos, sin = self._rope(rows, length)
        else:
            cos, sin = self.cos[positions.reshape(-1)], self.sin[positions.reshape(-1)]
        mask = None
        if visible is not None:
            mask = visible[:, None, None, :].expand(rows, 1, length, length)
            if self.causal:
                mask = mask & torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
            # A padding query may see itself, so that its row is a distribution; nobody sees it.
            mask = mask | torch.eye(length, dtype=torch.bool, device=ids.device)
        # Probes and evaluation bring shapes of their own: compiled code is for training alone.
        enter, middle, leave, _ = self._fns if torch.is_grad_enabled() else PLAIN
        blocks: list[Block] = list(self.blocks)  # type: ignore[arg-type]
        x, q, k, v = enter(
            ids.reshape(-1),
            self.embed,
            blocks[0].attn_norm,
            blocks[0].qkv,
            cos,
            sin,
            c.heads,
            c.eps,
            self.dtype,
        )
        for i, b in enumerate(blocks):
            # (tokens, heads, head_dim) -> (rows, heads, length, head_dim), without a copy
            q, k, v = (t.view(rows, length, c.heads, -1).transpose(1, 2) for t in (q, k, v))
            if look is not None:
                look(i, q, k)
            a = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=self.causal and mask is None
            )
            a = a.transpose(1, 2).reshape(rows * length, c.width)
            if i + 1 < c.layers:
                n = blocks[i + 1]
                x, q, k, v = middle(
                    x,
                    a,
                    b.out,
                    b.mlp_norm,
                    b.gate_up,
                    b.down,
                    n.attn_norm,
                    n.qkv,
                    cos,
                    sin,
                    c.heads,
                    c.eps,
                )
            else:
                x = leave(x, a, b.out, b.mlp_norm, b.gate_up, b.down, self.norm, c.eps)
        return x

    def loss(self, hidden: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return self._fns[3](hidden, self.embed, target, weight)

    def logits(self, ids: Tensor, **kw: Any) -> Tensor:
        """(rows, length, vocab), float32."""
        return (
            F.linear(self.hidden(ids, **kw), self.embed.to(self.dtype)).float().view(*ids.shape, -1)
        )
