"""A Trace becomes a finding."""

from ..anchors import RULES, Excess, Robust, Rule, Share, ZScore
from .absorption import Absorption
from .agreement import Agreement, perturbation
from .comparing import compare
from .dispersion import Dispersion
from .dormancy import Dormancy, switching
from .drift import Drift
from .dynamics import Dynamics
from .entropy import AttentionEntropy
from .extreme import ExtremeTokens
from .geometry import Geometry
from .measure import Measure
from .order import DecodingOrder
from .picture import heatmap
from .region_flow import RegionFlow
from .result import Result
from .retrieval import RetrievalHeads
from .rollout import Rollout
from .structure import Structure

MEASURES: dict[str, type[Measure]] = {
    "absorption": Absorption,
    "drift": Drift,
    "dispersion": Dispersion,
    "geometry": Geometry,
    "structure": Structure,
    "region-flow": RegionFlow,
    "rollout": Rollout,
    "retrieval-heads": RetrievalHeads,
    "extreme-tokens": ExtremeTokens,
    "dormancy": Dormancy,
    "dynamics": Dynamics,
    "decoding-order": DecodingOrder,
    "entropy": AttentionEntropy,
    "agreement": Agreement,
}

__all__ = [
    "MEASURES",
    "RULES",
    "Absorption",
    "Agreement",
    "AttentionEntropy",
    "DecodingOrder",
    "Dispersion",
    "Dormancy",
    "Drift",
    "Dynamics",
    "Excess",
    "ExtremeTokens",
    "Geometry",
    "Measure",
    "RegionFlow",
    "Result",
    "RetrievalHeads",
    "Robust",
    "Rollout",
    "Rule",
    "Share",
    "Structure",
    "ZScore",
    "compare",
    "heatmap",
    "perturbation",
    "switching",
]
