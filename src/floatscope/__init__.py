"""Floatscope: an instrument for attention in masked diffusion language models.

The public names, nothing else. They are imported when first used: `floatscope --help` and reading a
saved trace do not wait for torch. What a library holds is listed there.
"""

from typing import TYPE_CHECKING

from ._lazy import lazily

if TYPE_CHECKING:
    from .attention.column_sums import column_sums
    from .decode.likelihood import log_likelihood
    from .decode.samplers import *
    from .decode.samplers.base import Sampler
    from .errors import CaptureError, FloatscopeError, ModelError, RunError, TraceError, UsageError
    from .instrument import Model, load
    from .interventions.base import Intervention, Together
    from .interventions.branching import ablated_each
    from .interventions.head_outputs import HeadMeans, HeadRows
    from .interventions.library import *
    from .interventions.patch_source import PatchSource
    from .interventions.swapping import Swap, patched_each
    from .livepage.notebook import live
    from .measures.base import Measure
    from .measures.comparing import compare
    from .measures.library import *
    from .measures.library.agreement import perturbation
    from .measures.library.dormancy import switching
    from .measures.library.remasking import remasking
    from .measures.library.staleness import staleness
    from .measures.result import Result
    from .models.family import Family
    from .plots.picture import heatmap
    from .recording.pattern import to_bertviz, to_circuitsvis
    from .recording.watch import watch
    from .registry import load_plugin, register
    from .sequences.decoding import Decoding
    from .sequences.prompt import Part, Prompt
    from .statistics import STATISTICS
    from .stats.anchors import Excess, Robust, Share, ZScore
    from .studies.claim import Claim, Number
    from .studies.study import Study
    from .tasks import (
        Answers,
        Condition,
        Record,
        evaluate,
        long_records,
        read_records,
        world_records,
    )
    from .tasks.samplers import compare_samplers
    from .trace import Trace
    from .trace.activations import Activations

lazily(__name__)
