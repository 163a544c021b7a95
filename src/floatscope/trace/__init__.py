"""A Trace, its store on disk, and its summary in a terminal and a notebook. No torch."""

from .trace import Trace, readable

__all__ = ["Trace", "readable"]
