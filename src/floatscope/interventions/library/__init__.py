"""The list of all interventions, in display order. Each has its own file and one line in this module."""

from typing import TYPE_CHECKING

from ..._lazy import lazily
from ...registry import INTERVENTIONS

if TYPE_CHECKING:
    from .mask_columns import MaskColumns
    from .weaken_columns import WeakenColumns
    from .keep_columns import KeepColumns
    from .mask_tokens import MaskTokens
    from .cut_edges import CutEdges
    from .mask_values import MaskValues
    from .sink_token import SinkToken
    from .boost_dynamics import BoostDynamics
    from .ablate_heads import AblateHeads
    from .patch import Patch
    from .force_token import ForceToken
    from .remasked import Remasked

INTERVENTIONS.offer(__name__, lazily(__name__))
