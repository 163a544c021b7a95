"""Floatscope: an instrument for attention in masked diffusion language models.

This module contains only the public names. Each name is imported when it is first used, so the
command `floatscope --help` and the reading of a saved trace do not import torch. Measures, samplers and
interventions are in namespaces, such as `floatscope.measures`.
"""

from typing import TYPE_CHECKING

from ._lazy import lazily

if TYPE_CHECKING:
    from . import anchors, interventions, measures, samplers, statistics, studies, tasks
    from .attention.column_sums import column_sums
    from .decode.likelihood import log_likelihood
    from .decode.samplers.autoregressive import Autoregressive
    from .decode.samplers.base import Sampler
    from .decode.samplers.confidence import Confidence
    from .errors import CaptureError, FloatscopeError, ModelError, RunError, TraceError, UsageError
    from .instrument import Model, load
    from .interventions.base import Intervention
    from .livepage.notebook import live
    from .measures.base import Measure
    from .measures.comparing import compare
    from .measures.result import Result
    from .models.family import Family
    from .plots.picture import heatmap
    from .recording.pattern import to_bertviz, to_circuitsvis
    from .recording.watch import watch
    from .registry import load_plugin, register
    from .sequences.decoding import Decoding
    from .sequences.prompt import Part, Prompt
    from .studies.study import Study
    from .tasks import evaluate
    from .trace import Trace
    from .trace.activations import Activations

lazily(__name__)
