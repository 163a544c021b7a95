"""Claims 11 to 13: heads taken away, an answer traced, tokens known before they are revealed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from floatscope.measures import Foresight, LogitLens
from floatscope.studies.claim import Claim
from floatscope.studies.experiments.answer_tracing import ANSWER, GROUPS, SPAN, AnswerTracing
from floatscope.studies.experiments.head_ablation import (
    COPY,
    EVIDENCE,
    MEAN,
    NORMS,
    HeadAblation,
    Heads,
    matched_sets,
)
from floatscope.studies.experiments.head_ablation import (
    HEADS as TAKEN,
)
from floatscope.studies.library import STUDIES
from verdict_parts.evidence import ARM, CONTROLS, MDM, Planted, untrained

LAYERS, HEADS, STEPS, PLACES = 12, 8, 8, 8  # the pair's
CHOSEN = ((8, 1), (8, 5), (9, 0))
DRAWS = HeadAblation().draws
SETS = (LAYERS * HEADS - TAKEN) // TAKEN  # as many disjoint sets as the pair has heads for


def ablation(true: bool | str, rng: np.random.Generator, n: int) -> Claim:
    """True: the chosen heads cost about a nat, skewed over questions, matched sets of heads a tenth of that,
    each set a share of its own. False: matched sets cost three times as much as the chosen heads. "equal":
    heads have skewed costs in proportion to their output norms, the chosen heads are drawn at random, and
    matched sets as the experiment draws them."""
    evidence = Planted("ablation")
    for model in (MDM, ARM):
        ease = rng.lognormal(-0.5, 0.8, n)
        if true == "equal":
            share = _shares_of_sets(rng)
        else:
            share = rng.lognormal(0, 0.2, SETS + 1)  # of the loss, by set
            share[0] = 1.0 if true else 0.3
            share[1:] *= 0.1 if true else 1.0
        lost = ease * share[:, None] * rng.lognormal(0, 0.1, (len(share), n))
        evidence.planted["head-ablation", model, "questions"] = HeadAblation().summarise(
            _ablated(rng, lost), model
        )
    for seed in range(CONTROLS):  # permuted weights: nats up and down, far below any guess
        noise = rng.normal(0, 2, (SETS + 1, n))
        control = HeadAblation().summarise(_ablated(rng, noise, trained=False), MDM)
        evidence.planted["head-ablation", untrained(MDM, seed), "questions"] = control
    return STUDIES["ablation"].claims(evidence)[0]


def _shares_of_sets(rng: np.random.Generator) -> np.ndarray:
    """Draw heads with skewed costs, choose some at random, and add up the costs of every set."""
    norm = rng.lognormal(0, 0.5, (LAYERS, HEADS))
    cost = norm * rng.lognormal(0, 1, norm.shape)
    order = rng.permutation(norm.size)[:TAKEN]
    chosen: Heads = tuple(divmod(int(place), HEADS) for place in order)
    sets = [chosen, *matched_sets(chosen, norm, chosen, DRAWS, rng)]
    share = np.array([sum(cost[place] for place in heads) for heads in sets])
    return share / (TAKEN * cost.mean())


def _ablated(rng: np.random.Generator, lost: np.ndarray, trained: bool = True) -> list[xr.Dataset]:
    """Examples of losses (set, question); the first set is the chosen one."""
    choices = (EVIDENCE, COPY, MEAN)
    made = []
    for number, (one, *others) in enumerate(lost.T):
        values = {
            "chosen": ("choice", np.repeat(one, 3)),
            "matched": (("choice", "draw"), np.tile(others, (3, 1))),
            "log_p": ((), -0.3 * rng.uniform() - (0 if trained else 13)),
        }
        coords: dict[str, Any] = {"choice": list(choices), "draw": range(len(lost) - 1)}
        if trained:
            loss = rng.normal(0, 0.01, (LAYERS, HEADS))
            for place in CHOSEN:
                loss[place] += one / len(CHOSEN)
            values["loss"] = (("layer", "head"), loss)
            coords |= {"layer": range(LAYERS), "head": range(HEADS)}
        heads = {EVIDENCE: json.dumps(CHOSEN), COPY: json.dumps(CHOSEN)}
        norms = {NORMS: json.dumps(dict.fromkeys((EVIDENCE, COPY), [1.0] * len(lost)))}
        made.append(xr.Dataset(values, coords, {**heads, **norms, "id": f"q{number}"}))
    return made


def tracing(true: bool, rng: np.random.Generator, n: int) -> Claim:
    """True: nine tenths of the answer come straight; false: a quarter, the rest by way of other positions."""
    evidence = Planted("tracing")
    for model in (MDM, ARM):
        gap = rng.lognormal(1.5, 0.6, n)
        straight = np.clip(rng.normal(0.9 if true else 0.25, 0.15, n), -0.2, 1.2)
        examples = []
        for number, (whole, share) in enumerate(zip(gap, straight, strict=True)):
            by_step = whole * rng.dirichlet(np.ones(STEPS))
            restored = np.zeros((STEPS, LAYERS, len(GROUPS)))
            there = np.linspace(0, 1, LAYERS)
            restored[:, :, GROUPS.index(ANSWER)] = by_step[:, None] * there
            restored[:, :, GROUPS.index(SPAN)] = by_step[:, None] * (1 - there)
            values = {
                "restored": (("step", "layer", "group"), restored),
                "gap": (("step",), by_step),
                "direct": ((), share * whole),
                "log_p": ((), -0.2),
                "tokens": ((), 2.0),
            }
            coords = {"step": range(STEPS), "layer": range(LAYERS), "group": list(GROUPS)}
            examples.append(xr.Dataset(values, coords, {"id": f"q{number}"}))
        evidence.planted["answer-tracing", model, "questions"] = AnswerTracing().summarise(
            examples, model
        )
    return STUDIES["tracing"].claims(evidence)[0]


def lens(true: bool | str, rng: np.random.Generator, n: int) -> Claim:
    """True: a position holds its token at two thirds of the steps before its reveal; false: from its reveal
    on, and before that now and then. Untrained weights say the same whatever the prompt. "equal": the
    trained network is one more untrained one; each keeps to what it says to an extent of its own."""
    evidence = Planted("lens")
    if true == "equal":
        shares = rng.beta(1, 3, 1 + CONTROLS)
        of = {MDM: [_decoded(rng, shares[0]) for _ in range(n)]}
        for seed in range(CONTROLS):
            own = [_decoded(rng, shares[1 + seed]) for _ in range(n)]
            of[untrained(MDM, seed)] = own
    else:
        of = {MDM: [_decoded(rng, 2 / 3 if true else 0.05) for _ in range(n)]}
        for seed in range(CONTROLS):
            common = rng.integers(100, 110, PLACES)  # what untrained weights say at each place
            of[untrained(MDM, seed)] = [_decoded(rng, 1.0, common) for _ in range(n)]
    for model, examples in of.items():
        named = [one.assign_attrs(id=f"q{i}") for i, one in enumerate(examples)]
        evidence.planted["foresight", model, "questions"] = Foresight().summarise(named, model)
    evidence.planted["logit-lens", MDM, "questions"] = None
    assert LogitLens().needs
    return STUDIES["lens"].claims(evidence)[0]


def _decoded(rng: np.random.Generator, known: float, final: np.ndarray | None = None) -> xr.Dataset:
    """One decoding, as Foresight keeps it: a few content tokens, each revealed at a step of its own."""
    content = rng.integers(2, PLACES)
    tokens = rng.integers(0, 100, PLACES) if final is None else final.copy()
    tokens[content:] = -1
    reveal = rng.permutation(STEPS)[:PLACES]
    ahead = reveal - np.arange(STEPS)[:, None]  # (step, place)
    waiting = (ahead > 0) & (tokens >= 0)
    guess = rng.integers(200, 300, (STEPS, LAYERS, PLACES))  # some other word
    holds = rng.random((STEPS, PLACES)) < known
    guess[:, -1] = np.where(holds, tokens, guess[:, -1])
    return xr.Dataset(
        {
            "guess": (("step", "layer", "place"), np.where(waiting[:, None], guess, -1)),
            "final": (("place",), tokens),
            "ahead": (("step", "place"), ahead),
        },
        {"step": range(STEPS), "layer": range(LAYERS), "place": range(PLACES)},
    )
