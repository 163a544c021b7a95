"""Traces built by hand from attention that is known: the planted truth for every measure.

Every number is computed by its definition from the whole attention, in float64; nothing of the
package's own arithmetic is used except the schema.
"""

import numpy as np
import xarray as xr

from floatscope.models import Direction
from floatscope.stats import uniform
from floatscope.trace.trace import Trace

MASK = 3


def softmax(score):
    weight = np.asarray(score - score.max(-1, keepdims=True), np.float64)
    np.exp(
        weight, out=weight
    )  # in place: a large one takes longer to find room for than to compute
    weight /= weight.sum(-1, keepdims=True)
    return weight


def random_attention(rng, steps, layers, heads, size, *, causal=False, spread=1.0):
    """(T, L, H, S, S): rows of a softmax over independent scores."""
    score = rng.normal(0, spread, (steps, layers, heads, size, size))
    if causal:
        score = np.where(np.tril(np.ones((size, size), bool)), score, -np.inf)
    return softmax(score)


def trace_of(
    attention,
    *,
    causal=False,
    regions=None,
    tokens=None,
    classes=None,
    prompt_length=None,
    canvas=None,
    events=(),
    gold="",
    shift=0,
    top=8,
    model="planted",
    extra=None,
    by_region=False,
):
    """A Trace of `attention` (T, L, H, S, S).

    `regions`: a name for each position (answer positions are called "answer"); `canvas`: ids
    (T + 1, S), MASK where masked; `events`: (step, position, token) reveals, whose rows are taken
    from `attention`; `extra`: further variables such as {"score": (T, L, H, S) array}; `by_region`: every
    region is a query group.
    """
    a = np.asarray(attention, np.float64)
    steps, layers, heads, size = a.shape[:4]
    prompt_length = size if prompt_length is None else prompt_length
    if regions is None:
        regions = ["prompt"] * prompt_length + ["answer"] * (size - prompt_length)
    regions = np.array(regions, dtype=np.str_)
    if canvas is None:
        canvas = np.tile(np.arange(10, 10 + size), (steps + 1, 1))
    canvas = np.asarray(canvas)
    masked = (canvas[:steps] == MASK) & (np.arange(size) >= prompt_length)
    names = [*dict.fromkeys(r for r in regions if r != "answer"), "masked", "revealed"]
    label = np.where(
        regions == "answer", np.where(masked, "masked", "revealed"), np.tile(regions, (steps, 1))
    )
    groups = ["masked", "revealed", "prompt"]
    of_group = np.stack(
        [label == "masked", label == "revealed", ~np.isin(label, ["masked", "revealed"])], 1
    ).astype(float)  # (T, 3, S)
    if by_region:
        groups = names
        of_group = np.stack([label == name for name in names], 1).astype(float)
    in_region = np.stack([label == n for n in names], -1).astype(float)  # (T, S, R)
    counts = in_region.sum(1)  # (T, R)
    direction = Direction.CAUSAL if causal else Direction.BIDIRECTIONAL
    sees = np.tril(np.ones((size, size))) if causal else np.ones((size, size))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(a, out=np.zeros_like(a), where=a > 0)
        logs *= a
        entropy = -logs.sum(-1) / np.log(sees.sum(1))
        to = a @ in_region[:, None, None]  # (T, L, H, S, R)
        flow = np.einsum("tqf,tlhqr->tlhfr", in_region, to) / counts[:, None, None, :, None]
        state, rolled = in_region, []
        for layer in range(layers):
            state = (a[:, layer].mean(1) @ state + state) / 2
            rolled.append(np.einsum("tqf,tqr->tfr", in_region, state) / counts[:, :, None])
    change = np.where(canvas[:-1] == canvas[1:], 0, np.where(canvas[:-1] == MASK, 1, 2))
    variables = {
        "column_sum": (
            ("step", "group", "layer", "head", "key"),
            np.einsum("tgq,tlhqk->tglhk", of_group, a),
        ),
        "rows_counted": (("step", "group"), of_group.sum(-1)),
        "entropy": (("step", "layer", "head", "query"), entropy),
        "flow": (("step", "layer", "head", "source", "target"), flow),
        "rollout": (("step", "layer", "source", "target"), np.stack(rolled, 1)),
        "null": (("step", "key"), np.tile(uniform.mass(direction, None, size), (steps, 1))),
        "visible": (("step", "key"), np.tile(sees.sum(0), (steps, 1))),
        "canvas": (("state", "key"), canvas),
        "change": (("tick", "key"), change.astype(np.int8)),
        "confidence": (("tick", "key"), np.where(canvas[:-1] == MASK, 0.5, np.nan)),
        "block": (("tick", "edge"), np.tile([prompt_length, size], (steps, 1))),
    }
    events = list(events)
    if events:
        rows = np.stack([a[t, :, :, p - shift] for t, p, _ in events])  # (E, L, H, S)
        order = np.argsort(-rows, axis=-1, kind="stable")[..., :top]
        variables |= {
            "row_key": (("event", "layer", "head", "rank"), order.astype(np.int32)),
            "row_weight": (
                ("event", "layer", "head", "rank"),
                np.take_along_axis(rows, order, -1),
            ),
            "row_flow": (
                ("event", "layer", "head", "target"),
                np.stack([rows[e] @ in_region[t] for e, (t, _, _) in enumerate(events)]),
            ),
        }
    for name, array in (extra or {}).items():
        dims = ("step", "layer", "key") if np.ndim(array) == 3 else ("step", "layer", "head", "key")
        variables[name] = (dims, np.asarray(array, np.float64))
    tokens = np.array(tokens or [f"t{i}" for i in range(size)], dtype=np.str_)
    spelled = dict(zip(canvas[-1].tolist(), tokens.tolist(), strict=True)) | {MASK: "<mask>"}
    stood = [[spelled.get(int(i), f"id{i}") for i in row] for row in canvas[:steps]]
    coords = {
        "step": np.arange(steps),
        "layer": np.arange(layers),
        "head": np.arange(heads),
        "key": np.arange(size),
        "query": np.arange(size),
        "group": np.array(groups),
        "source": np.array(names, dtype=np.str_),
        "target": np.array(names, dtype=np.str_),
        "token": (("step", "key"), np.array(stood, dtype=object)),
        "final_token": ("key", tokens),
        "region": ("key", regions),
        "token_class": (
            ("step", "key"),
            np.array(classes, dtype=np.str_)
            if classes is not None
            else np.where(masked, "mask", "content"),
        ),
        "masked": (("step", "key"), masked),
    }
    for i, name in enumerate(("event_step", "event_position", "event_token")):
        if events:
            coords[name] = ("event", np.array([e[i] for e in events]))
    attrs = {
        "text": "",
        "ended": "complete",
        "prompt_length": prompt_length,
        "gold": gold,
        "model": model,
        "family": "planted",
        "fingerprint": "0",
        "direction": str(direction),
        "block_size": 0,
        "shift": shift,
        "mask_id": -1 if causal else MASK,
        "dtype": "float64",
        "sampler": "planted",
    }
    return Trace(xr.Dataset(variables, coords, attrs))
