"""Attention of masked rows that moves, or stays, or only seems to: claim 3 with its truth known.

Five states of a decoding are planted in full, rows by keys, and read by the measure as those of a model
are. Anchors hold about 4 % of the masked rows' attention in every other network, and about 20 % in the rest.
Untrained networks are as sharp, but each row looks at a key of its own, except for a few rows that agree;
how many they are differs from network to network and from layer to layer.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from planted import MASK, softmax, trace_of  # type: ignore[import-not-found]

from floatscope.measures import Movement
from floatscope.stats.movement import UNTIL
from floatscope.studies import STUDIES, Request, request_of
from floatscope.studies.claim import Claim
from floatscope.studies.demo import MOVEMENT
from floatscope.studies.library.movement import KEY
from floatscope.trace import Trace
from floatscope.trace.states import N_STATES

from .attention import Made, Planted, Rng, chosen_of

PROMPT, ANSWER = 36, 64
SIZE = PROMPT + ANSWER
REVEALED = (0, 16, 32, 48, 56)  # rows that are no longer masked in each state
# Anchors follow the frontier in a sixth of the layers; a third of them jumps in the last state alone, as in
# the published figure; all stay; two keys swap at random, of which one has 1.5 times the other's share; rows
# that are revealed later look elsewhere, so that only the set of rows changes; the network is as untrained as
# its controls.
FRONTIER, LATE, STILL, SWAP, ROWS, NOISE = "frontier late still swap rows noise".split()
DEEP = "frontier, 30 layers"
KINDS = {FRONTIER: "holds", DEEP: "holds", LATE: "holds", STILL: "refuted"} | dict.fromkeys(
    (SWAP, ROWS, NOISE), ""
)
STRENGTHS = (1.4, 3.2)  # of an anchor's score, by network: about 4 % and 20 % of attention
AGREE = 0.03  # standard deviation over networks and layers of the rows that agree in noise
SWAPPED = 0.405  # ln 1.5: two keys that swap differ by so much
NETWORKS = 6  # networks, each with controls of its own, among which draws are divided


def states(
    kind: str, rng: Rng, layers: int, strength: float, agree: np.ndarray | None = None
) -> Trace:
    """The states of one text; `agree`: in noise, the share of rows by layer that look at one key."""
    order = np.argsort(np.arange(ANSWER) + rng.normal(0, 2, ANSWER))  # nearly from left to right
    rank = np.empty(ANSWER, int)
    rank[order] = np.arange(ANSWER)
    last = (
        np.searchsorted(REVEALED, rank, side="right") - 1
    )  # the state up to which a row is masked
    canvas = np.full((N_STATES + 1, SIZE), 7)
    for state, revealed in enumerate(REVEALED):
        canvas[state, PROMPT:][rank >= revealed] = MASK
    boost = np.zeros((N_STATES, layers, SIZE, SIZE))
    strength = strength + rng.normal(0, 0.2)
    for layer in range(layers):
        keys = _keys(kind, rng, layer, layers)  # (state, row)
        np.put_along_axis(boost[:, layer], keys[..., None], strength, -1)
        if kind == SWAP:
            other = (keys + 5) % PROMPT
            more = SWAPPED * rng.choice([-1, 1], (N_STATES, 1, 1))
            np.put_along_axis(boost[:, layer], other[..., None], strength + more, -1)
        if kind == ROWS:
            cohort = rng.permutation(PROMPT)[:N_STATES][np.maximum(last, 0)]
            keys = np.tile(np.r_[np.zeros(PROMPT, int), cohort], (N_STATES, 1))
            boost[:, layer] = 0
            np.put_along_axis(boost[:, layer], keys[..., None], strength, -1)
    if kind == NOISE:  # each row a key of its own, now and then another
        keys = rng.integers(0, SIZE, (N_STATES, layers, SIZE))
        kept = rng.random((N_STATES, layers, SIZE)) < 0.7
        keys = np.where(kept, keys[:1], keys)
        if agree is not None:
            common = rng.integers(0, SIZE, (1, layers, 1))
            keys = np.where(rng.random((1, layers, SIZE)) < agree[None, :, None], common, keys)
        boost[:] = 0
        np.put_along_axis(boost, keys[..., None], strength, -1)
    score = boost + rng.normal(0, 0.5, boost.shape)
    regions = ["prompt"] * PROMPT + [f"{UNTIL} {state}" for state in last]
    attention = softmax(score)[:, :, None]  # one head
    return trace_of(attention, canvas=canvas, regions=regions, by_region=True)


def _keys(kind: str, rng: Rng, layer: int, layers: int) -> np.ndarray:
    """The key that every row of a layer looks at, state by state."""
    keys = np.full(N_STATES, rng.integers(0, PROMPT))
    if kind == FRONTIER and layer < max(2, layers // 6):
        keys = PROMPT + np.minimum(np.array(REVEALED) + rng.integers(-3, 4, N_STATES), ANSWER - 1)
        keys = np.maximum(keys, 0)
    if kind == LATE and layer < layers // 3:
        keys[-1] = (keys[0] + rng.integers(1, PROMPT)) % PROMPT
    astray = rng.random() < 0.03  # now and then an anchor stands elsewhere in one state
    if astray:
        keys[rng.integers(N_STATES)] = rng.integers(0, PROMPT)
    return np.tile(keys[:, None], (1, SIZE))


@cache
def pool(kind: str, layers: int, size: int, network: int, controls: int) -> tuple[Request, Made]:
    """Measured examples of a network and of its controls."""
    rng = np.random.default_rng([*kind.encode(), layers, network])
    request = request_of({"studies": ["movement"], "models": ["a"], "controls": controls})
    measure, strength = Movement(), STRENGTHS[network % 2]
    made: Made = {}
    for control in (None, *request.control_seeds):
        own = kind if control is None else NOISE
        agree = abs(rng.normal(0, AGREE, layers)) if own == NOISE else None
        made[KEY, "mdm", control] = (
            measure,
            [measure.example(states(own, rng, layers, strength, agree)) for _ in range(size)],
        )
    return request, made


def draw(
    kind: str,
    rng: Rng,
    n: int,
    layers: int = 12,
    networks: int = NETWORKS,
    controls: int = MOVEMENT["controls"],
) -> Claim:
    """Claim 3 of n texts that one of several networks has decoded."""
    size = n + n // 4
    request, made = pool(kind, layers, size, int(rng.integers(networks)), controls)
    examples = chosen_of(made, rng.choice(size, n, replace=False))
    (claim,) = STUDIES["movement"].claims(Planted(examples, request))
    return claim


def movement(kind: str, rng: Rng, n: int) -> Claim:
    """Claim 3 with one of the planted truths."""
    if kind == DEEP:  # five of thirty layers move; fewer networks, because each takes longer
        return draw(FRONTIER, rng, n, layers=30, networks=2)
    return draw(kind, rng, n)
