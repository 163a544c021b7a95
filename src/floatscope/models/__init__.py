"""Read and check a checkpoint, and make a Model from it."""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from ..sequences.direction import Direction, Grid
    from . import adapters, attention_hook, parts
    from .families import FAMILIES
    from .family import Family
    from .loading import load
    from .model import Model
    from .pair import PAIR
    from .spec import ModelSpec
    from .twin import TWIN
    from .visibility import Visibility

lazily(__name__)
