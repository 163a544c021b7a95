"""Interventions: attention changed while a model decodes, one file each.

    with MaskColumns(k=5)(model):
        model.trace(...)          # sees the attention as changed

An intervention is a dataclass whose fields are its configuration; calling it on a model puts it in
force for a `with` block, proves first that it bites there, and leaves the model as it was. To add
one: write a file and add a line to INTERVENTIONS.
"""

from .boost_dynamics import BoostDynamics
from .intervention import Intervention, Together
from .mask_columns import MaskColumns
from .mask_tokens import MaskTokens
from .masking import DoesNotFit
from .sink_token import SinkToken

INTERVENTIONS: dict[str, type[Intervention]] = {
    "mask-columns": MaskColumns,
    "mask-tokens": MaskTokens,
    "sink-token": SinkToken,
    "boost-dynamics": BoostDynamics,
}

__all__ = [
    "INTERVENTIONS",
    "BoostDynamics",
    "DoesNotFit",
    "Intervention",
    "MaskColumns",
    "MaskTokens",
    "SinkToken",
    "Together",
]
