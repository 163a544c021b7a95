"""Interventions: attention changed while a model decodes.

    with MaskColumns(k=5)(model):
        model.trace(...)          # sees the attention as changed

An intervention is a dataclass whose fields are its configuration; calling it on a model puts it in
force for a `with` block, proves first that it bites there, and leaves the model as it was.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .base import Intervention, Together
    from .branching import ablated_each
    from .head_outputs import HeadMeans, HeadRows
    from .library import *
    from .library import INTERVENTIONS
    from .masking import DoesNotFit
    from .patch_source import PatchSource
    from .swapping import Swap, patched_each

lazily(__name__)
