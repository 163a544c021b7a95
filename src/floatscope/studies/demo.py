"""What the demo runs: all studies but those run by name, on the embedded pair; and the twin, where it is.

The pair answers in one to three tokens. The twin, thirty layers deep, goes on with running text: there an
anchor can be watched over many steps, and claim 3 be tested. A run without it says so and goes on.
"""

from typing import Any

from ..errors import ModelError
from ..models import twin
from .library import STUDIES
from .request import Request, request_of
from .study import by_default

DEMO: dict[str, Any] = {
    "models": ("pair/mdm", "pair/arm"),
    "data": "world:mixed",  # off floor and ceiling in both models, so that claims can be tested
    "traced_as": "passages=6",  # four are asked with: two are needed, and two are rivals
    "limit": 24,
    "questions": 40,
    "gain_questions": 128,  # claim 7 tells half the gain from 1.5 times as much in 9 of 10 runs
    "side_questions": 8,
    "columns": (5,),  # each number is asked four ways of both models
    "length": 10,
    "steps": 5,
    "frequencies": "pair",
    "view": 6,
    "shard": 4,
}

TWIN: dict[str, Any] = {
    "studies": ("floating",),
    "models": ("twin/mdm",),
    "data": "long:continuation",
    "traced_as": "as-is",
    "limit": 2,  # to be watched: deciding claim 3 takes dozens (docs/twin.md)
    "sampler": "confidence,block_length=8,temperature=0.7",  # without, long texts circle
    "length": 64,  # more than claim 3 asks for: an end token now and then is no content
    "steps": 32,
    "control_steps": 8,  # untrained weights are looked at after each quarter, and only there
    "frequencies": None,
    "view": 2,
    "shard": 1,
}


def demo_request() -> tuple[Request, str]:
    """The request, and what is said where the twin is left out ("" if it is not)."""
    fields = {"studies": by_default(STUDIES.own), **DEMO}
    try:
        for name in TWIN["models"]:
            twin.locate(name)
            twin.adapter(name, None)
    except ModelError as error:
        return request_of(fields), f"The twin is left out: {error}"
    return request_of({**fields, "also": [TWIN]}), ""
