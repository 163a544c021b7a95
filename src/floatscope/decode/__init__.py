"""Decode: fill a canvas with tokens step by step, with a model and a sampler."""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from ..sequences.decoding import Change, Decoding
    from .loop import AnySampler, decode
    from .presets import all_samplers, choose_sampler, default_sampler, sampler_of
    from .samplers import *
    from .samplers import SAMPLERS
    from .samplers.base import Sampler
    from .state import State, check_fits

lazily(__name__)
