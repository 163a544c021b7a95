"""Claim 8: answers of both models with anchors hidden, and with as much attention hidden elsewhere."""

from __future__ import annotations

import numpy as np

from floatscope.studies import STUDIES
from floatscope.studies.claim import Claim
from verdict_parts.evidence import ARM, MDM, Planted

RIGHT = 0.85  # with nothing hidden
# What anchors cost beyond the control: as published (Rulli et al., 2510.15731), and the other way round.
LOSSES = {True: {ARM: 0.75, MDM: 0.03}, False: {ARM: 0.03, MDM: 0.6}}


def robustness(true: bool, rng: np.random.Generator, n: int) -> Claim:
    """Each question has a difficulty of its own, the same in all settings of a model."""
    evidence = Planted("robustness")
    k = evidence.request.columns[-1]
    for model, loss in LOSSES[true].items():
        hard = rng.random(n)
        for setting, share in {
            "with-passages": RIGHT,
            f"columns-{k}-mass": RIGHT - 0.05,
            f"columns-{k}-anchors": RIGHT - 0.05 - loss,
        }.items():
            astray = rng.random(n) < 0.05
            right = np.where(astray, rng.random(n), hard) < share
            evidence._answers[setting, model] = {
                "id": np.arange(n).astype(str),
                "contains": right * 1.0,
            }
    return STUDIES["robustness"].claims(evidence)[0]
