"""Floatscope: an instrument for attention in masked diffusion language models.

The public names, nothing else. They are imported when first used: `floatscope --help` and reading a
saved trace should not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import STATISTICS
    from .decode import (
        Autoregressive,
        Confidence,
        Decoding,
        Entropy,
        EntropyBound,
        Margin,
        PositionCalibrated,
        Random,
        Remask,
        Sampler,
        Threshold,
    )
    from .errors import (
        CaptureError,
        FloatscopeError,
        ModelError,
        RunError,
        TraceError,
        UsageError,
    )
    from .instrument import Model, load
    from .interventions import (
        BoostDynamics,
        Intervention,
        MaskColumns,
        MaskTokens,
        SinkToken,
        Together,
    )
    from .measures import (
        Absorption,
        Agreement,
        AttentionEntropy,
        DecodingOrder,
        Dispersion,
        Dormancy,
        Drift,
        Dynamics,
        Excess,
        ExtremeTokens,
        Geometry,
        RegionFlow,
        Result,
        RetrievalHeads,
        Robust,
        Rollout,
        Share,
        Structure,
        ZScore,
        compare,
        heatmap,
        perturbation,
        switching,
    )
    from .prompt import Part, Prompt
    from .trace import Trace

_WHERE = {
    "attention": ("STATISTICS",),
    "decode": (
        "Autoregressive",
        "Confidence",
        "Decoding",
        "Entropy",
        "EntropyBound",
        "Margin",
        "PositionCalibrated",
        "Random",
        "Remask",
        "Sampler",
        "Threshold",
    ),
    "errors": (
        "CaptureError",
        "FloatscopeError",
        "ModelError",
        "RunError",
        "TraceError",
        "UsageError",
    ),
    "instrument": ("Model", "load"),
    "interventions": (
        "BoostDynamics",
        "Intervention",
        "MaskColumns",
        "MaskTokens",
        "SinkToken",
        "Together",
    ),
    "measures": (
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
        "RegionFlow",
        "Result",
        "RetrievalHeads",
        "Robust",
        "Rollout",
        "Share",
        "Structure",
        "ZScore",
        "compare",
        "heatmap",
        "perturbation",
        "switching",
    ),
    "prompt": ("Part", "Prompt"),
    "trace": ("Trace",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
__all__ = [
    "STATISTICS",
    "Absorption",
    "Agreement",
    "AttentionEntropy",
    "Autoregressive",
    "BoostDynamics",
    "CaptureError",
    "Confidence",
    "Decoding",
    "DecodingOrder",
    "Dispersion",
    "Dormancy",
    "Drift",
    "Dynamics",
    "Entropy",
    "EntropyBound",
    "Excess",
    "ExtremeTokens",
    "FloatscopeError",
    "Geometry",
    "Intervention",
    "Margin",
    "MaskColumns",
    "MaskTokens",
    "Model",
    "ModelError",
    "Part",
    "PositionCalibrated",
    "Prompt",
    "Random",
    "RegionFlow",
    "Remask",
    "Result",
    "RetrievalHeads",
    "Robust",
    "Rollout",
    "RunError",
    "Sampler",
    "Share",
    "SinkToken",
    "Structure",
    "Threshold",
    "Together",
    "Trace",
    "TraceError",
    "UsageError",
    "ZScore",
    "compare",
    "heatmap",
    "load",
    "perturbation",
    "switching",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]
