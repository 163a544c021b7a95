"""Define the request of the demo: studies on the embedded pair, and on the twin if it is installed.

The pair answers questions in one to three tokens. These are too few tokens to observe an anchor that moves.
The pair therefore also continues running text, and claim 3 is decided on the continuations. The twin, a real
model with thirty layers, continues two texts as an illustration. If the twin is not installed, the demo
prints a message and runs without the twin. Studies that run only by name are left out.
"""

from typing import Any

from ..errors import ModelError
from ..models import twin
from .library import STUDIES
from .request import Request, request_of
from .study import by_default

DEMO: dict[str, Any] = {
    "models": ("pair/mdm", "pair/arm"),
    "data": "world:mixed",  # both models are between floor and ceiling, so that claims can be tested
    "traced_as": "passages=6",  # questions are asked with four: two needed, two rivals
    "limit": 24,
    "questions": 40,
    "gain_questions": 128,  # claim 7 then distinguishes half the gain from 1.5 times as much in 9 of 10 runs
    "side_questions": 8,
    "length": 10,
    "steps": 5,
    "frequencies": "pair",
    "view": 6,
    "shard": 4,
    "chosen_on": "questions of other seeds; the number of questions by power calculations on planted answers",
}

# Long texts of the pair, on which claim 3 is decided. Their number comes from a power calculation on
# other texts (docs/explanation/findings.md).
MOVEMENT: dict[str, Any] = {
    "studies": ("movement",),
    "models": ("pair/mdm",),
    "data": "long:continuation",
    "traced_as": "as-is",
    "limit": 48,
    "sampler": "confidence,block_length=8,temperature=0.7",  # otherwise long texts repeat themselves
    "length": 64,  # more than claim 3 requires, since an occasional end token is not content
    "steps": 32,
    "controls": 12,  # five would distinguish anchors of a few percent from noise in one run of three
    "frequencies": None,
    "view": 2,
    "shard": 2,
    "chosen_on": "the rule: planted attention, random networks and texts 168 to 179; n: texts 96 to 143",
}

# A real model as an illustration: its verdicts need more texts (docs/explanation/twin.md).
TWIN: dict[str, Any] = {**MOVEMENT, "models": ("twin/mdm",), "limit": 2, "controls": 0, "shard": 1}


def is_demo(request: Request) -> bool:
    """Return whether a request equals the demo of this version, with or without the twin."""
    return request in [_request(MOVEMENT), _request(MOVEMENT, TWIN)]


def _request(*extra_runs: dict[str, Any]) -> Request:
    # Answers of a few tokens have no states to compare: `movement` is asked of long texts alone.
    short = tuple(n for n in by_default(STUDIES.builtin) if n not in MOVEMENT["studies"])
    return request_of({"studies": short, **DEMO, "extra_runs": list(extra_runs)})


def demo_request() -> tuple[Request, str]:
    """Return the demo's request, and the notice that the twin is left out; "" if the twin is installed."""
    try:
        for name in TWIN["models"]:
            twin.locate(name)
            twin.adapter(name, None)
    except ModelError as error:
        return _request(MOVEMENT), f"The twin is left out: {error}"
    return _request(MOVEMENT, TWIN), ""
