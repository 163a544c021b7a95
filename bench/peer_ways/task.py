"""The task that every library is given, its exact answer, and what each is asked besides.

The task is a decoding: `steps` forwards over a canvas of S tokens, of which `answer` are masks, and
after each the surest tokens are revealed. A way of doing it returns the sums of attention that
each key receives, for every step, layer and head, and whatever it had to keep.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Task:
    folder: Path  # the checkpoint
    size: int  # S
    answer: int
    steps: int

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return config

    @property
    def canvas(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.size)
        ids = torch.randint(0, 256, (1, self.size), generator=generator)
        ids[:, -self.answer :] = self.config["mask_token_id"]
        return ids

    @property
    def rows(self) -> Tensor:
        """The rows that predict the answer: Dream's stand one to the left."""
        shift = int(self.config["model_type"] == "Dream")
        return torch.arange(self.size - self.answer, self.size) - shift


@dataclass
class Found:
    canvases: list[Tensor]  # the input of each step
    logits: list[Tensor]  # of the answer, at each step
    sums: list[Tensor]  # (layer, head, key) at each step; empty for a plain run
    kept: object  # tensors, however nested, that are held at the end; or a number of bytes


Step = tuple[Tensor, Tensor | None, object]  # logits of the answer, sums, what is kept
Way = Callable[[Task], Found]
Fact = dict[str, str]


def decoding(look: Callable[[Tensor, Tensor], Step]) -> Way:
    """A loop around one forward, for libraries that have none for masked diffusion."""

    @torch.inference_mode()
    def run(task: Task) -> Found:
        canvas, mask, rows = task.canvas, task.config["mask_token_id"], task.rows
        found, kept = Found([], [], [], None), []
        for left in range(task.steps, 0, -1):
            logits, sums, keep = look(canvas, rows)
            found.canvases.append(canvas.clone())
            found.logits.append(logits)
            kept.append(keep)
            if sums is not None:
                found.sums.append(sums)
            scores = logits.clone()
            scores[..., mask] = -torch.inf
            best, token = scores.max(-1)
            sure = (best - scores.logsumexp(-1)).exp()
            hollow = canvas[:, -task.answer :] == mask
            reveal = sure.where(hollow, -torch.inf)[0].topk(-(-int(hollow.sum()) // left)).indices
            canvas[0, reveal - task.answer] = token[0, reveal]
        found.kept = kept
        return found

    return run


def reference(task: Task, canvas: Tensor) -> Tensor:
    """Column sums (layer, head, key) by their definition, the whole network in float64."""
    raw, llada = task.config, task.config["model_type"] == "llada"
    weights = {k: v.double() for k, v in load_file(task.folder / "model.safetensors").items()}
    n_layers = raw["n_layers"] if llada else raw["num_hidden_layers"]
    heads = raw["n_heads"] if llada else raw["num_attention_heads"]
    theirs = "attn_norm q_proj k_proj v_proj attn_out ff_norm ff_proj up_proj ff_out".split()
    ours = "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
    ours += "post_attention_layernorm mlp.gate_proj mlp.up_proj mlp.down_proj"
    base = "model.transformer.blocks" if llada else "model.layers"
    names = dict(zip(theirs, theirs if llada else ours.split(), strict=True))

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + raw["rms_norm_eps"])

    x = weights["model.transformer.wte.weight" if llada else "model.embed_tokens.weight"][canvas[0]]
    size, width = len(x), x.shape[1] // heads
    # The angles are float32 in every implementation of both models; so are they here.
    angle = 1 / raw["rope_theta"] ** (torch.arange(0, width, 2).float() / width)
    angle = (torch.arange(size).float()[:, None] * angle).repeat(1, 2)
    cos, sin = angle.cos().double(), angle.sin().double()
    sums = []
    for layer in range(n_layers):

        def linear(name: str, y: Tensor, layer: int = layer) -> Tensor:
            key = f"{base}.{layer}.{names[name]}"
            return F.linear(y, weights[f"{key}.weight"], weights.get(f"{key}.bias"))

        def split(y: Tensor) -> Tensor:
            y = y.view(size, -1, width).transpose(0, 1)  # (heads, s, d)
            return y.repeat_interleave(heads // len(y), 0)

        def turn(y: Tensor) -> Tensor:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat([-second, first], -1) * sin

        y = norm(x, weights[f"{base}.{layer}.{names['attn_norm']}.weight"])
        q, k, v = (split(linear(name, y)) for name in ("q_proj", "k_proj", "v_proj"))
        a = (turn(q) @ turn(k).mT / width**0.5).softmax(-1)
        sums.append(a.sum(1))
        x = x + linear("attn_out", (a @ v).transpose(0, 1).reshape(size, -1))
        y = norm(x, weights[f"{base}.{layer}.{names['ff_norm']}.weight"])
        x = x + linear("ff_out", F.silu(linear("ff_proj", y)) * linear("up_proj", y))
    return torch.stack(sums)


def attempt(call: Callable[[], object]) -> str:
    """What a library says when it is asked for something."""
    try:
        call()
        return "works"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"


PAD, REAL = 8, 40


def padded_batch() -> tuple[Tensor, Tensor, Tensor]:
    """Two prompts of 48 and 40 tokens, the second padded on the left: ids, mask, positions."""
    ids = torch.arange(PAD + REAL).repeat(2, 1)
    ids[1] = torch.cat([torch.zeros(PAD, dtype=torch.long), torch.arange(REAL)])
    mask = torch.ones_like(ids)
    mask[1, :PAD] = 0
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def padding_facts(alone: list[Tensor], together: list[Tensor]) -> Fact:
    """Attentions (b, h, q, k) by layer, of the second prompt alone and of the padded batch."""
    truth = torch.stack([a[0].sum(-2) for a in alone])
    rows = {"all rows": 0, "real rows": PAD}
    found = {
        name: torch.stack([a[1, :, first:, PAD:].sum(-2) for a in together]) - truth
        for name, first in rows.items()
    }
    text = "padded batch: error of the sums over"
    return {f"{text} {name}": f"{float(e.abs().max()):.1e}" for name, e in found.items()}
