"""Describe the models and prompts that a verdict is about.

Prompts of one model support a statement about that model. A statement about diffusion models in general needs
models or trainings as units (see `comparison`).
"""

from pathlib import PurePath

from .claim import Claim
from .evidence import Evidence
from .verdict import ARM, MDM, Rule

GENERAL = (
    "Each verdict is about the models and the prompts named with it. A sentence about diffusion models in "
    "general needs five or more models or trainings as the unit (floatscope compare)."
)


def scope_of(claim: Claim, rule: Rule | None, evidence: Evidence) -> str:
    """Return the models, the number of prompts and the data of a claim, as text.

    An example is "for pair/mdm, 24 prompts of world:mixed". If no number of prompts was measured, the text is
    "for pair/mdm, on world:mixed".
    """
    named = {MDM: evidence.mdm, ARM: evidence.arm}
    models = [named[kind] for kind in (rule.models if rule else (MDM, ARM))]
    names = " and ".join(name for name in models if name) or "no model of this kind"
    data = PurePath(evidence.request.data).name
    n = claim.theta.n if claim.theta else None
    return f"for {names}, " + (f"on {data}" if n is None else f"{n:,} prompts of {data}")
