"""A checkpoint becomes a Model."""

from . import seam
from .family import Direction, Family
from .loading import load
from .model import Model
from .registry import FAMILIES
from .visibility import Visibility

__all__ = ["FAMILIES", "Direction", "Family", "Model", "Visibility", "load", "seam"]
