"""Import the package's studies, one file each, in the order of lists and pages."""

from typing import TYPE_CHECKING

from ..._lazy import lazily
from ...registry import STUDIES

if TYPE_CHECKING:
    from .floating import Floating
    from .movement import Movement
    from .geometry import Geometry
    from .structure import Structure
    from .flow import Flow
    from .retrieval import Retrieval
    from .knowledge import Knowledge
    from .robustness import Robustness
    from .decoding import Decoding
    from .dormancy import Dormancy
    from .ablation import Ablation
    from .tracing import Tracing
    from .lens import Lens

STUDIES.offer(__name__, lazily(__name__))
