"""Study which tokens the answer attends to, and where this attention leads through all layers."""

from typing import ClassVar

from ...measures import RegionFlow, Rollout
from ...measures.base import Measure
from ..evidence import Evidence
from ..long_answers import no_passages
from ..numbers import thirds
from ..request import Request
from ..study import Shows, Study


class Flow(Study):
    """The study `flow`: the attention of the answer through all layers. This study decides no claim."""

    name = "flow"
    question = "Where does the answer look, and where does that lead through all layers?"
    method = """\
flow: share of the attention of the rows that predicted the answer's tokens, on each region
gold lift = (mass per gold token) / (mass per token over all passages); null 1
rollout   R_l = ½ (Ā_l + I) R_{l−1}, R_0 = one-hot regions; token level, mean over heads
Nulls: uniform attention over visible keys, rolled out in the same way. A causal rollout drifts to
position 0 whatever the attention, a bidirectional one to the regions' lengths: without its null a rollout
shows nothing."""

    shows: ClassVar[Shows] = {
        "region-flow": (
            "From the answer to each region",
            "Attention of the answer's rows by region and layer with nulls; gold lift by layer; "
            "attention by passage place.",
        ),
        "rollout": (
            "Rollout beside its null",
            "Rollout from the answer to each region by layer, and its null under uniform attention.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {"region-flow": RegionFlow(), "rollout": Rollout()}

    def findings(self, evidence: Evidence) -> list[str]:
        if why := no_passages(evidence.request):
            return [why]
        return [
            f"{model}: a token of the gold passage gets {first} the attention of an average passage "
            f"token in the first third of the layers, and {last} in the last."
            for model, first, last in thirds(evidence.results("region-flow"), "gold_lift")
        ]
