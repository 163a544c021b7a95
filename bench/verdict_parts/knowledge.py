"""Claim 7: answers without and with passages, of a model that gains three times as much, or half."""

from __future__ import annotations

import numpy as np
from verdicts_knowledge import TRUTHS, drawn

from floatscope.studies.claim import Claim
from floatscope.studies.library.knowledge import Knowledge
from floatscope.studies.verdict import judge


def knowledge(true: bool, rng: np.random.Generator, n: int) -> Claim:
    answers = drawn(TRUTHS["three times" if true else "half"], n, rng)
    return judge(Knowledge.rules[0], "knowledge", answers.theta(), bar=answers.bar())
