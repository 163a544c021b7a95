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
    from .decode.likelihood import log_likelihood
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
    from .samplers import compare_samplers
    from .tasks import Answers, Condition, Record, evaluate, read_records, world_records
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
    "decode.likelihood": ("log_likelihood",),
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
    "samplers": ("compare_samplers",),
    "tasks": ("Answers", "Condition", "Record", "evaluate", "read_records", "world_records"),
    "trace": ("Trace",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
__all__ = [
    "STATISTICS",
    "Absorption",
    "Agreement",
    "Answers",
    "AttentionEntropy",
    "Autoregressive",
    "BoostDynamics",
    "CaptureError",
    "Condition",
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
    "Record",
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
    "compare_samplers",
    "evaluate",
    "heatmap",
    "load",
    "log_likelihood",
    "perturbation",
    "read_records",
    "switching",
    "world_records",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]
