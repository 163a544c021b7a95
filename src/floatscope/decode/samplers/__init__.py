"""The list of all samplers, in display order. Each sampler has its own file and one line in this module."""

from typing import TYPE_CHECKING

from ..._lazy import lazily
from ...registry import SAMPLERS

if TYPE_CHECKING:
    from .confidence import Confidence
    from .entropy import Entropy
    from .margin import Margin
    from .random import Random
    from .threshold import Threshold
    from .entropy_bound import EntropyBound
    from .attention_guided import AttentionGuided
    from .position_calibrated import PositionCalibrated
    from .dream import Dream
    from .remdm import ReMDM
    from .remask import Remask
    from .llada2 import LLaDA2
    from .llada2_edit import LLaDA2Edit
    from .sdar import SDAR
    from .fast_dllm2 import FastDLLM2
    from .nemotron import Nemotron
    from .autoregressive import Autoregressive

_CALLED = {
    "ReMDM": "remdm",
    "LLaDA2": "llada2",
    "LLaDA2Edit": "llada2-edit",
    "SDAR": "sdar",
    "FastDLLM2": "fast-dllm2",
}

SAMPLERS.offer(__name__, lazily(__name__), called=_CALLED)
