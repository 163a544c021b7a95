"""A Trace, its store on disk, and its summary in a terminal or notebook. No torch."""

from .trace import Trace, readable

__all__ = ["Trace", "readable"]
