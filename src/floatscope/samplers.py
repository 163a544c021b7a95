"""All samplers by name, such as `fs.samplers.Margin(length=32)`. They are defined in `decode/samplers`."""

from typing import TYPE_CHECKING

from ._lazy import lazily

if TYPE_CHECKING:
    from .decode.presets import all_samplers
    from .decode.samplers import *
    from .decode.samplers.base import Sampler
    from .registry import SAMPLERS

lazily(__name__)
