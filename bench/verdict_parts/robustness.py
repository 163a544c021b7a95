"""Claim 8: answers of both models at every dose of attention, taken from anchors and from random columns."""

from __future__ import annotations

import numpy as np

from floatscope.studies import STUDIES
from floatscope.studies.claim import Claim
from floatscope.studies.demo import DEMO
from floatscope.studies.library.robustness import ANCHORS, DOSES, LARGE, RANDOM, setting_name
from verdict_parts.evidence import ARM, MDM, Planted

RIGHT = 0.85  # with all of its attention
OTHERS = 0.2  # answers lost per point of attention taken from random columns
# What anchors cost beyond that: as published (Rulli et al., 2510.15731: without its first sinks the ARM
# answers nothing), the other way round, and no more than other columns or the same in both models.
SLOPES = {
    "true": {ARM: 2.55, MDM: 0.1},
    "false": {ARM: 0.1, MDM: 2.55},
    "none": {ARM: 0.0, MDM: 0.0},
    "equal": {ARM: 1.5, MDM: 1.5},
}

SMALL = [setting_name(dose, kind) for dose in DOSES if dose < LARGE for kind in (ANCHORS, RANDOM)]


def robustness(true: bool | str, rng: np.random.Generator, n: int) -> Claim:
    """Each question has a difficulty of its own, the same in all settings of a model."""
    kind = true if isinstance(true, str) else "true" if true else "false"
    evidence = Planted("robustness")
    for model, beyond in SLOPES[kind].items():
        hard = rng.random(n)
        settings = {"with-passages": RIGHT}
        for dose in DOSES:
            for name, slope in ((ANCHORS, OTHERS + beyond), (RANDOM, OTHERS)):
                settings[setting_name(dose, name)] = RIGHT - slope * dose
                evidence.removed[setting_name(dose, name), model] = (0.98 * dose, 10.0)
        for setting, share in settings.items():
            astray = rng.random(n) < 0.05
            right = np.where(astray, rng.random(n), hard) < share
            asked = slice(DEMO["side_questions"] if setting in SMALL else n)
            evidence._answers[setting, model] = {
                "id": np.arange(n).astype(str)[asked],
                "contains": right[asked] * 1.0,
            }
    return STUDIES["robustness"].claims(evidence)[0]
