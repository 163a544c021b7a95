"""All measures in display order. Each measure has its own file and one line here."""

from typing import TYPE_CHECKING

from ..._lazy import lazily
from ...registry import MEASURES

if TYPE_CHECKING:
    from .absorption import Absorption
    from .drift import Drift
    from .dispersion import Dispersion
    from .strongest import StrongestKey
    from .movement import Movement
    from .geometry import Geometry
    from .kinds import KindsOfKey
    from .structure import Structure
    from .region_flow import RegionFlow
    from .rollout import Rollout
    from .retrieval import RetrievalHeads
    from .extreme import ExtremeTokens
    from .dormancy import Dormancy
    from .dynamics import Dynamics
    from .order import DecodingOrder
    from .entropy import AttentionEntropy
    from .agreement import Agreement
    from .foresight import Foresight
    from .lens import LogitLens
    from .massive import MassiveActivations
    from .kv_drift import KVDrift
    from .experts import ExpertRouting
    from .coverage import Coverage
    from .reuse import Reuse
    from .overlap import Overlap

MEASURES.offer(__name__, lazily(__name__), called={"AttentionEntropy": "entropy"})
