"""Studies: a question asked of several models. Request → plan → shards → findings → verdicts.

To add one: write a file with a Study and add a line to STUDIES.
"""

from .claim import Claim, Number
from .decoding import Decoding
from .dormancy import Dormancy
from .findings import Findings
from .floating import Floating
from .flow import Flow
from .geometry import Geometry
from .knowledge import Knowledge
from .request import Request, read_request, request_of
from .retrieval import Retrieval
from .robustness import Robustness
from .structure import Structure
from .study import Picture, Setting, Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Floating(),
        Geometry(),
        Structure(),
        Flow(),
        Retrieval(),
        Knowledge(),
        Robustness(),
        Decoding(),
        Dormancy(),
    )
}

__all__ = [
    "STUDIES",
    "Claim",
    "Findings",
    "Number",
    "Picture",
    "Request",
    "Setting",
    "Study",
    "read_request",
    "request_of",
]
