"""All anchor rules by name, such as `fs.anchors.ZScore(3)`. They are defined in `stats/anchors.py`."""

from typing import TYPE_CHECKING

from ._lazy import lazily

if TYPE_CHECKING:
    from .stats.anchors import RULES, Excess, Robust, Rule, Share, ZScore

lazily(__name__)
