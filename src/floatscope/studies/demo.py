"""What the demo runs: all studies but those run by name, on the embedded pair; and the twin, where it is.

The pair answers questions in one to three tokens. Over those no anchor can be watched, so it also goes on
with running text, which decides claim 3. The twin, a real model of thirty layers, does so for two texts to
look at; a run without it says so and goes on.
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
    "length": 10,
    "steps": 5,
    "frequencies": "pair",
    "view": 6,
    "shard": 4,
    "chosen_on": "questions of other seeds; the number of questions by power calculations on planted answers",
}

# Long texts of the pair, on which claim 3 is decided. How many it takes was found by a power calculation on
# other texts (docs/explanation/findings.md).
MOVEMENT: dict[str, Any] = {
    "studies": ("movement",),
    "models": ("pair/mdm",),
    "data": "long:continuation",
    "traced_as": "as-is",
    "limit": 48,
    "sampler": "confidence,block_length=8,temperature=0.7",  # without, long texts circle
    "length": 64,  # more than claim 3 asks for: an end token now and then is no content
    "steps": 32,
    "controls": 12,  # five tell anchors of a few percent from noise in one run of three
    "frequencies": None,
    "view": 2,
    "shard": 2,
    "chosen_on": "the rule: planted attention, random networks and texts 168 to 179; n: texts 96 to 143",
}

# A real model, to be watched: its verdicts take more texts (docs/explanation/twin.md).
TWIN: dict[str, Any] = {**MOVEMENT, "models": ("twin/mdm",), "limit": 2, "controls": 0, "shard": 1}


def demo_request() -> tuple[Request, str]:
    """The request, and the notice for a demo without the twin ("" with it)."""
    # Answers of a few tokens have no states to compare: `movement` is asked of long texts alone.
    short = tuple(n for n in by_default(STUDIES.own) if n not in MOVEMENT["studies"])
    fields = {"studies": short, **DEMO}
    try:
        for name in TWIN["models"]:
            twin.locate(name)
            twin.adapter(name, None)
    except ModelError as error:
        return request_of({**fields, "extra_runs": [MOVEMENT]}), f"The twin is left out: {error}"
    return request_of({**fields, "extra_runs": [MOVEMENT, TWIN]}), ""
