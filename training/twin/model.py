"""The parent with an adapter: LoRA on every linear map, norms, and one new embedding for the mask.

Documents of a step stand one after another in a single row and do not see each other, so each is a
canvas of its own from position 0, as in use, and nothing is padded. The adapter is added to the weights
before the forward (W + B A): one product a map, and gradients of W give those of A and B.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.twin.parent import (
    EPS,
    HEAD,
    HEADS,
    KV_HEADS,
    LAYERS,
    MAPS,
    MASK,
    THETA,
    WIDTH,
)

RANK = 64
LONGEST = 1024  # tokens of a document
Look = Callable[[int, Tensor, Tensor], None]  # (layer, queries, keys), each (tokens, heads, head)


class Twin(nn.Module):
    embed: Tensor

    def __init__(
        self, parent: dict[str, Tensor], *, causal: bool, rank: int = RANK, seed: int = 0
    ) -> None:
        super().__init__()
        self.causal, self.rank = causal, rank
        for name in (*MAPS, "embed"):
            self.register_buffer(_key(name), parent[name], persistent=False)
        draw = torch.Generator().manual_seed(seed)
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for name, (rows, columns) in MAPS.items():
            a = torch.empty(LAYERS, rank, columns)
            a.uniform_(-1 / math.sqrt(columns), 1 / math.sqrt(columns), generator=draw)
            self.a[_key(name)] = nn.Parameter(a)
            self.b[_key(name)] = nn.Parameter(torch.zeros(LAYERS, rows, rank))
        self.norms = nn.Parameter(
            torch.stack([parent["input_layernorm"], parent["post_attention_layernorm"]], 1)
        )  # (layers, 2, width)
        self.norm = nn.Parameter(parent["norm"].clone())
        self.mask = nn.Parameter(parent["embed"].mean(0))
        self._block: Callable[..., tuple[Tensor, Tensor, Tensor]] = block

    def compile(self) -> None:
        """One block, not the network: a block is compiled once and used 30 times."""
        self._block = torch.compile(block, fullgraph=True, dynamic=False)

    def merged(self, name: str) -> Tensor:
        """A map with its adapter, (layers, rows, columns), float32."""
        key = _key(name)
        return torch.baddbmm(getattr(self, key), self.b[key], self.a[key])

    def weights(self, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
        """What each layer needs, with q, k, v and gate, up in one map each."""
        q, k, v, o, gate, up, down = (self.merged(name) for name in MAPS)
        stacked = (torch.cat([q, k, v], 1), o, torch.cat([gate, up], 1), down, self.norms)
        return list(zip(*(s.to(dtype).unbind(0) for s in stacked), strict=True))

    def table(self, dtype: torch.dtype) -> Tensor:
        """The parent's embedding, which is also the head; never trained, the mask's row apart."""
        return self.embed.to(dtype)

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        starts: Tensor,
        *,
        table: Tensor,
        weights: list[tuple[Tensor, ...]] | None = None,
        look: Look | None = None,
        compiled: bool = False,
    ) -> Tensor:
        """(tokens, width) after the last norm; `starts` are the documents' bounds, 0 … tokens."""
        dtype = table.dtype
        angles = positions[:, None].float() * THETA ** (
            -torch.arange(0, HEAD, 2, device=ids.device, dtype=torch.float32) / HEAD
        )
        cos, sin = (f(angles).repeat(1, 2)[:, None].to(dtype) for f in (torch.cos, torch.sin))
        x = torch.where((ids == MASK)[:, None], self.mask.to(dtype), F.embedding(ids, table))
        layer_of: Callable[..., tuple[Tensor, Tensor, Tensor]] = self._block if compiled else block
        for layer, each in enumerate(weights or self.weights(dtype)):
            x, q, k = layer_of(x, *each, cos, sin, starts, self.causal)
            if look is not None:
                look(layer, q, k)
        return _normed(x, self.norm.to(dtype))


def block(
    x: Tensor,
    qkv: Tensor,
    out: Tensor,
    gate_up: Tensor,
    down: Tensor,
    norms: Tensor,
    cos: Tensor,
    sin: Tensor,
    starts: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One Llama layer over packed documents; gives queries and keys too, after rotation."""
    n = x.shape[0]
    mixed = F.linear(_normed(x, norms[0]), qkv).view(n, HEADS + 2 * KV_HEADS, HEAD)
    q, k, v = mixed.split([HEADS, KV_HEADS, KV_HEADS], 1)
    q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    x = x + F.linear(attention(q, k, v.contiguous(), starts, causal).reshape(n, WIDTH), out)
    gate, up = F.linear(_normed(x, norms[1]), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down), q, k


def attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, causal: bool) -> Tensor:
    """(tokens, heads, head); each document sees itself alone."""
    if q.is_cuda:
        return torch.ops.aten._flash_attention_forward(
            q, k, v, starts, starts, LONGEST, LONGEST, 0.0, causal, False
        )[0]
    parts = []
    bounds = starts.tolist()
    for a, b in itertools.pairwise(bounds):
        if b > a:
            one, two, three = (
                t[a:b].transpose(0, 1)[None] for t in (q, k, v)
            )  # (1, heads, n, head)
            part = F.scaled_dot_product_attention(
                one, two, three, is_causal=causal, enable_gqa=True
            )
            parts.append(part[0].transpose(0, 1))
    return torch.cat(parts)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype) * weight


def _key(name: str) -> str:
    return name.replace(".", "_")
