"""A checkpoint becomes a Model."""

from . import seam
from .family import Direction, Family
from .loading import load
from .model import Model
from .pair import PAIR
from .registry import FAMILIES
from .visibility import Visibility

__all__ = ["FAMILIES", "PAIR", "Direction", "Family", "Model", "Visibility", "load", "seam"]
