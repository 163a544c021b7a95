"""Scale the queries of an untrained network so that each head has the entropy of the trained head.

A network with permuted weights keeps its norms and loses everything learned. Its attention is nearly
uniform, so any network with sharp attention seems to have learned something in comparison. This module
multiplies the queries of every head by a factor, chosen so that the head's mean attention entropy over
given rows of given texts equals that of the trained head. The given rows should be the rows that are
measured later: a head that is as sharp as the trained head over all rows may be less sharp on masked rows.
Layers are matched in order, and each layer is matched on the output of the matched layers below it.
Scaling queries works in every family, even if the network normalises its queries.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from . import attention_hook
from .model import Model

ROWS = 64  # number of evenly spaced positions of a text over which a head is matched
LOG_RANGE = 8.0  # scales between e^−8 and e^8
_TOLERANCE = 1e-4  # tolerance of the mean entropy, as a share of the maximum
_STEPS = 40


@dataclass(eq=False)
class _Entropies:
    """A handler that records each head's mean attention entropy as a share of the largest possible."""

    entropies: dict[int, Float[Tensor, " h"]]
    rows: Bool[Tensor, "n size"] | None = None

    def __call__(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        scores, counts = _scores(call, self.rows)
        self.entropies[call.layer] = _mean_entropy(
            scores, counts, scores.new_zeros(scores.shape[1])
        )[0]
        return proceed(call)


@dataclass(eq=False)
class _Matching:
    """A handler that scales each head's queries so that the head has its target entropy."""

    targets: Float[Tensor, "layer h"]
    log_scales: dict[int, Float[Tensor, " h"]]
    rows: Bool[Tensor, "n size"] | None = None

    def __call__(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        scores, counts = _scores(call, self.rows)
        target = self.targets[call.layer].to(scores)
        self.log_scales[call.layer] = log_scale = _solve(scores, counts, target)
        return proceed(_scaled(call, log_scale))


@dataclass(eq=False)
class _Scaling:
    log_scale: Float[Tensor, "layer h"]

    @property
    def recorded_as(self) -> Hashable:
        """Key of forwards that may share a recording: the address at which a graph reads the scales."""
        return "scaled", self.log_scale.data_ptr()

    def __call__(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        return proceed(_scaled(call, self.log_scale[call.layer]))


def match_sharpness(
    control: Model,
    trained: Model,
    texts: Int[Tensor, "n size"],
    rows: Bool[Tensor, "n size"] | None = None,
) -> Float[Tensor, "layer h"]:
    """Return the logarithms of the scales that give each head the trained head's entropy on these texts.

    Args:
        control: the network that is scaled.
        trained: the network whose entropies are matched.
        texts: token ids of texts of equal length.
        rows: queries over which entropies are averaged; None is all queries.
    """
    targets: dict[int, Tensor] = {}
    with attention_hook.attach(trained.net, _Entropies(targets, rows)):
        _forward(trained, texts)
    entropies = torch.stack([targets[layer] for layer in sorted(targets)])
    log_scales: dict[int, Tensor] = {}
    with attention_hook.attach(control.net, _Matching(entropies, log_scales, rows)):
        _forward(control, texts)
    return torch.stack([log_scales[layer] for layer in sorted(log_scales)])


@contextmanager
def sharpened(control: Model, log_scale: Float[Tensor, "layer h"]) -> Iterator[None]:
    """Scale `control`'s queries by e^`log_scale`, per head, in forwards while a `with` block runs."""
    with attention_hook.attach(control.net, _Scaling(log_scale)):
        yield


@torch.inference_mode()
def _forward(model: Model, texts: Int[Tensor, "n size"]) -> None:
    n, size = texts.shape
    padding = torch.zeros(n, dtype=torch.long, device=model.device)
    visible = model.visibility(size, size, padding, prompts=[size] * n)
    last = torch.tensor([size - 1], device=model.device)
    model.forward(texts.to(model.device), last, visible)


def _scaled(call: attention_hook.Call, log_scale: Float[Tensor, " h"]) -> attention_hook.Call:
    scale = log_scale.exp().to(call.query)
    return replace(call, query=call.query * scale[None, :, None, None])


def _scores(
    call: attention_hook.Call, counted: Bool[Tensor, "b q"] | None
) -> tuple[Float[Tensor, "b h r k"], Float[Tensor, "b h r"]]:
    """Return the scaled scores of up to 64 rows, −inf for invisible keys, and the count of visible keys.

    For rows outside `counted` the count is 0.
    """
    device = call.query.device
    queries = torch.arange(call.query.shape[2], device=device)
    if counted is not None:
        counted = counted.to(device)
        queries = queries[counted.any(0)]
    rows = queries[
        torch.linspace(0, len(queries) - 1, min(ROWS, len(queries)), device=device).long()
    ]
    key = attention_hook.repeat_kv(call.key, call.query.shape[1]).float()
    scores = call.query[:, :, rows].float() @ key.transpose(-1, -2) * call.scale
    may = attention_hook.explicit_mask(call)
    may = may[:, :, rows] if may.shape[2] > 1 else may
    may = may.expand_as(scores)
    counts = may.sum(-1).float()
    if counted is not None:
        counts = counts * counted[:, None, rows]
    return scores.masked_fill(~may, -torch.inf), counts


def _mean_entropy(
    scores: Float[Tensor, "b h r k"], counts: Float[Tensor, "b h r"], log_scale: Float[Tensor, " h"]
) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
    """Return each head's mean entropy as a share of its maximum, and its derivative by the log scale."""
    scale = log_scale.exp()[None, :, None, None]
    weight = torch.softmax(scores * scale, -1)
    finite = scores.masked_fill(scores == -torch.inf, 0.0)
    mean = (weight * finite).sum(-1)
    variance = (weight * finite**2).sum(-1) - mean**2
    entropy = torch.logsumexp(scores * scale, -1) - scale[..., 0] * mean
    # a row that sees one key has no entropy; rows that are not counted see no key
    several = counts > 1
    max_entropy = counts.clamp(min=2).log()
    number = several.sum((0, 2)).clamp(min=1)
    value = (entropy / max_entropy * several).sum((0, 2)) / number
    slope = -(scale[..., 0] ** 2 * variance / max_entropy * several).sum((0, 2)) / number
    return value, slope


def _solve(
    scores: Float[Tensor, "b h r k"], counts: Float[Tensor, "b h r"], target: Float[Tensor, " h"]
) -> Float[Tensor, " h"]:
    """Return the log scale at which each head has its target entropy, by Newton's method in a bracket."""
    low, high = torch.full_like(target, -LOG_RANGE), torch.full_like(target, LOG_RANGE)
    log_scale = torch.zeros_like(target)
    for _ in range(_STEPS):
        value, slope = _mean_entropy(scores, counts, log_scale)
        error = value - target
        if bool((error.abs() < _TOLERANCE).all()):
            break
        low, high = torch.where(error > 0, log_scale, low), torch.where(error > 0, high, log_scale)
        step = log_scale - error / slope.clamp(max=-1e-12)
        inside = (step > low) & (step < high)
        log_scale = torch.where(inside, step, (low + high) / 2)
    return log_scale
